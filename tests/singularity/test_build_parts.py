"""What singularity.build knows of programs, folders and images."""

import pwd
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from other_processes import LIMIT_S, wait_for_end, written_pid
from sif_files import write_sif

from singularity import labels, outcome
from singularity import runtime as runtime_module
from singularity.outcome import built_packages
from singularity.room import mount_options, needs, shortages
from singularity.runtime import (
    Runtime,
    RuntimeMissing,
    build_environment,
    default_cache,
    fakeroot_options,
    has_subordinate_ids,
    parse_version,
    user_name,
)
from singularity.stack import load_stack

_ROOT = Path(__file__).parents[2]
_APPTAINER = Runtime("apptainer", "/usr/bin/apptainer", "Apptainer", (1, 4, 5))
_PRO = Runtime("singularity", "/usr/bin/singularity", "SingularityPRO", (3, 11))


@pytest.mark.parametrize(
    ("said", "flavour", "version"),
    [
        ("apptainer version 1.4.5\n", "Apptainer", (1, 4, 5)),
        ("apptainer version 1.1.9-1.el8\n", "Apptainer", (1, 1, 9)),
        ("singularity-ce version 4.1.2-jammy\n", "SingularityCE", (4, 1, 2)),
        ("SingularityPRO version 3.11-8.el8\n", "SingularityPRO", (3, 11)),
        ("singularity-pro version 4.1.6-1.el9\n", "SingularityPRO", (4, 1, 6)),
        ("singularity version 3.8.7-1.el7\n", "Singularity", (3, 8, 7)),
    ],
)
def test_what_a_program_calls_itself(said: str, flavour: str, version: tuple[int, ...]) -> None:
    found = parse_version("singularity", "/x", said)
    assert found is not None
    assert (found.flavour, found.version) == (flavour, version)


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (_APPTAINER._replace(version=(1, 3, 0)), "apptainer registry login"),
        (_APPTAINER._replace(version=(1, 2, 5)), "apptainer remote login"),
        (_PRO, "singularity remote login"),
        (_PRO._replace(version=(4, 1, 6)), "singularity registry login"),
    ],
)
def test_the_command_for_a_registry(program: Runtime, command: str) -> None:
    assert program.login == command


@pytest.mark.parametrize(
    ("program", "takes"),
    [
        (_APPTAINER._replace(version=(1, 4, 0)), True),
        (_APPTAINER._replace(version=(1, 3, 6)), False),
        (_PRO._replace(flavour="SingularityCE", version=(4, 5, 1)), False),
        (_PRO, False),
    ],
)
def test_which_program_takes_arguments_of_mksquashfs(program: Runtime, takes: bool) -> None:
    assert program.takes_mksquashfs_args == takes


def test_a_program_that_is_something_else() -> None:
    assert parse_version("singularity", "/x", "Singularity, a game\n") is None


@pytest.mark.parametrize(
    ("program", "uid", "wanted", "options"),
    [
        (_APPTAINER, 1000, "auto", []),
        (_APPTAINER._replace(version=(1, 0, 3)), 1000, "auto", ["--fakeroot"]),
        (_APPTAINER, 1000, "yes", ["--fakeroot"]),
        (_PRO, 0, "auto", []),
        (_PRO, 1000, "auto", ["--fakeroot"]),
        (_PRO, 1000, "no", []),
    ],
)
def test_fakeroot_where_it_is_needed(
    program: Runtime, uid: int, wanted: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "has_subordinate_ids", lambda *_: True)
    assert fakeroot_options(program, wanted, uid=uid) == options  # type: ignore[arg-type]


def test_a_user_without_subordinate_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "has_subordinate_ids", lambda *_: False)
    monkeypatch.setenv("PATH", "/nonexistent")  # no proot
    assert fakeroot_options(_APPTAINER, "auto", uid=1000) == []
    with pytest.raises(RuntimeMissing, match=r"/etc/subuid .*SingularityPRO 3\.11 .*config fakeroot --add"):
        fakeroot_options(_PRO, "auto", uid=54321)


def test_subordinate_ids_by_name_and_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")  # no getsubids
    file = tmp_path / "subuid"
    file.write_text("alice:100000:65536\n2002:165536:65536\nbroken\n")
    assert has_subordinate_ids(2001, "alice", file)
    assert has_subordinate_ids(2002, "bob", file)
    assert not has_subordinate_ids(2003, "ali", file)
    assert not has_subordinate_ids(2001, "alice", tmp_path / "none")


def test_the_environment_of_a_build() -> None:
    environ = {
        "PATH": "/bin", "https_proxy": "http://p", "PYTHONPATH": "/x", "PYTHONHOME": "/x", "PIP_TARGET": "/x",
        "CONDA_PREFIX": "/x", "VIRTUAL_ENV": "/x", "APPTAINERENV_A": "1", "SINGULARITYENV_PYTHONPATH": "1",
        "SINGULARITY_BINDPATH": "/data", "APPTAINER_DOCKER_PASSWORD": "x", "SINGULARITY_TMPDIR": "/small",
        "APPTAINER_CACHEDIR": "/cache",
    }  # fmt: skip
    made = build_environment(_APPTAINER, environ, Path("/tmp/work"), None)
    assert made == {
        "PATH": "/bin", "https_proxy": "http://p", "APPTAINER_DOCKER_PASSWORD": "x",
        "APPTAINER_CACHEDIR": "/cache", "APPTAINER_TMPDIR": "/tmp/work",
    }  # fmt: skip
    made = build_environment(_PRO, environ, Path("/tmp/work"), Path("/big"))
    assert (made["SINGULARITY_TMPDIR"], made["SINGULARITY_CACHEDIR"]) == ("/tmp/work", "/big")
    assert "APPTAINER_CACHEDIR" not in made


