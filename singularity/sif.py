"""A SIF file, read without a container program: its header, its descriptors, and the small objects in it.

The format is that of pkg/sif in apptainer/sif and sylabs/sif: a global header of 128 bytes, a table of descriptors
of 585 bytes, then the objects; numbers are little-endian. Standard library only, and every read has a bound.
"""

import json
import os
import stat
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from singularity import filesystem, foreign
from singularity.command_line import escaped

# launch script, magic, version, architecture, uuid, created, modified; descriptors: free, total, offset, size;
# data: offset, size.
_HEADER = struct.Struct("<32s10s3s3s16s8q")
# type, used, id, group, link, offset, size, size with padding, created, modified, uid, gid, name, extra.
_DESCRIPTOR = struct.Struct("<iBIIIqqqqqqq128s384s")
MAGIC_AT, MAGIC = 32, b"SIF_MAGIC\x00"
_VERSION = b"01\x00"
# A new SIF has room for 48; what is a thousand times that is no image.
_MOST_DESCRIPTORS = 50_000
_MOST_TEXT = 16 << 20  # bytes of one JSON object or definition
_METADATA = "inspect-metadata.json"

_DEFINITION, _LABELS, _PARTITION, _SIGNATURE, _JSON = 0x4001, 0x4003, 0x4004, 0x4005, 0x4006
_OCI = (0x400A, 0x400B)
_FILESYSTEMS = {
    1: "squashfs",
    2: "ext3",
    3: "archive",
    4: "raw",
    5: "encrypted squashfs",
    6: "gocryptfs squashfs",
}
_KINDS = {1: "system", 2: "primary system", 3: "data", 4: "overlay"}
_ARCHITECTURES = {
    b"01": "386",
    b"02": "amd64",
    b"03": "arm",
    b"04": "arm64",
    b"05": "ppc64",
    b"06": "ppc64le",
    b"07": "mips",
    b"08": "mipsle",
    b"09": "mips64",
    b"10": "mips64le",
    b"11": "s390x",
    b"12": "riscv64",
    b"13": "loong64",
}


class ImageDamaged(ValueError):
    """A file that is no whole image, or not the recorded one: the message names it, the fault and the remedy."""

    def __init__(self, path: Path, problem: str, remedy: str = "copy or build the image again") -> None:
        super().__init__(f"{shown(path)}: {problem}; {remedy}")
        self.path, self.problem, self.remedy = path, problem, remedy


@dataclass(frozen=True)
class Partition:
    """A file system inside a SIF."""

    id: int
    kind: str  # primary system, system, data, overlay
    filesystem: str  # squashfs, ext3, encrypted squashfs, ...
    architecture: str  # as Go names it: amd64, arm64, ...; "unknown"
    offset: int  # bytes
    size: int  # bytes


@dataclass(frozen=True)
class Sif:
    """What a SIF says about itself."""

    size: int  # bytes of the file
    architecture: str  # of the system partition, as Go names it; "unknown"
    created: datetime | None  # UTC; None: the SIF has no sensible time
    uuid: str
    labels: dict[str, str]
    definition: str | None
    partitions: tuple[Partition, ...]
    signatures: tuple[str, ...] = ()  # fingerprint of the key of each signature, hexadecimal or ""

    @property
    def encrypted(self) -> bool:
        """Whether the system partition needs a key."""
        return any("crypt" in part.filesystem for part in self.partitions if part.kind == "primary system")


@dataclass(frozen=True)
class _Object:
    type: int
    id: int
    offset: int
    size: int
    name: str
    extra: bytes

    @property
    def end(self) -> int:
        return self.offset + self.size

    def __str__(self) -> str:
        return f"object {self.id}" + (f" ({self.name!r})" if self.name else "")


def shown(path: Path) -> str:
    """A path for a message, without what a terminal would obey."""
    return escaped(str(path), lines=False)


def open_image(path: Path) -> BinaryIO:
    """A regular file, opened for reading.

    Raises:
        OSError: it cannot be opened.
        ImageDamaged: it is a pipe, a device or a socket.
    """
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise ImageDamaged(path, "is no regular file", "name the image file")
    return stream


