"""Small files with the structure of a SIF: labels, and a partition that no container program could mount."""

import json
import struct
from pathlib import Path

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<iBIIIqqqqqqq128s384s")
_TABLE = 4096
_RAW, _PRIMARY = 4, 2


def write_sif(path: Path, labels: dict[str, str] | None = None, content: bytes = b"a file system" * 500) -> Path:
    """A whole SIF whose partition is not looked at (its kind is "raw")."""
    metadata = json.dumps({"data": {"attributes": {"labels": labels or {}}}}).encode()
    objects = [
        (0x4006, metadata, b"inspect-metadata.json", b""),
        (0x4004, content, b"rootfs", struct.pack("<ii", _RAW, _PRIMARY) + b"02\0"),
    ]
    table, data, at = b"", b"", _TABLE + len(objects) * _DESCRIPTOR.size
    for number, (kind, body, name, extra) in enumerate(objects, 1):
        place = (at + len(data), len(body), len(body))
        table += _DESCRIPTOR.pack(kind, 1, number, 1, 0, *place, 0, 0, 0, 0, name, extra)
        data += body
    launch = b"#!/usr/bin/env run-singularity\n"
    counts = (0, 0, 0, len(objects), _TABLE, len(table), at, len(data))
    header = _HEADER.pack(launch, b"SIF_MAGIC\0", b"01\0", b"02\0", bytes(range(16)), *counts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.ljust(_TABLE, b"\0") + table + data)
    return path
