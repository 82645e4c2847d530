import os
import random
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pytest
import sif_files
from hypothesis import given, settings
from hypothesis import strategies as st
from sif_files import DEFINITION, FREE, METADATA, SIGNATURE, SYSTEM, put, real, with_squashfs

from singularity import sif
from singularity.sif import ImageDamaged, read_sif

REAL = bytes(real())
# Descriptors, texts, superblock and 64 samples; each of them may lead to one look for a hole.
MOST_READ = 64 << 10


def read(tmp_path: Path, content: bytes) -> sif.Sif:
    file = tmp_path / "x.sif"
    file.write_bytes(content)
    return read_sif(file)


def test_a_real_sif_tells_what_apptainer_tells_of_it() -> None:
    found = read_sif(sif_files.REAL)
    assert found.size == 42280
    assert found.architecture == "amd64"
    assert found.uuid.replace("-", "") == REAL[48:64].hex()
    assert found.created is not None
    assert found.created.isoformat() == "2026-11-30T11:44:59+00:00"
    assert found.partitions == (sif.Partition(3, "primary system", "squashfs", "amd64", 36864, 4096),)
    assert found.labels["launcher.package.torch"] == "2.8.0+cpu"
    assert found.labels["note"] == 'with spaces and "quotes" and $HOME'
    assert found.labels["org.label-schema.usage.apptainer.version"] == "1.4.5"
    assert found.definition is not None
    assert found.definition.startswith("Bootstrap: localimage\n")
    assert found.signatures == ("eb0525d2a0a8e151a17b476c70175ee6eff4860f",)
    assert not found.encrypted


def test_every_truncation_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x.sif"
    file.write_bytes(REAL)
    for size in range(len(REAL) - 1, -1, -11):
        os.truncate(file, size)
        with pytest.raises(ImageDamaged, match="truncated" if size > 42 else None):
            read_sif(file)


@pytest.mark.parametrize("size", [0, 31, 32, 41, 127, 128, 4095, 4096, 32175, 32176, 36864, 40960, 42279])
def test_truncation_at_a_border_is_found(tmp_path: Path, size: int) -> None:
    with pytest.raises(ImageDamaged):
        read(tmp_path, REAL[:size])


def test_what_follows_the_last_object_is_no_damage(tmp_path: Path) -> None:
    assert read(tmp_path, REAL + b"\0" * 5000).labels == read_sif(sif_files.REAL).labels


def counted(stream: BinaryIO, counts: list[int]) -> BinaryIO:
    class Counting:
        def read(self, count: int) -> bytes:
            counts.append(count)
            return stream.read(count)

        def __getattr__(self, name: str) -> object:
            return getattr(stream, name)

        def __enter__(self) -> "Counting":
            return self

        def __exit__(self, *_: object) -> None:
            stream.close()

    return Counting()  # type: ignore[return-value]


@given(st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(1, 255)), min_size=1, max_size=6))
@settings(max_examples=100)
def test_changed_bytes_are_told_or_read_and_never_read_without_bound(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(REAL)
    for at, change in changes:
        content[at] ^= change
    file = tmp_path_factory.getbasetemp() / "changed.sif"
    file.write_bytes(content)
    counts: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        whole = sif.open_image
        patch.setattr(sif, "open_image", lambda path: counted(whole(path), counts))
        with suppress(ImageDamaged):
            read_sif(file)
    assert counts
    assert sum(counts) < MOST_READ + 64 * (4096 + 2 * (1 << 21))
    assert max(counts) <= max(len(REAL), 1 << 22)


@given(
    at=st.sampled_from(
        [80, 88, 96, 104, 112, 120] + [4096 + n * 585 + field for n in range(5) for field in (0, 17, 25, 33)]
    ),
    value=st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-5, 70_000)),
)
@settings(max_examples=100)
def test_hostile_numbers_are_harmless(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    content = bytearray(REAL)
    struct.pack_into("<q", content, at, value)
    file = tmp_path_factory.getbasetemp() / "hostile.sif"
    file.write_bytes(content)
    tracemalloc.start()
    try:
        with suppress(ImageDamaged):
            read_sif(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_text_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x.sif"
    file.write_bytes(put(bytearray(REAL), METADATA, offset=len(REAL), size=1 << 33))
    os.truncate(file, len(REAL) + (1 << 33))  # sparse
    with pytest.raises(ImageDamaged, match=r"object 2 \('inspect-metadata.json'\) has 8589934592 bytes of text"):
        read_sif(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: put(x, SYSTEM, offset=33000), r"object 2 .* and object 3 lie over each other"),
        (lambda x: put(x, DEFINITION, offset=5000), r"object 1 lies over the descriptors"),
        (lambda x: put(x, SYSTEM, offset=-4096), r"object 3 has 4096 bytes at byte -4096"),
        (lambda x: put(x, SYSTEM, size=-1), r"object 3 has -1 bytes"),
        (lambda x: put(x, SYSTEM, size=1 << 40), r"truncated: object 3 ends at byte 1099511664640, the file at 4"),
        (lambda x: put(x, SYSTEM, used=0), r"no primary system partition"),
        (lambda x: put(x, FREE, type=0x4004, used=1, offset=4096, size=0, extra=struct.pack("<ii", 1, 2)), "2 pr"),
        (lambda x: put(x, SYSTEM, type=0x400B), r"an OCI-SIF"),
        (lambda x: put(x, SYSTEM, offset=36865, size=4000), r"no squashfs"),
        (lambda x: put(x, SYSTEM, size=200), r"its squashfs has \d+ bytes, the partition 200"),
        (lambda x: put(x, SYSTEM, size=50), r"50 bytes, a squashfs superblock"),
        (lambda x: put(x, METADATA, size=100), r"object 2 .* is not JSON"),
        (lambda x: x.__setitem__(slice(42, 44), b"02") or x, r"version '02' of the SIF format"),
        (lambda x: x.__setitem__(slice(88, 96), struct.pack("<q", 49)) or x, r"49 descriptors in 28080 bytes"),
        (lambda x: x.__setitem__(slice(88, 112), struct.pack("<3q", 1000, 4096, 585_000)) or x, r"1000 descri"),
        (lambda x: x.__setitem__(slice(88, 96), struct.pack("<q", 1 << 60)) or x, r"counts 1152921504606846976"),
    ],
    ids=[
        "overlap", "over-table", "negative-offset", "negative-size", "beyond-end", "no-system", "two-systems",
        "oci", "no-squashfs", "short-squashfs", "no-superblock", "bad-json", "version", "no-room", "table-beyond",
        "huge-count",
    ],
)  # fmt: skip
def test_a_contradiction_is_named(tmp_path: Path, change: object, said: str) -> None:
    with pytest.raises(ImageDamaged, match=said):
        read(tmp_path, change(bytearray(REAL)))  # type: ignore[operator]


