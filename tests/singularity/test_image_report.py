import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sif_files
from other_processes import LIMIT_S, wait_for_end, written_pid

from singularity import probe
from singularity.inspect import main
from singularity.report import readable_size
from singularity.running import drained
from singularity.stack import load_stack
from singularity.toolkit import TOOLKIT, content_hash

STACK = load_stack("cpu")
LABELS = {
    "launcher.stack": "cpu",
    "launcher.stack.content": STACK.content,
    "launcher.toolkit": content_hash(),
    "launcher.version": "0.1.0",
    "launcher.built": "2026-11-30T11:41:03Z",
    **{f"launcher.package.{name}": version for name, version in STACK.pins.items()},
}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No container program, and a cache of this test."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "x.sif"
    file.write_bytes(sif_files.with_labels(LABELS))
    return file


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """A script in the place of apptainer, which cannot run here; tests/cluster has the real one."""

    def write(body: str) -> Path:
        file = tmp_path / "bin" / "apptainer"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        file.chmod(0o755)
        return file

    return write


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file for a pid; the time for an answer begins when it is there, however slow the program starts."""

    def patiently(process: Any, deadline: float, full: Any) -> Any:
        patience_s = deadline - time.monotonic()
        written_pid(tmp_path / "pid")
        return drained(process, time.monotonic() + patience_s, full)

    monkeypatch.setattr(probe, "drained", patiently)
    return tmp_path / "pid"


def asked(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, Any]:
    code = main(["--json", *map(str, words)])
    return code, json.loads(capsys.readouterr().out)


def test_an_image_as_its_stack_says(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(image)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith(f"image        {image} (SIF, 4")
    assert f"stack        cpu, defined as in this toolkit ({STACK.content})" in lines
    assert f"toolkit      0.1.0 inside, this toolkit's files ({content_hash()})" in lines
    assert f"packages     {len(STACK.pins)} told by its labels" in lines
    assert "no checksum is recorded: python -m singularity.inspect --record" in out
    assert (
        "signature    by key EB0525D2A0A8E151A17B476C70175EE6EFF4860F, not verified here: apptainer verify" in out
    )
    assert lines[-1] == "verdict      whole by its structure; agrees with the stack cpu"


def test_everything_for_a_program(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = asked(capsys, image)
    assert code == 0
    assert data["ok"] is True
    assert data["labels"] == LABELS
    assert data["packages"] == dict(sorted(STACK.pins.items()))
    assert data["packages_from"] == "labels"
    assert data["stack"] == {
        "image": "cpu",
        "image_content": STACK.content,
        "compared_with": "cpu",
        "content": STACK.content,
    }
    assert data["checksum"] == {"state": "none recorded", "sha256": None, "cached": False}
    assert data["created"] == "2026-11-30T11:44:59+00:00"


def test_packages_that_differ_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {**LABELS, "launcher.package.ray": "0.1", "launcher.stack.content": "0" * 12, "launcher.toolkit": "1"}
    del labels["launcher.package.verl"]
    (tmp_path / "x.sif").write_bytes(sif_files.with_labels(labels))
    assert main([str(tmp_path / "x.sif")]) == 1
    out = capsys.readouterr().out
    assert f"differs      ray 0.1, the stack has {STACK.pins['ray']}\n" in out
    assert f"differs      verl is missing, the stack has {STACK.verl}\n" in out
    assert "note         the definition of the stack cpu has changed since it was built" in out
    assert f"toolkit      0.1.0 inside, not this toolkit's files (1; here {content_hash()})\n" in out
    assert "note         a job with container.toolkit=image needs this toolkit inside" in out
    assert out.endswith("verdict      2 packages differ from the stack cpu\n")


def test_an_image_without_a_stack_is_only_compared_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.sif"
    file.write_bytes(sif_files.with_labels({}))
    code, data = asked(capsys, file)
    assert (code, data["problems"], data["stack"]["compared_with"]) == (0, [], None)
    code, data = asked(capsys, file, "--stack", "cpu")
    assert code == 1
    assert "no apptainer or singularity is in PATH" in data["problems"][0]


def test_another_stack_than_that_of_the_labels(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = asked(capsys, image, "--stack", "verl-0.6.1")
    assert code == 1
    assert "verl" in {one["package"] for one in data["differences"]}
    assert data["notes"] == ["its labels name the stack cpu"]


def test_a_label_of_a_stack_that_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.sif"
    file.write_bytes(sif_files.with_labels({"launcher.stack": "../x\x1b[2J"}))
    assert main([str(file)]) == 1
    out = capsys.readouterr().out
    assert "problem      its label: no stack" in out
    assert "\x1b" not in out


def test_the_record_is_written_compared_and_a_changed_byte_found(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = asked(capsys, image, "--record")
    assert (code, data["checksum"]["state"]) == (0, "recorded now")
    value = hashlib.sha256(image.read_bytes()).hexdigest()
    assert image.with_name("x.sif.sha256").read_text() == f"{value}  x.sif\n"
    code, data = asked(capsys, image)
    assert (code, data["checksum"]["state"], data["checksum"]["sha256"]) == (0, "agrees", value)
    content = bytearray(image.read_bytes())
    content[38_000] ^= 1  # inside the file system, where its structure does not show it
    image.write_bytes(content)
    code, data = asked(capsys, image)
    assert (code, data["checksum"]["state"]) == (1, "differs")
    assert value in data["problems"][0]
    assert asked(capsys, image, "--no-checksum")[1]["checksum"]["state"] == "not compared"


def test_a_damaged_image_is_not_recorded(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(image, 38_000)
    assert main([str(image), "--record"]) == 1
    out = capsys.readouterr().out
    assert "problem      truncated: object 2 ('inspect-metadata.json') ends at byte 4" in out
    assert out.endswith("verdict      damaged, or no image\n")
    assert not image.with_name("x.sif.sha256").exists()


def test_a_record_that_is_none_is_a_problem_until_it_is_written_again(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image.with_name("x.sif.sha256").write_text("none\n")
    code, data = asked(capsys, image)
    assert (code, data["checksum"]["state"]) == (1, "unreadable record")
    assert "x.sif.sha256: line 1: 'none' is no SHA-256" in data["problems"][0]
    assert asked(capsys, image, "--record")[0] == 0
    assert asked(capsys, image)[0] == 0


@pytest.mark.parametrize("scheme", ["docker", "Docker"])
def test_an_address_is_told_without_its_password(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{scheme}://bob:pw55@reg.example/x:1", "--json"]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["path"] == f"{scheme}://...@reg.example/x:1"
    assert "is an address, not an image here" in told.err
    assert "pw55" not in told.out + told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["docker://debian:12"],
            "is an address, not an image here; build it once: apptainer build IMAGE.sif docker",
        ),
        ([str(sif_files.REAL), "--stack", "no"], "error: --stack: no stack 'no'; one of: "),
        ([".", "--record"], "error: --record: . is a folder, which has no checksum"),
    ],
    ids=["address", "stack", "folder"],
)
def test_usage(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a b.sif", "-x.sif", "$(touch x)'\".sif", "a\x1b[2J\n.sif", "\udcff.sif"])
def test_names_of_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(sif_files.with_labels(LABELS))
    assert main(["--record", "--", name]) == 0
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert len(out.splitlines()) < 12
    assert asked(capsys, "--", name)[0] == 0


def test_as_a_command_of_its_own(image: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "singularity.inspect", image.name],
        cwd=tmp_path,
        env={"PYTHONPATH": str(TOOLKIT), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("agrees with the stack cpu\n")


def test_an_image_of_another_machine_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.sif"
    content = sif_files.with_labels(LABELS)
    file.write_bytes(sif_files.put(content, sif_files.SYSTEM, extra=b"\1\0\0\0\2\0\0\0" + b"11\0"))
    code, data = asked(capsys, file)
    assert (code, data["architecture"]) == (0, "s390x")
    assert data["notes"] == ["it is for s390x: it does not run on this machine"]


def test_a_missing_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.sif"), "--json"]) == 1
    told = capsys.readouterr()
    assert "none.sif: No such file" in json.loads(told.out)["error"]
    assert "none.sif: No such file" in told.err


def test_a_sandbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box = tmp_path / "box"
    (box / "bin").mkdir(parents=True)
    (box / "bin" / "sh").touch()
    (box / ".singularity.d").mkdir()
    (box / ".singularity.d" / "labels.json").write_text(json.dumps(LABELS))
    assert main([str(box)]) == 0
    assert "integrity    a folder: anything in it may change" in capsys.readouterr().out


def answering(packages: dict[str, str]) -> str:
    return f"cat >/dev/null; echo a banner; echo '{json.dumps({'python': '3.11.2', 'packages': packages})}'"


def test_the_image_is_asked_where_its_labels_tell_nothing(
    tmp_path: Path, program: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.sif"
    file.write_bytes(sif_files.with_labels({"launcher.stack": "cpu"}))
    program(answering(dict(STACK.pins)))
    code, data = asked(capsys, file)
    assert (code, data["packages_from"], data["python"]) == (0, "inside", "3.11.2")


def test_the_image_is_not_asked_where_its_labels_tell(
    image: Path, program: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    program("exit 1")
    assert asked(capsys, image)[0] == 0


def test_labels_that_are_not_true_are_told(
    image: Path, program: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    program(answering({**STACK.pins, "ray": "0.1"}))
    code, data = asked(capsys, image, "--run")
    assert code == 1
    assert data["problems"] == [
        f"its label says ray {STACK.pins['ray']}, inside is 0.1: it was changed after it was built; build it again"
    ]


def test_labels_of_another_build_are_not_the_whole_image(
    tmp_path: Path, program: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.sif"
    file.write_bytes(sif_files.with_labels({"launcher.package.verl": STACK.verl, "launcher.package.ray": "0.1"}))
    code, data = asked(capsys, file, "--stack", "cpu")
    assert (code, data["differences"], data["packages_from"]) == (1, [], None)
    assert "its labels do not tell its packages, and no apptainer" in data["problems"][0]
    program(answering(dict(STACK.pins)))
    code, data = asked(capsys, file, "--stack", "cpu")
    assert (code, data["packages_from"], data["differences"]) == (1, "inside", [])
    assert data["problems"][0].startswith("its label says ray 0.1, inside is ")


def test_labels_of_the_image_that_it_was_made_from_are_not_its_own(
    tmp_path: Path, program: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.sif"
    derived = "Bootstrap: localimage\nFrom: cpu.sif\n%post\n    pip install transformers==5.0.0\n"
    file.write_bytes(sif_files.with_labels(LABELS, derived))
    code, data = asked(capsys, file)
    assert (code, data["packages_from"], data["stack"]["compared_with"]) == (1, None, None)
    assert "its labels are those of another image, and no apptainer" in data["problems"][0]
    main([str(file)])
    assert "packages     not known, its labels are another image's; --run" in capsys.readouterr().out
    program(answering({**STACK.pins, "transformers": "5.0.0"}))
    code, data = asked(capsys, file)
    assert (code, data["packages_from"], data["problems"]) == (1, "inside", [])
    assert [one["package"] for one in data["differences"]] == ["transformers"]
    program(answering({**STACK.pins, "another": "1"}))
    code, data = asked(capsys, file)
    assert code == 0
    assert "its labels are those of the image that it was made from" in data["notes"][0]


def test_many_differences_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {name: value for name, value in LABELS.items() if not name.startswith("launcher.package.")}
    (tmp_path / "x.sif").write_bytes(sif_files.with_labels({**kept, "launcher.package.verl": STACK.verl}))
    assert main([str(tmp_path / "x.sif")]) == 1
    out, err = capsys.readouterr()
    number = len(STACK.pins) - 1
    assert out.count("\ndiffers  ") == 11
    assert f"\ndiffers      and {number - 10} more: --json\n" in out
    assert err == f"error: {tmp_path}/x.sif: {number} packages differ from the stack cpu\n"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_problems_stand_on_standard_error_too(
    options: list[str], image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(image, 5000)
    assert main([str(image), *options]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"error: {image}: ")
    assert ("problem" in out, err.count("\n")) == (True, 1)


@pytest.mark.parametrize("value", ["nan", "-5", "0", "inf", "long"])
def test_a_time_that_is_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["x.sif", f"--timeout={value}"])
    assert f"argument --timeout: invalid seconds value: '{value}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo FATAL: no user namespaces >&2; exit 255", "exec ended with 255: FATAL: no user namespaces"),
        ("exit 3", "exec ended with 3: it says nothing"),
        ("echo hello", "its python3 answered 'hello"),
        ("echo '[1]'", "its python3 answered"),
        (
            "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
            "ended",
        ),
    ],
    ids=["fails", "silent", "text", "list", "flood"],
)
def test_an_image_that_does_not_answer(
    image: Path,
    program: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    said: str,
) -> None:
    monkeypatch.setattr(probe, "_MOST_OUTPUT", 1 << 16)
    program(body)
    code, data = asked(capsys, image, "--run")
    assert code == 1
    assert "it could not be asked for its packages: " in data["problems"][0]
    assert said in data["problems"][0]


def test_a_slow_image_is_ended_with_what_it_started(
    image: Path, program: Callable[[str], Path], capsys: pytest.CaptureFixture[str], patient: Path
) -> None:
    program(f"/bin/sleep 1000 & echo $! >{patient}; wait")
    begin = time.monotonic()
    code, data = asked(capsys, image, "--run", "--timeout", "0.3")
    assert code == 1
    assert "no answer within 0.3 s; give it more: --timeout SECONDS" in data["problems"][0]
    assert time.monotonic() - begin < LIMIT_S
    wait_for_end(written_pid(patient))


def test_a_child_that_takes_no_sigterm_and_holds_the_pipe(
    image: Path,
    program: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    patient: Path,
) -> None:
    monkeypatch.setattr(probe, "_GRACE_S", 0.3)
    program(f"/bin/sh -c 'trap \"\" TERM; echo $$ >{patient}; while :; do /bin/sleep 0.1; done' & wait")
    begin = time.monotonic()
    code, data = asked(capsys, image, "--run", "--timeout", "0.3")
    assert (code, "no answer within 0.3 s" in data["problems"][0]) == (1, True)
    assert time.monotonic() - begin < LIMIT_S
    wait_for_end(written_pid(patient))


def test_a_child_that_outlives_the_answer(
    image: Path, program: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    program("/bin/sleep 1000 &\n" + answering(dict(STACK.pins)))
    begin = time.monotonic()
    assert asked(capsys, image, "--run")[0] == 0
    assert time.monotonic() - begin < LIMIT_S


def test_run_without_a_program(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = asked(capsys, image, "--run")
    assert code == 1
    assert data["problems"] == ["--run: neither apptainer nor singularity is in PATH; load its module first"]


def test_settings_of_this_machine_do_not_reach_the_image() -> None:
    mine = {
        "PATH": "/bin",
        "APPTAINER_BIND": "/home",
        "APPTAINERENV_PYTHONPATH": "/x",
        "SINGULARITYENV_A": "b",
        "SINGULARITY_TMPDIR": "/tmp",
        "APPTAINER_ENCRYPTION_PEM_PATH": "/key",
    }
    assert probe.environment(mine) == {
        "PATH": "/bin",
        "SINGULARITY_TMPDIR": "/tmp",
        "APPTAINER_ENCRYPTION_PEM_PATH": "/key",
    }


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (42280, "42.3 kB"), (14_200_000_000, "14.2 GB")]
)
def test_sizes(size: int, text: str) -> None:
    assert readable_size(size) == text


def test_an_empty_name_is_no_image(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([""])
    assert ended.value.code == 2
    assert "argument IMAGE: it is empty" in capsys.readouterr().err
