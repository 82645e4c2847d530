"""GPUs as Slurm writes generic resources: gpu:a100:8(S:0-1), gpu:h200:8,shard:16, gpu:8."""

from __future__ import annotations

import re

from launch.sizing.gpus import MIG

_BRACKETS = re.compile(r"\([^()]*\)")
_COUNT = re.compile(r"([0-9]{1,6})([KkMm]?)")
_FLAGS = {"no_consume"}


def parse_gres(text: str) -> dict[str, int]:
    """GPUs of one node by type, "" for those without one.

    Sockets and indexes in brackets are dropped, and everything that is no `gpu`: shard, mps, nic. A type without a
    count is one GPU (slurm.conf, Gres).
    """
    found: dict[str, int] = {}
    for entry in _BRACKETS.sub("", text).split(","):
        words = [word for word in re.split(r"[:=]", entry.strip()) if word not in _FLAGS]
        if words[:1] not in (["gpu"], ["gres/gpu"]):
            continue
        count = 1
        if len(words) > 1 and (number := _COUNT.fullmatch(words[-1])) and (len(words) > 2 or number[1]):
            count = int(number[1]) * {"": 1, "k": 1024, "m": 1024**2}[number[2].lower()]
            words.pop()
        kind = ":".join(words[1:])
        found[kind] = found.get(kind, 0) + count
    return {kind: count for kind, count in found.items() if count}


def is_mig(kind: str) -> bool:
    """Whether a GPU type is a slice of a GPU: a100_3g.20gb, 1g.10gb, a100_1g_10gb."""
    return MIG.search(kind) is not None
