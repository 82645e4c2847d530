"""The recorded checksum of an image: X.sif.sha256 beside X.sif, as sha256sum writes and reads it.

Standard library only.
"""

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singularity.sif import ImageDamaged, open_image, shown

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_CHUNK = 4 << 20
_MOST = 1 << 20  # bytes of a sidecar that are read
_LINE = re.compile(r"(?P<escaped>\\?)(?P<hash>\S+)[ \t]+\*?(?P<name>.+)")
# `sha256sum --tag` and BSD: SHA256 (x) = ...; `openssl dgst`: SHA2-256(x)= ..., before 3.0 SHA256(x)= ...
_TAGGED = re.compile(r"(?P<escaped>\\?)SHA(?:2-)?256 ?\((?P<name>.+)\) ?= (?P<hash>\S+)")
_BLANKS = " \t\r\v\f"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The clock of a file system may stand still for this long: what changed within it may look unchanged.
_TICK_S = 3.0


class ImageChanged(ImageDamaged):
    """An image that is written while it is read."""


@dataclass(frozen=True)
class Verified:
    """An image whose content has the checksum that was asked for."""

    path: Path
    sha256: str
    size: int  # bytes
    cached: bool  # known from an earlier look at the unchanged file
    seconds: float


def sidecar(path: Path) -> Path:
    """Where the checksum of an image is recorded."""
    return path.with_name(path.name + ".sha256")


def recorded(path: Path) -> str | None:
    """The recorded SHA-256 of an image in lower case; None: none is recorded.

    Of a link without a record of its own it is what is recorded of its target.

    Raises:
        ImageDamaged: it cannot be read, says nothing of this image, or is no record; it is never passed over.
    """
    path = Path(path)
    if path.is_symlink() and not os.path.lexists(sidecar(path)):
        path = Path(os.path.realpath(path))
    file = sidecar(path)
    remedy = f"record it again: python -m singularity.inspect --record {shown(path)}"
    if not os.path.lexists(file):
        return None
    try:
        with open_image(file) as stream:
            content = stream.read(_MOST + 1)
    except OSError as error:
        raise ImageDamaged(file, f"cannot be read: {error.strerror or error}", remedy) from error
    if len(content) > _MOST:
        raise ImageDamaged(file, f"more than {_MOST} bytes, too long for a list of checksums", remedy)
    text = content.removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")
    found: dict[str, int] = {}
    others: list[str] = []
    alone = 0  # the line of a sum without a name
    for number, line in enumerate((line.removesuffix("\r") for line in text.split("\n")), 1):
        if not line.strip(_BLANKS) or line.startswith("#"):
            continue
        value, name = _parsed(line)
        if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
            raise ImageDamaged(
                file, f"line {number}: {value[:80]!r} is no SHA-256 (64 hexadecimal digits)", remedy
            )
        alone = alone if name else number
        if name is None or os.path.basename(name) == path.name:  # noqa: PTH119  a text, maybe of another system
            found.setdefault(value.lower(), number)
        else:
            others.append(name)
    if alone and others:
        raise ImageDamaged(file, f"line {alone} names no file, beside lines that name others", remedy)
    if len(found) > 1:
        raise ImageDamaged(file, f"lines {' and '.join(map(str, found.values()))} contradict each other", remedy)
    if not found:
        what = f"names {', '.join(map(ascii, others[:3]))}, not {path.name!a}" if others else "is empty"
        raise ImageDamaged(file, what, remedy)
    return next(iter(found))


def _parsed(line: str) -> tuple[str, str | None]:
    """Checksum and name of a line; a checksum alone stands for the image beside it."""
    match = _TAGGED.fullmatch(line) or _LINE.fullmatch(line)
    if not match:
        return line.strip(_BLANKS), None
    name = match["name"]
    if match["escaped"]:
        name = re.sub(r"\\([\\nr])", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), name)
    return match["hash"], name


def record(path: Path, progress: Progress | None = None) -> str:
    """Write the checksum of an image beside it, and return it.

    Raises:
        OSError: the image cannot be read or the record not be written.
        ImageChanged: the image changed meanwhile.
    """
    path = Path(path)
    value, file = _hash(path, progress)
    write_record(path, value)
    _remember(path, value, file)
    return value


