"""python -m singularity.build as a process.

Where it builds, a script stands for the container program, takes the arguments of the real one and writes a file;
the real one builds in tests/cluster/test_image.py.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from other_processes import LIMIT_S, wait_for_end, wait_until, written_pid
from sif_files import write_sif

from singularity import labels
from singularity.definition import definition
from singularity.stack import load_stack, stack_names
from singularity.toolkit import TOOLKIT
from singularity.workplace import left_behind, work_folder

_PROGRAM = """#!/bin/sh
if [ "$1" = --version ]; then echo 'singularity-ce version 4.1.2'; exit 0; fi
printf '%s\\n' "$@" >"$SAID/arguments"; env >"$SAID/environment"; cp image.def "$SAID/"
for image; do before=$last; last=$image; done
mnt=$(printf '%s\\n' "$@" | sed -n 's|:/mnt$||p')
[ -z "$mnt" ] || cp "$mnt/pip.conf" "$SAID/"
ls >"$SAID/folder"
"""
# No child of it can take a signal that is meant for it, or outlive it by more than a moment.
_WAITS = "i=0; while [ $i -lt 3000 ]; do sleep 0.1; i=$((i + 1)); done"


def _labels(stack: str = "cpu", **packages: str) -> dict[str, str]:
    pins = load_stack(stack).pins | packages
    return {labels.STACK: stack, **{labels.PACKAGE + name: version for name, version in pins.items()}}


class _Building:
    """A folder with the script as its only container program."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, folder / "said"
        for name in ("bin", "said", "tmp", "home"):
            (folder / name).mkdir()
        self.image = write_sif(folder / "said" / "made.sif", _labels())
        self.program('cp "$SAID/made.sif" "$before"')
        self.environ = {
            "PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp",
            "PYTHONPATH": str(TOOLKIT), "SAID": str(self.said), "PIP_CONFIG_FILE": "/dev/null",
        }  # fmt: skip

    def program(self, ending: str) -> None:
        path = self.folder / "bin" / "singularity"
        path.write_text(_PROGRAM + ending + "\n")
        path.chmod(0o755)

    def command(self, *options: str) -> list[str]:
        words = [sys.executable, "-m", "singularity.build", "--stack", "cpu", "--runtime", "singularity"]
        return [*words, "--fakeroot", "yes", "--from", "localimage:///base.sif", *options]

    def __call__(self, *options: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*options), cwd=self.folder, env=self.environ | more, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    def left(self) -> list[str]:
        """Names of what a build made beside the image, or did not take with it."""
        known = ("bin", "said", "tmp", "home")
        found = [*self.folder.iterdir(), *(self.folder / "tmp").iterdir()]
        return sorted(path.name for path in found if path.name not in known)


@pytest.fixture
def building(tmp_path: Path) -> _Building:
    return _Building(tmp_path)


def _run(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "singularity.build", *words], cwd=TOOLKIT, capture_output=True, text=True,
        check=False, env=os.environ | environ,
    )  # fmt: skip


def test_the_definition_needs_no_program() -> None:
    done = _run("--stack", "verl-0.9.1", "--print-def", PATH="/nonexistent")
    assert (done.returncode, done.stdout, done.stderr) == (0, definition(load_stack("verl-0.9.1")), "")


