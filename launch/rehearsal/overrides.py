"""Hydra overrides and environment variables that verl needs on CPU. Standard library only.

What belongs to the job (batch sizes, lengths, parallel sizes, paths, strategy, loggers) is not here.
"""

from __future__ import annotations

ACTORS = ("megatron", "fsdp2")
ROLLOUTS = ("hf", "vllm")
VERSIONS = ("0.6.1", "0.8.0", "0.9.1")


def _check(verl: str, actor: str, rollout: str) -> None:
    """Refuse a combination that has no CPU backend.

    Raises:
        ValueError: Naming the value and what there is.
    """
    for name, value, known in (
        ("verl", verl, VERSIONS),
        ("actor", actor, ACTORS),
        ("rollout", rollout, ROLLOUTS),
    ):
        if value not in known:
            raise ValueError(f"{name}={value}: the rehearsal on CPU knows {', '.join(known)}")
    if rollout == "vllm" and verl not in _with_vllm():
        raise ValueError(f"rollout=vllm: with verl {verl} the rehearsal generates with rollout=hf only")


def _with_vllm() -> set[str]:
    """Versions of verl that a stack of the cpu generates with vLLM for."""
    from singularity.stack import load_stack, stack_names  # not of the standard library: for this question alone

    stacks = map(load_stack, stack_names())
    return {stack.verl for stack in stacks if stack.device == "cpu" and stack.can.vllm.able}


def cpu_overrides(
    verl: str, actor: str, rollout: str, *, one_step_off: bool | None = None, critic: bool = False
) -> list[str]:
    """Hydra overrides of a CPU run.

    Args:
        verl: "0.9.1", "0.8.0" or "0.6.1".
        actor: "megatron" or "fsdp2".
        rollout: "hf" or "vllm".
        one_step_off: Whether the trainer is one_step_off_policy (weights travel to a rollout elsewhere) and
            not main_ppo (the rollout is colocated). Default: where the version has it, so 0.6.1 no.
        critic: Whether a critic trains beside the actor, with the actor's strategy (algorithm.adv_estimator=gae).

    Raises:
        ValueError: There is no CPU backend for this combination.
    """
    _check(verl, actor, rollout)
    if one_step_off is None:
        one_step_off = verl != "0.6.1"
    overrides = [
        # A DataLoader worker is one more process with torch in it.
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.rollout.name={rollout}",
        # One rank a replica: the HF rollout cannot be split, vLLM need not be.
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        # No Triton kernels on CPU, and C++ compilation would outlast the run.
        "actor_rollout_ref.actor.use_torch_compile=False",
    ]
    if verl == "0.6.1":
        # Server mode of 0.6.1 exists for vLLM and SGLang only.
        overrides.append("actor_rollout_ref.rollout.mode=sync")
    else:
        # One process instead of 8 for each: they share two cores.
        overrides += ["actor_rollout_ref.rollout.agent.num_workers=1", "reward.num_workers=1"]
        if one_step_off:
            # The default, nccl, needs GPUs.
            overrides.append("actor_rollout_ref.rollout.checkpoint_engine.backend=ray_object_store")
    trained = ["actor_rollout_ref.actor", "critic"] if critic else ["actor_rollout_ref.actor"]
    if actor == "fsdp2":
        for role in trained:
            model = f"{role.removesuffix('.actor')}.model"
            overrides += [
                # Padding removal in transformers models goes through flash-attention.
                f"{model}.use_remove_padding=False",
                f"+{model}.override_config.attn_implementation=sdpa",
            ]
    elif verl != "0.6.1":
        # 0.9.1 takes Megatron-Bridge, which imports Transformer Engine; mbridge is plain torch.
        overrides += [f"{role}.megatron.vanilla_mbridge=True" for role in trained]
    overrides += _vllm_overrides() if rollout == "vllm" else ["actor_rollout_ref.rollout.load_format=auto"]
    return overrides


def _vllm_overrides() -> list[str]:
    rollout = "actor_rollout_ref.rollout"
    return [
        # Weights come from the trainer before the first request.
        f"{rollout}.load_format=dummy",
        # No CUDA graphs, no compilation: a minute saved on two cores.
        f"{rollout}.enforce_eager=True",
        # Sleep mode frees GPU memory through CUDA's virtual memory; on CPU it does not exist.
        f"{rollout}.free_cache_engine=False",
        f"+{rollout}.enable_sleep_mode=False",
        f"{rollout}.max_num_seqs=32",
        f"{rollout}.max_num_batched_tokens=2048",
        # Of the machine's memory, for weights and KV cache; several jobs may share it.
        f"{rollout}.gpu_memory_utilization=0.2",
        # The bucket is shared memory (/dev/shm), small in containers; the default is 2048.
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=64",
    ]


def cpu_environment(verl: str, actor: str, rollout: str) -> dict[str, str]:
    """Environment variables of every process of a CPU run: `ray start` on each node and the trainer.

    PYTHONPATH must hold the checkout (or the package must be installed), so that workers find the backend.

    Raises:
        ValueError: There is no CPU backend for this combination.
    """
    _check(verl, actor, rollout)
    environment = {
        # Import the CPU backend in every process (verl/__init__.py).
        "VERL_USE_EXTERNAL_MODULES": "launch.rehearsal.backend",
        # A dozen processes share the cores: one thread each, or they fight.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Megatron's jit_fuser and verl's entropy are torch.compile'd: minutes of C++ for a tiny model.
        "TORCH_COMPILE_DISABLE": "1",
        # Everything is local; a name that is not a path shall fail at once, not after a network timeout.
        "HF_HUB_OFFLINE": "1",
        # Hundreds of lines about Transformer Engine, apex and deprecations, once for each worker.
        "PYTHONWARNINGS": "ignore::UserWarning,ignore::FutureWarning,ignore::DeprecationWarning",
        # Ray would start one idle worker for each of its logical CPUs, which outnumber the real ones.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_DEDUP_LOGS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Without it Ray prints a FutureWarning in every actor without a GPU.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    if verl == "0.9.1":
        # Select the platform that the backend registers.
        environment["VERL_PLATFORM"] = "cpu"
    if actor == "megatron":
        # Megatron-core asserts it for tensor parallelism; it orders CUDA streams.
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if rollout == "vllm":
        environment |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding would take whole cores from the trainer
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
    return environment


def ray_cpus(gpus: int) -> int:
    """Logical CPUs for `ray start --num-cpus` on a node with `gpus` logical GPUs.

    With fewer, placement groups wait for ever without a word. In verl 0.9.1 the one-step-off task runner asks
    for 10 (experimental/one_step_off_policy/main_ppo.py), each GPU of a pool for 3
    (single_controller/ray/base.py:ResourcePoolManager), the reward and agent-loop workers for 1 each. 0.6.1
    asks for less.
    """
    return 16 + 4 * gpus
