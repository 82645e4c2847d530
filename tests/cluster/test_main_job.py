"""The main job on the cluster: rendered on the login node, submitted without root, run on three nodes."""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import IMAGE, Cluster

START_S = 420  # until the first step: image, models, Ray, verl's imports, on two cores that hold three nodes
END_S = 30  # the promise: from the death of a part to the end of the job


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
    cluster.on("login", "mkdir", "-p", f"/scratch/{name}")
    options = [word for setting in (f"rehearsal.image={IMAGE}", *settings) for word in ("--set", setting)]
    command = ["python3", "-m", "launch.render", "--template", "grpo", "--rehearse", *options]
    cluster.in_image("login", *command, folder=f"/scratch/{name}")
    return cluster.scratch / name / "run_grpo.sh"


def submit(cluster: Cluster, script: Path) -> Run:
    job_id = cluster.sbatch(script.name, folder=f"/scratch/{script.parent.name}")
    folder = script.parent / "outputs" / "qwen3-4b-grpo" / f"run-{job_id}"
    return Run(job_id, script.parent / f"qwen3-4b-grpo-rehearsal-{job_id}.out", folder)


def test_runs_to_a_merged_model_on_three_nodes(cluster: Cluster) -> None:
    steps = 4
    run = submit(cluster, render(cluster, "whole", f"rehearsal.steps={steps}"))
    ended = cluster.wait(run.job_id, START_S + 180)
    told = run.told()
    assert (ended.state, ended.exit_code, ended.signal) == ("COMPLETED", 0, 0), told

    # Ray has one node on each node of the allocation.
    assert re.search(r"3 Ray nodes .*10\.77\.0\.11, 10\.77\.0\.12, 10\.77\.0\.13", told), told
    # The trainer took every step.
    assert re.findall(r"step (\d+) ", told) == [str(step) for step in range(1, steps + 1)], told
    verdict = run.verdict()
    assert (verdict["state"], verdict["exit_code"], verdict["steps_done"]) == ("completed", 0, steps)

    # Rewards came over HTTP from the server on the head node, all of them scored: 8 prompts, 8 answers each.
    entries = [
        json.loads(line)
        for file in (run.folder / "reward_log").glob("*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    assert len(entries) >= steps * 8 * 8
    assert {re.sub(r":\d+$", "", entry["server_url"]) for entry in entries} == {"http://10.77.0.11"}
    assert {entry["status"] for entry in entries} == {"ok"}
    assert len({entry["score"] for entry in entries}) > 10, "a reward model gives different scores"

    # The checkpoint, and the merged model that transformers loads.
    assert (run.folder / "checkpoints" / f"global_step_{steps}" / "actor").is_dir()
    load = (
        "import sys, torch; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "tokens = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "logits = model(**tokens('1 + 1', return_tensors='pt')).logits\n"
        "print(model.config.model_type, bool(torch.isfinite(logits).all()))"
    )
    inside = "/scratch" / (run.folder / "hf_model").relative_to(cluster.scratch)
    loaded = cluster.in_image("login", "python3", "-c", load, inside, timeout_s=240)
    assert loaded.stdout.split() == ["qwen3", "True"], loaded.stderr


def test_exit_code_of_the_trainer_is_the_jobs(cluster: Cluster) -> None:
    script = render(cluster, "exit42")
    text = script.read_text(encoding="utf-8")
    trainer = 'TRAINER=("$PYTHON" -m verl.experimental.one_step_off_policy.main_ppo'
    assert text.count(trainer) == 1
    script.write_text(text.replace(trainer, 'TRAINER=("$PYTHON" -c "import sys; sys.exit(42)"'), encoding="utf-8")
    run = submit(cluster, script)
    ended = cluster.wait(run.job_id, START_S)
    assert (ended.state, ended.exit_code) == ("FAILED", 42), run.told()
    verdict = run.verdict()
    assert (verdict["component"], verdict["node"], verdict["exit_code"]) == ("trainer", "n1", 42)


@pytest.mark.parametrize(
    ("node", "process", "component"),
    [("n1", r"^\S*python3 -m reward\.server ", "reward server"), ("n3", r"^\S*/raylet/raylet ", "ray worker")],
    ids=["reward-server", "raylet"],
)
def test_death_of_a_part_ends_the_job(cluster: Cluster, node: str, process: str, component: str) -> None:
    run = submit(cluster, render(cluster, f"kill-{component.replace(' ', '-')}"))
    cluster.wait_for_text(run.log, "step 1 ", run.job_id, START_S)
    cluster.kill(node, process)
    killed = time.monotonic()
    ended = cluster.wait(run.job_id, END_S + 60)
    took = time.monotonic() - killed
    told = run.told()
    assert ended.state == "FAILED", told
    assert ended.exit_code != 0, told
    assert f"{component} on {node} failed" in told, told
    assert (run.verdict()["component"], run.verdict()["node"]) == (component, node)
    assert took <= END_S, f"the job ended {took:.1f} s after its {component} was killed\n{told}"
