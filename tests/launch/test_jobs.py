"""Every ready job in jobs/ renders, as itself and as a rehearsal."""

from pathlib import Path

import pytest
import yaml
from model_folders import QWEN3_4B, QWEN3_30B_A3B, QWEN3_REWARD, model_folder

from launch.checks import check_job
from launch.checks.memory import check_memory, estimate_job
from launch.checks.model import check_model
from launch.checks.reward_model import check_reward_model
from launch.config import Job, load_job
from launch.rehearsal.shrink import rehearse
from launch.script import RenderRequest, render_script
from launch.sizing.cpus import cpus_needed
from launch.sizing.layout import plan_layout

JOBS = sorted((Path(__file__).resolve().parents[2] / "jobs").glob("*.yaml"))
# Models, images and data come from elsewhere.
NOT_HERE = {"missing-file", "missing-image", "local-folder", "disk-space"}


def ready(name: str) -> Job:
    file = next(file for file in JOBS if file.name == name)
    return load_job(yaml.safe_load(file.read_text())["template"], file)


@pytest.mark.parametrize("name", [file.name for file in JOBS])
def test_a_ready_job_renders(name: str, tmp_path: Path):
    job = ready(name)
    broken = {finding.id for finding in check_job(job, tmp_path, rehearse=False, sample_data=False)}
    # The demo names no GPU: it is rehearsed.
    assert broken <= NOT_HERE | {"wandb-login"} | ({"fp8-unknown"} if name == "demo.yaml" else set())
    text = render_script(RenderRequest(job, tmp_path, "run.sh"))
    assert f"#SBATCH --job-name={job.name}\n" in text


@pytest.mark.parametrize("name", [file.name for file in JOBS])
def test_a_ready_job_can_be_rehearsed(name: str, tmp_path: Path):
    job = rehearse(ready(name))
    broken = {finding.id for finding in check_job(job, tmp_path, rehearse=True, sample_data=False)}
    assert broken <= NOT_HERE
    assert "launch.rehearsal.prepare" in render_script(RenderRequest(job, tmp_path, "run.sh", rehearse=True))


@pytest.mark.parametrize("name", [file.name for file in JOBS])
def test_a_ready_job_leaves_to_a_site_what_is_a_sites(name: str):
    """A job file lies above cluster.yaml: a guess in it would win over what is known."""
    assert ready(name).cluster.model_fields_set <= {"nodes", "gpus_per_node", "gpu", "cpus_per_node", "time"}


def test_the_algorithms_are_there():
    assert {ready(name).template for name in ("grpo.yaml", "ppo.yaml", "dapo.yaml")} == {"grpo", "ppo", "dapo"}
    assert ready("ppo.yaml").algorithm.estimator == "gae"
    dapo = ready("dapo.yaml").algorithm
    assert (dapo.clip_ratio_low, dapo.clip_ratio_high, dapo.use_kl_loss) == (0.2, 0.28, False)
    assert dapo.overlong_buffer.enable


def test_a_mixture_of_experts_has_expert_parallelism_on_four_nodes():
    job = ready("moe-30b-a3b.yaml")
    assert (job.cluster.nodes, job.actor.expert_parallel) == (4, 8)
    layout = plan_layout(job)
    assert (layout.rollout_nodes, layout.rollout_gpus, layout.train_world) == (2, 7, 16)


def test_the_seeds_job_uses_what_it_asks_for():
    """Its script asked for 8 GPUs, trained on 4 of them and put the reward model beside the actor on the first."""
    job = ready("seed-qwen3-4b.yaml")
    assert (job.engine.verl, job.engine.mode) == ("0.6.1", "sync")
    layout = plan_layout(job)
    assert (job.cluster.gpus_per_node, layout.train_world, layout.reward_gpus, layout.idle_gpus) == (5, 4, 1, 0)
    assert (job.data.train, job.data.val) == (["data/train.parquet"], ["data/test.parquet"])


@pytest.mark.parametrize("name", [file.name for file in JOBS if file.name != "demo.yaml"])
def test_a_ready_job_fits_its_models_and_its_gpus(name: str, tmp_path: Path):
    """With the sizes of the real models; whether their tokenizers are whole is not looked at here."""
    job = ready(name)
    model_folder(tmp_path / "models/Qwen3-4B-Thinking-2507", QWEN3_4B)
    model_folder(tmp_path / "models/Qwen3-30B-A3B", QWEN3_30B_A3B)
    model_folder(tmp_path / "models/Unsafe-Reward-Qwen3-1.7B", QWEN3_REWARD)
    assert estimate_job(job, tmp_path) is not None
    assert [*check_memory(job, tmp_path), *check_model(job, tmp_path), *check_reward_model(job, tmp_path)] == []


@pytest.mark.parametrize("name", [file.name for file in JOBS])
def test_a_ready_job_asks_for_the_cpus_that_it_needs(name: str):
    """A site's default may be one CPU a task, with which Ray waits for ever."""
    job = ready(name)
    assert job.cluster.cpus_per_node is not None
    assert job.cluster.cpus_per_node >= cpus_needed(job)[1]
