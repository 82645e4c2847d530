"""The policy gradient: advantages, KL, clipping, and the parts that DAPO adds."""

from typing import Literal

from pydantic import Field

from launch.config.base import METRIC, Section, becomes

_ACTOR = "actor_rollout_ref.actor"


LossAggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class OverlongBuffer(Section):
    """DAPO's soft punishment of long responses, added by verl's reward manager `dapo`."""

    enable: bool = Field(False, description="punish responses that end in the buffer: overlong_buffer_cfg.enable")
    length: int = Field(
        512, ge=1, description="tokens before max_response_length where it starts: overlong_buffer_cfg.len"
    )
    penalty_factor: float = Field(
        1.0, ge=0, description="punishment at the full length: overlong_buffer_cfg.penalty_factor"
    )
    log: bool = Field(False, description="log it as a reward of its own: overlong_buffer_cfg.log")


class FilterGroups(Section):
    """DAPO's dynamic sampling: groups whose rewards are all equal are generated again."""

    enable: bool = Field(False, description="needs verl 0.9.1 and sync: algorithm.filter_groups.enable")
    metric: str = Field(
        "reward",
        pattern=METRIC,
        description="what must differ in a group: filter_groups.metric",
    )


class Algorithm(Section):
    """The estimator and the loss. `--template` sets the defaults that make it GRPO, PPO or DAPO."""

    estimator: Literal["grpo", "gae", "rloo", "reinforce_plus_plus"] = Field(
        "grpo",
        description="advantage estimator; gae trains a critic",
        json_schema_extra=becomes("algorithm.adv_estimator"),
    )
    gamma: float = Field(1.0, gt=0, le=1, description="discount", json_schema_extra=becomes("algorithm.gamma"))
    lam: float = Field(
        1.0, ge=0, le=1, description="bias against variance of gae", json_schema_extra=becomes("algorithm.lam")
    )
    norm_by_std: bool = Field(
        True,
        description="divide grpo's advantages by the group's standard deviation",
        json_schema_extra=becomes("algorithm.norm_adv_by_std_in_grpo"),
    )
    use_kl_loss: bool = Field(
        True,
        description="KL to the reference model in the loss",
        json_schema_extra=becomes(f"{_ACTOR}.use_kl_loss"),
    )
    kl_loss_coef: float = Field(
        0.001, ge=0, description="weight of that loss", json_schema_extra=becomes(f"{_ACTOR}.kl_loss_coef")
    )
    kl_loss_type: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"] = Field(
        "low_var_kl",
        description="estimator of that KL (verl/trainer/ppo/core_algos.py, kl_penalty)",
        json_schema_extra=becomes(f"{_ACTOR}.kl_loss_type"),
    )
    use_kl_in_reward: bool = Field(
        False,
        description="subtract the KL to the reference model from the rewards",
        json_schema_extra=becomes("algorithm.use_kl_in_reward"),
    )
    kl_coef: float = Field(
        0.001,
        ge=0,
        description="weight of the KL in the rewards",
        json_schema_extra=becomes("algorithm.kl_ctrl.kl_coef"),
    )
    clip_ratio_low: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="how far the probability ratio may fall below 1",
        json_schema_extra=becomes(f"{_ACTOR}.clip_ratio_low"),
    )
    clip_ratio_high: float = Field(
        0.2,
        gt=0,
        description="how far it may rise above 1; DAPO's clip-higher",
        json_schema_extra=becomes(f"{_ACTOR}.clip_ratio_high"),
    )
    clip_ratio_c: float = Field(
        3.0,
        gt=1,
        description="bound of dual clipping",
        json_schema_extra=becomes(f"{_ACTOR}.clip_ratio_c"),
    )
    loss_agg_mode: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = Field(
        "token-mean",
        description="how the loss of tokens becomes one number",
        json_schema_extra=becomes(f"{_ACTOR}.loss_agg_mode"),
    )
    entropy_coeff: float = Field(
        0.0, description="weight of the entropy bonus", json_schema_extra=becomes(f"{_ACTOR}.entropy_coeff")
    )
    overlong_buffer: OverlongBuffer = OverlongBuffer()
    filter_groups: FilterGroups = FilterGroups()
    epochs: int = Field(
        1, ge=1, description="passes over the training data", json_schema_extra=becomes("trainer.total_epochs")
    )
    total_steps: int | None = Field(
        None,
        ge=1,
        description="steps at most; null: as many as the epochs have",
        json_schema_extra=becomes("trainer.total_training_steps"),
    )
    test_every: int = Field(
        5,
        ge=-1,
        description="validation every so many steps; -1: never",
        json_schema_extra=becomes("trainer.test_freq"),
    )