def read_sif(path: Path) -> Sif:
    """Header, descriptors, labels and definition of a SIF whose structure is whole.

    Of the partitions only superblocks, tables and some samples are read: a changed byte in them is found by
    `singularity.checksum`.

    Raises:
        OSError: the file cannot be read.
        ImageDamaged: it is no SIF, a part of it is missing, or its parts contradict each other.
    """
    path = Path(path)
    with open_image(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        start = read_at(stream, 0, foreign.START)
        if start[MAGIC_AT : MAGIC_AT + len(MAGIC)] != MAGIC:
            problem, remedy = foreign.instead_of_an_image(start, size)
            raise ImageDamaged(path, problem, remedy)
        try:
            return _read(stream, start, size)
        except _Broken as broken:
            problem, remedy = broken.args
            raise ImageDamaged(path, problem, remedy) from None


class _Broken(Exception):
    def __init__(self, problem: str, remedy: str = "copy or build the image again") -> None:
        super().__init__(problem, remedy)


def read_at(stream: BinaryIO, offset: int, count: int) -> bytes:
    """Up to `count` bytes from `offset`; fewer only at the end of the file."""
    stream.seek(offset)
    return stream.read(count)


def _read(stream: BinaryIO, start: bytes, size: int) -> Sif:
    if size < _HEADER.size:
        raise _Broken(f"truncated: {size} bytes, a SIF header alone has {_HEADER.size}")
    header = _HEADER.unpack_from(start)
    version, architecture, identity, created = header[2], header[3], header[4], header[5]
    if version != _VERSION:
        raise _Broken(f"version {_text(version)!r} of the SIF format; Apptainer and Singularity read '01' only")
    objects = list(_objects(stream, size, total=header[8], offset=header[9], room=header[10]))
    _check_places(objects, size, table=(header[9], header[9] + header[8] * _DESCRIPTOR.size))
    partitions = tuple(_partition(one) for one in objects if one.type == _PARTITION)
    system = [part for part in partitions if part.kind == "primary system"]
    if len(system) != 1:
        if any(one.type in _OCI for one in objects):
            raise _Broken(
                "an OCI-SIF, which only SingularityCE 4 runs, in its OCI mode",
                "build a native SIF from the same source: singularity build --no-oci, or apptainer build",
            )
        raise _Broken(
            f"{len(system) or 'no'} primary system partition{'s' if len(system) > 1 else ''}, it needs one"
        )
    for part in partitions:
        if problem := filesystem.problem_of(part.filesystem, stream, part.offset, part.size):
            raise _Broken(f"{part.kind} partition: {problem}")
    metadata = _metadata(stream, objects)
    definition = metadata.get("deffile")
    return Sif(
        size=size,
        architecture=system[0].architecture
        if system[0].architecture != "unknown"
        else _architecture(architecture),
        created=_time(created),
        uuid=str(uuid.UUID(bytes=identity)),
        labels=_labels(metadata.get("labels")) or _labels_alone(stream, objects),
        definition=definition if isinstance(definition, str) else _definition(stream, objects),
        partitions=partitions,
        signatures=tuple(_fingerprint(one) for one in objects if one.type == _SIGNATURE),
    )


def _objects(stream: BinaryIO, size: int, total: int, offset: int, room: int) -> Iterator[_Object]:
    wanted = total * _DESCRIPTOR.size
    if not 0 < total <= _MOST_DESCRIPTORS:
        raise _Broken(f"its header counts {total} descriptors")
    if offset < _HEADER.size or room < wanted:
        raise _Broken(f"its header has {total} descriptors in {room} bytes at byte {offset}: no room for them")
    if offset + wanted > size:
        raise _Broken(f"truncated: {total} descriptors end at byte {offset + wanted}, the file at {size}")
    for fields in _DESCRIPTOR.iter_unpack(read_at(stream, offset, wanted)):
        if fields[1]:
            yield _Object(fields[0], fields[2], fields[5], fields[6], _text(fields[12]), fields[13])


def _check_places(objects: list[_Object], size: int, table: tuple[int, int]) -> None:
    for one in objects:
        if one.offset < _HEADER.size or one.size < 0:
            raise _Broken(f"{one} has {one.size} bytes at byte {one.offset}")
        if one.end > size:
            raise _Broken(f"truncated: {one} ends at byte {one.end}, the file at {size}")
        if one.size and one.offset < table[1] and one.end > table[0]:
            raise _Broken(f"{one} lies over the descriptors")
    ordered = sorted((one for one in objects if one.size), key=lambda one: one.offset)
    for before, after in pairwise(ordered):
        if before.end > after.offset:
            raise _Broken(f"{before} and {after} lie over each other")


def _partition(one: _Object) -> Partition:
    filesystem_id, kind = struct.unpack_from("<ii", one.extra)
    return Partition(
        id=one.id,
        kind=_KINDS.get(kind, f"kind {kind}"),
        filesystem=_FILESYSTEMS.get(filesystem_id, f"file system {filesystem_id}"),
        architecture=_architecture(one.extra[8:11]),
        offset=one.offset,
        size=one.size,
    )


def _metadata(stream: BinaryIO, objects: list[_Object]) -> dict[str, Any]:
    """What `apptainer inspect` shows; {} where the SIF was built before Singularity 3.7."""
    for one in objects:
        if one.type == _JSON and one.name == _METADATA:
            data = _json(stream, one)
            for key in ("data", "attributes"):
                data = data.get(key) if isinstance(data, dict) else None
            return data if isinstance(data, dict) else {}
    return {}


def _labels_alone(stream: BinaryIO, objects: list[_Object]) -> dict[str, str]:
    return next((_labels(_json(stream, one)) for one in objects if one.type == _LABELS), {})


def _labels(found: Any) -> dict[str, str]:
    return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _json(stream: BinaryIO, one: _Object) -> Any:
    try:
        return json.loads(_content(stream, one))
    except (ValueError, RecursionError) as wrong:
        raise _Broken(f"{one} is not JSON: {wrong}") from None


def _definition(stream: BinaryIO, objects: list[_Object]) -> str | None:
    found = next((one for one in objects if one.type == _DEFINITION), None)
    return _content(stream, found).decode("utf-8", "replace") if found else None


def _content(stream: BinaryIO, one: _Object) -> bytes:
    if one.size > _MOST_TEXT:
        raise _Broken(f"{one} has {one.size} bytes of text")
    return read_at(stream, one.offset, one.size)


def _fingerprint(one: _Object) -> str:
    """The key that signed: hash type, then 20 bytes of fingerprint, zero where it is not told."""
    return one.extra[4:24].hex() if any(one.extra[4:24]) else ""


def _architecture(code: bytes) -> str:
    return _ARCHITECTURES.get(code[:2], "unknown")


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def _time(seconds: int) -> datetime | None:
    """None for what a reproducible build writes (0, or the year 1) and for nonsense."""
    if not 0 < seconds < 1 << 35:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc)
