"""verl's source is found without running any of it: folder, installed, cache, pip."""

import base64
import hashlib
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from launch.engines import source
from launch.engines.source import SourceMissing, find_source

VERSION = "9.9.9"


def wheel(folder: Path, version: str = VERSION, **files: str) -> Path:
    """A wheel of a package called verl, as pip takes it; its code would leave a trace if it ran."""
    trace = f"open({str(folder / 'ran')!r}, 'w')"
    content = {
        "verl/__init__.py": trace,
        "verl/version/version": f"{version}\n",
        "verl/trainer/main_ppo.py": "config.trainer.nnodes",
        "verl/trainer/config/ppo_trainer.yaml": "trainer: {nnodes: 1}",
        "verl/trainer/notes.txt": "not kept",
        f"verl-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n",
        f"verl-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **files,
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        f"{len(text.encode())}\n"
        for name, text in content.items()
    )
    path = folder / f"verl-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**content, f"verl-{version}.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of one folder for the real pip, and an empty cache."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("LAUNCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "DOWNLOAD_SECONDS", 300)  # several pips at once take their time
    return folder


@pytest.mark.parametrize("layout", ["checkout", "wheel", "package"])
def test_a_folder_of_the_user(tmp_path: Path, layout: str):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    if layout == "wheel":
        (tmp_path / "verl-0.8.0.dist-info").mkdir()
    else:
        (tmp_path / "verl" / "version").mkdir()
        (tmp_path / "verl" / "version" / "version").write_text("0.8.0\n")
    given = tmp_path / "verl" if layout == "package" else tmp_path
    assert find_source("0.8.0", given).root == tmp_path
    with pytest.raises(
        SourceMissing, match=r"holds verl 0\.8\.0, the job wants 0\.9\.1.*set engine\.verl=0\.8\.0"
    ):
        find_source("0.9.1", given)


def test_a_folder_without_verl(tmp_path: Path):
    with pytest.raises(SourceMissing, match=r"no verl there.*git checkout"):
        find_source("0.9.1", tmp_path / "nothing")


def test_the_installed_one_is_not_imported():
    code = (
        "import sys; from launch.engines.source import find_source; found = find_source('0.9.1'); "
        "assert found.origin == 'installed', found; assert not {'verl', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fetched_once_and_then_from_the_cache(shelf: Path, capsys: pytest.CaptureFixture[str]):
    wheel(shelf)
    found = find_source(VERSION)
    assert found.origin == "downloaded"
    assert capsys.readouterr().err.startswith(f"fetching verl {VERSION} with pip")
    kept = sorted(str(path.relative_to(found.root)) for path in found.root.rglob("*") if path.is_file())
    assert kept == [
        "manifest.json",
        "verl/__init__.py",
        "verl/trainer/config/ppo_trainer.yaml",
        "verl/trainer/main_ppo.py",
        "verl/version/version",
    ]
    assert find_source(VERSION, download=False).origin == "cache"
    assert [path.name for path in found.root.parent.iterdir()] == [f"verl-{VERSION}"]
    assert not (shelf / "ran").exists()


@pytest.mark.parametrize("harm", ["change", "remove", "add", "half", "a file"])
def test_a_harmed_cache_is_fetched_again(shelf: Path, harm: str):
    wheel(shelf)
    root = find_source(VERSION).root
    module = root / "verl" / "trainer" / "main_ppo.py"
    if harm == "change":
        module.write_text("config.trainer.nnodeX")
    elif harm == "remove":
        module.unlink()
    elif harm == "add":
        (root / "verl" / "trainer" / "more.yaml").write_text("a: 1")
    elif harm == "half":
        (root / "manifest.json").write_text('{"version": ')
    else:
        root.rename(root.with_name("old"))
        root.write_text("")
    if harm != "a file":
        with pytest.raises(SourceMissing, match="neither installed nor in"):
            find_source(VERSION, download=False)
    assert find_source(VERSION).origin == "downloaded"
    assert module.read_text() == "config.trainer.nnodes"
    assert find_source(VERSION, download=False).origin == "cache"


def test_many_at_the_same_time(shelf: Path):
    wheel(shelf)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(find_source(VERSION).root)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache = source.cache_folder()
    assert found == [cache / f"verl-{VERSION}"] * 4
    assert [path.name for path in cache.iterdir()] == [f"verl-{VERSION}"]


def test_nothing_there(shelf: Path):
    with pytest.raises(SourceMissing, match=r"pip download verl==9\.9\.9 failed: ERROR.*--verl-source DIR"):
        find_source(VERSION)
    assert list(source.cache_folder().iterdir()) == []


def test_a_source_archive_is_not_built(shelf: Path):
    (shelf / "setup.py").write_text(f"open({str(shelf / 'ran')!r}, 'w')")
    with tarfile.open(shelf / f"verl-{VERSION}.tar.gz", "w:gz") as archive:
        archive.add(shelf / "setup.py", f"verl-{VERSION}/setup.py")
    with pytest.raises(SourceMissing, match="failed"):
        find_source(VERSION)
    assert not (shelf / "ran").exists()


def test_a_network_that_does_not_answer(shelf: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "DOWNLOAD_SECONDS", 2)
    monkeypatch.delenv("PIP_NO_INDEX")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        with pytest.raises(SourceMissing, match=r"took over 2 s.*on a machine with network"):
            find_source(VERSION)
    assert list(source.cache_folder().iterdir()) == []


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAUNCH_CACHE", "/proc/verl")
    with pytest.raises(SourceMissing, match=r"cannot be written.*LAUNCH_CACHE"):
        find_source(VERSION)


@pytest.mark.parametrize("name", ["../evil.py", "verl/../../evil.py", "/etc/evil.py", "verl\\..\\evil.py"])
def test_a_wheel_that_writes_elsewhere_is_refused(tmp_path: Path, name: str):
    hostile = wheel(tmp_path, **{name: "x"})
    with pytest.raises(SourceMissing, match="would write outside its folder"):
        source._unpack(hostile, tmp_path / "target", VERSION)
    assert not list(tmp_path.rglob("evil.py"))


def test_a_wheel_that_unpacks_to_gigabytes_is_refused(tmp_path: Path):
    bomb = wheel(tmp_path, **{"verl/big.py": "#" * (17 << 20)})
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(SourceMissing, match="bytes is none"):
        source._unpack(bomb, tmp_path / "target", VERSION)


def test_a_wheel_of_another_version_and_none_at_all(tmp_path: Path):
    other = wheel(tmp_path, **{"verl/version/version": "0.5.0"})
    with pytest.raises(SourceMissing, match=r"holds verl 0\.5\.0, not 9\.9\.9"):
        source._unpack(other, tmp_path / "target", VERSION)
    other.write_bytes(other.read_bytes()[:200])
    with pytest.raises(SourceMissing, match="is not a wheel"):
        source._unpack(other, tmp_path / "target", VERSION)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("LAUNCH_CACHE", str(tmp_path))
    assert source.cache_folder() == tmp_path
    monkeypatch.delenv("LAUNCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert source.cache_folder() == tmp_path / "xdg" / "verl-slurm-launcher"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert source.cache_folder() == tmp_path / ".cache" / "verl-slurm-launcher"
