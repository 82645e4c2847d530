"""How outputs lie in safetensors files: which file has which, and where in it.

A safetensors file is 8 bytes of header length (little-endian), a JSON header, and the tensors' bytes in its order.
Source: safetensors 0.8, README.md "Format".
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from converters.planning.steps import Output

_SINGLE = "model.safetensors"


def planned_shards(outputs: Sequence[Output], max_shard_bytes: int) -> dict[str, list[Output]]:
    """File -> tensors, at most `max_shard_bytes` of them; a larger tensor has a file of its own.

    Files are named as transformers names them.
    """
    groups: list[list[Output]] = [[]]
    filled = 0
    for output in outputs:
        if groups[-1] and filled + output.nbytes > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(output)
        filled += output.nbytes
    if len(groups) == 1:
        return {_SINGLE: groups[0]}
    return {f"model-{n:05d}-of-{len(groups):05d}.safetensors": group for n, group in enumerate(groups, 1)}


def header(outputs: Sequence[Output]) -> bytes:
    """What comes before the tensors of a file, filled up to a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for output in outputs:
        end = at + output.nbytes
        entries[output.name] = {"dtype": output.dtype, "shape": list(output.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def file_bytes(outputs: Sequence[Output]) -> int:
    """Size of a file of these tensors."""
    return len(header(outputs)) + sum(output.nbytes for output in outputs)
