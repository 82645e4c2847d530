"""The command line of `python -m converters.merge`; that of `python -m verl.model_merger merge` is part of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from converters.checkpoint.locate import BACKENDS, ROLES
from converters.command_line import CommandParser, named
from converters.writing.hf_writer import parse_size

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_EXAMPLES = (
    "python -m converters.merge --local-dir outputs/my-grpo/checkpoints \\\n    --target-dir hf_model --dry-run",
    "python -m converters.merge --local-dir outputs/my-grpo/checkpoints \\\n    --target-dir hf_model --verify",
)
_EXIT_CODES = {
    0: "OUT is whole, and equal to the checkpoint with --verify",
    1: "it is not; the message names file or tensor, and the remedy",
    2: "usage",
    130: "stopped by Ctrl-C; --resume goes on from there",
    143: "stopped by SIGTERM; --resume goes on from there",
}


@dataclass(frozen=True)
class Options:
    """What to convert and how.

    Attributes:
        local_dir, target_dir: where the checkpoint is, where the model appears when all of it is on disk.
        backend: one of `locate.BACKENDS`; "auto": what is there, shards first.
        role: "actor" or "critic" of a step that has both; None: the actor, else what there is.
        step: of a run folder; None: the latest.
        base_model: Hugging Face folder with config.json and tokenizer for a checkpoint without them, and with
            weights for one of a LoRA adapter alone.
        dtype: safetensors' name of the type to write; None: as trained.
        lora: "merge" a LoRA adapter into its base, or "keep" it beside.
        lora_alpha: where no file of the checkpoint says it.
        tied, value_model: what the caller asserts; checked, never believed.
        max_shard_bytes: of one safetensors file; a larger tensor has a file of its own.
        workers: threads that read and write; None: by the processors of the machine.
        force: replace the result of an earlier merge.
        resume: go on from what a stopped merge left.
        verify: compare both sides afterwards, or only, where the result is there already.
    """

    local_dir: Path
    target_dir: Path
    backend: str = "auto"
    role: str | None = None
    step: int | None = None
    base_model: Path | None = None
    dtype: str | None = None
    lora: str = "merge"
    lora_alpha: float | None = None
    tied: bool = False
    value_model: bool = False
    max_shard_bytes: int = 5 * 10**9
    workers: int | None = None
    force: bool = False
    resume: bool = False
    verify: bool = False


@dataclass(frozen=True)
class Command:
    """Options, and how to tell about the work."""

    options: Options
    dry_run: bool
    json: bool
    quiet: bool
    notes: tuple[str, ...]


def parse(argv: Sequence[str]) -> Command:
    """The command of `argv`; ends the process with code 2 for what is no command, with 0 after --help."""
    parser = _parser()
    args = parser.parse_args([_dashed(argument) for argument in argv])
    if args.hf_upload_path is not None:
        parser.error(
            "--hf_upload_path: nothing is uploaded from here. Upload OUT with the hub's own tool, where the token "
            "stays."
        )
    if args.dry_run and (args.verify or args.resume):
        parser.error("--dry-run writes and compares nothing: leave out --verify and --resume")
    notes = []
    if args.trust_remote_code:
        notes.append("--trust-remote-code has no effect: nothing that a checkpoint brings along is executed")
    options = Options(
        local_dir=args.local_dir,
        target_dir=args.target_dir,
        backend=args.backend,
        role=args.role,
        step=args.step,
        base_model=args.base_model,
        dtype=DTYPES[args.dtype] if args.dtype else None,
        lora=args.lora,
        lora_alpha=args.lora_alpha,
        tied=args.tie_word_embedding,
        value_model=args.is_value_model,
        max_shard_bytes=args.max_shard_size,
        workers=args.workers,
        force=args.force,
        resume=args.resume,
        verify=args.verify,
    )
    return Command(options, args.dry_run, args.json, args.quiet, tuple(notes))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "converters.merge",
        "Make a Hugging Face model of a checkpoint that verl saved, without GPU, torch, verl or Megatron.",
        notes="Options are accepted with dashes and with underscores.",
        examples=_EXAMPLES,
        exit_codes=_EXIT_CODES,
    )
    add = parser.add_argument
    add("operation", nargs="?", choices=["merge"], help="accepted, as verl.model_merger takes it")
    add("--local-dir", type=named, required=True, metavar="CKPT",
        help="run folder (latest step), global_step_N, actor, critic, dist_ckpt, Hugging Face folder")  # fmt: skip
    add("--target-dir", type=named, required=True, metavar="OUT", help="appears when all of it is on disk")
    add("--backend", choices=BACKENDS, default="auto",
        help="kind of checkpoint [auto: what is there, shards before a copy of them]")  # fmt: skip
    add("--role", choices=ROLES, help="which part of a step that has both [actor]")
    add("--step", type=_natural, metavar="N", help="step of a run folder [the latest]")
    add("--base-model", type=named, metavar="DIR",
        help="model with the config.json, tokenizer and weights that the checkpoint lacks")  # fmt: skip
    add("--dtype", choices=DTYPES, help="type to write, rounded to nearest even [as trained]")
    add("--lora", choices=["merge", "keep"], default="merge",
        help="whether a LoRA adapter goes into its base, or into OUT/lora_adapter [%(default)s]")  # fmt: skip
    add("--lora-alpha", type=_positive, metavar="A", help="alpha of an adapter whose checkpoint does not say it")
    add("--max-shard-size", type=_size, default=parse_size("5GB"), metavar="SIZE",
        help="most bytes of a safetensors file: 5GB, 500MiB, ... [5GB]")  # fmt: skip
    add(
        "--workers",
        type=_count,
        metavar="N",
        help="threads that read and write [by the processors, at most 4]",
    )
    add("--resume", action="store_true",
        help="go on from what a stopped merge left; with --force, begin anew where that does not fit")  # fmt: skip
    add("--force", action="store_true", help="replace the result of an earlier merge")
    add("--verify", action="store_true",
        help="read both sides again and compare every tensor; only that, where OUT is there already")  # fmt: skip
    add("--dry-run", action="store_true", help="print what would be written: tensors, sizes, mapping")
    add("--json", action="store_true", help="print the report, the plan or the error as JSON")
    add("--quiet", action="store_true", help="no progress")
    verl = parser.add_argument_group("arguments of verl.model_merger")
    verl.add_argument(
        "--tie-word-embedding", action="store_true", help="checked, not needed: config and weights say it"
    )
    verl.add_argument("--is-value-model", action="store_true", help="checked, not needed: the head says it")
    verl.add_argument("--use-cpu-initialization", action="store_true", help="no effect: nothing is initialized")
    verl.add_argument("--trust-remote-code", action="store_true", help="no effect: nothing is executed")
    verl.add_argument("--hf-upload-path", metavar="ID", help="refused: upload OUT with the hub's own tool")
    verl.add_argument("--private", action="store_true", help="no effect without --hf-upload-path")
    return parser


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no step number; write 0, 1, 2, ...")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 64):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of threads; write 1 to 64")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no alpha; write a positive number (32)")
    return value


def _size(text: str) -> int:
    try:
        if not text.isascii():  # int takes the digits of every script
            raise ValueError(f"{text!r} is no size; write 5GB, 500MiB or a number of bytes")
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _dashed(argument: str) -> str:
    """`--local_dir=a_b` -> `--local-dir=a_b`."""
    if not argument.startswith("--"):
        return argument
    name, sign, value = argument.partition("=")
    return name.replace("_", "-") + sign + value
