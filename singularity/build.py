# PYTHON_ARGCOMPLETE_OK
"""Build the image of a stack: `python -m singularity.build --stack NAME -o X.sif`."""

from singularity.command_line import CommandParser, fail, filled, quiet_imports, run, told

if __name__ == "__main__":
    quiet_imports()

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from singularity.checksum import sidecar
from singularity.definition import SETTINGS, DefinitionError, definition, split_base
from singularity.failures import Places, explain
from singularity.outcome import OutcomeError, built_packages
from singularity.pip_settings import PipSettingsError, pip_settings, secrets_of
from singularity.placing import ExistsError, forget_dead, partial_name, put_in_place, refuse_existing, remove
from singularity.progress import progress_bar
from singularity.room import UNPACKED, existing, mount_options, needs, shortages, unwritable
from singularity.running import run_program
from singularity.runtime import (
    Runtime,
    RuntimeMissing,
    build_environment,
    default_cache,
    fakeroot_options,
    find_runtime,
    folder_setting,
    user_name,
)
from singularity.sif import ImageDamaged
from singularity.stack import Stack, StackError, load_stack, stack_names
from singularity.workplace import ToolkitIncompleteError, bound, stage, work_folder

# Told when an image is made; inspect tells all.
_MAIN_PACKAGES = ("verl", "torch", "ray", "transformers", "sglang", "vllm", "megatron-core", "transformer-engine")
_DOWNLOADED = ("docker", "library", "oras", "shub", "docker-archive", "oci-archive", "oci")


class BuildError(RuntimeError):
    """An image that could not be made; the message has value, place and remedy."""


_REFUSED = (
    BuildError, DefinitionError, ExistsError, ImageDamaged, OutcomeError, PipSettingsError, RuntimeMissing,
    StackError, ToolkitIncompleteError,
)  # fmt: skip


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
        BuildError, DefinitionError, ExistsError, ImageDamaged, OSError, OutcomeError, PipSettingsError,
            RuntimeMissing, ToolkitIncompleteError: nothing was made; the message says why.
    """
    begun = time.monotonic()
    output = output.absolute()
    refuse_existing(output, force=args.force)
    text = definition(stack, args.base)
    runtime = find_runtime(args.runtime, os.environ)
    options = fakeroot_options(runtime, args.fakeroot, uid=os.geteuid())
    temporary = Path(
        args.tmp_dir or folder_setting(runtime, "TMPDIR", os.environ) or tempfile.gettempdir()
    ).absolute()
    cache = Path(args.cache_dir).absolute() if args.cache_dir else None
    bootstrap, _ = split_base(args.base or stack.base.value)
    downloads = (cache or _own_cache(runtime)) if bootstrap in _DOWNLOADED else None
    _check_places(stack, output, temporary, downloads)
    wheels = _checked_wheels(args.wheels)
    settings = pip_settings(os.environ, SETTINGS, f"{SETTINGS}/wheels" if wheels else None)
    if settings.text and runtime.flavour != "Apptainer" and runtime.version < (3, 8):
        raise BuildError(
            f"{runtime} takes no --bind in a build, and pip's index settings (PIP_..., pip.conf) or --wheels need"
            " one; build with SingularityCE or SingularityPRO 3.8 or later, or without: PIP_CONFIG_FILE=/dev/null"
        )
    if args.mksquashfs_args and not runtime.takes_mksquashfs_args:
        raise BuildError(
            f"--mksquashfs-args {args.mksquashfs_args!r}: {runtime} has no such option, Apptainer has it from"
            " 1.4 on; build without it, or with that"
        )
    for note in settings.notes:
        print(f"note: {note}", file=sys.stderr)

    output.parent.mkdir(parents=True, exist_ok=True)
    forget_dead(output)
    partial = partial_name(output)
    try:
        with work_folder(temporary) as work:
            words = [runtime.path, "build", *options, *bound(settings, wheels, work)]
            words += ["--mksquashfs-args", args.mksquashfs_args] if args.mksquashfs_args else []
            words += ["--notest"] if args.no_test else []
            stage(text, work)
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
        packages = built_packages(partial, stack, runtime)
        sha256 = put_in_place(partial, output, force=args.force, progress=progress_bar(output))
    finally:
        remove(partial)
    return Built(
        output, output.stat().st_size, sha256, stack.name, str(runtime),
        {name: packages[name] for name in _MAIN_PACKAGES if name in packages}, time.monotonic() - begun,
    )  # fmt: skip


def _own_cache(runtime: Runtime) -> Path:
    """The program's own; without a home folder it would download into a folder that goes with the build."""
    if cache := default_cache(runtime, os.environ):
        return cache
    raise BuildError(
        f"no home folder is known for user {user_name(os.getuid())}, and {runtime} keeps what it downloads there;"
        " set HOME, or name a folder with --cache-dir"
    )


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


