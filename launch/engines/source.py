"""Find verl's source of one version: its configuration (YAML) and what reads it (Python), never executed.

The order: a folder that the user names, an installed verl of that very version, the cache, `pip download`. Nothing
of verl is imported, and a wheel is only ever read as a zip file.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

# A login node often has no way out: better a clear warning soon than a long wait.
DOWNLOAD_SECONDS = 15
_VERSION_FILE = "verl/version/version"
_MANIFEST = "manifest.json"
_KEPT = (".py", ".yaml")
# The wheels have about 700 files and 6 MB (0.6.1 to 0.9.1).
_MAX_FILES, _MAX_FILE_BYTES, _MAX_BYTES = 20_000, 16 << 20, 256 << 20


class SourceMissing(Exception):
    """verl's source of the wanted version cannot be had. `reason` and `remedy` say why, and what helps."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class Source:
    """verl's source. `root` is the folder that holds the package `verl`; `origin` says how it was found."""

    version: str
    root: Path
    origin: str

    @cached_property
    def text(self) -> str:
        """All of verl's Python, one file after another."""
        files = sorted((self.root / "verl").rglob("*.py"))
        return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def cache_folder() -> Path:
    """Where sources are kept: $LAUNCH_CACHE, or below $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("LAUNCH_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()).absolute() / "verl-slurm-launcher"


def find_source(version: str, folder: Path | None = None, *, download: bool = True) -> Source:
    """The source of verl `version`.

    Args:
        version: A release as pip names it, e.g. "0.9.1".
        folder: A git checkout or an unpacked wheel; nothing else is looked at then.
        download: Whether `pip download` may be tried when nothing is here.

    Raises:
        SourceMissing: Nothing has it, or `folder` has another version.
    """
    if folder is not None:
        return _given(version, folder)
    found = _installed(version) or _cached(version)
    if found is not None:
        return found
    if not download:
        raise SourceMissing(f"verl {version} is neither installed nor in {cache_folder()}", _by_hand(version))
    return _download(version)


def installed_version() -> tuple[str, Path] | None:
    """Version and root of the verl that this Python would import, without importing it."""
    try:
        spec = importlib.util.find_spec("verl")
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        root = Path(place).absolute().parent
        if (version := _version_of(root)) is not None:
            return version, root
    return None


def _by_hand(version: str) -> str:
    return (
        f"on a machine with network: pip download --no-deps verl=={version}; unzip the wheel into a folder here "
        "and name it with --verl-source DIR"
    )


def _version_of(root: Path) -> str | None:
    """The version that a folder with `verl` in it states, by its version file or the metadata beside it."""
    try:
        return (root / _VERSION_FILE).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        pass
    if not (root / "verl" / "__init__.py").is_file():
        return None
    for found in sorted(root.glob("verl-*.dist-info")):
        return found.name.removeprefix("verl-").removesuffix(".dist-info")
    return None


def _given(version: str, folder: Path) -> Source:
    folder = folder.expanduser().absolute()
    # The package itself is accepted as well as the folder around it.
    for root in (folder, folder.parent) if folder.name == "verl" else (folder,):
        stated = _version_of(root)
        if stated == version:
            return Source(version, root, f"--verl-source {folder}")
        if stated is not None:
            raise SourceMissing(
                f"--verl-source {folder} holds verl {stated}, the job wants {version}",
                f"check out or unpack verl {version} there, or set engine.verl={stated}",
            )
    raise SourceMissing(
        f"--verl-source {folder}: no verl there (no {_VERSION_FILE})",
        "name a git checkout of verl or an unpacked wheel",
    )


def _installed(version: str) -> Source | None:
    found = installed_version()
    if found is None or found[0] != version:
        return None
    return Source(version, found[1], "installed")


def _cached(version: str) -> Source | None:
    root = cache_folder() / f"verl-{version}"
    return Source(version, root, "cache") if _intact(root, version) else None


def _intact(root: Path, version: str) -> bool:
    """Whether the cache entry holds exactly the files that were unpacked: none is missing, changed or added."""
    try:
        manifest = json.loads((root / _MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest == {"version": version, "digest": _digest(root)})
    except (OSError, ValueError):
        return False


def _digest(root: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted((root / "verl").rglob("*")):
        if file.is_symlink() or not file.is_dir():
            content = b"" if file.is_symlink() else file.read_bytes()
            digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _download(version: str) -> Source:
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".verl-{version}-", dir=cache))
    except OSError as error:
        raise SourceMissing(
            f"the cache folder {cache} cannot be written: {error.strerror}",
            "set LAUNCH_CACHE to another folder",
        ) from error
    try:
        unpacked = scratch / "source"
        _unpack(_pip_download(version, scratch / "wheel"), unpacked, version)
        _publish(unpacked, cache / f"verl-{version}", version)
    except OSError as error:
        raise SourceMissing(
            f"the cache folder {cache} cannot be written: {error}", "free some space, or set LAUNCH_CACHE"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Source(version, cache / f"verl-{version}", "downloaded")


def _pip_download(version: str, folder: Path) -> Path:
    folder.mkdir()
    print(
        f"fetching verl {version} with pip, for its configuration (at most {DOWNLOAD_SECONDS} s)", file=sys.stderr
    )
    # A wheel only: a source archive would run its build script.
    command = [sys.executable, "-m", "pip", "download", f"verl=={version}", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--retries=0", "--timeout=5", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-cache-dir"]
    try:
        # In that folder, so that no file of the current one is taken for a part of pip.
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceMissing(
            f"pip download verl=={version} took over {DOWNLOAD_SECONDS} s", _by_hand(version)
        ) from error
    wheels = sorted(folder.glob("verl-*.whl"))
    if done.returncode or len(wheels) != 1:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        last = next(
            (line for line in reversed(told) if line.startswith("ERROR")), told[-1] if told else "no wheel"
        )
        raise SourceMissing(f"pip download verl=={version} failed: {last[:300]}", _by_hand(version))
    return wheels[0]


def _unpack(wheel: Path, target: Path, version: str) -> None:
    """Write the Python, YAML and version files of a wheel below `target`.

    Raises:
        SourceMissing: The wheel is no zip file, or unsafe, or of another version.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in _wanted(archive):
                file = target / member.filename
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(member))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceMissing(f"{wheel.name} is not a wheel: {error}", _by_hand(version)) from error
    if (stated := _version_of(target)) != version:
        raise SourceMissing(f"{wheel.name} holds verl {stated}, not {version}", _by_hand(version))


def _wanted(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    wanted = []
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            raise SourceMissing(
                f"a wheel of verl would write outside its folder: {member.filename!r}", "do not use it"
            )
        if path.parts[:1] == ("verl",) and (path.suffix in _KEPT or member.filename == _VERSION_FILE):
            wanted.append(member)
    sizes = [member.file_size for member in wanted]
    if len(sizes) > _MAX_FILES or max(sizes, default=0) > _MAX_FILE_BYTES or sum(sizes) > _MAX_BYTES:
        raise SourceMissing(
            f"a wheel of verl with {len(sizes)} files of {sum(sizes)} bytes is none", "check the package index"
        )
    return wanted


def _publish(unpacked: Path, place: Path, version: str) -> None:
    """Put a complete entry into the cache in one step; another process may do the same at the same time."""
    manifest = {"version": version, "digest": _digest(unpacked)}
    (unpacked / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    for _ in range(3):
        try:
            unpacked.rename(place)
            return
        except OSError:
            if _intact(place, version):
                return
            # Half written or changed: out of the way, with the scratch folder it goes.
            with contextlib.suppress(OSError):
                place.rename(unpacked.with_name("broken"))
    unpacked.rename(place)
