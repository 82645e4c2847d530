"""The environment that the parts of a job run in."""

import os
import re
from typing import Dict, Iterable, Mapping

from launch.supervisor.devices import split_devices, with_devices, without_devices
from launch.supervisor.settings import TOOLKIT, Settings

# MPI, PMIx and Lightning take these for their own launch and go wrong; our own reading of them is over by now.
_TASK_VARIABLES = re.compile(
    r"^(PMI_|PMI2_|PMIX_|OMPI_|MPI_|SLURM_(NTASKS|PROCID|LOCALID|NPROCS|STEP_|TASK|MPI_|PMI|SRUN_|GTIDS|TRES_PER))"
)
_HOST_PYTHON = re.compile(r"^(PYTHONHOME|PYTHONSTARTUP|PYTHONUSERBASE|VIRTUAL_ENV|CONDA_.*)$")
_CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")


def _joined(existing: str, added: Iterable[str]) -> str:
    """Comma-separated list with `added` at the end, no doubles, no empty entries."""
    entries = [entry.strip() for entry in existing.split(",")] + list(added)
    return ",".join(dict.fromkeys(entry for entry in entries if entry))


def base_environment(settings: Settings, environ: Mapping[str, str]) -> Dict[str, str]:
    """What every part gets, on every node: the inherited environment, cleaned, and the job's own variables."""
    env = {
        name: value
        for name, value in environ.items()
        if not _TASK_VARIABLES.match(name) and not _HOST_PYTHON.match(name)
    }
    if settings.logical_gpus:
        env = without_devices(env)
    elif env.get("CUDA_VISIBLE_DEVICES"):
        # Slurm's gres plugin sets both on NVIDIA nodes and verl refuses that (single_controller/base/worker.py).
        env.pop("ROCR_VISIBLE_DEVICES", None)
        env.pop("HIP_VISIBLE_DEVICES", None)
    # XDG_RUNTIME_DIR names a folder of a login session, which a compute node does not have.
    env.pop("XDG_RUNTIME_DIR", None)
    # Another Ray of the user must not be found through the environment.
    env.pop("RAY_ADDRESS", None)
    env.update(
        PYTHONPATH=os.pathsep.join(filter(None, [str(TOOLKIT), environ.get("PYTHONPATH", "")])),
        PYTHONNOUSERSITE="1",
        PYTHONUNBUFFERED="1",
        # verl's lock files and multiprocessing's sockets go away with the job's own folder.
        TMPDIR=str(settings.temp_dir),
        RUN_DIR=str(settings.run_dir),
        CHECKPOINT_DIR=str(settings.checkpoint_dir),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(settings.run_dir / "ray_token"),
        GLOO_SOCKET_IFNAME=settings.interface,
        TP_SOCKET_IFNAME=settings.interface,
        NCCL_SOCKET_IFNAME=f"={settings.interface}",
        REWARD_LOG_PATH=str(settings.reward_log),
        REWARD_SERVER_TOKEN_FILE=str(settings.run_dir / "reward_token"),
    )
    for name in _CACHES:
        env.setdefault(name, str(settings.temp_dir / "cache" / name.lower()))
    return env


def device_environments(env: Dict[str, str], settings: Settings) -> "tuple[Dict[str, str], Dict[str, str]]":
    """(Ray's, the reward server's) environment on this node: each sees its own GPUs only.

    Raises:
        DeviceError: when the node has fewer GPUs than the two need together.
    """
    if settings.logical_gpus:
        return env, env
    visible = env.get("CUDA_VISIBLE_DEVICES")
    ray, reward = split_devices(visible, settings.ray_gpus, settings.reward_gpus, settings.node)
    return with_devices(env, ray), with_devices(env, reward)


def with_head(env: Dict[str, str], head_address: str, gcs_port: int, reward_url: str) -> Dict[str, str]:
    """Add what is known once the head has its address and ports."""
    direct = ["localhost", "127.0.0.1", head_address]
    proxies = _joined(f"{env.get('no_proxy', '')},{env.get('NO_PROXY', '')}", direct)
    return {
        **env,
        "RAY_ADDRESS": f"{head_address}:{gcs_port}",
        "REWARD_SERVER_URL": reward_url,
        "no_proxy": proxies,
        "NO_PROXY": proxies,
    }
