# PYTHON_ARGCOMPLETE_OK
"""Build the image of a stack: `python -m singularity.build --stack NAME -o X.sif`."""

from singularity.command_line import CommandParser, fail, quiet_imports, run

if __name__ == "__main__":
    quiet_imports()

import contextlib
import errno
import getpass
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from singularity.checksum import record, sidecar
from singularity.definition import SETTINGS, DefinitionError, definition, split_base
from singularity.failures import Places, explain
from singularity.image import read_image
from singularity.pip_settings import PipSettings, PipSettingsError, pip_settings, secrets_of
from singularity.room import existing, mount_options, needs, shortages, unwritable
from singularity.running import run_program
from singularity.runtime import (
    Runtime,
    RuntimeMissing,
    build_environment,
    default_cache,
    fakeroot_options,
    find_runtime,
    folder_setting,
)
from singularity.stack import Stack, StackError, load_stack, stack_names
from singularity.toolkit import PACKAGES, TOOLKIT, package_files

# Told when an image is made; inspect tells all.
_MAIN_PACKAGES = ("verl", "torch", "ray", "transformers", "sglang", "vllm", "megatron-core", "transformer-engine")
_DOWNLOADED = ("docker", "library", "oras", "shub", "docker-archive", "oci-archive", "oci")


class BuildError(RuntimeError):
    """An image that could not be made; the message has value, place and remedy."""


class Built(NamedTuple):
    """An image that was made; seconds are those of the whole build."""

    path: Path
    size: int  # bytes
    sha256: str
    stack: str
    runtime: str
    packages: dict[str, str]
    seconds: float


def build(stack: Stack, output: Path, args: Any) -> Built:
    """Build the image at `output`, or leave what is there as it was.

    Raises:
        BuildError, DefinitionError, PipSettingsError, RuntimeMissing: nothing was made; the message says why.
    """
    begun = time.monotonic()
    output = output.absolute()
    _refuse_existing(output, force=args.force)
    text = definition(stack, args.base)
    runtime = find_runtime(args.runtime, os.environ)
    options = fakeroot_options(runtime, args.fakeroot, uid=os.geteuid())
    temporary = Path(
        args.tmp_dir or folder_setting(runtime, "TMPDIR", os.environ) or tempfile.gettempdir()
    ).absolute()
    cache = Path(args.cache_dir).absolute() if args.cache_dir else None
    bootstrap, _ = split_base(args.base or stack.base.value)
    downloads = (cache or default_cache(runtime, os.environ)) if bootstrap in _DOWNLOADED else None
    _check_places(stack, output, temporary, downloads)
    wheels = _checked_wheels(args.wheels)
    settings = pip_settings(os.environ, SETTINGS, f"{SETTINGS}/wheels" if wheels else None)
    if settings.text and runtime.flavour != "Apptainer" and runtime.version < (3, 8):
        raise BuildError(
            f"{runtime} takes no --bind in a build, and pip's index settings (PIP_..., pip.conf) or --wheels need"
            " one; build with SingularityCE or SingularityPRO 3.8 or later, or without: PIP_CONFIG_FILE=/dev/null"
        )
    for note in settings.notes:
        print(f"note: {note}", file=sys.stderr)

    _forget_dead(output)
    partial = _partial(output)
    try:
        with _work_folder(temporary) as work:
            words = [runtime.path, "build", *options, *_bound(settings, wheels, work)]
            words += ["--mksquashfs-args", args.mksquashfs_args] if args.mksquashfs_args else []
            words += ["--notest"] if args.no_test else []
            _stage(text, work)
            print(f"building {output} of stack {stack.name} with {runtime}", file=sys.stderr)
            done = run_program(
                [*words, str(partial), "image.def"],
                environ=build_environment(runtime, os.environ, work / "tmp", cache),
                folder=work / "context",
                secrets=secrets_of(os.environ, settings),
            )
        if done.code != 0 or not partial.is_file():
            raise BuildError(
                explain(done.said, done.code, _places(stack, args, runtime, output, temporary, downloads))
            )
        _sync(partial)
        _move(partial, output, force=args.force)
    finally:
        partial.unlink(missing_ok=True)
    sha256 = record(output)
    packages = read_image(output).packages
    return Built(
        output, output.stat().st_size, sha256, stack.name, str(runtime),
        {name: packages[name] for name in _MAIN_PACKAGES if name in packages}, time.monotonic() - begun,
    )  # fmt: skip


def _refuse_existing(output: Path, *, force: bool) -> None:
    if output.is_dir():
        raise BuildError(f"-o {output}: it is a folder; name a file in it: {output / 'X.sif'}")
    if not output.parent.is_dir():
        raise BuildError(f"-o {output}: there is no folder {output.parent}; make it: mkdir -p {output.parent}")
    if os.path.lexists(output) and not force:
        raise BuildError(f"-o {output}: it exists; replace it with --force, or name another file")


