"""Jobs on the test cluster: rendered on the login node, submitted as alice, and how they should end."""

import functools
import json
import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness import CHECKOUT, IMAGE, Cluster, Ended

START_S = 1500  # until the first step of verl: image, models, Ray, imports, on two cores that hold three nodes
UP_S = 400  # until the first step of the stub trainer
END_S = 30  # the promise: from a fault that shows at once to the end of the job
SLURM_S = 60  # the most that Slurm may wait for answers of a node that is gone, once the batch script has ended
_MODELS = "/scratch/rehearsal-models"


@dataclass(frozen=True)
class Run:
    """A submitted job and its files as this machine sees them."""

    job_id: str
    log: Path
    folder: Path

    def told(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def verdict(self) -> dict[str, Any]:
        return self._read("verdict.json")

    def manifest(self) -> dict[str, Any]:
        return self._read("manifest.json")

    def _read(self, name: str) -> dict[str, Any]:
        file = self.folder / name
        assert file.exists(), f"no {file}; the job's log:\n{self.told()}"
        return dict(json.loads(file.read_text(encoding="utf-8")))


@functools.cache
def _rendered(cluster: Cluster, settings: tuple[str, ...]) -> str:
    """The text of a rehearsal in /scratch/rendered. Rendering takes seconds; many tests want the same job."""
    folder = "/scratch/rendered"
    cluster.on("login", "rm", "-rf", folder)
    cluster.on("login", "mkdir", folder)
    options = [word for setting in (f"rehearsal.image={IMAGE}", *settings) for word in ("--set", setting)]
    command = ["python3", "-m", "launch.render", "--template", "grpo", "--rehearse", *options]
    cluster.in_image("login", *command, folder=folder)
    return (cluster.scratch / "rendered" / "run_grpo.sh").read_text(encoding="utf-8")


def render(cluster: Cluster, name: str, *settings: str) -> Path:
    """A rehearsal in /scratch/NAME, rendered on the login node with the image's Python; returns the script."""
    # A folder of its own: a new cluster counts its jobs from 1 again, and would find their run directories.
    cluster.on("login", "rm", "-rf", f"/scratch/{name}")
    cluster.on("login", "mkdir", f"/scratch/{name}")
    script = cluster.scratch / name / "run_grpo.sh"
    script.write_text(
        _rendered(cluster, settings).replace("/scratch/rendered", f"/scratch/{name}"), encoding="utf-8"
    )
    return script


def edit(script: Path, old: str, new: str) -> None:
    """Replace what is there once."""
    text = script.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{text.count(old)} times {old!r} in {script}"
    script.write_text(text.replace(old, new), encoding="utf-8")


def edit_node(script: Path, node: str, command: str, *, before: str) -> None:
    """Let one node alone do something more on its way to its container.

    Args:
        before: a regular expression of the line of `on_node` in launch/batch.sh that the command comes before.
    """
    more = f"sed '/{before}/i [[ $SLURMD_NODENAME != {node} ]] || {command}'"
    anchor = "\n# ---- the container on"
    edit(script, anchor, f'\neval "$(declare -f on_node | {more})"{anchor}')


def _drop(script: Path, marker: str) -> None:
    """Take a command out of what the nodes are called with."""
    text = script.read_text(encoding="utf-8")
    without = re.sub(rf"^  {marker} .*\n", "", text, flags=re.MULTILINE)
    assert without != text, f"no {marker} in {script}"
    script.write_text(without, encoding="utf-8")


def replace_trainer(script: Path, words: str) -> None:
    """Let the script run other bash words in the place of verl; its overrides follow them.

    The check before Ray would refuse it: without it the script has one line less.
    """
    edit(script, 'TRAINER=("$PYTHON" -m verl.experimental.one_step_off_policy.main_ppo', f"TRAINER=({words}")
    _drop(script, "::check")


def render_stub(
    cluster: Cluster, name: str, options: str = "", *settings: str, nodes: int = 1, server: bool = False
) -> Path:
    """A job of Ray and the supervisor with the stub trainer (its options: stub_trainer.py); no models, no merge.

    Args:
        server: with the real reward server, on models that are made once for all tests.
    """
    settings = (f"cluster.nodes={nodes}", "checkpoint.merge=false", *settings)
    if not server:
        function = CHECKOUT / "reward" / "client.py"  # never called
        settings = ("reward.kind=function", f"reward.function={function}", *settings)
    script = render(cluster, name, *settings)
    replace_trainer(script, f'"$PYTHON" {CHECKOUT}/tests/cluster/stub_trainer.py {options}')
    _drop(script, "::prepare")
    if server:
        _make_models(cluster)
        cluster.on("login", "cp", "-r", f"{_MODELS}/reward_model", f"/scratch/{name}/")  # bound into the container
        edit(script, '"$RUN_DIR/rehearsal/reward_model"', f"/scratch/{name}/reward_model")
    return script


@functools.cache
def _make_models(cluster: Cluster) -> None:
    command = ["python3", "-m", "launch.rehearsal.prepare", "--out", _MODELS, "--verl", "0.9.1"]
    options = ["--actor", "megatron", "--rollout", "hf", "--family", "qwen3"]
    cluster.in_image("login", *command, *options)


def submit(cluster: Cluster, script: Path, *options: str) -> Run:
    """Submit a script; `options` are sbatch's."""
    return submitted(script, cluster.sbatch(script.name, *options, folder=f"/scratch/{script.parent.name}"))


def submitted(script: Path, job_id: str) -> Run:
    """The files of a job that was submitted."""
    folder = script.parent / "outputs" / "qwen3-4b-grpo" / f"run-{job_id}"
    return Run(job_id, script.parent / f"qwen3-4b-grpo-rehearsal-{job_id}.out", folder)


def at_step(cluster: Cluster, script: Path, step: int = 1, *options: str) -> Run:
    """Submit a script and wait until its trainer has told a step."""
    run = submit(cluster, script, *options)
    cluster.wait_for_text(run.log, f"step {step} ", run.job_id, UP_S)
    return run


def assert_failed(
    run: Run,
    ended: Ended,
    *,
    code: int,
    component: str,
    node: str,
    since: float | None = None,
    within: float = END_S,
    more: float = 0.0,
) -> dict[str, Any]:
    """A job that failed with this code, verdict and, counted from the fault, in time; returns its verdict.

    Args:
        since: when the fault was, in seconds of time.monotonic().
        within: seconds from there to the verdict.
        more: seconds that Slurm may take beyond that to say that the job has ended.
    """
    told = run.told()
    assert ended.state == "FAILED", (ended, told)
    verdict = run.verdict()
    assert (verdict["state"], verdict["component"], verdict["node"]) == ("failed", component, node), (
        verdict,
        told,
    )
    assert (ended.exit_code, ended.signal, verdict["exit_code"]) == (*as_slurm_tells(code), code), (ended, told)
    assert verdict["cause"] in told, told
    if since is not None:
        verdict_s = datetime.fromisoformat(verdict["ended"]).timestamp() - time.time() + time.monotonic() - since
        assert verdict_s <= within, f"{verdict_s:.1f} s from the fault to the verdict\n{told}"
        assert ended.seen - since <= within + more, f"{ended.seen - since:.1f} s from the fault to the end\n{told}"
        print(f"{component} on {node}: {ended.seen - since:.1f} s from the fault to the end")
    return verdict


def assert_diagnosed(verdict: dict[str, Any], kind: str, *texts: str) -> None:
    """The verdict names a row of the table of causes, says what to do, and holds the texts somewhere."""
    assert verdict["kind"] == kind, verdict
    assert verdict["what_to_do"], verdict
    shown = f"{verdict['cause']} {verdict['evidence']} {verdict['what_to_do']}"
    for text in texts:
        assert text in shown, (text, verdict)


def as_slurm_tells(code: int) -> tuple[int, int]:
    """(exit code, signal) of sacct for a batch script that ends with a code: Slurm takes 128 off."""
    return (code - 128, 0) if code > 128 else (code, 0)