def write_record(path: Path, value: str) -> None:
    """Write a checksum that is known beside an image.

    Raises:
        OSError: it cannot be written.
    """
    name = path.name
    escaped = re.sub(r"[\\\n\r]", lambda found: {"\\": r"\\", "\n": r"\n", "\r": r"\r"}[found[0]], name)
    line = f"{chr(92) if escaped != name else ''}{value}  {escaped}\n"
    _replace(sidecar(path), line.encode("utf-8", "surrogateescape"), mode=0o644)


def verify(path: Path, expected: str, progress: Progress | None = None) -> Verified:
    """Compare the content of an image with a SHA-256.

    A result is kept in $XDG_CACHE_HOME/verl-launcher (~/.cache/verl-launcher) and holds while path, size, times
    and inode of the file are the same. A difference is only told after reading the file.

    Raises:
        OSError: the file cannot be read.
        ImageDamaged: the content differs.
        ImageChanged: it changed while it was read.
    """
    path, begin = Path(path), time.monotonic()
    cached = _known(path) == expected.lower()
    if not cached:
        found, file = _hash(path, progress)
        _remember(path, found, file)
        if found != expected.lower():
            raise ImageDamaged(
                path,
                f"its SHA-256 is {found}, recorded is {expected.lower()}: it was changed, or the copy is damaged",
                f"copy the image again; if it is meant to be this one, record it: "
                f"python -m singularity.inspect --record {shown(path)}",
            )
    return Verified(path, expected.lower(), path.stat().st_size, cached, time.monotonic() - begin)


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 of a file in hexadecimal, with a few megabytes of memory whatever its size.

    Raises:
        OSError: it cannot be read.
        ImageChanged: it changed while it was read.
    """
    return _hash(path, progress)[0]


def _hash(path: Path, progress: Progress | None) -> tuple[str, dict[str, int]]:
    """The SHA-256, and what the file was when reading began."""
    digest, buffer, done = hashlib.sha256(), bytearray(_CHUNK), 0
    view = memoryview(buffer)
    with open_image(path) as stream:
        before = _identity(os.fstat(stream.fileno()))
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := stream.readinto(buffer):  # type: ignore[attr-defined]
            digest.update(view[:count])
            done += count
            if progress:
                progress(done, before["size"])
    # Its ctime may change meanwhile: a new owner, mode or hard link leaves the content as it is.
    after = {**_identity(path.stat()), "ctime_ns": before["ctime_ns"]}
    if before != after or done != before["size"]:
        raise ImageChanged(path, "it changed while it was read", "wait until it is written, then run this again")
    return digest.hexdigest(), before


def _identity(found: os.stat_result) -> dict[str, int]:
    """What changes when a file is written or replaced; its ctime also where its mtime was set back."""
    return {
        "device": found.st_dev,
        "inode": found.st_ino,
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
    }


def _cache_file(path: Path) -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if base.startswith("/") else Path("~/.cache").expanduser()
    return folder / "verl-launcher" / f"{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]}.json"


def _known(path: Path) -> str | None:
    """The checksum of the unchanged file; None also where the cache cannot be read or makes no sense."""
    try:
        with _cache_file(path).open("rb") as stream:
            entry: Any = json.loads(stream.read(_CHUNK))
    except (OSError, ValueError, RuntimeError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("file") != _identity(path.stat()):
        return None
    return entry.get("sha256") if isinstance(entry.get("sha256"), str) else None


def _remember(path: Path, value: str, file: dict[str, int]) -> None:
    """A cache that cannot be written only costs the time of another look."""
    if time.time() - max(file["mtime_ns"], file["ctime_ns"]) / 1e9 < _TICK_S:
        return
    entry = {"path": os.fsdecode(path.absolute()), "file": file, "sha256": value}
    with suppress(OSError, RuntimeError):
        kept = _cache_file(path)
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(kept, json.dumps(entry).encode("ascii"), mode=0o600)


def _replace(file: Path, content: bytes, mode: int) -> None:
    """Write a file so that a reader sees the old or the new one."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), mode)
        Path(name).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
