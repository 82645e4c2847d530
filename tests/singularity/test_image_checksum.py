import hashlib
import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from other_processes import wait_until

from singularity import checksum
from singularity.checksum import hash_file, record, recorded, verify
from singularity.sif import ImageDamaged

CONTENT = random.Random(1).randbytes(5 << 20)
SUM = hashlib.sha256(CONTENT).hexdigest()
OTHER = "0" * 64


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "x.sif"
    file.write_bytes(CONTENT)
    return file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test, that also takes files which were written just now."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checksum, "_TICK_S", -10.0)
    return tmp_path / "cache" / "verl-launcher"


def tick(image: Path) -> None:
    """Wait until the clock of the file system goes on: what changes now has another time."""
    probe = image.with_name("clock")

    def later() -> bool:
        probe.write_bytes(b"")
        return probe.stat().st_mtime_ns > image.stat().st_ctime_ns

    wait_until(later, "tick of the file system's clock")
    probe.unlink()


def sidecar(image: Path, text: str) -> None:
    image.with_name(image.name + ".sha256").write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    "name", ["x.sif", "a b.sif", "-x.sif", "a\nb.sif", "back\\slash.sif", "\udcff.sif", "$(id)'\".sif", "é.sif"]
)
def test_sha256sum_reads_what_is_recorded_and_the_other_way_round(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"content")
    value = record(file)
    subprocess.run(["sha256sum", "-c", "--", f"{name}.sha256"], cwd=tmp_path, check=True, capture_output=True)
    assert recorded(file) == value
    written = subprocess.run(["sha256sum", "--", name], cwd=tmp_path, check=True, capture_output=True).stdout
    file.with_name(f"{name}.sha256").write_bytes(written)
    assert recorded(file) == value


@pytest.mark.parametrize(
    "text",
    [
        "{sum}  x.sif\n",
        "{sum} *x.sif\n",
        "{sum}  ./x.sif",
        "{sum}  /data/images/x.sif\r\n",
        "{SUM}  x.sif\n",
        "{other}  w.sif\n{sum}  x.sif\n{other}  y.sif\n",
        "\n{sum}  x.sif\n{sum}  x.sif\n",
        "SHA256 (x.sif) = {sum}\n",
        "{sum}\n",
    ],
    ids=["plain", "binary", "dot", "absolute-crlf", "capitals", "folder", "twice", "tagged", "alone"],
)
def test_formats_of_a_record(image: Path, text: str) -> None:
    sidecar(image, text.format(sum=SUM, SUM=SUM.upper(), other=OTHER))
    assert recorded(image) == SUM


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{sum}  y.sif\n", r"names 'y.sif', not 'x.sif'"),
        ("", "is empty"),
        ("{short}  x.sif\n", r"line 1: '[0-9a-f]{63}' is no SHA-256"),
        ("{sum}  x.sif\n{short}  y.sif\n", "line 2: "),
        ("zz{short}  x.sif\n", "is no SHA-256"),
        ("{sum}  x.sif\n{other}  x.sif\n", "lines 1 and 2 contradict each other"),
        ("<html>404</html>\n", "line 1: '<html>404</html>' is no SHA-256"),
        ("\x1b[2J\n", r"line 1: '\\x1b\[2J'"),
        ("x" * (1 << 21), "too long for a list"),
    ],
    ids=["other-name", "empty", "short", "later-line", "letters", "contradiction", "html", "escape", "huge"],
)
def test_a_record_that_is_none_is_never_passed_over(image: Path, text: str, said: str) -> None:
    sidecar(image, text.format(sum=SUM, other=OTHER, short=SUM[:63]))
    with pytest.raises(ImageDamaged, match=said) as caught:
        recorded(image)
    assert caught.value.path == image.with_name("x.sif.sha256")
    assert "--record" in caught.value.remedy


def test_no_record(image: Path) -> None:
    assert recorded(image) is None


