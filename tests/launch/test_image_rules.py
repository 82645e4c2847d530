"""The image of a job, looked at on the login node: whole, the recorded one, and of the stack that is asked for."""

import errno
import os
from pathlib import Path

import pytest
import sif_files
from sif_files import write_sif

from launch.checks import check_job
from launch.checks.image import check_checksum, check_image
from launch.checks.stack import check_stack
from launch.config import JobError, load_job
from launch.finding import Finding
from launch.image_stack import JobStack, job_image, job_stack
from launch.review import EngineCheck, review
from launch.script import RenderRequest, render_script
from launch.sizing.gpus import find_gpu
from singularity import checksum
from singularity.image import Image, read_image
from singularity.stack import load_stack
from singularity.toolkit import content_hash

NAME = "images/verl-0.9.1.sif"
OF_0_9_1 = {"launcher.stack": "verl-0.9.1"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def found(project: Path, *assignments: str, rehearse: bool = False) -> list[Finding]:
    """Everything that the rules of images and stacks say."""
    job = load_job("grpo", None, ("actor.fp8=null", *assignments))
    image = job_image(job, project, rehearse=rehearse)
    said = job_stack(job, image, rehearse=rehearse)
    return [
        *check_image(job, image, said),
        *check_stack(job, image, said, rehearse=rehearse),
        *check_checksum(job, image),
    ]


def only(project: Path, *assignments: str, rehearse: bool = False) -> Finding:
    (finding,) = found(project, *assignments, rehearse=rehearse)
    return finding


# ---- B09: what is no image


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("docker://verlai/verl:app-verl0.9.1-sglang", "images/verl-app-verl0.9.1-sglang.sif"),
        ("library://a/b/c", "images/c.sif"),
        ("oras://registry.example/x:1", "images/x-1.sif"),
    ],
)
def test_b09_an_address_is_built_first(tmp_path: Path, name: str, file: str):
    """B09: not by every node, inside the job, into a home directory."""
    finding = only(tmp_path, f"container.image='{name}'")
    assert (finding.id, finding.severity) == ("image-format", "error")
    assert f"apptainer build {file} {name}" in finding.remedy
    assert "APPTAINER_CACHEDIR" in finding.remedy


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html>" + b" " * 100, "an HTML or XML page"),
        (bytes(5000), "zero-filled"),
        (b"\x1f\x8b" * 2000, "gzip-compressed, not an image"),
    ],
)
def test_b09_a_file_that_is_no_image(tmp_path: Path, content: bytes, says: str):
    (tmp_path / "x.sif").write_bytes(content)
    finding = only(tmp_path, "container.image=x.sif")
    assert (finding.id, finding.severity) == ("image-format", "error")
    assert finding.message.startswith(f"container.image: {tmp_path}/x.sif: ")
    assert says in finding.message


def test_b09_a_sandbox_folder_passes(tmp_path: Path):
    (tmp_path / "box" / "bin").mkdir(parents=True)
    (tmp_path / "box" / "bin" / "sh").symlink_to("/no/such/shell")  # a link of the image's own
    (tmp_path / "built" / ".singularity.d").mkdir(parents=True)
    assert found(tmp_path, "container.image=box") == found(tmp_path, "container.image=built") == []


def test_b09_a_folder_that_is_no_sandbox(tmp_path: Path):
    (tmp_path / "models").mkdir()
    finding = only(tmp_path, "container.image=models")
    assert (finding.id, finding.severity) == ("image-format", "error")
    assert "neither bin/sh nor .singularity.d" in finding.message


def test_a_sandbox_with_a_file_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    box = tmp_path / "box"
    (box / "bin").mkdir(parents=True)
    (box / "bin" / "sh").touch()

    def closed(path: Path) -> Image:  # root may read what has no mode
        raise PermissionError(errno.EACCES, "Permission denied", str(path / ".singularity.d" / "labels.json"))

    monkeypatch.setattr("launch.image_stack.read_image", closed)
    finding = only(tmp_path, "container.image=box")
    assert finding.severity == "error"
    assert f"{box}/.singularity.d/labels.json cannot be read: Permission denied" in finding.message
    assert finding.remedy == f"make it readable: chmod -R u+rX {box}"
    assert found(tmp_path, "container.image=none.sif") == []  # a rule of files tells it


# ---- whole, and the recorded one


def test_a_whole_image_has_nothing_to_say(tmp_path: Path):
    image = write_sif(tmp_path / NAME)
    assert found(tmp_path) == []
    checksum.record(image)
    assert found(tmp_path) == []