def _check_places(stack: Stack, output: Path, temporary: Path, cache: Path | None) -> None:
    """Room, and what a folder is mounted with, before anything is downloaded.

    Raises:
        BuildError: with all that is wrong.
    """
    wrong = []
    folders = [(output.parent, "-o"), (temporary, "--tmp-dir"), *([(cache, "--cache-dir")] if cache else [])]
    for folder, option in folders:
        why = unwritable(existing(folder))
        if why:
            wrong.append(f"{folder}: {why}; choose another folder with {option}")
    point, mounted = mount_options(temporary)
    if "noexec" in mounted:
        wrong.append(
            f"{temporary} is on {point}, mounted noexec: nothing can run there; choose another: --tmp-dir"
        )
    if "nodev" in mounted and os.geteuid() == 0:
        print(
            f"note: {temporary} is on {point}, mounted nodev; a base with device files fails there",
            file=sys.stderr,
        )
    wrong += shortages(needs(size_gb=stack.size_gb, output=output.parent, temporary=temporary, cache=cache))
    if wrong:
        raise BuildError("; ".join(wrong))


def _checked_wheels(wheels: str | None) -> Path | None:
    if not wheels:
        return None
    path = Path(wheels).absolute()
    if not any(path.glob("*.whl")):
        raise BuildError(f"--wheels {path}: no *.whl there; fill it with pip wheel or pip download")
    if ":" in str(path) or "," in str(path):
        raise BuildError(f"--wheels {path}: a bind takes no ':' and no ',' in a path; make a link to it elsewhere")
    return path


@contextlib.contextmanager
def _work_folder(temporary: Path) -> Iterator[Path]:
    """A folder for this build alone, for the program's temporary files too: a killed one leaves them behind."""
    temporary.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="launcher-build-", dir=temporary))
    try:
        yield work
    finally:
        # Files of subordinate ids are not ours to remove: the program does it, unless it was killed.
        shutil.rmtree(work, onerror=_make_removable)
        if work.exists():
            print(f"note: {work} is left; remove it: chmod -R u+rwX {work}; rm -rf {work}", file=sys.stderr)


def _make_removable(function: Any, path: str, _: object) -> None:
    """Folders of packages may be closed to writing; what cannot be removed then is told by the caller."""
    with contextlib.suppress(OSError):
        os.chmod(Path(path).parent, 0o700)  # noqa: PTH101
        os.chmod(path, 0o700)  # noqa: PTH101
        function(path)


def _stage(text: str, work: Path) -> None:
    """The definition and the toolkit's files, in the folder that the definition's paths start from."""
    context = work / "context"
    for name in package_files():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOOLKIT / name, context / name)
    (context / "image.def").write_text(text, encoding="utf-8")
    (work / "tmp").mkdir()
    missing = [package for package in PACKAGES if not (context / package).is_dir()]
    if missing:
        raise BuildError(f"the toolkit in {TOOLKIT} has no {', '.join(missing)}; install it again")


def _bound(settings: PipSettings, wheels: Path | None, work: Path) -> list[str]:
    """The folder that brings pip's settings and wheels into %post, as options of the program; [] without any."""
    if not settings.text:
        return []
    folder = work / "settings"
    folder.mkdir(mode=0o700)
    (folder / "pip.conf").write_text(settings.text, encoding="utf-8")
    for name, file in settings.files.items():
        shutil.copyfile(file, folder / name)
    binds = ["--bind", f"{folder}:{SETTINGS}"]
    if wheels:
        (folder / "wheels").mkdir()
        binds += ["--bind", f"{wheels}:{SETTINGS}/wheels"]
    return binds


def _places(
    stack: Stack, args: Any, runtime: Runtime, output: Path, temporary: Path, cache: Path | None
) -> Places:
    def room(folder: Path) -> str:
        return f"{shutil.disk_usage(existing(folder)).free / 1e9:.1f} GB free"

    cache = cache or default_cache(runtime, os.environ)
    base = args.base or stack.base.value
    return Places(output.parent, temporary, cache, base, runtime.name, getpass.getuser(), room)


