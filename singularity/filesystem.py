"""Whether a file system inside an image is all there: its superblock, its tables, and samples of its content.

squashfs 4.0 as the kernel's Documentation/filesystems/squashfs.rst and fs/squashfs/squashfs_fs.h define it, ext3's
superblock as its Documentation/filesystems/ext4/super.rst. Of a whole one less than a megabyte is read, whatever
its size: where its tables begin, and 64 samples of 4 KiB. Around each sample of zeros it is four blocks more, of
1 MiB at most: no file costs more than 64 x 4 MiB.
"""

import struct
from typing import BinaryIO

# magic, inodes, time, block size, fragments, compression, block log, flags, ids, major, minor, root inode,
# bytes used; starts of the tables of ids, xattrs, inodes, directories, fragments, exports.
_SQUASHFS = struct.Struct("<4sIIIIHHHHHHQQQQQQQQ")
_NONE = 0xFFFFFFFFFFFFFFFF
_METADATA_BLOCK = 8192
_UNCOMPRESSED = 0x0002 | 0x0008  # flags of mksquashfs -noD and -noF
_SAMPLES, _SAMPLE = 64, 4096


def problem_of(kind: str, stream: BinaryIO, offset: int, size: int) -> str | None:
    """What is wrong with a file system of `size` bytes at `offset`; None: nothing that is seen from outside."""
    if kind == "squashfs":
        return _squashfs(stream, offset, size)
    if kind == "ext3":
        return _ext3(stream, offset, size)
    return None


def _squashfs(stream: BinaryIO, offset: int, size: int) -> str | None:
    start = _read(stream, offset, min(size, _SQUASHFS.size))
    if start[:4] != b"hsqs":
        return f"no squashfs (it starts with {start[:4]!r}, not with {b'hsqs'!r})"
    if len(start) < _SQUASHFS.size:
        return f"truncated: {size} bytes, a squashfs superblock alone has {_SQUASHFS.size}"
    (_, _, _, block, _, compression, log, flags, ids, major, minor, _, used, *tables) = _SQUASHFS.unpack(start)
    if (major, minor) != (4, 0) or not 1 <= compression <= 6 or not 12 <= log <= 20 or block != 1 << log:
        return f"its squashfs superblock is not one (version {major}.{minor}, blocks of {block} bytes)"
    if not _SQUASHFS.size < used <= size:
        return f"truncated: its squashfs has {used} bytes, the partition {size}"
    id_table, _, inodes, directories = tables[:4]
    for name, at in zip(("ids", "xattrs", "inodes", "directories", "fragments", "exports"), tables):  # noqa: B905
        if not _SQUASHFS.size <= at < used and not (at == _NONE and name in ("xattrs", "fragments", "exports")):
            return f"its squashfs has its table of {name} at byte {at} of {used}"
    count = -(-ids * 4 // _METADATA_BLOCK)
    pointers = struct.unpack(f"<{count}Q", _read(stream, offset + id_table, 8 * count).ljust(8 * count, b"\0"))
    blocks = [("inodes", inodes), ("directories", directories), *(("ids", pointer) for pointer in pointers)]
    for name, at in blocks:
        if not ids or not _SQUASHFS.size <= at <= used - 2 or not _metadata_block(stream, offset + at):
            return f"its table of {name} is not there, as in a copy that was cut off and zero-filled"
    if not flags & _UNCOMPRESSED and (hole := _hole(stream, offset, used, 2 * block)):
        return f"zero-filled: nothing but zeros around byte {hole} of the file, as in a copy that was cut off"
    return None


def _metadata_block(stream: BinaryIO, at: int) -> bool:
    """Each block of a table starts with its stored size; the highest bit tells that it is not compressed."""
    head = _read(stream, at, 2)
    return len(head) == 2 and 0 < struct.unpack("<H", head)[0] & 0x7FFF <= _METADATA_BLOCK


def _hole(stream: BinaryIO, offset: int, used: int, longest: int) -> int | None:
    """A place with `longest` bytes of zeros.

    mksquashfs stores no block of zeros, and compresses what it can: two blocks' length of zeros is no content. A
    shorter run may be, of a block that grows when it is compressed.
    """
    for sample in range(_SAMPLES):
        at = sample * used // _SAMPLES
        if any(_read(stream, offset + at, min(_SAMPLE, used - at))):
            continue
        begin = max(0, at - longest // 2)
        content = _read(stream, offset + begin, min(2 * longest, used - begin))
        if b"\0" * longest in content or not any(content):
            return offset + at
    return None


def _ext3(stream: BinaryIO, offset: int, size: int) -> str | None:
    start = _read(stream, offset + 1024, max(0, min(size - 1024, 64)))
    if start[56:58] != b"\x53\xef":
        return "no ext3 (no 0xEF53 at byte 1080)"
    blocks, log = struct.unpack_from("<I", start, 4)[0], struct.unpack_from("<I", start, 24)[0]
    if log > 6 or blocks << (10 + log) > size:
        return f"truncated: its ext3 has {blocks} blocks of 2^{10 + log} bytes, the partition {size} bytes"
    return None


def _read(stream: BinaryIO, offset: int, count: int) -> bytes:
    stream.seek(offset)
    return stream.read(count)
