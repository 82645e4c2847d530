"""Images that are damaged, changed, or not what the job was rendered for: it ends before Ray and names them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import UP_S, Run, assert_failed, edit, render, render_stub, submit
from harness import CHECKOUT, IMAGE, Cluster
from image_builds import present_image

FOLDER = "/scratch/faulty-images"
MOUNT_S = 400  # until the container program has given up on an image
SUM_S = 400  # until 1 GB is read and summed, on two cores that hold three nodes


class Images:
    """A folder with a link to the cluster's image, which a test may put something else in the place of."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.path = f"{FOLDER}/x.sif"
        self.here = cluster.scratch / "faulty-images" / "x.sif"
        self.link()

    def link(self) -> None:
        """The cluster's own image under another name: never written to, only replaced."""
        self.on("ln", "-f", IMAGE, self.path)

    def on(self, *words: str) -> None:
        self.cluster.on("login", *words)

    def copy(self) -> None:
        """A file of its own in the place of the link."""
        self.on("sh", "-c", f"cp --reflink=auto {IMAGE} {FOLDER}/part && mv {FOLDER}/part {self.path}")

    def cut(self, size: int) -> None:
        self.on("sh", "-c", f"head -c {size} {IMAGE} >{FOLDER}/part && mv {FOLDER}/part {self.path}")

    def zeros(self, size: int) -> None:
        self.on("sh", "-c", f"truncate -s {size} {FOLDER}/part && mv {FOLDER}/part {self.path}")

    def record(self) -> None:
        self.cluster.in_image("login", "python3", "-m", "singularity.inspect", "--record", self.path)

    def flip(self) -> int:
        """Change one byte in the middle of the file system; size and modification time stay. Returns its place."""
        stamp, place = self.here.stat(), self.here.stat().st_size // 2
        assert stamp.st_nlink == 1, "the cluster's own image"
        with self.here.open("r+b") as stream:
            stream.seek(place)
            byte = stream.read(1)
            stream.seek(place)
            stream.write(bytes([byte[0] ^ 1]))
        self.on("touch", "-d", f"@{stamp.st_mtime}", self.path)
        return place


@pytest.fixture
def images(cluster: Cluster) -> Iterator[Images]:
    cluster.on("login", "rm", "-rf", FOLDER)
    cluster.on("login", "mkdir", FOLDER)
    yield Images(cluster)
    cluster.on("login", "rm", "-rf", FOLDER)


def stub(images: Images, name: str, *settings: str) -> Path:
    return render_stub(images.cluster, name, "", f"rehearsal.image={images.path}", *settings)


def unpinned(images: Images, name: str) -> Path:
    """A job as it is rendered where the login node does not see the image."""
    script = stub(images, name)
    text, count = re.subn(
        r"^IMAGE_SIZE=\S+ IMAGE_SHA256=\S+",
        "IMAGE_SIZE='' IMAGE_SHA256=''",
        script.read_text(),
        flags=re.MULTILINE,
    )
    assert count == 1
    script.write_text(text)
    return script


def refused(images: Images, script: Path, *texts: str, within: float) -> dict[str, Any]:
    """The verdict of a job that must end before Ray starts."""
    run = submit(images.cluster, script)
    ended = images.cluster.wait(run.job_id, within)
    verdict = assert_failed(run, ended, code=20, component="setup", node="n1")
    assert verdict["kind"] == "image", verdict
    for text in (images.path, *texts):
        assert text in verdict["cause"], verdict
    assert not started_ray(run)
    return verdict


def started_ray(run: Run) -> bool:
    return any(run.folder.glob("logs/*ray*"))


def test_a_recorded_image_runs_and_is_summed_once(images: Images):
    images.record()
    recorded = Path(f"{images.here}.sha256").read_text().split()[0]
    script = stub(images, "image-healthy")
    assert f"IMAGE_SHA256={recorded} " in script.read_text()
    run = submit(images.cluster, script)
    ended = images.cluster.wait(run.job_id, UP_S)
    assert ended.state == "COMPLETED", run.told()
    assert run.manifest()["image"]["sha256"] == recorded


