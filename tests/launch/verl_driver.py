"""Ask the real verl about trainer commands: Hydra composes each, and verl itself judges. Not a test module.

    python verl_driver.py [SOURCE_ROOT] < commands.json > verdicts.json

Runs in the environment of one verl version; SOURCE_ROOT goes first on sys.path. Standard input is a JSON object of
name -> [module, config name, overrides]; standard output one of name -> {"config": resolved, "against": null} or
{"config": null, "against": what verl says}.
"""

import contextlib
import importlib
import json
import sys
import traceback
from pathlib import Path


def judge(module: str, config_name: str, overrides: list[str]) -> dict:
    """The resolved configuration.

    Raises:
        Exception: whatever verl has against it.
    """
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    package = importlib.import_module(module.rpartition(".")[0])
    folder = Path(package.__file__).resolve().parent / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(config_name, overrides)
    if "one_step_off" in module:  # its main() does this first
        config.actor_rollout_ref.rollout.nnodes = config.rollout.nnodes
        config.actor_rollout_ref.rollout.n_gpus_per_node = config.rollout.n_gpus_per_node
    OmegaConf.resolve(config)
    reference = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
    critic = config.algorithm.adv_estimator == "gae"
    validate_config(config, use_reference_policy=reference, use_critic=critic)
    roles = config.actor_rollout_ref
    resolved = OmegaConf.to_container(config)
    for section in (roles.actor, roles.rollout, config.algorithm):
        omega_conf_to_dataclass(section)
    if "_target_" in roles.ref:
        omega_conf_to_dataclass(_renamed(roles))
    omega_conf_to_dataclass(
        roles.model, dataclass_type=importlib.import_module("verl.workers.config").HFModelConfig
    )
    return resolved


def _renamed(roles):
    """The reference model's section as an actor's (0.8.0 and 0.9.1, workers/engine_workers.py, init_model)."""
    from omegaconf import open_dict

    reference = roles.ref
    with open_dict(reference):
        reference.ppo_mini_batch_size = roles.actor.ppo_mini_batch_size
        for name in ("micro_batch_size", "micro_batch_size_per_gpu", "max_token_len_per_gpu"):
            reference[f"ppo_{name}"] = reference.pop(f"log_prob_{name}", None)
        reference.use_dynamic_bsz = reference.pop("log_prob_use_dynamic_bsz", False)
    return reference


def main() -> None:
    if len(sys.argv) > 1:
        sys.path.insert(0, sys.argv[1])
    verdicts = {}
    for name, command in json.load(sys.stdin).items():
        try:
            with contextlib.redirect_stdout(sys.stderr):
                verdicts[name] = {"config": judge(*command), "against": None}
        except Exception as problem:  # noqa: BLE001 - verl's verdict, whatever it is
            told = "".join(traceback.format_exception_only(type(problem), problem)).strip()
            verdicts[name] = {"config": None, "against": told[-2000:]}
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main()
