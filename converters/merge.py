"""`python -m converters.merge`: a checkpoint that verl saved -> a Hugging Face model folder.

    python -m converters.merge --local_dir CKPT --target_dir OUT [--base_model DIR]

Takes the arguments of `python -m verl.model_merger merge` too, with dashes or underscores. Needs no GPU,
torch, Ray, verl or Megatron. Exit 0: OUT is whole. 1: it is not there, and one message names file or tensor,
and the remedy.
2: usage.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from converters import (
    config_drift,
    families,
    fsdp,
    hf_config,
    hf_files,
    hf_model,
    journal,
    plan,
    run_plan,
    torch_dist,
)
from converters.errors import ConvertError, listing
from converters.hf_config import ModelConfig
from converters.hf_writer import MANIFEST, SafetensorsWriter, parse_size, target, write_json
from converters.locate import BACKENDS, Checkpoint, locate
from converters.plan import Output, Step
from converters.progress import Progress


@dataclass(frozen=True)
class Result:
    """What was written."""

    checkpoint: Checkpoint
    target: Path
    tensors: int
    total_bytes: int
    dtypes: tuple[str, ...]
    notes: tuple[str, ...]


def merge(
    local_dir: Path,
    target_dir: Path,
    *,
    backend: str = "auto",
    base_model: Path | None = None,
    step: int | None = None,
    tie_word_embedding: bool = False,
    max_shard_bytes: int = 5 * 10**9,
    force: bool = False,
    resume: bool = False,
    workers: int | None = None,
    quiet: bool = True,
) -> Result:
    """Convert the checkpoint in `local_dir`; `target_dir` appears when all of it is on disk.

    Args:
        base_model: folder with config.json and tokenizer for a checkpoint that has none.
        tie_word_embedding: asserts that the model is tied; the truth comes from config.json and weights.
        force: replace the result of an earlier merge.
        resume: go on from what a stopped merge left.
        workers: threads; None: by the processors.
        quiet: no progress on standard error.

    Raises:
        ConvertError: with what is wrong and what to do; no target is left.
        OSError: reading or writing failed.
    """
    found = locate(local_dir, step, backend)
    if base_model is not None and not base_model.is_dir():
        raise ConvertError(f"{base_model}: --base_model is no folder")
    folder = hf_files.config_folder(found.huggingface, base_model, found.root)
    config_path = folder / hf_files.CONFIG
    steps, config, notes = _plan(found, config_path)
    raw = hf_config.read_json(config_path)
    if tie_word_embedding and not (config.tied if config else raw.get("tie_word_embeddings")):
        raise ConvertError(
            f"{config_path}: --tie-word-embedding was given, and the model is not tied "
            "(tie_word_embeddings=false, as the weights are). Leave the option out: it is not needed."
        )
    outputs = [output for step_ in steps for output in step_.outputs]
    dtypes = tuple(sorted({output.dtype for output in outputs}))
    biggest = max(outputs, key=lambda output: output.nbytes)
    tied = config.tied if config else None
    raw, fitting = config.adapted(raw) if config else (raw, [])
    raw, changes = config_drift.adjusted(raw, biggest.dtype, tied=tied, where=config_path)
    changes = fitting + changes
    folders = list(
        dict.fromkeys(f for f in (found.huggingface, folder, base_model) if f is not None and f.is_dir())
    )
    files = hf_files.companions(folders)
    notes += [f"config.json: {change}" for change in changes]
    if not hf_files.has_tokenizer(files):
        notes.append("no tokenizer in the checkpoint or in --base_model: the output has none")
    need = sum(output.nbytes for output in outputs)
    name = journal.digest(steps, [found.weights], max_shard_bytes=max_shard_bytes)
    with target(target_dir, need, name, force=force, resume=resume, forbidden=[found.root, local_dir]) as partial:
        directory = partial.folder
        writer = SafetensorsWriter(directory, outputs, max_shard_bytes, partial.journal)
        with Progress(need, shown=not quiet) as progress:
            run_plan.copy(steps, writer, workers or run_plan.default_workers(), progress)
        writer.finish()
        hf_files.copy(files, directory)
        write_json(directory / MANIFEST, _manifest(found, outputs, notes))
        if changes:
            write_json(directory / hf_files.CONFIG, raw)
        else:
            hf_files.copy({hf_files.CONFIG: config_path}, directory)
    return Result(found, target_dir, len(outputs), need, dtypes, tuple(notes))


def _plan(found: Checkpoint, config_path: Path) -> tuple[list[Step], ModelConfig | None, list[str]]:
    """Steps; the config if there is a table for the family (a Hugging Face model can do without); notes."""
    architecture = hf_config.architecture(config_path)
    if found.backend == "hf" and architecture not in families.FAMILIES:
        tensors = hf_model.read_index(found.weights)
        steps = [plan.whole(tensor) for tensor in tensors.values()]
        return (
            steps,
            None,
            [f"no table for {architecture}: copied, names and shapes not compared with config.json"],
        )
    family = families.family(architecture, config_path)
    config = hf_config.read(config_path, family.config)
    problems = hf_config.trained_otherwise(config, found.transformer_config)
    if problems:
        remedy = "Give --base_model the model that the training started from."
        raise listing(f"{config_path} is not the model of {found.transformer_config}", problems, remedy)
    reader = {"megatron": torch_dist, "fsdp": fsdp, "hf": hf_model}[found.backend]
    tensors = reader.read_index(found.weights)
    config = families.fitted({name: tensor.shape for name, tensor in tensors.items()}, config)
    family = families.family(config.architecture, config_path)
    make = plan.from_mcore if found.backend == "megatron" else plan.from_hf_names
    return make(tensors, family, config), config, []


def _manifest(found: Checkpoint, outputs: Sequence[Output], notes: Sequence[str]) -> dict[str, object]:
    return {
        "made_by": "converters.merge",
        "source": str(found.root.absolute()),
        "step": found.step,
        "backend": found.backend,
        "layout": found.layout,
        "tensors": len(outputs),
        "total_size": sum(output.nbytes for output in outputs),
        "dtypes": sorted({output.dtype for output in outputs}),
        "notes": list(notes),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m converters.merge",
        description=(__doc__ or "").split("\n", 1)[0],
        epilog="example: python -m converters.merge --local_dir outputs/x/checkpoints --target_dir hf_model "
        "--base_model models/Qwen3-4B. Exit codes: 0 done; 1 not whole or not known; 2 usage.",
    )
    parser.add_argument("operation", nargs="?", choices=["merge"], help="accepted as verl.model_merger takes it")
    parser.add_argument(
        "--local-dir", type=Path, required=True, metavar="CKPT",
        help="run folder (the latest whole step), global_step_N, actor, dist_ckpt or Hugging Face folder",
    )  # fmt: skip
    parser.add_argument("--target-dir", type=Path, required=True, metavar="OUT", help="appears when it is whole")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="default: what is found, shards first")
    parser.add_argument(
        "--base-model",
        type=Path,
        metavar="DIR",
        help="config.json and tokenizer for a checkpoint without them",
    )
    parser.add_argument("--step", type=int, help="step of a run folder")
    parser.add_argument(
        "--max-shard-size", type=_size, default=parse_size("5GB"), help="5GB, 500MiB, ... (default 5GB)"
    )
    parser.add_argument("--force", action="store_true", help="replace the result of an earlier merge")
    parser.add_argument("--resume", action="store_true", help="go on from what a stopped merge left")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (default: by the processors, at most 4)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    verl = parser.add_argument_group("arguments of verl.model_merger")
    verl.add_argument(
        "--tie-word-embedding", action="store_true", help="checked, not needed: config and weights say it"
    )
    verl.add_argument("--use-cpu-initialization", action="store_true", help="no effect: nothing is initialized")
    verl.add_argument("--is-value-model", action="store_true", help="refused: value heads are not converted yet")
    verl.add_argument(
        "--trust-remote-code", action="store_true", help="refused: nothing in a checkpoint is executed"
    )
    verl.add_argument(
        "--hf-upload-path", help="refused: upload OUT with the hub's own tool, where the token stays"
    )
    verl.add_argument("--private", action="store_true", help="refused with --hf-upload-path")
    return parser


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _dashed(argument: str) -> str:
    """`--local_dir=a_b` -> `--local-dir=a_b`."""
    if not argument.startswith("--"):
        return argument
    name, sign, value = argument.partition("=")
    return name.replace("_", "-") + sign + value


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = _parser()
    args = parser.parse_args([_dashed(argument) for argument in (sys.argv[1:] if argv is None else argv)])
    if args.trust_remote_code:
        parser.error("--trust-remote-code: nothing that a checkpoint brings along is executed. Leave it out.")
    if args.hf_upload_path or args.private:
        parser.error(
            "--hf_upload_path, --private: nothing is uploaded from here. Upload OUT with the hub's own tool."
        )
    if args.is_value_model:
        parser.error("--is-value-model: value heads are not converted yet. Give the actor's folder.")
    begin = time.monotonic()
    try:
        result = merge(
            args.local_dir,
            args.target_dir,
            backend=args.backend,
            base_model=args.base_model,
            step=args.step,
            tie_word_embedding=args.tie_word_embedding,
            max_shard_bytes=args.max_shard_size,
            force=args.force,
            resume=args.resume,
            workers=args.workers,
            quiet=args.quiet,
        )
    except (ConvertError, OSError) as error:
        print(f"converters.merge: error: {error}", file=sys.stderr)
        return 1
    for note in result.notes:
        print(f"converters.merge: {note}", file=sys.stderr)
    found = result.checkpoint
    print(
        f"{result.target}: {result.tensors} tensors, {result.total_bytes} bytes, {'+'.join(result.dtypes)}, "
        f"from {found.weights} ({found.backend}, layout {found.layout}, step {found.step}), "
        f"{time.monotonic() - begin:.1f} s"
    )
    return 0


def _end(signum: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # what is written is kept for --resume on the way out
    raise SystemExit(main())