def _nobody(uid: int) -> NoReturn:
    raise KeyError(uid)


def test_a_user_that_this_machine_has_no_name_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", _nobody)
    assert user_name(54321) == "54321"
    assert default_cache(_APPTAINER, {}) is None
    assert default_cache(_APPTAINER, {"HOME": "/h"}) == Path("/h/.apptainer/cache")
    assert default_cache(_PRO, {"SINGULARITY_CACHEDIR": "/c"}) == Path("/c")


def test_an_image_for_another_machine_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = load_stack("cpu")
    told = {labels.STACK: "cpu", **{labels.PACKAGE + name: version for name, version in stack.pins.items()}}
    image = write_sif(tmp_path / "x.sif", told)
    monkeypatch.setattr(outcome, "this_architecture", lambda: "amd64")
    built_packages(image, stack, _APPTAINER)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(outcome, "this_architecture", lambda: "arm64")
    built_packages(image, stack, _APPTAINER)
    assert capsys.readouterr().err == "note: the image is for amd64: it does not run on this machine\n"


@pytest.mark.parametrize("name", ["DATA", "JSON", "BUILD_ARCH", "BUILD_ARCH_VARIANT", "USERNS", "REMOTE"])
def test_what_would_build_something_else_stays_out(name: str) -> None:
    environ = {"PATH": "/bin", f"APPTAINER_{name}": "1", f"SINGULARITY_{name}": "1"}
    assert build_environment(_PRO, environ, Path("/t"), None) == {"PATH": "/bin", "SINGULARITY_TMPDIR": "/t"}


def test_a_relative_cache_is_one_of_the_callers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"SINGULARITY_CACHEDIR": "mine"}
    assert default_cache(_APPTAINER, environ) == tmp_path / "mine"
    made = build_environment(_APPTAINER, environ, Path("/t"), None)
    assert made == {"APPTAINER_TMPDIR": "/t", "APPTAINER_CACHEDIR": str(tmp_path / "mine")}


def test_room_is_added_up_for_each_file_system(tmp_path: Path) -> None:
    assert shortages(needs(size_gb=1e-6, output=tmp_path, temporary=tmp_path / "not/yet", cache=tmp_path)) == []
    (told,) = shortages(needs(size_gb=1e6, output=tmp_path, temporary=tmp_path / "t", cache=tmp_path / "c"))
    assert "about 4800000 GB needed" in told
    assert told.endswith("choose with --cache-dir or --tmp-dir or -o")


def test_the_mount_that_a_folder_lies_on(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    folder = tmp_path / "a b" / "c"
    folder.mkdir(parents=True)
    escaped = str(tmp_path / "a b").replace(" ", "\\040")
    table.write_text(
        "1 0 8:1 / / rw,relatime - ext4 /dev/a rw\n"
        f"2 1 0:2 / {escaped} rw,nosuid - tmpfs tmpfs rw\n"
        f"3 1 0:3 / {escaped} rw,noexec,nodev - tmpfs tmpfs rw\n"
        f"4 1 0:4 / {tmp_path}/a ro - tmpfs tmpfs rw\n"
    )
    assert mount_options(folder / "none yet", table) == (str(tmp_path / "a b"), {"rw", "noexec", "nodev"})


_RUN = """
import sys
from pathlib import Path
from singularity import running
from singularity.running import run_program
running._GRACE_S = 1.0
done = run_program(sys.argv[2:], environ={"PATH": "/usr/bin:/bin"}, folder=Path("/"), secrets=[sys.argv[1]])
print(done)
"""


def test_output_passes_through_without_its_secrets() -> None:
    script = "printf 'a s3c'; sleep 0.1; printf 'ret b\\n' >&2; printf 'tail s3c'; exit 3"
    command = [sys.executable, "-c", _RUN, "s3cret", "sh", "-c", script]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "a **** b\ntail s3c"
    assert done.stdout == "Finished(code=3, said='a **** b\\ntail s3c')\n"


def test_a_child_that_outlives_a_program_holds_nothing_up() -> None:
    command = [sys.executable, "-c", _RUN, "none", "sh", "-c", "sleep 300 & echo said; exit 3"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == "Finished(code=3, said='said\\n')\n"


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    script = f"trap '' TERM; sleep 1000 & echo $! >{tmp_path}/pid; trap 'exit 0' TERM; echo ready >&2; wait"
    command = [sys.executable, "-c", _RUN, "none", "sh", "-c", script]
    with subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True) as runner:
        assert runner.stderr is not None
        assert runner.stderr.readline() == "ready\n"
        runner.send_signal(signal.SIGINT)
        runner.communicate(timeout=LIMIT_S)
    wait_for_end(written_pid(tmp_path / "pid"))


@pytest.mark.parametrize("said", [r"printf 'apptainer version \377\n'", "printf '%05000d' 1", "exit 3"])
def test_a_program_that_says_no_version_gives_way_to_the_other(said: str, tmp_path: Path):
    for name, text in (("apptainer", said), ("singularity", "echo singularity-ce version 4.1.2")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert str(runtime_module.find_runtime("auto", environ)) == "SingularityCE 4.1.2"
    with pytest.raises(runtime_module.RuntimeMissing, match="--version"):
        runtime_module.find_runtime("apptainer", environ)