def test_labels_of_a_sif_without_metadata_come_from_its_labels_object(tmp_path: Path) -> None:
    text = b'{"a": "b"}'
    content = put(bytearray(REAL), METADATA, type=0x4003, offset=len(REAL), size=len(text), name=b"")
    found = read(tmp_path, content + text)
    assert found.labels == {"a": "b"}
    assert found.definition == f"{read_sif(sif_files.REAL).definition}\n"


def test_a_sif_without_any_labels_is_whole(tmp_path: Path) -> None:
    found = read(tmp_path, put(put(bytearray(REAL), METADATA, used=0), SIGNATURE, used=0))
    assert (found.labels, found.signatures) == ({}, ())


def test_another_architecture_and_an_encrypted_partition_are_no_damage(tmp_path: Path) -> None:
    found = read(tmp_path, put(bytearray(REAL), SYSTEM, extra=struct.pack("<ii3s", 5, 2, b"04\0")))
    assert (found.architecture, found.encrypted) == ("arm64", True)


@pytest.mark.parametrize("seconds", [0, -62135596800, (1 << 63) - 1])
def test_a_time_that_is_none_is_not_told(tmp_path: Path, seconds: int) -> None:
    content = bytearray(REAL)
    struct.pack_into("<q", content, 64, seconds)
    assert read(tmp_path, content).created is None


DATA = random.Random(0).randbytes(600_000)


def test_a_file_system_with_all_its_parts_is_whole(tmp_path: Path) -> None:
    assert read(tmp_path, with_squashfs(sif_files.squashfs(DATA))).partitions[0].size > 600_000


@pytest.mark.parametrize("kept", [97, 300_000, 600_096, 600_105])
def test_a_zero_filled_rest_is_found(tmp_path: Path, kept: int) -> None:
    whole = with_squashfs(sif_files.squashfs(DATA))
    start = len(REAL)
    with pytest.raises(ImageDamaged, match=r"cut off and zero-filled|zero-filled: nothing but zeros|its table of"):
        read(tmp_path, whole[: start + kept] + bytes(len(whole) - start - kept))


def test_a_hole_inside_is_found(tmp_path: Path) -> None:
    data = DATA[:200_000] + bytes(100_000) + DATA[300_000:]
    with pytest.raises(ImageDamaged, match="nothing but zeros around byte"):
        read(tmp_path, with_squashfs(sif_files.squashfs(data)))


def test_zeros_that_a_block_can_hold_are_no_hole(tmp_path: Path) -> None:
    data = b"".join(bytes(4095) + b"x" for _ in range(100))
    read(tmp_path, with_squashfs(sif_files.squashfs(data)))


def test_zeros_in_a_file_system_that_is_not_compressed_are_no_hole(tmp_path: Path) -> None:
    content = bytearray(sif_files.squashfs(bytes(100_000)))
    struct.pack_into("<H", content, 24, 0x0002)
    read(tmp_path, with_squashfs(content))


def test_a_pipe_is_told_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.sif")
    with pytest.raises(ImageDamaged, match="is no regular file"):
        read_sif(tmp_path / "x.sif")


def test_a_name_cannot_move_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "a\x1b[2J\n.sif"
    file.write_bytes(b"")
    with pytest.raises(ImageDamaged) as caught:
        read_sif(file)
    assert str(caught.value).isprintable()
    assert caught.value.path == file
    assert caught.value.problem == "is empty"
