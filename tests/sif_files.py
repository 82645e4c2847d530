"""SIF files for tests, made from a real one.

`singularity/images/tiny-signed.sif` is of Apptainer 1.4.5: `apptainer build` of a folder with one file, then
`apptainer sign`.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from singularity.labels import STACK_CONTENT

REAL = Path(__file__).resolve().parent / "singularity" / "images" / "tiny-signed.sif"
TABLE, DESCRIPTOR = 4096, 585
COUNT_AT, TABLE_AT, ROOM_AT = 88, 96, 104  # in the header: descriptors in all, where, bytes
# In a descriptor.
TYPE, USED, OFFSET, SIZE, NAME, EXTRA = (0, "<i"), (4, "<B"), (17, "<q"), (25, "<q"), (73, "<128s"), (201, "<384s")
DEFINITION, METADATA, SYSTEM, SIGNATURE, FREE = range(5)  # descriptors of the real one


def put(content: bytearray, number: int, **fields: Any) -> bytearray:
    """Set fields of a descriptor: put(content, SYSTEM, size=1)."""
    for name, value in fields.items():
        at, code = {"type": TYPE, "used": USED, "offset": OFFSET, "size": SIZE, "name": NAME, "extra": EXTRA}[name]
        struct.pack_into(code, content, TABLE + number * DESCRIPTOR + at, value)
    return content


def get(content: bytes, number: int) -> tuple[int, int]:
    """Offset and size of an object."""
    return struct.unpack_from("<qq", content, TABLE + number * DESCRIPTOR + OFFSET[0])


def real() -> bytearray:
    """The bytes of the real one."""
    return bytearray(REAL.read_bytes())


def with_labels(labels: Mapping[str, str], definition: str | None = None) -> bytearray:
    """The real one with other labels, and a definition; None: what that of a stack says of its content."""
    if definition is None:
        definition = f"%post\n    # Stack {labels.get(STACK_CONTENT)}.\n"
    attributes = {"labels": dict(labels), "deffile": definition}
    text = json.dumps({"data": {"attributes": attributes}, "type": "container"}).encode()
    content = real()
    put(content, METADATA, offset=len(content), size=len(text))
    return content + text


def write_sif(path: Path, labels: Mapping[str, str] | None = None) -> Path:
    """A file with these labels, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(with_labels(labels or {}))
    return path


def with_squashfs(squashfs: bytes) -> bytearray:
    """The real one with another system partition."""
    content = real()
    put(content, SYSTEM, offset=len(content), size=len(squashfs))
    return content + squashfs


def squashfs(data: bytes, block: int = 4096) -> bytes:
    """A file system with these bytes in the place of its files: superblock and tables are there, no more."""
    inodes = 96 + len(data)
    table = struct.pack("<H4s", 0x8004, b"some")
    directories, ids = inodes + len(table), inodes + 2 * len(table)
    pointers = ids + len(table)
    none = 0xFFFFFFFFFFFFFFFF
    start = struct.pack(
        "<4sIIIIHHHHHHQQQQQQQQ",
        *(b"hsqs", 1, 0, block, 0, 1, block.bit_length() - 1, 0, 1, 4, 0, 0),
        *(pointers + 8, pointers, none, inodes, directories, none, none),
    )
    return start + data + 3 * table + struct.pack("<Q", ids)
