"""Every command in one style: help, errors, exit codes, --json, and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomllib
from command_parsers import FOLDERS, ROOT, commands, parser_of
from other_processes import interrupted

from singularity.command_line import BASE, EXTRAS

COMMANDS = commands()
WIDTH = 80
LIMIT_S = 300  # of a command: reached by one that hangs, not by a slow machine
# A server tells its log; the others tell one line for a folder that they made.
WITHOUT_JSON = {"reward.server", "launch.rehearsal.prepare", "launch.rehearsal.overlay"}
# Arguments that ask for what is not there, is a folder, or is something else; and the exit code.
WRONG: dict[str, list[tuple[list[str], int]]] = {
    "launch.engines.verify": [
        (["--verl", "0.0.1", "--", "-m", "verl.trainer.main_ppo", "--config-name=ppo_trainer"], 1),
    ],
    "launch.init": [(["-o", "no/cluster.yaml"], 1), (["-o", "folder"], 1), (["-o", "noise"], 1)],
    "launch.rehearsal.overlay": [(["--out", "."], 1)],
    "launch.rehearsal.prepare": [
        (["--out", "made", "--verl", "0.9.1", "--actor", "fsdp2", "--corpus", "no.jsonl"], 1),
        (["--out", "made", "--verl", "0.9.1", "--actor", "fsdp2", "--corpus", "folder"], 1),
    ],
    "launch.render": [(["--job", "no.yaml"], 1), (["--job", "folder"], 1), (["--job", "noise"], 1)],
    "launch.status": [([], 1), (["1234"], 1), (["no/run"], 1), (["folder"], 1), (["noise"], 1)],
    "singularity.build": [(["--stack", "cpu", "-o", "no/folder/x.sif"], 1)],
    "singularity.inspect": [(["no.sif"], 1), (["noise"], 1), (["folder"], 1)],
    "reward.canary": [([], 3)],
    "reward.client": [
        (["--prompt", "a", "--response", "b"], 1),
        (["--prompt", "a", "--response", "b", "--url", "http://127.0.0.1:9", "--deadline", "0.1"], 1),
    ],
    "reward.server": [(["--model", "no"], 1), (["--model", "folder"], 1), (["--model", "noise"], 1)],
    "reward.stats": [(["no"], 1), (["folder"], 1), (["noise"], 1)],
    "data_prep.convert": [
        ([name, "--out", "data"], 1) for name in ("no.jsonl", "folder", "noise", "noise.parquet")
    ],
    "data_prep.inspect": [([name], 1) for name in ("no.jsonl", "folder", "noise", "noise.parquet")],
    "data_prep.sample": [([name], 1) for name in ("no.parquet", "folder", "noise.parquet")],
    "data_prep.validate": [
        (["no.parquet"], 1), (["folder"], 1), (["noise.parquet"], 1), (["no.parquet", "--tokenizer", "no"], 1),
    ],
    "converters.compare": [(["no", "folder"], 1), (["noise", "folder"], 1), (["folder", "folder"], 1)],
    "converters.merge": [([f"--local-dir={name}", "--target-dir=out"], 1) for name in ("no", "folder", "noise")],
    "converters.resume": [(["no"], 1), (["noise"], 1)],
}  # fmt: skip

# What stands for a path in a help.
PATHS = (
    "A", "B", "CKPT", "DIR", "FILE", "FILE.parquet", "IMAGE", "LOG", "OUT", "RUN", "SOURCE",
)  # fmt: skip

parser = cache(parser_of)
each_command = pytest.mark.parametrize("command", COMMANDS)


def environment(**more: str) -> dict[str, str]:
    others = ("REWARD_", "CONFIG_REWARD_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def run(command: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "env": environment(), **options}
    line = [sys.executable, "-m", command, *arguments]
    return subprocess.run(line, text=True, check=False, timeout=LIMIT_S, **options)


def actions(command: str) -> list[argparse.Action]:
    return [action for action in parser(command)._actions if not isinstance(action, argparse._HelpAction)]


def named(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)


def test_the_list_is_whole() -> None:
    assert len(COMMANDS) >= 18
    assert set(WRONG) == set(COMMANDS)


def test_the_part_that_all_folders_have_is_one_text() -> None:
    files = [ROOT / folder / "command_line.py" for folder in FOLDERS if folder != "launch"]
    assert len({file.read_text() for file in files}) == 1


@each_command
def test_help_says_what_it_does_by_example(command: str) -> None:
    found: Any = parser(command)
    assert type(found).__name__ == "CommandParser"
    assert found.prog == f"python -m {command}"
    assert re.fullmatch(r"[A-Z][^.]*(\.[a-z\d][^.]*)*\.", found.description), "one sentence"
    assert found.exit_codes.keys() >= {0, 1, 2} - ({1} if command == "reward.canary" else set())
    assert "usage" in found.exit_codes[2]
    assert list(found.exit_codes) == sorted(found.exit_codes)
    assert re.search(r"^examples?:\n  .*^exit codes:\n  0 ", found.epilog, re.MULTILINE | re.DOTALL)
    lines = Path(ROOT, *command.split(".")).with_suffix(".py").read_text()
    assert "# PYTHON_ARGCOMPLETE_OK\n" in lines[:1024]


@each_command
def test_help_of_each_option(command: str) -> None:
    wrong = []
    for action in actions(command):
        text = (action.help or "") % vars(action) if "%" in (action.help or "") else action.help or ""
        if not text:
            wrong.append(f"{named(action)}: no help")
        if re.match(r"[A-Z][a-z]", text) or text.endswith("."):
            wrong.append(f"{named(action)}: {text}: lower case, and no full stop")
        if re.search(r"\bdefault\b|\(default", text):
            wrong.append(f"{named(action)}: {text}: the default stands in [brackets]")
        given = action.default not in (None, False, argparse.SUPPRESS) and action.default != []
        if given and action.option_strings and "[" not in text:
            wrong.append(f"{named(action)}: {text}: the default {action.default!r} is not told")
        takes = action.nargs != 0 and action.choices is None
        if takes and not (isinstance(action.metavar, (str, tuple)) and str(action.metavar)):
            wrong.append(f"{named(action)}: no metavar")
    assert wrong == []


@each_command
def test_help_fits(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (WIDTH, 30):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = parser(command).format_help()
        assert "exit codes:" in text
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    _, _, after = parser(command).format_help().partition("\n\n")
    assert [line for line in after.splitlines() if len(line) > WIDTH] == []


@each_command
def test_json(command: str) -> None:
    options = {option for action in actions(command) for option in action.option_strings}
    assert ("--json" in options) == (command not in WITHOUT_JSON)


def examples(command: str) -> list[list[str]]:
    found: Any = parser(command)
    return [shlex.split(text.replace("\\\n", " "), comments=True) for text in found.examples]


@each_command
def test_its_examples_are_its_own(command: str) -> None:
    for words in examples(command):
        while "=" in words[0]:
            del words[0]
        words = words[: words.index("|")] if "|" in words else words
        assert words[1:3] == ["-m", command]
        assert words[0] in ("python", "python3")
        parser(command).parse_args(words[3:])


@each_command
def test_a_wrong_option_is_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        parser(command).parse_args(["--no-such-option"])
    told = capsys.readouterr().err
    assert told.startswith(f"usage: python -m {command} ")
    assert f"\npython -m {command}: error: " in told


@pytest.mark.parametrize("command", [each for each in COMMANDS if each != "launch.init"])
def test_an_empty_name_is_not_the_folder_one_is_in(command: str) -> None:
    """As of a variable of the shell that is not set."""
    taken = []
    for action in actions(command):
        if action.metavar in PATHS:
            with suppress(argparse.ArgumentTypeError):
                (action.type or str)("")  # type: ignore[operator]
                taken.append(named(action))
    assert taken == []


# Each case in a process of its own, forked from one that has imported what the command does.
CASES = """
import importlib, json, os, runpy, sys
command, cases = sys.argv[1], json.loads(sys.argv[2])
importlib.import_module(command)
del sys.modules[command]
os.chdir("work")
for number, words in enumerate(cases):
    if (child := os.fork()) == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"../{number}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        sys.argv = [command, *words]
        runpy.run_module(command, run_name="__main__", alter_sys=True)
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@each_command
def test_what_is_not_there(command: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "folder").mkdir(parents=True)
    for name in ("noise", "noise.parquet"):
        (work / name).write_bytes(bytes(range(256)) * 16)
    as_json = [] if command in WITHOUT_JSON else ["--json"]
    cases = []
    for arguments, _ in WRONG[command]:
        rest = arguments.index("--") if "--" in arguments else len(arguments)
        cases.append([*arguments[:rest], *as_json, *arguments[rest:]])
    line = [sys.executable, "-c", CASES, command, json.dumps(cases)]
    done = subprocess.run(
        line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    codes = list(map(int, done.stdout.split()))
    assert len(codes) == len(cases), done.stderr
    for number, (arguments, code) in enumerate(WRONG[command]):
        out, err = ((tmp_path / f"{number}.{name}").read_text() for name in ("out", "err"))
        assert (codes[number], "Traceback" in err) == (code, False), (arguments, err)
        assert re.search(r"^error: \S", err, re.MULTILINE), (arguments, err)
        if as_json:
            told = json.dumps(json.loads(out))
            assert any(f'"{key}"' in told for key in ("error", "problem", "problems", "findings")), arguments
        else:
            assert out == "", arguments
    assert sorted(path.name for path in work.iterdir()) == ["folder", "noise", "noise.parquet"]


@each_command
def test_a_closed_pipe_is_quiet(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = run(command, "--help", capture_output=False, stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_told(unbuffered: str) -> None:
    more: Any = {"stderr": subprocess.PIPE, "env": environment(PYTHONUNBUFFERED=unbuffered)}
    with Path("/dev/full").open("w") as full:
        done = run("converters.resume", "--help", capture_output=False, stdout=full, **more)
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


def test_an_unbuffered_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    more: Any = {"stderr": subprocess.PIPE, "env": environment(PYTHONUNBUFFERED="1")}
    with os.fdopen(writing, "w") as pipe:
        done = run("converters.resume", "--help", capture_output=False, stdout=pipe, **more)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("command", ["reward.stats", "data_prep.inspect", "data_prep.convert"])
def test_ctrl_c_has_no_traceback(command: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", command, "-", *(["--out", "data"] if command == "data_prep.convert" else [])]
    reading, writing = os.pipe()
    pipes: Any = {"stdin": reading, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, **pipes, text=True, cwd=tmp_path, env=environment()) as process:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(b"{}\n" * 30_000)  # more than a pipe holds: its reading has begun
            pipe.flush()
            told = interrupted(process, pipe)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in told


def test_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    imported = {"hydra-core": "hydra", "pyyaml": "yaml"}

    def names(packages: list[str]) -> tuple[str, ...]:
        plain = (re.split(r"[<>=]", each)[0] for each in packages)
        return tuple(imported.get(each, each) for each in plain)

    assert names(project["dependencies"]) == BASE
    assert {extra: names(extras[extra]) for extra in EXTRAS} == EXTRAS


def hide(names: set[str], folder: Path) -> dict[str, str]:
    """An environment in which the packages `names` are not installed, and those alone."""
    (folder / "sitecustomize.py").write_text(
        "import sys\nclass Missing:\n    def find_spec(self, name, *_):\n"
        f"        if name.partition('.')[0] in {names!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    return environment(PYTHONPATH=f"{folder}:{ROOT}")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment without the packages of all extras."""
    return hide({name for names in EXTRAS.values() for name in names}, tmp_path)


@pytest.fixture
def barest(tmp_path: Path) -> dict[str, str]:
    """A Python with nothing that has to be installed."""
    return hide({*BASE, *(name for names in EXTRAS.values() for name in names)}, tmp_path)


# The last two import them later.
WITHOUT_EXTRA = ("launch.render", "launch.status", "singularity.build", "reward.server", "reward.stats")
WITH_EXTRA = [
    each for each in COMMANDS
    if each.startswith(("data_prep.", "reward.", "converters.")) and each not in WITHOUT_EXTRA
]  # fmt: skip
WITH_BASE = ("launch.engines.verify", "launch.render", "singularity.build", "singularity.inspect")


def assert_told_missing(done: subprocess.CompletedProcess[str], command: str, extra: str) -> None:
    assert done.returncode == 1
    assert re.fullmatch(
        rf"error: {re.escape(command)} needs \w+, which is not installed here; pip install {re.escape(extra)}"
        r" in the toolkit's folder\n",
        done.stderr,
    ), done.stderr
    assert json.loads(done.stdout)["error"] in done.stderr


@pytest.mark.parametrize("command", WITH_EXTRA)
def test_a_package_that_is_not_installed_is_named(command: str, bare: dict[str, str]) -> None:
    extra = {"data_prep": "data", "reward": "reward", "converters": "convert"}[command.partition(".")[0]]
    assert_told_missing(run(command, "--help", "--json", env=bare), command, f"'.[{extra}]'")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_python_without_any_package(command: str, barest: dict[str, str]) -> None:
    done = run(command, "--help", "--json", env=barest)
    if command in WITH_BASE:
        assert_told_missing(done, command, ".")
    elif command in WITH_EXTRA:
        assert re.fullmatch(r"error: \S+ needs .*\n", done.stderr), done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", WITHOUT_EXTRA)
def test_help_that_needs_no_extra(command: str, bare: dict[str, str]) -> None:
    done = run(command, "--help", env=bare)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("error", ["ImportError('pairwise')", "TypeError('slots')"])
@pytest.mark.parametrize("version", [(3, 9, 18), (3, 10, 0)])
def test_a_python_that_is_too_old_is_named(error: str, version: tuple[int, ...]) -> None:
    code = "import sys\nfrom singularity.command_line import quiet_imports, run\nquiet_imports()\n"
    code += f"sys.version_info = {version!r}\n"
    fails = f"def imports():\n    raise {error}\n"
    done, later = (
        subprocess.run([sys.executable, "-c", code + fails + call], cwd=ROOT, capture_output=True, text=True)
        for call in ("imports()", "run(imports)")
    )
    assert (done.returncode, later.returncode) == (1, 1)
    assert "Traceback" in later.stderr, "not of its imports"
    told = "error: -c needs Python 3.10 or later, and this is 3.9.18; use a newer one, as of the toolkit's .venv\n"
    assert (done.stderr == told) == (version < (3, 10))


def test_ctrl_c_while_modules_are_imported() -> None:
    code = "import os, signal\nfrom singularity.command_line import quiet_imports\nquiet_imports()\n"
    code += "os.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(1000)"
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, b"", b"")


@pytest.mark.parametrize("name", ["ä.parquet", "\udcff.parquet", "\x1b[2J.parquet"])
def test_names_that_a_terminal_cannot_show(name: str, tmp_path: Path) -> None:
    done = run("data_prep.validate", name, cwd=tmp_path, env=environment(PYTHONIOENCODING="ascii"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.isascii()
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "words", [["launch.status"], ["converters.resume", "no"], ["launch.render", "--template=grpo"]]
)
def test_a_working_folder_that_was_removed(words: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    line = ["bash", "-c", 'mkdir "$1" && cd "$1" && rmdir "$1" && shift && exec "$@"', "-", str(gone)]
    line += [sys.executable, "-m", *words]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 1
    assert done.stderr == "error: the folder that this runs in was removed; cd to one that is there\n"


def test_the_examples_of_data_run(tmp_path: Path) -> None:
    for command in ("data_prep.convert", "data_prep.validate", "data_prep.inspect"):
        words = examples(command)[0]
        done = run(*words[2:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["data_prep.inspect README.md", "converters.resume .", "launch.status no/run"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_standard_output_that_was_closed(command: str, closed: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m {command} {closed}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=environment(), capture_output=True, check=False)
    assert done.returncode == (0 if command == "converters.resume ." else 1)
    assert b"Traceback" not in done.stderr
