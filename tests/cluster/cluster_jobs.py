"""Jobs on the test cluster: rendered on the login node, submitted as alice."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from harness import CHECKOUT, IMAGE, Cluster

START_S = 420  # until the first step: image, models, Ray, verl's imports, on two cores that hold three nodes


@dataclass(frozen=True)
class Run:
    """A submitted job and its files as this machine sees them."""

    job_id: str
    log: Path
    folder: Path

    def told(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def verdict(self) -> dict[str, object]:
        return json.loads((self.folder / "verdict.json").read_text(encoding="utf-8"))


def render(cluster: Cluster, name: str, *settings: str) -> Path:
    """Render a rehearsal in /scratch/NAME on the login node, with the image's Python; returns the script."""
    # A folder of its own: a new cluster counts its jobs from 1 again, and would find their run directories.
    cluster.on("login", "rm", "-rf", f"/scratch/{name}")
    cluster.on("login", "mkdir", f"/scratch/{name}")
    options = [word for setting in (f"rehearsal.image={IMAGE}", *settings) for word in ("--set", setting)]
    command = ["python3", "-m", "launch.render", "--template", "grpo", "--rehearse", *options]
    cluster.in_image("login", *command, folder=f"/scratch/{name}")
    return cluster.scratch / name / "run_grpo.sh"


def submit(cluster: Cluster, script: Path) -> Run:
    job_id = cluster.sbatch(script.name, folder=f"/scratch/{script.parent.name}")
    folder = script.parent / "outputs" / "qwen3-4b-grpo" / f"run-{job_id}"
    return Run(job_id, script.parent / f"qwen3-4b-grpo-rehearsal-{job_id}.out", folder)


def replace_trainer(script: Path, code: str) -> None:
    """Let the script run Python code, without double quotes and dollars, in the place of verl.

    The check before Ray would refuse it: without it the script has one line less.
    """
    text = script.read_text(encoding="utf-8")
    trainer = 'TRAINER=("$PYTHON" -m verl.experimental.one_step_off_policy.main_ppo'
    assert text.count(trainer) == 1
    text = text.replace(trainer, f'TRAINER=("$PYTHON" -c "{code}"')
    check = '  ::check "${CHECK[@]}" \\\n'
    assert text.count(check) == 1
    script.write_text(text.replace(check, ""), encoding="utf-8")


def render_idle(cluster: Cluster, name: str, code: str, *settings: str) -> Path:
    """A job of Ray and the supervisor alone: its trainer is Python code; no models, no reward server, no merge."""
    function = CHECKOUT / "reward" / "client.py"  # never called
    script = render(
        cluster, name, "reward.kind=function", f"reward.function={function}", "checkpoint.merge=false", *settings
    )
    replace_trainer(script, code)
    text = script.read_text(encoding="utf-8")
    without = re.sub(r"^  ::prepare .*\n", "", text, flags=re.MULTILINE)
    assert text.count("\n") - without.count("\n") == 2
    script.write_text(without, encoding="utf-8")
    return script