def _partial(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial-{socket.gethostname()}-{os.getpid()}")


def _forget_dead(output: Path) -> None:
    """Remove what builds of this machine left that were killed."""
    prefix = f"{output.name}.partial-{socket.gethostname()}-"
    for left in output.parent.iterdir():
        number = left.name.removeprefix(prefix)
        if left.name.startswith(prefix) and number.isdigit() and not Path("/proc", number).exists():
            left.unlink()


def _sync(path: Path) -> None:
    """A machine that fails now must not leave a whole name with half of its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(partial: Path, output: Path, *, force: bool) -> None:
    """Give the image its name at once. A recorded checksum goes first: it would condemn the new image."""
    if force:
        sidecar(output).unlink(missing_ok=True)
        partial.replace(output)
        return
    try:
        os.link(partial, output)  # unlike a rename it never replaces
    except FileExistsError:
        raise BuildError(f"-o {output}: it was made while this build ran; replace it with --force") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        _refuse_existing(output, force=False)  # a file system without hard links
        partial.replace(output)
    sidecar(output).unlink(missing_ok=True)  # of an image that was removed


def _parser() -> CommandParser:
    parser = CommandParser(
        "singularity.build",
        "Build the image of a stack with Apptainer, SingularityCE or SingularityPRO.",
        notes=(
            "A stack pins what fits together. Its image has the toolkit in it, tests itself, and carries labels"
            " that tell its packages without running it; its checksum is written beside it, X.sif.sha256. An image"
            " appears under its name when it is whole, or not at all. The calling shell's proxies and pip's index"
            " settings are used and not kept; its Python is not used."
        ),
        examples=(
            "python -m singularity.build --list",
            "python -m singularity.build --stack cpu --print-def",
            "python -m singularity.build --stack cpu -o verl-cpu.sif",
        ),
        exit_codes={0: "the image was made", 1: "it was not; the error says why", 2: "wrong usage"},
    )
    stack = parser.add_argument("--stack", metavar="NAME", help="what to build; --list tells")
    stack.completer = lambda **_: stack_names()  # type: ignore[attr-defined]
    parser.add_argument("-o", "--output", type=Path, metavar="X.sif", help="the image [STACK.sif]")
    parser.add_argument("--list", action="store_true", help="list the stacks")
    parser.add_argument("--print-def", action="store_true", help="print the definition, and build nothing")
    parser.add_argument(
        "--from", dest="base", metavar="BOOTSTRAP://REF",
        help="start from this and not from the stack's base: docker://MIRROR/IMAGE:TAG, docker-archive://FILE.tar,"
        " localimage://FILE.sif",
    )  # fmt: skip
    parser.add_argument("--wheels", metavar="DIR", help="folder of wheels to install from, without network")
    parser.add_argument("--cache-dir", metavar="DIR", help="where the program keeps what it downloads")
    parser.add_argument("--tmp-dir", metavar="DIR", help="for unpacked files, about three times the image")
    parser.add_argument(
        "--runtime",
        choices=("auto", "apptainer", "singularity"),
        default="auto",
        help="program that builds [auto: the one that is there]",
    )
    parser.add_argument(
        "--fakeroot",
        choices=("auto", "yes", "no"),
        default="auto",
        help="build as a made-up root [auto: if needed]",
    )
    parser.add_argument(
        "--mksquashfs-args", metavar="ARGS", help="compression; '-comp lz4' is quicker, and larger"
    )
    parser.add_argument("--no-test", action="store_true", help="do not run the image's own test")
    parser.add_argument("--force", action="store_true", help="replace an image that is there")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.list:
        return _list(as_json=args.json)
    if not args.stack:
        parser.error("name a stack with --stack, or see them with --list")
    signal.signal(signal.SIGTERM, _terminated)
    try:
        stack = load_stack(args.stack)
        if args.print_def:
            text = definition(stack, args.base)
            print(json.dumps({"stack": stack.name, "definition": text}) if args.json else text, end="")
            return 0
        built = build(stack, args.output or Path(f"{stack.name}.sif"), args)
    except (BuildError, DefinitionError, PipSettingsError, RuntimeMissing, StackError) as error:
        return fail(str(error), as_json=args.json, code=2 if isinstance(error, StackError) else 1)
    if args.json:
        print(json.dumps({**built._asdict(), "path": str(built.path), "seconds": round(built.seconds, 1)}))
    else:
        _tell(built)
    return 0


def _terminated(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once: what follows cleans up
    sys.exit(128 + number)


def _list(*, as_json: bool) -> int:
    stacks = [load_stack(name) for name in stack_names()]
    if as_json:
        told = [{"name": each.name, "summary": each.summary, "base": each.base.value} for each in stacks]
        print(json.dumps(told, indent=2))
    else:
        width = max(len(each.name) for each in stacks)
        print(*(f"{each.name:<{width}}  {each.summary}" for each in stacks), sep="\n")
    return 0


def _tell(built: Built) -> None:
    print(
        f"{built.path}: {built.size / 1e9:.2f} GB, stack {built.stack}, {built.seconds:.0f} s with {built.runtime}"
    )
    print(f"  {', '.join(f'{name} {version}' for name, version in built.packages.items())}")
    print(f"  sha256 {built.sha256}, recorded in {sidecar(built.path).name}")


if __name__ == "__main__":
    sys.exit(run(main))
