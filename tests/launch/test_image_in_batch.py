"""The image before srun: it is what was rendered and what its record says, or the job ends and names it."""

import hashlib
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from sif_files import write_sif
from slurm_stubs import Node, Outcome, commands, named_options

from launch.config import load_job
from launch.rehearsal.shrink import rehearse
from launch.script import RenderRequest, render_script
from launch.supervisor.causes import CAUSES
from launch.supervisor.verdict import read_failure
from singularity import checksum
from singularity.sif import ImageDamaged
from singularity.toolkit import TOOLKIT, content_hash

BATCH = TOOLKIT / "launch" / "batch.sh"
STARTS = "run.sh: srun starts the nodes"
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

    def refused(self, *texts: str, image: Path | None = None) -> dict:
        """The verdict of the job, which must end before its node starts, and name its image, or this one."""
        done = self.run()
        assert (done.code, done.containers) == (20, [])
        verdict = json.loads((self.project / "outputs/qwen3-4b-grpo/run-77/verdict.json").read_text())
        read_failure(verdict)
        assert verdict["kind"] in CAUSES
        for text in (str(image or self.image), *texts):
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


RECORDS = [  # of an image whose name is awkward for patterns; {other} is the sum of something else
    ("{sum}  {name}\n", True),
    ("{sum} *{name}\r\n", True),
    ("{SUM}\n", True),
    ("  {sum}\r\n\r\n", True),
    ("SHA256 ({name}) = {sum}\n", True),
    ("{other}  another.sif\n{sum}  ./{name}\n", True),
    ("{other}  old-{name}\n{sum}  {name}\n", True),
    ("{other}  {name}.old\n{other} *x/old {name}\n{sum}  /data/images/{name}", True),
    ("{sum}  {name}\n{sum}  other/{name}\n", True),
    ("SHA2-256({name})= {sum}\n", True),
    ("SHA256({name})= {sum}\r\n", True),
    ("# of the build\n{sum}  {name}\n#{other}  {name}\n", True),
    ("\ufeff{sum}  {name}\r\n", True),
    ("\ufeff{sum}\f\r\r\n", True),
    ("# {sum}  {name}\n", False),
    ("{sum}  {name}\r\r\n", False),
    ("{sum}\u00a0\n", False),
    ("\u00a0\n{sum}\n", False),
    ("{sum}\n\ufeff{sum}\n", False),
    ("SHA2-256(old-{name})= {sum}\n", False),
    ("SHA512({name})= {sum}\n", False),
    ("{other}  old-{name}\n", False),
    ("{sum}  old-{name}\n", False),
    ("{sum}  v1+x.sif\n", False),
    ("{sum}  {name}\n{other}  {name}\n", False),
    ("{sum}\n{other}  other.sif\n", False),
    ("{sum}  {name}\n{other}  other.sif\n{sum}\n", False),
    ("{sum}  {name}\nnonsense\n", False),
    ("{sum}0  {name}\n", False),
    ("{other}  {name}\n", False),
    ("", False),
    ("nonsense\n", False),
    ("\0\0\0", False),
]


@pytest.mark.parametrize(("text", "good"), RECORDS)
def test_what_a_record_may_say(tmp_path: Path, text: str, good: bool):
    """Python reads it at render, bash in the job where the image was not there when it was rendered."""
    image = tmp_path / "a b" / "v[1].sif"
    image.parent.mkdir()
    image.write_bytes(b"an image")
    value, other = hashlib.sha256(b"an image").hexdigest(), hashlib.sha256(b"").hexdigest()
    text = text.format(sum=value, SUM=value.upper(), other=other, name=image.name)
    checksum.sidecar(image).write_bytes(text.encode())
    assert (recorded_by_bash(image) == value) == good
    try:
        assert (checksum.recorded(image) == value) == good
    except ImageDamaged:
        assert not good


def test_a_link_has_the_record_of_its_target_unless_it_has_its_own(tmp_path: Path):
    image, link = tmp_path / "verl-1.sif", tmp_path / "of all" / "latest.sif"
    image.write_bytes(b"an image")
    link.parent.mkdir()
    (tmp_path / "stable.sif").symlink_to("verl-1.sif")
    link.symlink_to("../stable.sif")
    assert checksum.recorded(link) is None
    value = checksum.record(image)
    assert recorded_by_bash(link) == checksum.recorded(link) == value
    checksum.sidecar(image).write_text(f"{value}  latest.sif\n")
    assert recorded_by_bash(link) == ""
    with pytest.raises(ImageDamaged, match=r"verl-1\.sif\.sha256.*not 'verl-1\.sif'"):
        checksum.recorded(link)
    checksum.sidecar(link).write_text(f"{value}  latest.sif\n")
    assert recorded_by_bash(link) == checksum.recorded(link) == value


@pytest.mark.parametrize("named", [False, True])
def test_a_link_whose_target_changed_ends_the_job(job: Job, named: bool):
    """Where the image was not there when the job was rendered."""
    recorded = checksum.record(job.image)
    kept = job.image.rename(job.image.with_name("verl-1.sif"))
    record = checksum.sidecar(job.image).rename(checksum.sidecar(kept))
    job.render()
    job.image.symlink_to(kept)
    if named:
        record.write_text(f"{recorded}  verl-1.sif\n")
        flip(kept)
        job.refused("SHA-256", recorded)
    else:
        assert job.refused("verl-1.sif.sha256 has no SHA-256 sum of verl-1.sif", image=kept)["kind"] == "image"


def recorded_by_bash(image: Path) -> str:
    program = 'IMAGE=$1; source "$2"; recorded_sum'
    command = ["bash", "-c", program, "bash", str(image), str(BATCH)]
    variables = {"PATH": os.environ["PATH"], "IMAGE_SHA256": ""}
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False).stdout.strip()


