"""Which GPUs of the head node belong to the reward server and which to Ray."""

import re
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Tuple

from launch.supervisor.verdict import SetupError

_ORDER = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# What Slurm and drivers write for "none".
_NONE = ("", "NoDevFiles", "void", "none", "-1")


_DRIVER = Path("/sys/module/nvidia/version")


class DeviceError(SetupError):
    """The node has fewer GPUs than the job needs on it."""


def visible_devices(value: Optional[str], needed: int) -> List[str]:
    """Identifiers in CUDA_VISIBLE_DEVICES (indices, GPU- or MIG-uuids); 0 to `needed`-1 where it is not set."""
    if value is None:
        return [str(index) for index in range(needed)]
    return [name.strip() for name in value.split(",") if name.strip() not in _NONE]


def one_variable(env: Mapping[str, str]) -> Dict[str, str]:
    """The environment with one of the variables that say which GPUs are visible: CUDA's, else HIP's, else ROCR's.

    Slurm's gres plugin sets several, and verl refuses that (single_controller/base/worker.py).

    Raises:
        DeviceError: on a node without CUDA_VISIBLE_DEVICES, where the others name different GPUs.
    """
    given = [name for name in _ORDER if env.get(name)]
    if "CUDA_VISIBLE_DEVICES" not in given and len({env[name] for name in given}) > 1:
        told = ", ".join(f"{name}={env[name]!r}" for name in given)
        raise DeviceError(f"{told}: they name different GPUs; unset one of them before sbatch")
    return {name: value for name, value in env.items() if name not in given[1:]}


def visible_variable(env: Mapping[str, str]) -> Optional[str]:
    """What says which GPUs this job may see on this node; None: all of them."""
    return next((env[name] for name in _ORDER if name in env), None)


def split_devices(value: Optional[str], ray: int, reward: int, node: str) -> "tuple[List[str], List[str]]":
    """(Ray's, the reward server's) devices: Ray takes the first, the server the last of those it may see.

    Raises:
        DeviceError: when there are fewer than `ray` + `reward`.
    """
    devices = visible_devices(value, ray + reward)
    if len(devices) < ray + reward:
        raise DeviceError(
            f"node {node} has {len(devices)} GPUs (CUDA_VISIBLE_DEVICES={value!r}) and the job needs {ray} for "
            f"Ray and {reward} for the reward server there; correct cluster.gpus_per_node"
        )
    return devices[:ray], devices[ray : ray + reward]


def with_devices(env: Mapping[str, str], devices: List[str]) -> Dict[str, str]:
    """The environment of a part that sees these GPUs only."""
    return {**without_devices(env), "CUDA_VISIBLE_DEVICES": ",".join(devices)}


def without_devices(env: Mapping[str, str]) -> Dict[str, str]:
    """The environment of a rehearsal: its GPUs are slots, and Ray would check their number against these names."""
    return {name: value for name, value in env.items() if name not in _ORDER}


def driver_warnings(oldest: Optional[str], file: Path = _DRIVER) -> Iterator[str]:
    """A warning where the NVIDIA driver of this node is older than `oldest`, which CUDA in the image wants.

    No error: an image may bring NVIDIA's compatibility libraries, with which an older one does.
    """
    try:
        found = file.read_text(errors="replace").strip()
    except OSError:
        return  # no NVIDIA driver: the trainer says so
    if oldest and _numbers(found) and _numbers(found) < _numbers(oldest):
        yield (
            f"the NVIDIA driver of this node is {found[:40]}; CUDA in the image wants {oldest} or newer: if its "
            f"GPUs cannot be used, leave the node out (--exclude in cluster.extra_sbatch)"
        )


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]{1,9}", version)[:4])