def test_a_record_replaces_the_old_one_whole(image: Path) -> None:
    sidecar(image, f"{OTHER}  x.sif\n{OTHER}  x.sif\n")
    record(image)
    assert image.with_name("x.sif.sha256").read_text() == f"{SUM}  x.sif\n"
    assert {path.name for path in image.parent.iterdir()} == {"x.sif", "x.sif.sha256", "cache"}


def test_progress_ends_at_the_size(image: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert hash_file(image, lambda done, total: seen.append((done, total))) == SUM
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 1


def test_a_second_look_at_the_same_file_is_from_the_cache(image: Path) -> None:
    assert not verify(image, SUM).cached
    again = verify(image, SUM.upper())
    assert (again.cached, again.sha256, again.size) == (True, SUM, len(CONTENT))


def test_another_content_is_told_with_both_sums(image: Path) -> None:
    for _ in range(2):
        with pytest.raises(ImageDamaged, match=f"its SHA-256 is {SUM}, recorded is {OTHER}"):
            verify(image, OTHER)


def test_a_byte_that_was_changed_with_its_time_set_back_is_found(image: Path) -> None:
    verify(image, SUM)
    before = image.stat()
    tick(image)
    with image.open("r+b") as stream:
        stream.seek(1 << 20)
        stream.write(bytes([CONTENT[1 << 20] ^ 1]))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ImageDamaged, match="it was changed"):
        verify(image, SUM)


def test_a_file_of_just_now_is_not_remembered(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_TICK_S", 3600.0)
    verify(image, SUM)
    assert not verify(image, SUM).cached


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"file": 3}', b"\xff" * 99, b"[" * 100_000])
def test_a_damaged_cache_costs_another_look(image: Path, cache: Path, damage: bytes) -> None:
    verify(image, SUM)
    (entry,) = cache.iterdir()
    entry.write_bytes(damage)
    assert not verify(image, SUM).cached
    assert verify(image, SUM).cached


def test_a_cache_that_names_another_sum_is_not_believed(image: Path, cache: Path) -> None:
    verify(image, SUM)
    (entry,) = cache.iterdir()
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "sha256": OTHER}))
    assert not verify(image, SUM).cached


@pytest.mark.parametrize("place", ["/proc/none", "/dev/null/x"])
def test_a_cache_that_cannot_be_written_is_survived(
    image: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    assert verify(image, SUM).sha256 == SUM
    assert not verify(image, SUM).cached


def test_the_cache_is_below_home_without_a_setting(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    verify(image, SUM)
    assert list((tmp_path / "home" / ".cache" / "verl-launcher").iterdir())


def test_a_file_that_grows_while_it_is_read_is_an_error(image: Path) -> None:
    def grow(done: int, total: int) -> None:
        if done == total:
            with image.open("ab") as stream:
                stream.write(b"x")

    with pytest.raises(ImageDamaged, match="it changed while it was read"):
        verify(image, SUM, grow)


def test_another_mode_or_link_while_it_is_read_is_no_change(image: Path, tmp_path: Path) -> None:
    def link(done: int, total: int) -> None:
        image.chmod(0o600 if done < total else 0o644)

    tick(image)
    assert not verify(image, SUM, link).cached
    assert not verify(image, SUM).cached  # what was changed meanwhile is looked at again
    assert verify(image, SUM).cached


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(image: Path) -> None:
    def replace(done: int, total: int) -> None:
        new = image.with_name("new")
        new.write_bytes(CONTENT)
        new.replace(image)

    with pytest.raises(ImageDamaged, match="it changed while it was read"):
        record(image, replace)
    assert recorded(image) is None


@pytest.mark.parametrize("kind", ["folder", "loop", "nowhere", "pipe"])
def test_a_record_that_cannot_be_read_is_never_passed_over(tmp_path: Path, kind: str):
    image, file = tmp_path / "x.sif", tmp_path / "x.sif.sha256"
    image.write_bytes(b"x")
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(file.name if kind == "loop" else "nowhere")
    with pytest.raises(ImageDamaged, match=r"x\.sif\.sha256"):
        recorded(image)