def test_the_list_of_stacks() -> None:
    done = _run("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == stack_names()
    assert re.search(r"^verl-0\.9\.1 +cuda +verl 0\.9\.1 +36 GB  ", done.stdout, re.MULTILINE)
    told = json.loads(_run("--list", "--json").stdout)
    assert [each["name"] for each in told] == stack_names()
    assert told[0].keys() == {"name", "summary", "device", "verl", "size_gb", "base"}


def test_a_stack_that_is_none() -> None:
    done = _run("--stack", "verl-9")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no stack 'verl-9'; one of: ")


def test_no_program(tmp_path: Path) -> None:
    done = _run("--stack", "cpu", "-o", str(tmp_path / "x.sif"), PATH="/nonexistent")
    assert done.returncode == 1
    assert "no apptainer or singularity in PATH" in done.stderr
    assert "--print-def" in done.stderr


def test_how_the_program_is_called(building: _Building) -> None:
    wheels = building.folder / "home" / "wheels"
    wheels.mkdir()
    (wheels / "x.whl").touch()
    done = building("-o", "x.sif", "--wheels", "home/wheels", "--no-test",
                    "--cache-dir", "home/cache", PYTHONHOME="", SINGULARITY_BINDPATH="/data")  # fmt: skip
    arguments = (building.said / "arguments").read_text().splitlines()
    settings = re.sub(r"/launcher-build-\w+/", "/WORK/", "|".join(arguments))
    host = re.escape(os.uname().nodename)
    assert re.sub(rf"partial-{host}-\d+$", "partial", settings.rpartition("|")[0]) == (
        f"build|--fakeroot|--bind|{building.folder}/tmp/WORK/settings:/mnt|--bind|{wheels}:/mnt/wheels"
        f"|--notest|{building.folder}/x.sif.partial"
    ), done.stderr
    assert arguments[-1] == "image.def"
    assert (building.said / "pip.conf").read_text() == "[global]\nno-index = true\nfind-links = /mnt/wheels\n"
    assert (building.said / "image.def").read_text() == definition(load_stack("cpu"), "localimage:///base.sif")
    folder = (building.said / "folder").read_text().split()
    assert sorted(folder) == ["converters", "data_prep", "image.def", "launch", "reward", "singularity"]
    environ = (building.said / "environment").read_text()
    assert f"SINGULARITY_CACHEDIR={building.folder}/home/cache\n" in environ
    assert "PYTHON" not in environ
    assert "BINDPATH" not in environ


def test_arguments_of_mksquashfs_are_for_apptainer(building: _Building) -> None:
    program = building.folder / "bin" / "singularity"
    text = program.read_text()
    done = building("-o", "x.sif", "--mksquashfs-args", "-comp lz4")
    assert done.returncode == 1
    assert "--mksquashfs-args '-comp lz4': SingularityCE 4.1.2 has no such option, Apptainer has it" in done.stderr
    assert not (building.said / "arguments").exists()
    program.write_text(text.replace("singularity-ce version 4.1.2", "apptainer version 1.4.5"))
    building("-o", "x.sif", "--mksquashfs-args", "-comp lz4")
    assert "--mksquashfs-args\n-comp lz4\n" in (building.said / "arguments").read_text()


def test_a_program_too_old_to_bind(building: _Building) -> None:
    """SingularityCE's changelog: build honors --bind from 3.8.0 on."""
    program = building.folder / "bin" / "singularity"
    program.write_text(
        program.read_text().replace("singularity-ce version 4.1.2", "SingularityPRO version 3.7-4.el7")
    )
    done = building("-o", "x.sif", PIP_INDEX_URL="https://mirror.example/simple")
    assert done.returncode == 1
    assert "SingularityPRO 3.7 takes no --bind in a build" in done.stderr


def test_a_program_that_fails_leaves_what_was_there(building: _Building) -> None:
    (building.folder / "x.sif").write_text("old")
    (building.folder / "x.sif.sha256").write_text("old")
    building.program('echo half >"$before"; echo "FATAL: write: disk quota exceeded" >&2; exit 255')
    done = building("-o", "x.sif", "--force", "--json")
    assert done.returncode == 1
    assert "your quota is used up" in json.loads(done.stdout)["error"]
    assert building.left() == ["x.sif", "x.sif.sha256"]
    assert (building.folder / "x.sif").read_text() == "old"
    done = building("-o", "x.sif")
    assert "it exists; replace it with --force" in done.stderr


_NAMELESS = (
    "import pwd, runpy, sys\n"
    "def nobody(uid): raise KeyError(uid)\n"
    "pwd.getpwuid = nobody\n"
    "sys.argv[0] = 'build'\n"
    "runpy.run_module('singularity.build', run_name='__main__')\n"
)


def _nameless(building: _Building, *options: str) -> "subprocess.CompletedProcess[str]":
    """As of a user without a name and a home, on a node without the site's directory."""
    words = [sys.executable, "-c", _NAMELESS, *building.command(*options)[3:]]
    environ = {name: value for name, value in building.environ.items() if name != "HOME"}
    return subprocess.run(words, cwd=building.folder, env=environ, capture_output=True, text=True, check=False)


def test_a_user_without_a_name_is_told_the_cause(building: _Building) -> None:
    building.program('echo "FATAL: write: disk quota exceeded" >&2; exit 255')
    done = _nameless(building, "-o", "x.sif")
    assert "error: disk quota exceeded: your quota is used up in one of: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_user_without_a_home_has_to_name_the_cache(building: _Building) -> None:
    done = _nameless(building, "-o", "x.sif", "--from", "docker://base:1")
    assert f"error: no home folder is known for user {os.getuid()}, " in done.stderr
    assert not (building.said / "arguments").exists()
    _nameless(building, "-o", "x.sif", "--from", "docker://base:1", "--cache-dir", "home/cache")
    assert (building.said / "arguments").exists()


def test_an_image_that_appeared_meanwhile_stays(building: _Building) -> None:
    building.program(f'cp "$SAID/made.sif" "$before"; echo other >"{building.folder}/x.sif"')
    done = building("-o", "x.sif")
    assert (done.returncode, (building.folder / "x.sif").read_text()) == (1, "other\n")
    assert "it was made while this build ran" in done.stderr
    assert building.left() == ["x.sif"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_build_that_is_ended(building: _Building, number: signal.Signals) -> None:
    # Were it killed, and not asked to end, it could not clean up.
    building.program('trap \': >"$SAID/asked"; exit 1\' TERM; echo half >"$before"; echo begun >&2; ' + _WAITS)
    with subprocess.Popen(
        building.command("-o", "x.sif"),
        cwd=building.folder,
        env=building.environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "begun" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert (building.said / "asked").exists()
    assert building.left() == []


def test_what_a_killed_build_left_goes_with_the_next(building: _Building) -> None:
    host = os.uname().nodename
    dead, other = (building.folder / f"x.sif.partial-{name}-4194399" for name in (host, "elsewhere"))
    dead.touch()
    other.touch()
    building.program("exit 1")
    building("-o", "x.sif")
    assert building.left() == [other.name]


@pytest.mark.parametrize("number", ["4194399", "1", "4194399 x", ""])
def test_the_folder_of_a_killed_build_is_told(number: str, building: _Building) -> None:
    left = building.folder / "tmp" / "launcher-build-left"
    left.mkdir()
    (left / "builder").write_text(f"{os.uname().nodename} {number}\n")
    (building.folder / "tmp" / "launcher-build-none").mkdir()
    done = building("-o", "x.sif")
    note = f"note: {left} is left of a build that was killed; remove it: chmod -R u+rwX {left}; rm -rf {left}\n"
    assert done.stderr.count("is left of") == (number == "4194399")
    assert (note in done.stderr) == (number == "4194399")
    assert building.left() == ["launcher-build-left", "launcher-build-none", "x.sif", "x.sif.sha256"]


def test_a_build_says_whose_its_folder_is(tmp_path: Path) -> None:
    with work_folder(tmp_path) as work:
        assert (work / "builder").read_text() == f"{os.uname().nodename} {os.getpid()}\n"
        assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "home"], "home: it is a folder; name a file in it"),
        (["-o", "file/x.sif"], "/file: Not a directory; choose another folder with -o"),
        (["-o", "taken.sif"], "its checksum belongs in"),
        (["--wheels", "home"], "home: no *.whl there"),
        (["--from", "docker://u:s3cr3t@host/x"], "would be kept in the image"),
        (["--tmp-dir", "/proc/none"], "/proc/none: "),
    ],
    ids=["folder", "in-a-file", "no-checksum", "no-wheels", "password", "unwritable"],
)
def test_what_is_refused_before_anything_runs(building: _Building, options: list[str], words: str) -> None:
    (building.folder / "file").touch()
    (building.folder / "taken.sif.sha256").mkdir()
    done = building(*options)
    assert done.returncode == 1
    assert words in done.stderr
    assert "s3cr3t" not in done.stderr
    assert not (building.said / "arguments").exists()


