"""What each --template sets: defaults below the job file and --set. Everything else is the model's own default."""

from typing import Any, Literal

Template = Literal["grpo", "ppo", "dapo"]
TEMPLATES: tuple[Template, ...] = ("grpo", "ppo", "dapo")

_DEFAULTS: dict[Template, dict[str, Any]] = {
    "grpo": {},
    # One response a prompt and a critic; the KL is a part of the reward (verl docs/algo/ppo.md). The one_step_off
    # trainer has no critic.
    "ppo": {
        "name": "qwen3-4b-ppo",
        "engine": {"mode": "sync"},
        "data": {"train_batch_size": 1024},
        "rollout": {"n": 1},
        "actor": {"mini_batch_size": 256},
        "algorithm": {"estimator": "gae", "use_kl_loss": False, "use_kl_in_reward": True},
    },
    # Clip-higher, token-level loss, overlong punishment, no KL (verl docs/algo/dapo.md; arXiv 2503.14476).
    "dapo": {
        "name": "qwen3-4b-dapo",
        "rollout": {"n": 16},
        "algorithm": {
            "use_kl_loss": False,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.28,
            "clip_ratio_c": 10.0,
            "loss_agg_mode": "token-mean",
            "overlong_buffer": {"enable": True, "length": 1024, "penalty_factor": 1.0},
        },
    },
}


def template_defaults(template: Template) -> dict[str, Any]:
    """The values of `template`, nested as in a job file."""
    return _DEFAULTS[template]
