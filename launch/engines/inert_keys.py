"""Keys that compose in a version of verl and do nothing there, each with where that was read in the wheel.

Found by looking which keys of the YAML no Python reads, and which sections a trainer never hands on. A test looks
again. Generated files and docstrings do not count as reading.
"""

from dataclasses import dataclass

_ONE_STEP_OFF = "verl.experimental.one_step_off_policy.main_ppo"
_SYNC = "verl.trainer.main_ppo"


@dataclass(frozen=True)
class Inert:
    """A key (with all below it) that does nothing with these versions and entry modules (none named: all)."""

    key: str
    versions: tuple[str, ...]
    why: str
    instead: str = ""
    modules: tuple[str, ...] = ()
    unread: bool = False  # no Python of the wheel reads the last name of the key

    def concerns(self, key: str, version: str, module: str) -> bool:
        """Whether this is about `key` of that version and entry module."""
        here = version in self.versions and (not self.modules or module in self.modules)
        return here and f"{key}.".startswith(f"{self.key}.")


def _unread(key: str, *versions: str, instead: str = "") -> Inert:
    return Inert(key, versions, "no code of this version reads it", instead, unread=True)


# experimental/reward_loop/reward_loop.py, migrate_legacy_reward_impl: 0.8.0 calls it in main_ppo alone, 0.9.1 in
# fully_async_policy alone.
_NOT_MIGRATED = "the trainer does not carry the old reward sections over"
_LEGACY = tuple(
    entry
    for old, new in (
        ("custom_reward_function", "reward.custom_reward_function"),
        ("reward_model.reward_manager", "reward.reward_manager.name"),
        ("reward_model.num_workers", "reward.num_workers"),
        ("reward_model.reward_kwargs", "reward.reward_kwargs"),
        ("reward_model", "reward.reward_model"),
        ("sandbox_fusion", "reward.sandbox_fusion"),
    )
    for entry in (
        Inert(old, ("0.8.0",), _NOT_MIGRATED, new, (_ONE_STEP_OFF,)),
        Inert(old, ("0.9.1",), _NOT_MIGRATED, new, (_ONE_STEP_OFF, _SYNC)),
    )
)

INERT: tuple[Inert, ...] = (
    *_LEGACY,
    Inert(
        "algorithm.filter_groups.max_num_gen_batches",
        ("0.9.1",),
        "the V1 trainer's replay buffer bounds nothing by it (trainer/ppo/v1/trainer_base.py)",
        "algorithm.filter_groups.max_inflight_gen_batches",
    ),
    # workers/engine_workers.py and workers/engine/megatron/transformer_impl.py read the engine's section.
    Inert(
        "actor_rollout_ref.actor.router_replay",
        ("0.8.0",),
        "the engine reads the section of its own",
        "actor_rollout_ref.actor.megatron.router_replay",
        (_SYNC,),
    ),
    # Only trainer/ppo/v1/replay_buffer.py (0.9.1) filters groups.
    Inert("algorithm.filter_groups", ("0.6.1", "0.8.0"), "its trainers have no dynamic sampling"),
    Inert(
        "algorithm.filter_groups",
        ("0.9.1",),
        "only the V1 trainer has dynamic sampling",
        "algorithm.filter_groups in engine.mode=sync",
        (_ONE_STEP_OFF,),
    ),
    Inert("trainer.v1", ("0.9.1",), "one_step_off has a trainer of its own", "", (_ONE_STEP_OFF,)),
    Inert("trainer.use_v1", ("0.9.1",), "one_step_off has a trainer of its own", "", (_ONE_STEP_OFF,)),
    # utils/dataset/rl_dataset.py stores it and never looks at it.
    Inert("data.return_full_prompt", ("0.8.0", "0.9.1"), "the data set stores it and does not use it"),
    _unread("data.return_raw_input_ids", "0.6.1", "0.8.0", "0.9.1"),
    _unread("actor_rollout_ref.rollout.multi_turn.num_repeat_rollouts", "0.6.1", "0.8.0", "0.9.1"),
    _unread("actor_rollout_ref.rollout.over_sample_rate", "0.8.0", "0.9.1"),
    _unread("actor_rollout_ref.rollout.multi_stage_wake_up", "0.8.0", "0.9.1"),
    _unread("actor_rollout_ref.rollout.ignore_eos", "0.8.0"),
    _unread("actor_rollout_ref.actor.freeze_vision_tower", "0.8.0", "0.9.1"),
    _unread("actor_rollout_ref.actor.load_weight", "0.8.0"),
    _unread("actor_rollout_ref.ref.load_weight", "0.8.0"),
    _unread("actor_rollout_ref.nccl_timeout", "0.8.0", "0.9.1"),
    _unread("critic.nccl_timeout", "0.8.0", "0.9.1"),
    _unread("critic.load_weight", "0.8.0"),
    _unread("critic.forward_max_token_len_per_gpu", "0.8.0", "0.9.1", instead="critic.ppo_max_token_len_per_gpu"),
    *(
        _unread(f"{role}.megatron.{key}", "0.8.0", "0.9.1")
        for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
        for key in ("dist_checkpointing_prefix", "router_replay.record_file", "router_replay.replay_file")
    ),
)