def test_a_truncated_image_is_damaged(tmp_path: Path):
    image = write_sif(tmp_path / NAME)
    image.write_bytes(image.read_bytes()[:-1])
    finding = only(tmp_path)
    assert (finding.id, finding.severity) == ("image-damaged", "error")
    assert "truncated" in finding.message
    assert "again" in finding.remedy


def test_one_changed_byte_is_found_by_the_recorded_sum(tmp_path: Path):
    image = write_sif(tmp_path / NAME)
    checksum.record(image)
    content = bytearray(image.read_bytes())
    content[-100] ^= 1
    image.write_bytes(content)
    finding = only(tmp_path)
    assert (finding.id, finding.severity) == ("image-checksum", "error")
    assert found(tmp_path, "container.verify=false") == []


def test_a_record_that_says_nothing_of_the_image_is_an_error(tmp_path: Path):
    image = write_sif(tmp_path / NAME)
    checksum.sidecar(image).write_text("nonsense\n")
    assert (only(tmp_path).id, only(tmp_path).severity) == ("image-checksum", "error")


def test_without_a_recorded_sum_who_asks_for_it_is_told(tmp_path: Path):
    write_sif(tmp_path / NAME)
    finding = only(tmp_path, "container.verify=true")
    assert (finding.id, finding.severity) == ("image-checksum", "warning")
    assert "--record" in finding.remedy


def test_the_script_has_the_size_and_the_sum(tmp_path: Path):
    image = write_sif(tmp_path / NAME)

    def settings(*assignments: str) -> str:
        text = render_script(RenderRequest(load_job("grpo", None, assignments), tmp_path, "run.sh"))
        return next(line for line in text.splitlines() if line.startswith("IMAGE_SIZE="))

    size = image.stat().st_size
    assert settings().startswith(f"IMAGE_SIZE={size} IMAGE_SHA256='' #")
    recorded = checksum.record(image)
    assert settings().startswith(f"IMAGE_SIZE={size} IMAGE_SHA256={recorded} #")
    assert settings("container.verify=false").startswith(f"IMAGE_SIZE={size} IMAGE_SHA256='' #")
    image.unlink()
    assert settings().startswith("IMAGE_SIZE='' IMAGE_SHA256='' #")


# ---- the stack


def test_an_unknown_stack_is_told_with_the_closest_first():
    with pytest.raises(JobError, match=r"there is no stack 'verl-0\.9'; one of: verl-0\.9\.1, "):
        load_job("grpo", None, ["container.stack=verl-0.9"])


def test_the_named_stack_goes_before_the_label_and_the_label_before_the_version(tmp_path: Path):
    def said(*assignments: str) -> tuple[str, bool]:
        job = load_job("grpo", None, assignments)
        found = job_stack(job, job_image(job, tmp_path, rehearse=False), rehearse=False)
        return found.stack.name, found.known

    assert said("engine.verl=0.8.0") == ("verl-0.8.0", False)
    write_sif(tmp_path / NAME, OF_0_9_1)
    assert said("engine.verl=0.8.0") == ("verl-0.9.1", True)
    assert said("engine.verl=0.8.0", "container.stack=verl-0.6.1") == ("verl-0.6.1", True)


@pytest.mark.parametrize(
    ("assignments", "says"),
    [
        (("engine.verl=0.8.0",), "has verl 0.9.1, the job has engine.verl=0.8.0"),
        (("container.cuda='11.8'",), "has CUDA"),
        (("cluster.gpu=v100",), "cluster.gpu=v100 is V100 with 7.0"),
    ],
)
@pytest.mark.parametrize("by", ["label", "job"])
def test_a_job_that_is_not_for_its_stack(tmp_path: Path, assignments: tuple[str, ...], says: str, by: str):
    write_sif(tmp_path / NAME, OF_0_9_1 if by == "label" else {})
    named = () if by == "label" else ("container.stack=verl-0.9.1",)
    finding = only(tmp_path, *assignments, *named)
    assert finding.severity == "error"
    assert says in finding.message
    assert ("the label of verl-0.9.1.sif" if by == "label" else "container.stack=verl-0.9.1") in finding.message


def test_what_is_only_guessed_from_the_version_is_not_told(tmp_path: Path):
    write_sif(tmp_path / NAME)
    assert found(tmp_path, "container.cuda='11.8'", "cluster.gpu=v100", "rollout.engine=vllm") == []


def test_a_label_of_another_stack_than_the_jobs(tmp_path: Path):
    write_sif(tmp_path / NAME, OF_0_9_1)
    told = found(tmp_path, "container.stack=verl-0.8.0", "engine.verl=0.8.0")
    assert [finding.id for finding in told] == ["image-stack"]
    assert "says verl-0.9.1" in told[0].message