def _places(
    stack: Stack, args: Any, runtime: Runtime, output: Path, temporary: Path, cache: Path | None
) -> Places:
    def room(folder: Path) -> str:
        return f"{shutil.disk_usage(existing(folder)).free / 1e9:.1f} GB free"

    cache = cache or default_cache(runtime, os.environ)
    base = args.base or stack.base.value
    return Places(
        output.parent, temporary, cache, base, runtime.name, runtime.login, user_name(os.geteuid()), room
    )


def _path(text: str) -> Path:
    return Path(filled(text))


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
    parser.add_argument("-o", "--output", type=_path, metavar="X.sif", help="the image [STACK.sif]")
    parser.add_argument("--list", action="store_true", help="list the stacks")
    parser.add_argument("--print-def", action="store_true", help="print the definition, and build nothing")
    parser.add_argument(
        "--from", dest="base", type=filled, metavar="BOOTSTRAP://REF",
        help="start from this and not from the stack's base: docker://MIRROR/IMAGE:TAG, docker-archive://FILE.tar,"
        " localimage://FILE.sif",
    )  # fmt: skip
    parser.add_argument(
        "--wheels", type=filled, metavar="DIR", help="folder of wheels to install from, without network"
    )
    parser.add_argument(
        "--cache-dir", type=filled, metavar="DIR", help="where the program keeps what it downloads"
    )
    parser.add_argument(
        "--tmp-dir", type=filled, metavar="DIR", help=f"for unpacked files, {UNPACKED:g} times the image"
    )
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
        "--mksquashfs-args",
        metavar="ARGS",
        help="compression, with Apptainer 1.4 or later; '-comp lz4' is quicker, and larger",
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
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as of nohup
        signal.signal(signal.SIGHUP, _terminated)
    try:
        stack = load_stack(args.stack)
        if args.print_def:
            text = definition(stack, args.base)
            print(json.dumps({"stack": stack.name, "definition": text}) if args.json else text, end="")
            return 0
        built = build(stack, args.output or Path(f"{stack.name}.sif"), args)
    except BrokenPipeError:
        raise
    except (*_REFUSED, OSError) as error:
        return fail(told(error), as_json=args.json, code=2 if isinstance(error, StackError) else 1)
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
        shown = [
            {"name": each.name, "summary": each.summary, "device": each.device, "verl": each.verl}
            | {"size_gb": each.size_gb, "base": each.base.value}
            for each in stacks
        ]
        print(json.dumps(shown, indent=2))
    else:
        width = max(len(each.name) for each in stacks)
        for each in stacks:
            row = f"{each.name:<{width}}  {each.device:<4}  verl {each.verl:<6}  {each.size_gb:>4g} GB"
            print(f"{row}  {each.summary}")
    return 0


def _tell(built: Built) -> None:
    print(
        f"{built.path}: {built.size / 1e9:.2f} GB, stack {built.stack}, {built.seconds:.0f} s with {built.runtime}"
    )
    print(f"  {', '.join(f'{name} {version}' for name, version in built.packages.items())}")
    print(f"  sha256 {built.sha256}, recorded in {sidecar(built.path).name}")


if __name__ == "__main__":
    sys.exit(run(main))