def test_the_checksum_is_of_what_was_made(building: _Building) -> None:
    done = building("-o", "x.sif", "--json")
    told = json.loads(done.stdout)
    assert told["sha256"] == hashlib.sha256(building.image.read_bytes()).hexdigest()
    assert (told["path"], told["size"]) == (f"{building.folder}/x.sif", building.image.stat().st_size)
    assert building.left() == ["x.sif", "x.sif.sha256"]


def test_the_folder_of_the_image_is_made(building: _Building) -> None:
    assert building("-o", "images/new/x.sif").returncode == 0
    assert sorted(path.name for path in (building.folder / "images" / "new").iterdir()) == [
        "x.sif",
        "x.sif.sha256",
    ]


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_checksum_that_cannot_be_written_leaves_no_image(force: list[str], building: _Building) -> None:
    if force:
        (building.folder / "x.sif").write_text("old")
    building.program(f'cp "$SAID/made.sif" "$before"; mkdir "{building.folder}/x.sif.sha256"')
    done = building("-o", "x.sif", "--json", *force)
    assert done.returncode == 1
    assert "x.sif.sha256" in json.loads(done.stdout)["error"]
    assert building.left() == [*(["x.sif"] if force else []), "x.sif.sha256"]
    assert not force or (building.folder / "x.sif").read_text() == "old"