def test_a_sum_without_a_name_beside_others_is_of_none(tmp_path: Path):
    image = tmp_path / "verl.sif"
    checksum.sidecar(image).write_text(f"{'1' * 64}\n{'2' * 64}  other.sif\n")
    assert recorded_by_bash(image) == ""


@pytest.mark.parametrize("name", ["a\\b.sif", "a\nb.sif"])
def test_a_name_that_sha256sum_escapes(tmp_path: Path, name: str):
    image = tmp_path / name
    image.write_bytes(b"an image")
    with checksum.sidecar(image).open("wb") as record:
        subprocess.run(["sha256sum", name], cwd=tmp_path, stdout=record, check=True)
    assert recorded_by_bash(image) == checksum.recorded(image) == hashlib.sha256(b"an image").hexdigest()


def test_a_record_of_another_image_ends_the_job(job: Job):
    """Where the image was not there when the job was rendered; the command to type is one that bash takes."""
    job.image.rename(job.root / "kept")
    job.render()
    (job.root / "kept").rename(job.image)
    value = hashlib.sha256(job.image.read_bytes()).hexdigest()
    checksum.sidecar(job.image).write_text(f"{value}  old-verl-cpu.sif\n")
    verdict = job.refused("has no SHA-256 sum of verl-cpu.sif")
    typed = verdict["what_to_do"].removeprefix("record it again: ")
    assert shlex.split(typed)[-1] == str(job.image)


def test_only_the_size_without_verify(job: Job):
    checksum.record(job.image)
    job.render("container.verify=false")
    flip(job.image)
    assert job.run().code == 0
    job.image.write_bytes(b"x")
    job.refused("has 1 bytes")


def test_a_job_is_cancelled_as_its_image_begins_to_be_read(tmp_path: Path):
    """Between the start of the child and the command that keeps its pid."""
    os.mkfifo(tmp_path / "x.sif")  # without a writer: who reads it waits
    now = "'[[ $BASH_COMMAND != WAITS_FOR=?! ]] || kill -TERM $$'"
    program = f'source "$1"; trap end_before_srun TERM; set -T; trap {now} DEBUG; sum_image'
    settings = {
        "NAME": "job",
        "IMAGE": "x.sif",
        "RUN_DIR": ".",
        "CHECKPOINT_DIR": ".",
        "ATTEMPT": "0",
        "STAGED": "",
    }
    # It ends when nobody holds its output any more.
    done = subprocess.run(
        ["bash", "-c", program, "bash", BATCH],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, json.loads((tmp_path / "verdict.json").read_text())["state"]) == (143, "cancelled")


def test_a_job_is_cancelled_while_its_image_is_read(job: Job):
    checksum.record(job.image)
    job.render()
    job.node.program("sha256sum", '#!/bin/bash\ntouch "$STUB_LOG/../up"\nexec sleep 600\n')
    running = job.node.start(job.script)
    while not (job.root / "node" / "up").exists():
        assert running.poll() is None
    running.terminate()
    done = job.node.end(running)
    assert (done.code, done.containers) == (143, [])


FATAL = "FATAL:   container creation failed: mount hook function failure: squashfuse_ll: bad superblock"


def verdict_after(job: Job, *lines: str) -> dict:
    """The verdict where srun ends with 255, and these lines are the job's output."""
    job.render()
    said = "; ".join(f'echo {shlex.quote(line)} >>"$STUB_LOG/../said"' for line in ("run directory: x", *lines))
    assert job.run(f"{said}; exit 255").code != 0
    return json.loads((job.project / "outputs/qwen3-4b-grpo/run-77/verdict.json").read_text())


@pytest.mark.parametrize(
    ("line", "told"),
    [(FATAL, "FATAL: container"), ("ERROR  : Failed to create user namespace", "ERROR : Failed")],
)
def test_a_container_that_does_not_start_names_the_image(job: Job, line: str, told: str):
    verdict = verdict_after(job, "ERROR:   of a module", STARTS, "ERROR: of mine", line, "FATAL:   the next")
    assert (verdict["component"], verdict["kind"], verdict["exit_code"]) == ("setup", "image", 20)
    assert f"image {job.image} is damaged or cannot be started by apptainer: {told}" in verdict["cause"]
    assert shlex.split(verdict["what_to_do"].split(";")[0])[-1] == str(job.image)


@pytest.mark.parametrize(
    "lines", [("ERROR:   of a module", STARTS), (STARTS, "ERROR: a line of the trainer", "FATAL worker died")]
)
def test_lines_of_others_say_nothing_of_the_image(job: Job, lines: tuple[str, ...]):
    assert verdict_after(job, *lines)["kind"] == "unrecognised"


def test_no_file_stays_open_for_srun(tmp_path: Path):
    (tmp_path / "x.sif").write_bytes(b"an image")
    # The shell itself lists them: a command substitution would add a pipe of its own, now and then two.
    program = 'source "$1"; before=(/proc/$$/fd/*); sum_image; after=(/proc/$$/fd/*);'
    program += r' printf "%s\n" "$SUM" "${before[*]}" "${after[*]}"'
    env = {**os.environ, "IMAGE": str(tmp_path / "x.sif")}
    done = subprocess.run(
        ["bash", "-c", program, "bash", BATCH], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    found, before, after = done.stdout.splitlines()
    assert found == hashlib.sha256(b"an image").hexdigest()
    assert after == before


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
    assert f"toolkit={content_hash()}" in words  # launch/node.py compares it with its own


def test_a_toolkit_of_the_hosts_is_not_compared(job: Job):
    job.render()
    assert not [word for word in job.run().containers[0]["command"] if word.startswith("toolkit=")]