def test_one_changed_byte_of_the_same_size(images: Images):
    images.copy()
    images.record()
    script = stub(images, "image-tampered")
    images.flip()
    verdict = refused(images, script, "has the SHA-256 sum", within=SUM_S)
    assert "render the job again" in verdict["what_to_do"]


def test_a_newer_image_in_its_place(images: Images):
    script = stub(images, "image-newer")
    images.cut(50_000_000)
    size = (images.cluster.scratch / "img" / "verl-cpu.sif").stat().st_size
    refused(images, script, "has 50000000 bytes", f"had {size} when the job was rendered", within=UP_S)


@pytest.mark.parametrize(("name", "size"), [("truncated", 100_000_000), ("header", 2000), ("empty", 0)])
def test_a_cut_image_that_the_login_node_did_not_see(images: Images, name: str, size: int):
    """Nothing is pinned: the container program says what is wrong."""
    script = unpinned(images, f"image-{name}")
    images.cut(size)
    refused(images, script, "is damaged or cannot be started by apptainer: FATAL:", within=MOUNT_S)


def test_a_zero_filled_head_that_the_login_node_did_not_see(images: Images):
    script = unpinned(images, "image-zeros")
    images.zeros(100_000_000)
    refused(images, script, "is damaged or cannot be started by apptainer: FATAL:", within=MOUNT_S)


def test_a_record_that_came_with_the_image(images: Images):
    """Not there at render; the job reads the record beside the image."""
    script = unpinned(images, "image-record")
    images.copy()
    images.record()
    images.flip()
    refused(images, script, "has the SHA-256 sum", "recorded is", within=SUM_S)


def test_packages_of_another_stack(images: Images):
    """The packages inside are compared before Ray starts."""
    script = render(images.cluster, "image-stack", "cluster.nodes=1", f"rehearsal.image={images.path}")
    text = script.read_text(encoding="utf-8")
    named, count = re.subn(
        r'(launch\.engines\.verify --verl 0\.9\.1)( "\$\{STACK\[@\]\}")?', r"\1 --stack verl-0.6.1", text
    )
    assert count == 1
    script.write_text(named, encoding="utf-8")
    run = submit(images.cluster, script)
    ended = images.cluster.wait(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=19, component="check", node="n1")
    assert verdict["kind"] == "image", verdict
    assert "stack verl-0.6.1 has " in verdict["evidence"]["text"]
    assert not started_ray(run)


def where(script: Path) -> None:
    """Let the trainer of a stub job tell, before it trains, which copies of the toolkit it has."""
    tell = "import launch, reward, singularity; print(*(m.__path__[0] for m in (launch, reward, singularity)))"
    old = f'TRAINER=("$PYTHON" {CHECKOUT}/tests/cluster/stub_trainer.py '
    stub_here = script.parent / "stub_trainer.py"
    stub_here.write_text((CHECKOUT / "tests" / "cluster" / "stub_trainer.py").read_text())
    new = (
        f"""bash -c '"$0" -c "{tell}"; exec "$0" /scratch/{script.parent.name}/stub_trainer.py "$@"' "$PYTHON" """
    )
    edit(script, old, f"TRAINER=({new}")


def toolkits(run: Run) -> list[str]:
    told = (run.folder / "logs" / "n1-trainer.log").read_text()
    return sorted({str(Path(folder).parent) for folder in told.splitlines()[0].split()})


def test_the_jobs_toolkit_takes_the_place_of_the_images(cluster: Cluster):
    """The image has one of its own, which may be another."""
    script = render_stub(cluster, "toolkit-bind", "")
    where(script)
    run = submit(cluster, script)
    assert cluster.wait(run.job_id, UP_S).state == "COMPLETED", run.told()
    assert toolkits(run) == [str(CHECKOUT)]


@pytest.mark.slow
def test_the_images_toolkit_runs_the_job(cluster: Cluster):
    """From the supervisor to the merge; only batch.sh comes from the host's."""
    path, _ = present_image(cluster)
    script = render_stub(cluster, "toolkit-image", "", f"rehearsal.image={path}", "container.toolkit=image")
    assert "--bind " + str(CHECKOUT) + "\n" not in script.read_text()
    where(script)
    run = submit(cluster, script)
    assert cluster.wait(run.job_id, UP_S).state == "COMPLETED", run.told()
    assert toolkits(run) == ["/opt/toolkit"]
