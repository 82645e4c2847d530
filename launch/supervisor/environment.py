"""The environment that the parts of a job run in."""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Dict, Iterable, Mapping, Tuple

from launch.supervisor.devices import one_variable, split_devices, visible_variable, with_devices, without_devices
from launch.supervisor.env_file import read_env_file
from launch.supervisor.nodelist import addresses_of, expand
from launch.supervisor.settings import Settings
from launch.supervisor.wall_time import expiration_environment
from singularity.toolkit import TOOLKIT

# MPI, PMIx and Lightning take these for their own launch and go wrong; our own reading of them is over by now.
_TASK_VARIABLES = re.compile(
    r"^(PMI_|PMI2_|PMIX_|OMPI_|MPI_|SLURM_(NTASKS|PROCID|LOCALID|NPROCS|STEP_|TASK|MPI_|PMI|SRUN_|GTIDS|TRES_PER))"
)
_HOST_PYTHON = re.compile(r"^(PYTHONHOME|PYTHONSTARTUP|PYTHONUSERBASE|VIRTUAL_ENV|CONDA_.*)$")
# What compiles kernels keeps them in the home directory, where the nodes of all jobs meet; some are read-only.
_CACHES = (
    "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH",
    "FLASHINFER_WORKSPACE_BASE", "VLLM_CACHE_ROOT", "DG_JIT_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "SGL_DG_CACHE_DIR",
    "TVM_FFI_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR",
)  # fmt: skip
# What is downloaded once stays where it is: its default is below XDG_CACHE_HOME, which moves.
_STAYS = {"HF_HOME": "huggingface", "TORCH_HOME": "torch"}


def _joined(existing: str, added: Iterable[str]) -> str:
    """Comma-separated list with `added` at the end, no doubles, no empty entries."""
    entries = [entry.strip() for entry in existing.split(",")] + list(added)
    return ",".join(dict.fromkeys(entry for entry in entries if entry))


def base_environment(settings: Settings, environ: Mapping[str, str]) -> Dict[str, str]:
    """What every part gets, on every node: the inherited environment, cleaned, and the job's own variables.

    Raises:
        EnvFileError: the environment file cannot be used on this node.
        DeviceError: the node's variables name different GPUs.
    """
    if settings.env_file is not None:
        environ = {**environ, **read_env_file(settings.env_file)}
    env = {
        name: value
        for name, value in environ.items()
        if not _TASK_VARIABLES.match(name) and not _HOST_PYTHON.match(name)
    }
    env = without_devices(env) if settings.logical_gpus else one_variable(env)
    # XDG_RUNTIME_DIR names a folder of a login session, which a compute node does not have.
    env.pop("XDG_RUNTIME_DIR", None)
    # Another Ray of the user must not be found through the environment.
    env.pop("RAY_ADDRESS", None)
    env.update(
        PYTHONPATH=os.pathsep.join(filter(None, [str(TOOLKIT), environ.get("PYTHONPATH", "")])),
        LAUNCH_TOOLKIT=str(TOOLKIT),
        PYTHONNOUSERSITE="1",
        PYTHONUNBUFFERED="1",
        # verl's lock files and multiprocessing's sockets go away with the job's own folder.
        TMPDIR=str(settings.temp_dir),
        RUN_DIR=str(settings.run_dir),
        CHECKPOINT_DIR=str(settings.checkpoint_dir),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(settings.ray_token),
        GLOO_SOCKET_IFNAME=settings.interface,
        TP_SOCKET_IFNAME=settings.interface,
        # NCCL alone takes lists and prefixes: what the user chose for it stays.
        NCCL_SOCKET_IFNAME=environ.get("NCCL_SOCKET_IFNAME") or f"={settings.interface}",
        REWARD_LOG_PATH=str(settings.reward_log),
        REWARD_SERVER_TOKEN_FILE=str(settings.reward_token),
    )
    env.update(_caches(env, settings.temp_dir / "cache"))
    env.update(expiration_environment(settings))
    # As many threads as cores in each of many processes meet the limit of processes.
    env.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Ray colours the names of its workers, and the log is a file.
    env.setdefault("RAY_COLOR_PREFIX", "0")
    return env


def _caches(env: Mapping[str, str], local: Path) -> Dict[str, str]:
    """Folders for compiled kernels: below `local`, unless the user chose one outside of the home directory."""
    home = Path(env.get("HOME") or "/nonexistent")
    downloads = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    chosen = {name: env.get(name) or str(downloads / folder) for name, folder in _STAYS.items()}
    for name in _CACHES:
        own = env.get(name)
        kept = own and home not in (Path(own), *Path(own).parents)
        chosen[name] = own if own and kept else str(local / name.lower())
    return chosen


def make_caches(env: Mapping[str, str]) -> None:
    """Make the cache folders: some of what uses them does not."""
    for name in _CACHES:
        Path(env[name]).mkdir(parents=True, exist_ok=True)


def device_environments(env: Dict[str, str], settings: Settings) -> "tuple[Dict[str, str], Dict[str, str]]":
    """(Ray's, the reward server's) environment on this node: each sees its own GPUs only.

    Raises:
        DeviceError: when the node has fewer GPUs than the two need together.
    """
    if settings.logical_gpus:
        return env, env
    ray, reward = split_devices(visible_variable(env), settings.ray_gpus, settings.reward_gpus, settings.node)
    return with_devices(env, ray), with_devices(env, reward)


def with_direct(env: Mapping[str, str], hosts: Iterable[str]) -> Dict[str, str]:
    """Reach these hosts without a proxy, in both cases of the variable; the user's own entries stay."""
    proxies = _joined(f"{env.get('no_proxy', '')},{env.get('NO_PROXY', '')}", hosts)
    return {**env, "no_proxy": proxies, "NO_PROXY": proxies}


@lru_cache(maxsize=1)
def slurm_hosts(nodelist: str) -> Tuple[str, ...]:
    """Names of the job's nodes as Slurm knows them, and the addresses that they resolve to."""
    names = expand(nodelist)
    return (*names, *addresses_of(names))


def with_head(
    env: Dict[str, str], settings: Settings, head_address: str, gcs_port: int, reward_url: str
) -> Dict[str, str]:
    """Add what is known once the head has its address and ports."""
    direct = ["localhost", "127.0.0.1", head_address, settings.address, *slurm_hosts(settings.nodelist)]
    return {
        **with_direct(env, direct),
        "RAY_ADDRESS": f"{head_address}:{gcs_port}",
        "REWARD_SERVER_URL": reward_url,
    }
