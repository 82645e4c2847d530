"""What a file is that was taken for an image. Pure; standard library only."""

import re
from typing import Literal

START = 4096  # bytes from the start of a file that the functions here want
_POINTER = b"version https://git-lfs.github.com/spec/"
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
}
_AGAIN = "copy or build the image again"


def instead_of_an_image(start: bytes, size: int) -> tuple[str, str]:
    """What is wrong with a file without the magic of a SIF, and the remedy.

    Args:
        start: its first `START` bytes, or all of it where it is shorter.
        size: bytes of the whole file.
    """
    if not start:
        return "is empty", _AGAIN
    if not start.strip(b"\0"):
        return "zero-filled: its start is only zero bytes, as a copy leaves it that was cut off", _AGAIN
    if start.startswith(_POINTER):
        return "a Git LFS pointer, not the image", "run: git lfs pull"
    if re.match(rb"\s*<(!doctype|html|\?xml|error)", start, re.IGNORECASE):
        return f"an HTML or XML page{_title(start)}, not an image: the download was refused", "download it again"
    if start[257:262] == b"ustar":
        return (
            "a tar archive, not an image",
            "build it: apptainer build IMAGE.sif docker-archive:FILE.tar (of docker save) or oci-archive:FILE.tar",
        )
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            return f"{name}-compressed, not an image", "unpack it first; a docker archive is then built to a SIF"
    if start.startswith(b"#!") and b"run-singularity" in start[:64]:
        return "starts as an image does, but has no SIF_MAGIC at byte 32", _AGAIN
    if _is_text(start):
        line = start.splitlines()[0][:60].decode("utf-8", "replace")
        return f"a text of {size} bytes that starts with {line!r}, not an image", _AGAIN
    return "not a SIF image (no SIF_MAGIC at byte 32)", "build it: apptainer build IMAGE.sif DEFINITION"


def old_format(start: bytes) -> tuple[Literal["squashfs", "ext3"], int] | None:
    """("squashfs" or "ext3", byte where it starts) for an image of Singularity before 3.0, which may have a launch
    script before it."""
    at = start[:64].find(b"hsqs")
    if at >= 0:
        return "squashfs", at
    for at in (0, 31, 32):
        if start[at + 1080 : at + 1082] == b"\x53\xef":
            return "ext3", at
    return None


def _title(start: bytes) -> str:
    found = re.search(rb"<title>\s*([^<]{1,80}?)\s*<", start, re.IGNORECASE)
    return f" ({found[1].decode('utf-8', 'replace')!r})" if found else ""


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as wrong:
        if wrong.start < len(start) - 4:
            return False
        text = start[: wrong.start].decode("utf-8")
    return all(letter.isprintable() or letter.isspace() for letter in text)
