"""The overrides compose with verl's own configuration."""

import importlib.util
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launch.config import load_job
from launch.engines.command import trainer_command
from launch.rehearsal.shrink import rehearse


def composed(*assignments: str, rehearsal: bool = True):
    job = load_job("grpo", None, assignments)
    job = rehearse(job) if rehearsal else job
    command = trainer_command(job, Path("/project"), rehearse=rehearsal, sample_data=rehearsal)
    spec = importlib.util.find_spec("verl")
    assert spec is not None, "verl is not installed; run: make setup"
    verl = Path(spec.submodule_search_locations[0])
    place = "experimental/one_step_off_policy" if "one_step_off" in command.module else "trainer"
    with initialize_config_dir(str(verl / place / "config"), version_base=None):
        return compose(
            command.config_name, [line for line in command.overrides if not line.startswith("hydra.run")]
        )


@pytest.mark.parametrize("strategy", ["megatron", "fsdp2"])
@pytest.mark.parametrize("rollout", ["hf", "vllm"])
@pytest.mark.parametrize("mode", ["one_step_off", "sync"])
def test_rehearsals_compose(monkeypatch: pytest.MonkeyPatch, strategy: str, rollout: str, mode: str):
    monkeypatch.setenv("RUN_DIR", "/run dir")
    monkeypatch.setenv("CHECKPOINT_DIR", "/check,points")
    config = composed(f"actor.strategy={strategy}", f"rehearsal.rollout={rollout}", f"engine.mode={mode}")
    OmegaConf.resolve(config)
    assert config.actor_rollout_ref.model.path == "/run dir/rehearsal/policy"
    assert config.trainer.default_local_dir == "/check,points"
    assert config.actor_rollout_ref.rollout.name == rollout
    assert config.actor_rollout_ref.actor.strategy == strategy
    assert config.reward.custom_reward_function.name == "compute_score"
    assert Path(config.reward.custom_reward_function.path).is_file()


@pytest.mark.parametrize("strategy", ["megatron", "fsdp2"])
@pytest.mark.parametrize("mode", ["one_step_off", "sync"])
def test_jobs_compose(strategy: str, mode: str):
    config = composed(
        f"actor.strategy={strategy}", f"engine.mode={mode}", "model.path='m,o=d{e}l'", rehearsal=False
    )
    assert config.actor_rollout_ref.model.path == "/project/m,o=d{e}l"
    assert config.data.train_files == ["/project/data/train.parquet"]
    assert config.actor_rollout_ref.rollout.name == "sglang"
    if mode == "one_step_off":
        assert config.actor_rollout_ref.hybrid_engine is False
        assert (config.rollout.nnodes, config.rollout.n_gpus_per_node) == (1, 7)
    if strategy == "megatron":
        assert config.actor_rollout_ref.actor.megatron.override_transformer_config.fp8 == "e4m3"
        assert config.actor_rollout_ref.ref.megatron.pipeline_model_parallel_size == 2


def test_raw_overrides_have_the_last_word():
    assert composed("overrides=['trainer.total_training_steps=7']").trainer.total_training_steps == 7


def test_keys_of_each_version():
    lines = {}
    for verl, mode in (("0.6.1", "sync"), ("0.9.1", "one_step_off")):
        job = load_job("grpo", None, [f"engine.verl={verl}", f"engine.mode={mode}"])
        lines[verl] = trainer_command(job, Path("/p"), rehearse=False, sample_data=False).overrides
    assert any(line.startswith("custom_reward_function.path=") for line in lines["0.6.1"])
    assert any(line.startswith("reward.custom_reward_function.path=") for line in lines["0.9.1"])
    assert "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2" in lines["0.6.1"]
    assert not any(line.startswith(("rollout.", "hydra.searchpath")) for line in lines["0.6.1"])


def test_each_key_once_in_a_rehearsal():
    command = trainer_command(rehearse(load_job("grpo")), Path("/p"), rehearse=True, sample_data=True)
    keys = [line.partition("=")[0] for line in command.overrides]
    assert len(keys) == len(set(keys))