def test_with_force_image_and_checksum_are_the_new_ones(building: _Building) -> None:
    (building.folder / "x.sif").write_text("old")
    (building.folder / "x.sif.sha256").write_text("old")
    assert building("-o", "x.sif", "--force").returncode == 0
    value = hashlib.sha256(building.image.read_bytes()).hexdigest()
    assert (building.folder / "x.sif").read_bytes() == building.image.read_bytes()
    assert (building.folder / "x.sif.sha256").read_text() == f"{value}  x.sif\n"


@pytest.mark.parametrize("size", [0, 6, 5000], ids=["empty", "word", "cut"])
def test_what_is_no_image_gets_no_name(size: int, building: _Building) -> None:
    (building.folder / "x.sif").write_text("old")
    building.program(f'head -c {size} "$SAID/made.sif" >"$before"')
    done = building("-o", "x.sif", "--force", "--json")
    assert (done.returncode, building.left()) == (1, ["x.sif"])
    assert "SingularityCE 4.1.2 ended well, and made no whole image" in json.loads(done.stdout)["error"]
    assert (building.folder / "x.sif").read_text() == "old"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "its image has no labels that tell stack and packages"),
        ({labels.STACK: "cpu"}, "its image has no labels that tell stack and packages"),
        (_labels() | {labels.STACK: "verl-0.9.1"}, "made an image of stack verl-0.9.1, not cpu"),
        (_labels(ray="1.0"), "its image is not stack cpu: ray 1.0, the stack has "),
    ],
    ids=["none", "no-packages", "other-stack", "other-package"],
)
def test_an_image_of_something_else_gets_no_name(found: dict[str, str], words: str, building: _Building) -> None:
    write_sif(building.image, found)
    done = building("-o", "x.sif")
    assert (done.returncode, building.left()) == (1, [])
    assert words in done.stderr


def test_a_program_that_makes_nothing(building: _Building) -> None:
    building.program("true")
    assert "singularity ended with 0 and made no image" in building("-o", "x.sif").stderr


def test_a_folder_in_the_place_of_an_image_goes(building: _Building) -> None:
    dead = building.folder / f"x.sif.partial-{os.uname().nodename}-4194399"
    (dead / "etc").mkdir(parents=True)
    building.program('mkdir -p "$before/etc"')
    assert building("-o", "x.sif").returncode == 1
    assert building.left() == []


def test_a_link_is_not_replaced(building: _Building) -> None:
    (building.folder / "x.sif").symlink_to("home/real.sif")
    done = building("-o", "x.sif", "--force")
    assert done.returncode == 1
    assert "x.sif: it is a link to home/real.sif, and a link is not replaced" in done.stderr
    assert not (building.said / "arguments").exists()


@pytest.mark.parametrize("length", [250, 254, 300])
def test_a_name_without_room_for_those_beside_it(length: int, building: _Building) -> None:
    done = building("-o", "x" * length)
    assert done.returncode == 1
    assert "the name is too long, " in done.stderr
    assert not (building.said / "arguments").exists()


@pytest.mark.parametrize("option", ["--wheels", "--tmp-dir", "--cache-dir", "--from", "-o"])
def test_an_empty_value_is_refused(option: str, building: _Building) -> None:
    done = building(option, "")
    assert done.returncode == 2
    assert option in done.stderr
    assert "it is empty" in done.stderr


def test_a_second_interrupt_ends_a_program_that_stays(building: _Building) -> None:
    ending = 'trap \': >"$SAID/asked"\' TERM; echo $$ >"$SAID/pid"; echo begun >&2'
    building.program(f"{ending}; {_WAITS}")
    with subprocess.Popen(
        building.command("-o", "x.sif"), cwd=building.folder, env=building.environ, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        while "begun" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        wait_until((building.said / "asked").exists, "answer to the first")
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert time.monotonic() - begun < 15  # without the second, the program has 20 s
    assert building.left() == []
    wait_for_end(written_pid(building.said / "pid"))


def test_what_an_interrupt_of_the_end_leaves_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), work_folder(tmp_path):
        pass
    (left,) = tmp_path.iterdir()
    assert capsys.readouterr().err == f"note: {left} is left; remove it: chmod -R u+rwX {left}; rm -rf {left}\n"


def test_a_build_outlives_its_terminal_under_nohup(building: _Building) -> None:
    building.program('kill -HUP "$PPID"; sleep 0.2; cp "$SAID/made.sif" "$before"')
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *building.command("-o", "x.sif")]
    done = subprocess.run(words, cwd=building.folder, env=building.environ, capture_output=True, check=False)
    assert (done.returncode, building.left()) == (0, ["x.sif", "x.sif.sha256"])