def test_a_label_of_no_known_stack_is_a_warning(tmp_path: Path):
    write_sif(tmp_path / NAME, {"launcher.stack": "verl-9"})
    assert (only(tmp_path).id, only(tmp_path).severity) == ("image-stack", "warning")


def test_a_stack_of_the_cpu_has_no_gpus(tmp_path: Path):
    finding = only(tmp_path, "container.stack=cpu")
    assert (finding.id, finding.severity) == ("image-stack", "error")
    assert "for a CPU" in finding.message


def test_an_engine_that_the_stack_lacks(tmp_path: Path):
    can = load_stack("verl-0.6.1").can
    given = ("container.stack=verl-0.6.1", "engine={verl: 0.6.1, mode: sync}", "rollout.engine=vllm")
    assert [finding.id for finding in found(tmp_path, *given)] == ([] if can.vllm.able else ["image-engine"])
    assert found(tmp_path, *given[:2]) == []


def with_packages(project: Path, packages: dict[str, str], definition: str | None = None, **more: str) -> None:
    labels = {f"launcher.package.{name}": version for name, version in packages.items()}
    labels |= more or {"launcher.stack.content": load_stack("cpu").content}
    image = write_sif(project / "images" / "verl-cpu.sif")
    image.write_bytes(sif_files.with_labels({"launcher.stack": "cpu", **labels}, definition))


def test_packages_of_the_labels_are_those_of_the_stack(tmp_path: Path):
    wanted = load_stack("cpu").pins
    with_packages(tmp_path, wanted)
    assert found(tmp_path, rehearse=True) == []
    with_packages(tmp_path, {**wanted, "torch": "1.0"})
    finding = only(tmp_path, rehearse=True)
    assert (finding.id, finding.severity) == ("image-packages", "error")
    assert f"torch 1.0, the stack has {wanted['torch']}" in finding.message
    assert "ray" not in finding.message.replace("array", "")


def test_a_package_that_the_labels_lack_is_missing(tmp_path: Path):
    wanted = load_stack("cpu").pins
    with_packages(tmp_path, {name: version for name, version in wanted.items() if name != "ray"})
    assert f"says: ray is missing, the stack has {wanted['ray']}" in only(tmp_path, rehearse=True).message
    with_packages(tmp_path, {"ray": wanted["ray"]})
    message = only(tmp_path, rehearse=True).message
    assert message.count("is missing") == 5
    assert message.endswith(f"; {len(wanted) - 1} in all")


def test_what_the_labels_of_another_build_lack_is_not_missing(tmp_path: Path):
    """As singularity.inspect says: only those of singularity.build are complete."""
    with_packages(tmp_path, {"ray": load_stack("cpu").pins["ray"]}, note="by hand")
    assert found(tmp_path, rehearse=True) == []
    with_packages(tmp_path, {"ray": "0.1"}, note="by hand")
    assert "says: ray 0.1, the stack has" in only(tmp_path, rehearse=True).message


def test_labels_of_the_image_that_it_was_made_from_say_nothing(tmp_path: Path):
    with_packages(tmp_path, {**load_stack("cpu").pins, "ray": "0.1"}, "Bootstrap: localimage\nFrom: cpu.sif\n")
    assert found(tmp_path, rehearse=True) == []


@pytest.mark.parametrize(("label", "severity"), [("verl-0.9.1", "warning"), ("cpu", None)])
def test_a_rehearsal_runs_in_a_stack_of_the_cpu(tmp_path: Path, label: str, severity: str | None):
    write_sif(tmp_path / "images" / "verl-cpu.sif", {"launcher.stack": label})
    assert [finding.severity for finding in found(tmp_path, rehearse=True)] == ([severity] if severity else [])


def test_cuda_is_taken_from_the_stack(tmp_path: Path):
    """FP8 needs a CUDA that is known; who names the stack need not name its CUDA."""
    words = ("actor.fp8=blockwise", "cluster.gpu=h200", "container.stack=verl-0.9.1")
    told = check_job(load_job("grpo", None, words), tmp_path, rehearse=False, sample_data=False)
    assert not [finding for finding in told if finding.id == "fp8-unknown"]


def test_the_job_warns_of_an_older_driver(tmp_path: Path):
    job = load_job("grpo", None, ["container.stack=verl-0.9.1"])
    text = render_script(RenderRequest(job, tmp_path, "run.sh"))
    said = job_stack(job, job_image(job, tmp_path, rehearse=False), rehearse=False)
    assert f" --min-driver {said.driver} " in text
    assert "--min-driver" not in render_script(RenderRequest(load_job("grpo"), tmp_path, "run.sh"))


