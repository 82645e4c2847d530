"""The image before srun: it is what was rendered and what its record says, or the job ends and names it."""

import hashlib
import json
from pathlib import Path

import pytest
from labelled_sif import write_sif
from slurm_stubs import Node, Outcome, commands, named_options

from launch.config import load_job
from launch.rehearsal.shrink import rehearse
from launch.script import RenderRequest, render_script
from launch.supervisor.causes import CAUSES
from launch.supervisor.verdict import read_failure
from singularity import checksum

DONE = 'echo "{}" >"$STUB_RUN_DIR/verdict.json"; echo 0 >"$STUB_RUN_DIR/.over-0"'


class Job:
    """A rehearsal in a project with an awkward name, on a node of stubs."""

    def __init__(self, root: Path) -> None:
        self.root, self.project = root, root / "a b'$c"
        self.image = write_sif(self.project / "images" / "verl-cpu.sif")
        self.node = Node(root / "node")
        self.node.program("scontrol", '#!/bin/bash\n[[ $1 != show ]] || echo "   StdErr=$STUB_LOG/../said"\n')
        self.script = root / "job.sh"

    def render(self, *assignments: str) -> None:
        job = load_job("grpo", None, assignments)
        request = RenderRequest(rehearse(job), self.project, "run.sh", True, True, given=job)
        self.script.write_text(render_script(request))

    def run(self, inside: str = DONE) -> Outcome:
        return self.node.sbatch(self.script, {"STUB_INSIDE": inside})

    def refused(self, *texts: str) -> dict:
        """The verdict of the job, which must end before its node starts."""
        done = self.run()
        assert (done.code, done.containers) == (20, [])
        verdict = json.loads((self.project / "outputs/qwen3-4b-grpo/run-77/verdict.json").read_text())
        read_failure(verdict)
        assert verdict["kind"] in CAUSES
        for text in (str(self.image), *texts):
            assert text in verdict["cause"]
        assert verdict["cause"] in done.err
        return verdict


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Job(tmp_path)


def flip(image: Path) -> None:
    content = bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)


def test_an_image_as_it_was_rendered_runs(job: Job):
    job.render()
    done = job.run()
    assert (done.code, len(done.containers)) == (0, 1), done.err
    assert not [word for word in done.containers[0]["command"] if word.startswith("image_sha256")]


def test_a_sum_that_is_computed_is_not_computed_again(job: Job):
    recorded = checksum.record(job.image)
    job.render()
    done = job.run()
    assert done.code == 0, done.err
    assert f"image_sha256={recorded}" in done.containers[0]["command"]


def test_another_size_is_told_with_both_numbers(job: Job):
    size = job.image.stat().st_size
    job.render()
    job.image.write_bytes(job.image.read_bytes()[:-7])
    verdict = job.refused(f"has {size - 7} bytes", f"had {size}")
    assert verdict["kind"] == "image"
    assert "render the job again" in verdict["what_to_do"]


@pytest.mark.parametrize("when", ["pinned", "recorded since", "not there at render"])
def test_a_changed_byte_is_found_by_the_sum(job: Job, when: str):
    recorded = checksum.record(job.image)
    if when == "not there at render":
        job.image.rename(job.root / "kept")
        job.render()
        (job.root / "kept").rename(job.image)
    elif when == "recorded since":
        checksum.sidecar(job.image).unlink()
        job.render()
        checksum.record(job.image)
    else:
        job.render()
        checksum.sidecar(job.image).unlink()
    flip(job.image)
    found = hashlib.sha256(job.image.read_bytes()).hexdigest()
    assert job.refused(found, recorded)["kind"] == "image"


def test_an_image_that_was_replaced_with_its_record_is_another(job: Job):
    checksum.record(job.image)
    job.render()
    flip(job.image)
    checksum.record(job.image)
    job.refused("SHA-256")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("{sum}  verl-cpu.sif\n", True),
        ("{sum} *verl-cpu.sif\r\n", True),
        ("{SUM}\n", True),
        ("SHA256 (verl-cpu.sif) = {sum}\n", True),
        ("{other}  another.sif\n{sum}  ./verl-cpu.sif\n", True),
        ("{other}  verl-cpu.sif\n", False),
        ("", False),
        ("nonsense\n", False),
        ("\0\0\0", False),
    ],
)
def test_what_a_record_may_say(job: Job, text: str, good: bool):
    """The job reads it with bash, where the image was not there when it was rendered."""
    job.image.rename(job.root / "kept")
    job.render()
    (job.root / "kept").rename(job.image)
    value = hashlib.sha256(job.image.read_bytes()).hexdigest()
    other = hashlib.sha256(b"").hexdigest()
    checksum.sidecar(job.image).write_text(text.format(sum=value, SUM=value.upper(), other=other))
    if good:
        assert job.run().code == 0
    else:
        job.refused()


def test_only_the_size_without_verify(job: Job):
    checksum.record(job.image)
    job.render("container.verify=false")
    flip(job.image)
    assert job.run().code == 0
    job.image.write_bytes(b"x")
    job.refused("has 1 bytes")


def test_a_job_is_cancelled_while_its_image_is_read(job: Job):
    checksum.record(job.image)
    job.render()
    job.node.program("sha256sum", '#!/bin/bash\ntouch "$STUB_LOG/../up"\nexec sleep 30\n')
    running = job.node.start(job.script)
    while not (job.root / "node" / "up").exists():
        assert running.poll() is None
    running.terminate()
    done = job.node.end(running, 10)
    assert (done.code, done.containers) == (143, [])


def test_a_container_that_does_not_start_names_the_image(job: Job):
    job.render()
    fatal = "FATAL:   container creation failed: mount hook function failure: squashfuse_ll: bad superblock"
    done = job.run(f'echo "run directory: x" >"$STUB_LOG/../said"; echo "{fatal}" >>"$STUB_LOG/../said"; exit 255')
    assert done.code == 20
    verdict = json.loads((job.project / "outputs/qwen3-4b-grpo/run-77/verdict.json").read_text())
    assert (verdict["component"], verdict["kind"], verdict["exit_code"]) == ("setup", "image", 20)
    assert f"image {job.image} is damaged or cannot be started by apptainer: FATAL: container" in verdict["cause"]


def test_the_stack_of_a_rehearsal_is_compared_in_slurm_alone(job: Job):
    write_sif(job.image, {"launcher.stack": "cpu"})
    job.render()
    done = job.run()
    _, found = commands(done.containers[0]["command"])
    assert named_options(found["::check"])["--stack"] == "cpu"
    assert "  STACK=()\n" in job.script.read_text()


def test_the_toolkit_of_the_image(job: Job):
    job.render("container.toolkit=image")
    done = job.run()
    assert done.code == 0, done.err
    words = done.containers[0]["command"]
    assert words[1] == "/opt/toolkit/launch/node.py"
    assert not named_options(words)["--host-toolkit"].startswith("/opt/toolkit")
