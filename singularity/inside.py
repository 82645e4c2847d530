"""What singularity.build does and tests inside an image, with its Python: `python3 -m singularity.inside`."""

import argparse
import ctypes
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from singularity import labels
from singularity.agreement import differences
from singularity.installed import installed_packages
from singularity.stack import load_stack
from singularity.toolkit import PACKAGES, VERSION, content_hash

_LABELS_OF_BASE = Path("/.singularity.d/labels.json")
# Parts of a stack by distribution; what is not here is compared by its version alone.
IMPORTS = {
    "torch": "torch",
    "ray": "ray",
    "transformers": "transformers",
    "tensordict": "tensordict",
    "datasets": "datasets",
    "peft": "peft",
    "hydra-core": "hydra",
    "transferqueue": "transfer_queue",
    "verl": "verl",
    "megatron-core": "megatron.core",
    "mbridge": "mbridge",
    "megatron-bridge": "megatron.bridge",
    "transformer-engine": "transformer_engine.pytorch",
    "flash-attn": "flash_attn",
    "sglang": "sglang",
    "sgl-kernel": "sgl_kernel",
    "sglang-kernel": "sgl_kernel",
    "vllm": "vllm",
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "nvidia-modelopt": "modelopt",
}
# Builds for CUDA load libcuda.so.1 or ask for a GPU when they are imported, or import one that does.
NEED_DRIVER = frozenset(IMPORTS) - {
    "torch", "ray", "transformers", "tensordict", "datasets", "peft", "hydra-core", "transferqueue", "verl",
}  # fmt: skip
COMMANDS = (
    "launch.render",
    "launch.status",
    "launch.engines.verify",
    "reward.server",
    "reward.canary",
    "data_prep.convert",
    "data_prep.validate",
    "converters.merge",
    "singularity.inspect",
)


def disagreements(stack: str) -> list[str]:
    """One line for each package that is not as the stack says."""
    return [str(each) for each in differences(load_stack(stack), installed_packages())]


def label_lines(stack: str, packages: Mapping[str, str]) -> list[str]:
    """NAME VALUE of every label, as $APPTAINER_LABELS takes them."""
    told = {
        labels.STACK: stack,
        labels.STACK_CONTENT: load_stack(stack).content,
        labels.VERSION: VERSION,
        labels.TOOLKIT: content_hash(),
        labels.BUILT: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **{labels.PACKAGE + name: version for name, version in sorted(packages.items())},
    }
    return [f"{name} {value}" for name, value in told.items()]


def forget_labels(path: Path = _LABELS_OF_BASE) -> None:
    """Take the labels of an earlier build out: those of packages that are gone would stay."""
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        kept = {name: value for name, value in kept.items() if not name.startswith("launcher.")}
        path.write_text(json.dumps(kept), encoding="utf-8")


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _failed_imports(packages: Mapping[str, str], device: str) -> Iterator[str]:
    """Import every part that is installed; prints what it found, yields what failed."""
    driver = device == "cpu" or _has_driver()
    for name, module in IMPORTS.items():
        if name not in packages:
            continue
        if name in NEED_DRIVER and not driver:
            print(f"{name} {packages[name]}: not imported, it needs the NVIDIA driver", flush=True)
            continue
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001  whatever a package raises is what this test is for
            yield f"{name} {packages[name]}: import {module}: {type(error).__name__}: {error}"
        else:
            print(f"{name} {packages[name]}", flush=True)


def _failed_commands() -> Iterator[str]:
    """Ask each of the toolkit's commands for its help; yields what failed."""

    def ask(module: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False
        )

    with ThreadPoolExecutor(4) as pool:
        for module, done in zip(COMMANDS, pool.map(ask, COMMANDS), strict=True):
            if done.returncode != 0 or "usage:" not in done.stdout:
                yield f"python3 -m {module} --help ended with {done.returncode}: {done.stderr.strip()[-500:]}"
    print(
        f"toolkit {VERSION} {content_hash()}: {', '.join(PACKAGES)}; {len(COMMANDS)} commands answer", flush=True
    )


def test(stack: str) -> list[str]:
    """What is wrong with this image: versions, imports, commands. Prints what it found."""
    warnings.simplefilter("ignore")  # of packages about each other
    print(f"python {sys.version.split()[0]}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # Imports make folders of caches in /tmp, which is this machine's.
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=folder, XDG_CACHE_HOME=folder)
        failed_imports = list(_failed_imports(installed_packages(), load_stack(stack).device))
        return [*disagreements(stack), *failed_imports, *_failed_commands()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m singularity.inside", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("agrees", "compare the installed packages with the stack"),
        ("labels", "print the labels of this image"),
        ("test", "compare with the stack, import every part, ask each command for its help"),
    ):
        commands.add_parser(name, help=text).add_argument("--stack", required=True, metavar="NAME")
    return parser


def main(argv: "list[str] | None" = None) -> int:
    """Run a command; returns 1 where something is wrong."""
    args = _parser().parse_args(argv)
    if args.command == "labels":
        forget_labels()
        print(*label_lines(args.stack, installed_packages()), sep="\n")
        return 0
    wrong = test(args.stack) if args.command == "test" else disagreements(args.stack)
    for line in wrong:
        print(f"launcher: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