# ---- the toolkit in the image


@pytest.mark.parametrize(
    ("label", "says"), [("", "has no toolkit"), ("0123456789ab", "another toolkit (0123456789ab)"), ("own", None)]
)
def test_the_toolkit_in_the_image_is_this_one(tmp_path: Path, label: str, says: str | None):
    inside = content_hash() if label == "own" else label
    write_sif(tmp_path / NAME, {"launcher.toolkit": inside} if inside else {})
    told = found(tmp_path, "container.toolkit=image")
    assert [finding.id for finding in told] == (["image-toolkit"] if says else [])
    assert all(str(says) in finding.message for finding in told)


def test_the_toolkit_in_the_image_runs_the_job(tmp_path: Path):
    text = render_script(RenderRequest(load_job("grpo", None, ["container.toolkit=image"]), tmp_path, "run.sh"))
    settings, _, rest = text.partition("# ---- the container")
    toolkit = next(line for line in settings.splitlines() if line.startswith("TOOLKIT=")).partition("=")[2]
    assert "INSIDE=/opt/toolkit" in rest
    assert '"$PYTHON" "$INSIDE/launch/node.py"' in rest
    assert '--host-toolkit "$TOOLKIT"' in rest
    assert "${oc.env:LAUNCH_TOOLKIT}/reward/client.py" in rest
    assert f"--bind {toolkit}\n" not in rest
    assert toolkit not in rest


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_an_image_beside_an_odd_record_or_in_the_place_of_a_pipe_is_an_error(kind: str, tmp_path: Path):
    image = tmp_path / "images" / "x.sif"
    image.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(image)
    else:
        write_sif(image)
        image.with_name("x.sif.sha256").mkdir()
    job = load_job("grpo", None, ["container.image=images/x.sif"])
    found = job_image(job, tmp_path, rehearse=False)
    assert found.damaged is not None
    said = job_stack(job, found, rehearse=False)
    assert any(finding.severity == "error" for finding in check_image(job, found, said))


def test_a_render_looks_at_the_image_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_sif(tmp_path / NAME)
    looks = []

    def look(path: Path) -> Image:
        looks.append(path)
        return read_image(path)

    monkeypatch.setattr("launch.image_stack.read_image", look)
    review(load_job("grpo"), tmp_path, "run.sh", engine=EngineCheck(wanted=False))
    assert looks == [tmp_path / NAME]


ARM = b"\1\0\0\0\2\0\0\0" + b"04\0"  # of the system partition: squashfs, primary system, arm64


@pytest.mark.parametrize(
    ("gpu", "arm", "severity"),
    [
        ("gh200", False, "error"),
        ("gb200", False, "error"),
        ("gb300", False, "error"),
        ("gh200", True, None),
        ("h100", True, "warning"),  # Arm servers with it exist
        ("h100", False, None),
        ("none-known", True, None),
    ],
)
def test_an_image_for_another_cpu_than_the_nodes_have(tmp_path: Path, gpu: str, arm: bool, severity: str | None):
    image = write_sif(tmp_path / NAME)
    if arm:
        image.write_bytes(sif_files.put(bytearray(image.read_bytes()), sif_files.SYSTEM, extra=ARM))
    told = found(tmp_path, f"cluster.gpu={gpu}")
    assert [(finding.id, finding.severity) for finding in told] == (
        [("image-architecture", severity)] if severity else []
    )
    inside = "arm64" if arm else "amd64"
    assert all(f"{image} is for {inside}" in finding.message and gpu in finding.message for finding in told)


def test_a_rehearsal_has_no_gpus_whose_cpu_counts(tmp_path: Path):
    write_sif(tmp_path / "images" / "verl-cpu.sif")
    assert found(tmp_path, "cluster.gpu=gh200", rehearse=True) == []


@pytest.mark.parametrize(
    ("stack", "gpu", "runs"),
    [
        ("verl-0.6.1", "h200", True),
        ("verl-0.6.1", "a40", True),  # 8.6: code for 8.0 runs there
        ("verl-0.6.1", "b200", True),
        ("verl-0.6.1", "b300", False),  # 10.3: code for 10.0 alone does not
        ("verl-0.9.1", "b300", True),
        ("verl-0.9.1", "v100", False),
    ],
)
def test_gpus_that_the_packages_have_code_for(stack: str, gpu: str, runs: bool):
    found = find_gpu(gpu)
    assert found is not None
    assert JobStack(load_stack(stack), "a test", known=True).runs_on(found) is runs
