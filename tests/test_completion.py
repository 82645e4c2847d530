"""TAB in a real bash, switched on by the one line that the documents name."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_parsers import ROOT, commands

LIMIT_S = 300
SWITCH_ON = 'eval "$(activate-global-python-argcomplete --dest=-)"'
# What readline sets before it calls the function that is registered for any command.
ASK = """
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
read -ra COMP_WORDS <<<"$1"
[[ $1 != *" " ]] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
_python_argcomplete_global "${COMP_WORDS[0]}" "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def environment() -> dict[str, str]:
    folder = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}


def offered(line: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{SWITCH_ON}\n{ASK}", "bash", line],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("python -m launch.render --te", ["--template"]),
        ("python -m launch.render --template ", ["grpo", "ppo", "dapo"]),
        ("python -m launch.render --job jobs/dem", ["jobs/demo.yaml"]),
        ("python -m launch.render --set algorithm.esti", ["algorithm.estimator="]),
        ("python -m launch.render --set engine.mode=", ["sync", "one_step_off"]),
        ("python -m launch.render --set reward.upstream=", []),
        ("python -m singularity.build --stack verl-0.9", ["verl-0.9.1"]),
        ("python -m data_prep.convert --style ", ["rule", "model"]),
        ("python -m converters.merge --ver", ["--verify"]),
        ("python -m reward.client --ur", ["--url"]),
    ],
    ids=lambda value: value.split(" -m ")[-1].strip().replace(" ", "_") if isinstance(value, str) else "",
)
def test_what_is_offered(line: str, wanted: list[str]) -> None:
    assert {each.strip() for each in offered(line)} - {""} == set(wanted)


def test_every_command_is_known_to_argcomplete() -> None:
    code = "import sys; from argcomplete._check_module import find\n"
    code += "print(*[name for name in sys.argv[1:] if 'PYTHON_ARGCOMPLETE_OK' not in open(find(name)).read(1024)])"
    line = [sys.executable, "-c", code, *commands()]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_real_tab() -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment())
    try:
        os.write(terminal, f"{SWITCH_ON}; echo rea''dy\n".encode())
        read_until(terminal, "ready\r\n$ ")
        os.write(terminal, b"python -m launch.render --templ\tdap\t")
        read_until(terminal, "--template dapo ")
    finally:
        os.close(terminal)
        os.kill(process, 9)
        os.waitpid(process, 0)


def read_until(terminal: int, wanted: str) -> None:
    shown, deadline = "", time.monotonic() + LIMIT_S
    while wanted not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace").replace("\x07", "")


@pytest.mark.parametrize("asked", [True, False])
def test_a_command_does_without_argcomplete(asked: bool) -> None:
    """It is not imported unless a shell asks, and its absence is no fault."""
    code = "import sys; sys.modules['argcomplete'] = None\n"
    code += "from converters.resume import main\nmain(['.', '--dry-run'])"
    environ = {**os.environ, **({"_ARGCOMPLETE": "1"} if asked else {})}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, b"")
