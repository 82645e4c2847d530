import errno
import gzip
import io
import json
import os
import random
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import sif_files

from singularity import image
from singularity.image import read_image, this_architecture
from singularity.installed import installed_packages
from singularity.sif import ImageDamaged


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("manifest.json"))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", r"Git LFS pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html><title>Sign in</title>", r"HTML or XML page \('Sign in'\).*download it again"),
        (b"\n <?xml version='1.0'?><Error><Code>AccessDenied</Code>", "HTML or XML page, not an image"),
        (_tar(), r"a tar archive.*apptainer build IMAGE.sif docker-archive:"),
        (gzip.compress(_tar()), "gzip-compressed"),
        (b"", "is empty"),
        (bytes(10_000), "zero-filled"),
        (b"curl: (22) 404\n", r"a text of 15 bytes that starts with 'curl: \(22\) 404'"),
        ("größe\n".encode() * 1000, "a text of 8000 bytes"),
        (b"#!/usr/bin/env run-singularity\n" + bytes(5000), "no SIF_MAGIC"),
        (random.Random(0).randbytes(16) * 1000 + b"\xff", "not a SIF image"),
        (b"hsqs" + bytes(200), "its squashfs superblock is not one"),
        (bytes(1080) + b"\x53\xef" + bytes(3000), "truncated: its ext3|zero-filled"),
    ],
    ids=[
        "lfs",
        "html",
        "xml",
        "tar",
        "gzip",
        "empty",
        "zeros",
        "text",
        "long-text",
        "cut",
        "random",
        "squashfs",
        "ext3",
    ],
)
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "x.sif"
    file.write_bytes(content)
    if said.startswith("truncated: its ext3"):  # blocks that the file has no room for
        file.write_bytes(content[:1028] + struct.pack("<I", 1 << 20) + content[1032:])
    with pytest.raises(ImageDamaged, match=said):
        read_image(file)


def test_a_sif_tells_its_stack_and_packages() -> None:
    found = read_image(sif_files.REAL)
    assert (found.kind, found.size, found.stack) == ("sif", 42280, "cpu")
    assert found.packages == {"torch": "2.8.0+cpu", "verl": "0.9.1"}
    assert found.toolkit == "ba9876543210"
    assert found.checksum is None
    assert found.architecture == "amd64"


@pytest.mark.parametrize("script", [b"", b"#!/usr/bin/env run-singularity\n"], ids=["plain", "with-script"])
def test_an_old_squashfs_is_an_image_without_labels(tmp_path: Path, script: bytes) -> None:
    file = tmp_path / "old.img"
    file.write_bytes(script + sif_files.squashfs(random.Random(0).randbytes(5000)))
    found = read_image(file)
    assert (found.kind, found.labels, found.stack, found.packages) == ("squashfs", {}, None, {})


@pytest.mark.parametrize("at", [0, 31])
def test_an_old_ext3_is_an_image_without_labels(tmp_path: Path, at: int) -> None:
    content = bytearray(b"\xa5" * (at + 64 * 1024))
    struct.pack_into("<I", content, at + 1024 + 4, 64)
    struct.pack_into("<I", content, at + 1024 + 24, 0)
    content[at + 1080 : at + 1082] = b"\x53\xef"
    file = tmp_path / "old.img"
    file.write_bytes(content)
    assert read_image(file).kind == "ext3"


def sandbox(path: Path, packages: str, *names: str) -> Path:
    (path / "bin").mkdir(parents=True, exist_ok=True)
    (path / "bin" / "sh").touch()
    for name in names:
        (path / packages / name).mkdir(parents=True)
    return path


def python_in(path: Path, binaries: str) -> None:
    (path / binaries).mkdir(parents=True, exist_ok=True)
    (path / binaries / "python3").symlink_to("/usr/bin/python3.11")  # dangling outside of the sandbox


def test_packages_of_a_sandbox_are_those_of_the_python_in_its_path(tmp_path: Path) -> None:
    box = sandbox(tmp_path / "box", "opt/venv/lib/python3.11/site-packages", "torch-2.9.0+cpu.dist-info", "torch")
    sandbox(box, "opt/venv/lib/python3.11/site-packages", "Foo_Bar.baz-1.0.dist-info", "old-2.0-py3.11.egg-info")
    sandbox(box, "usr/lib/python3/dist-packages", "torch-1.0.dist-info", "six-1.16.dist-info")
    python_in(box, "opt/venv/bin")
    python_in(box, "usr/bin")
    (box / ".singularity.d" / "env").mkdir(parents=True)
    script = box / ".singularity.d" / "env" / "90-environment.sh"
    # As Apptainer 1.4.5 writes it.
    (script.parent / "99-runtimevars.sh").write_text('PATH="${SING_USER_DEFINED_PATH}"\n', encoding="utf-8")
    script.write_text("#!/bin/sh\nexport PATH=/opt/venv/bin:$PATH\n", encoding="utf-8")
    assert read_image(box).packages == {"torch": "2.9.0+cpu", "foo-bar-baz": "1.0", "old": "2.0"}
    (box / "opt" / "venv" / "pyvenv.cfg").write_text("include-system-site-packages = true\n", encoding="utf-8")
    both = {"torch": "2.9.0+cpu", "foo-bar-baz": "1.0", "old": "2.0", "six": "1.16"}
    assert read_image(box).packages == both
    script.write_text('export PATH="/usr/bin:${PATH}"\n', encoding="utf-8")
    assert read_image(box).packages == {"torch": "1.0", "six": "1.16"}


