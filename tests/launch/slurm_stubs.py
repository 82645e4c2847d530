"""A node of a cluster in a folder: srun, apptainer and singularity that do to words and environment what the real
ones do, and write down what they got."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Starts its command as a task of a step: options first, then the program.
_SRUN = """
import ctypes, json, os, signal, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(print("slurm 24.11.5"))
options = []
while words and words[0].startswith("-"):
    options.append(words.pop(0))
told = {"options": options, "command": words, "env": dict(os.environ)}
with open(os.environ["STUB_LOG"] + "/srun.json", "a", errors="surrogateescape") as log:
    log.write(json.dumps(told) + chr(10))
env = {**os.environ, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "n1"}
# Like slurmstepd: a task leads a process group, and a signal to the step goes to the group.
passed = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, passed)
def in_task():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
task = subprocess.Popen(words, env=env, start_new_session=True, preexec_fn=in_task)
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: os.killpg(task.pid, number))
for number in (signal.SIGTERM, signal.SIGHUP):  # srun: "forcing job termination"
    deaf = "STUB_DEAF" in os.environ
    signal.signal(number, signal.SIG_IGN if deaf else lambda *_: os.killpg(task.pid, signal.SIGKILL))
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
code = task.wait()
sys.exit(code if code >= 0 else 128 - code)
"""

# `exec` with the program's rule for the environment: PREFIX_NAME is NAME inside, the rest passes (no --cleanenv).
_CONTAINER = """
import json, os, sys
me = os.path.basename(sys.argv[0])
twin = {"apptainer": "singularity", "singularity": "apptainer"}[me].upper() + "ENV_"
prefix = me.upper() + "ENV_"
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(print(me, "version 1.4"))
assert words.pop(0) == "exec", words
options = []
while words[0].startswith("-"):
    option = words.pop(0)
    options.append([option, words.pop(0)] if option in ("--bind", "--pwd") else [option])
image, *command = words
env = {name: value for name, value in os.environ.items() if not name.startswith((prefix, twin))}
env.update({name[len(prefix):]: value for name, value in os.environ.items() if name.startswith(prefix)})
told = {"program": me, "options": options, "image": image, "command": command, "env": env}
told["outer"] = dict(os.environ)
with open(os.environ["STUB_LOG"] + "/container.json", "a", errors="surrogateescape") as log:
    log.write(json.dumps(told) + chr(10))
code = os.environ.get("STUB_INSIDE", 'echo "{}" >"$STUB_RUN_DIR/verdict.json"; echo 0 >"$STUB_RUN_DIR/.over-0"')
run_dir = command[command.index("--run-dir") + 1]
sys.stdout.flush()
env = {**env, "PATH": "/usr/bin:/bin", "STUB_RUN_DIR": run_dir}
os.execvpe("/bin/bash", ["/bin/bash", "--norc", "-c", code, *command], env)
"""


@dataclass
class Outcome:
    """How a script ended, and what the stubs saw."""

    code: int
    out: str
    err: str
    sruns: list[dict]
    containers: list[dict]


class Node:
    """Runs scripts as a batch job on a node of stubs."""

    def __init__(self, folder: Path, programs: tuple[str, ...] = ("srun", "apptainer")) -> None:
        self.bin, self._log = folder / "bin", folder / "log"
        self.bin.mkdir(parents=True)
        self._log.mkdir()
        for name in programs:
            body = _SRUN if name == "srun" else _CONTAINER
            self.program(name, f"#!{sys.executable} -IS\n{body}")

    def program(self, name: str, text: str) -> None:
        """Put a program on the node's PATH."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(
        self, script: Path, environ: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen:
        """Start a script as Slurm does: bash, not a login shell, with Slurm's variables and no signal ignored.

        bash cannot trap what was ignored before it began, as SIGHUP is in tests that nohup started.
        """
        for file in self._log.iterdir():
            file.unlink()
        env = {
            "PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self._log.parent), "STUB_LOG": str(self._log),
            "SLURM_JOB_ID": "77", "SLURM_CPUS_ON_NODE": "64", **(environ or {}),
        }  # fmt: skip
        return subprocess.Popen(
            ["env", "--default-signal", "bash", script],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd or script.parent,
        )

    def sbatch(self, script: Path, environ: dict[str, str] | None = None, cwd: Path | None = None) -> Outcome:
        """Run a script to its end, and tell how it ended."""
        return self.end(self.start(script, environ, cwd))

    def end(self, job: subprocess.Popen, limit_s: float = 60.0) -> Outcome:
        """Wait for a script that was started."""
        out, err = job.communicate(timeout=limit_s)
        return Outcome(
            job.returncode,
            out.decode(errors="surrogateescape"),
            err.decode(errors="surrogateescape"),
            self._told("srun"),
            self._told("container"),
        )

    def _told(self, name: str) -> list[dict]:
        file = self._log / f"{name}.json"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def commands(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Options of launch/node.py, and the last command behind each marker."""
    options: list[str] = []
    found: dict[str, list[str]] = {}
    current = options
    for word in words:
        if word.startswith("::") and word[2:].isalpha():
            current = found[word] = []
        else:
            current.append(word)
    return options, found


def named_options(words: list[str]) -> dict[str, str]:
    """`--name value` pairs; a switch has the value ''."""
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if following.startswith("--") else following
    return found


def host_environment() -> dict[str, str]:
    """What a login shell with Python, conda and MPI leaves in the environment of a job."""
    return dict.fromkeys(
        (
            "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "VIRTUAL_ENV", "CONDA_PREFIX",
            "CONDA_DEFAULT_ENV", "CONDA_SHLVL", "CONDA_PYTHON_EXE", "LD_LIBRARY_PATH",
        ),
        "/host",
    )  # fmt: skip


BATCH = Path(__file__).resolve().parents[2] / "launch" / "batch.sh"


def with_batch(text: str, old: str, new: str) -> str:
    """A script with the functions of launch/batch.sh in it, and one text of these changed."""
    source = re.search(r'^source "\$TOOLKIT/launch/batch.sh".*$', text, re.MULTILINE)
    batch = BATCH.read_text()
    assert source is not None
    assert batch.count(old) == 1
    return text.replace(source.group(), batch.replace(old, new))
