"""The main job on the cluster: rendered on the login node, submitted without root, run on three nodes."""

import json
import re
import time

import pytest
from cluster_jobs import END_S, START_S, UP_S, Run, assert_diagnosed, assert_failed, edit, render, submit
from doc_shell import DOCS, ROOT, sections
from doc_shell import run as run_page
from harness import Cluster

# Everything runs as alice on the login node: rendering in the image, where the packages for it are; the rest with
# the node's own Python. The image is the one that build_image.sh made by this very command from what is on disk.
STANDS_IN = """
on_login() { tests/cluster/on login -u alice sh -c 'cd /scratch/first-hour && exec "$@"' sh "$@"; }
cat() { on_login cat "$@"; }
sbatch() { on_login sbatch "$@"; }
python() {
  case "$*" in
  "-m launch.render "*) on_login singularity -q exec --bind "$PYTHONPATH,/scratch" --env "PYTHONPATH=$PYTHONPATH" \
    --pwd /scratch/first-hour /scratch/img/verl-cpu.sif python3 "$@" ;;
  "-m singularity.build --stack cpu "*)
    on_login sh -c 'mkdir images && ln -s /scratch/img/verl-cpu.sif* images/' ;;
  *) on_login env "PYTHONPATH=$PYTHONPATH" python3 "$@" ;;
  esac
}
"""


def test_runs_to_a_merged_model_on_three_nodes(cluster: Cluster) -> None:
    """The third section of docs/first-hour.md, as it stands there."""
    steps = 4
    cluster.on("login", "rm", "-rf", "/scratch/first-hour")
    cluster.on("login", "mkdir", "/scratch/first-hour")
    (commands,) = [text for heading, text in sections(DOCS / "first-hour.md").items() if heading.startswith("3.")]
    page = run_page(commands, ROOT, STANDS_IN, timeout_s=START_S + UP_S)
    below = cluster.scratch / "first-hour"
    (folder,), (log,) = below.glob("outputs/qwen3-4b-grpo/run-*"), below.glob("*.out")
    run = Run(folder.name.removeprefix("run-"), log, folder)
    ended = cluster.wait(run.job_id, UP_S)
    told = run.told()
    assert (ended.state, ended.exit_code, ended.signal) == ("COMPLETED", 0, 0), told
    assert "state      completed" in page

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
    loaded = cluster.in_image("login", "python3", "-c", load, inside, timeout_s=900)
    assert loaded.stdout.split() == ["qwen3", "True"], loaded.stderr


def test_a_command_that_the_image_refuses_ends_the_job_before_ray(cluster: Cluster) -> None:
    """A03's kind: what could not be checked where the job was rendered is checked with the image's verl."""
    script = render(cluster, "refused", "cluster.nodes=1")
    edit(script, "trainer.save_freq=", "trainer.save_frequency=")
    run = submit(cluster, script)
    ended = cluster.wait(run.job_id, START_S)
    verdict = assert_failed(run, ended, code=38, component="check", node="n1")
    assert_diagnosed(verdict, "verl-config", "no key trainer.save_frequency; did you mean trainer.save_freq?")
    assert "Ray node" not in run.told()


@pytest.mark.slow  # as in test_faults_services.py, with verl's own processes
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
    took = ended.seen - killed
    told = run.told()
    assert ended.state == "FAILED", told
    assert ended.exit_code != 0, told
    assert f"{component} on {node} failed" in told, told
    assert (run.verdict()["component"], run.verdict()["node"]) == (component, node)
    assert took <= END_S, f"the job ended {took:.1f} s after its {component} was killed\n{told}"