def test_debian_prefers_what_is_below_usr_local(tmp_path: Path) -> None:
    box = sandbox(tmp_path / "box", "usr/lib/python3/dist-packages", "six-1.16.dist-info", "a-1.dist-info")
    sandbox(box, "usr/local/lib/python3.11/dist-packages", "six-1.17.dist-info")
    python_in(box, "usr/bin")
    assert read_image(box).packages == {"six": "1.17", "a": "1"}


def test_labels_of_a_sandbox(tmp_path: Path) -> None:
    box = sandbox(tmp_path / "box", "etc")
    (box / ".singularity.d").mkdir()
    labels = {"launcher.stack": "cpu", "launcher.package.verl": "0.9.1", "n": 3}
    (box / ".singularity.d" / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    found = read_image(box)
    assert (found.kind, found.size, found.stack, found.packages) == ("sandbox", None, "cpu", {"verl": "0.9.1"})
    assert found.labels["n"] == "3"


def test_a_link_out_of_a_sandbox_is_not_followed(tmp_path: Path) -> None:
    outside = sandbox(tmp_path / "outside", "lib/site-packages", "secret-1.0.dist-info")
    (outside / "labels.json").write_text('{"launcher.stack": "cpu"}', encoding="utf-8")
    box = sandbox(tmp_path / "box", "usr/lib", "here")
    python_in(box, "usr/bin")
    (box / "usr" / "lib" / "python3.11").symlink_to(outside / "lib")
    (box / ".singularity.d").mkdir()
    (box / ".singularity.d" / "labels.json").symlink_to(outside / "labels.json")
    found = read_image(box)
    assert (found.packages, found.labels) == ({}, {})


def test_a_hostile_path_of_a_sandbox_is_harmless(tmp_path: Path) -> None:
    box = sandbox(tmp_path / "box", "usr/lib/python3/dist-packages", "six-1.16.dist-info")
    (box / ".singularity.d" / "env").mkdir(parents=True)
    script = box / ".singularity.d" / "env" / "90-environment.sh"
    script.write_text("PATH=$PATH:$PATH\n" * 3000 + "PATH=/../../bin:/loop\n", encoding="utf-8")
    (box / "loop").symlink_to("loop")
    assert read_image(box).packages == {}


def test_a_folder_that_is_no_sandbox(tmp_path: Path) -> None:
    with pytest.raises(ImageDamaged, match=r"a folder and no sandbox.*apptainer build --sandbox"):
        read_image(tmp_path)


def test_a_folder_that_one_may_not_look_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "lstat", refused)
    with pytest.raises(PermissionError, match="Permission denied"):
        read_image(tmp_path)


def test_broken_labels_of_a_sandbox_are_told(tmp_path: Path) -> None:
    box = sandbox(tmp_path / "box", "etc")
    (box / ".singularity.d").mkdir()
    (box / ".singularity.d" / "labels.json").write_text("{", encoding="utf-8")
    with pytest.raises(ImageDamaged, match=r"labels\.json"):
        read_image(box)


def test_labels_that_may_not_be_read_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = sandbox(tmp_path / "box", "etc")
    (box / ".singularity.d").mkdir()
    labels = box / ".singularity.d" / "labels.json"
    labels.write_text("{}", encoding="utf-8")

    def closed(path: Path) -> Any:  # root may read what has no mode
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(image, "open_image", closed)
    with pytest.raises(PermissionError) as told:
        read_image(box)
    assert told.value.filename == str(labels)


def test_a_missing_image_is_no_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "x.sif")


def test_installed_packages_are_those_of_this_interpreter() -> None:
    found = installed_packages()
    assert found["pytest"] == pytest.__version__
    assert list(found) == sorted(found)
    assert all(name == name.lower() and "_" not in name for name in found)


def test_of_two_installed_copies_the_first_in_sys_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "PyTest-1.0.dist-info").mkdir()
    (tmp_path / "PyTest-1.0.dist-info" / "METADATA").write_text("Name: PyTest\nVersion: 1.0\n", encoding="utf-8")
    (tmp_path / "rest-1.0.dist-info").mkdir()  # what a broken uninstall leaves
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_packages()["pytest"] == "1.0"
    assert "rest" not in installed_packages()


def test_this_machine_has_a_name_of_go() -> None:
    assert this_architecture() in ("amd64", "arm64", "ppc64le", "s390x", "riscv64"), sys.platform
