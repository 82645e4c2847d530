# PYTHON_ARGCOMPLETE_OK
"""`python -m converters.compare A B`: two Hugging Face model folders, tensor by tensor.

Compared are names, shapes, types and bits of the weights (shards may be cut differently; a tied model may have a
copy of its embedding as head or none), config.json by meaning (RoPE in the form of transformers 4 or 5, no
`transformers_version`), and tokenizer, chat template and generation config by content. With --atol or --rtol
values within |a - b| <= atol + rtol * |b| count as the same. Memory does not grow with the model.

--json prints one object: `same`; `a`, `b` (folder, tensors, bytes); `weights` (`same`, `near`: numbers of tensors;
`only_a`, `only_b`, `shapes`, `dtypes`: lists; `different`: for each tensor name, shape, types, elements,
`differing` elements, those `beyond` the tolerance, `max_abs`, `max_rel` (a number, or "inf"), `nan_a`, `nan_b`,
`first` index, the worst first); `config`, `files`: lines; `same_files`; `notes`. A broken folder: `same` and
`error`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import isinf
from pathlib import Path
from typing import Any

from converters.command_line import CommandParser, fail, named, quiet_imports, run, told

if __name__ == "__main__":
    quiet_imports(extra="convert")

from converters.comparing.model_difference import (
    Difference,
    ModelDifference,
    Tolerance,
    compare_models,
)
from converters.errors import ConvertError
from converters.hf import hf_model
from converters.hf.folder_difference import FileDifference, compare_files
from converters.hf.hf_files import CONFIG
from converters.hf.names import EMBED, HEAD
from converters.json_file import read_json
from converters.printing import escaped, one_line, put

_SHOWN = 20
_NOTES = """\
Compared are names, shapes, types and bits of the weights (shards may be cut differently; a tied model may have a \
copy of its embedding as head or none), config.json by meaning (RoPE in the form of transformers 4 or 5, no \
transformers_version), and tokenizer, chat template and generation config by content. With --atol or --rtol \
values within |a - b| <= atol + rtol * |b| count as the same. Memory does not grow with the model.
"""
_EXAMPLES = (
    "python -m converters.compare hf_model models/Qwen3-4B",
    "python -m converters.compare merged_bf16 merged_fp32 \\\n    --ignore-dtype --rtol 0.004",
)


def compare(a: Path, b: Path, tolerance: Tolerance) -> tuple[ModelDifference, FileDifference]:
    """Everything that differs between two folders.

    Raises:
        ConvertError: a folder is no whole model.
        OSError: a file cannot be read.
    """
    for folder in (a, b):
        if not folder.is_dir():
            raise ConvertError(f"{folder}: {'not a folder' if folder.exists() else 'does not exist'}")
    one, other = hf_model.read_index(a), hf_model.read_index(b)
    flags = tuple(read_json(folder / CONFIG).get("tie_word_embeddings") for folder in (a, b))
    weights = compare_models(one, other, tolerance, (flags[0], flags[1]))
    tied = EMBED in one and HEAD not in weights.only_a + weights.only_b and not (HEAD in one and HEAD in other)
    return weights, compare_files(a, b, tolerance.ignore_dtype, tied, weights.alike)


def as_text(a: Path, b: Path, weights: ModelDifference, files: FileDifference) -> str:
    """For a person: what differs, the worst first."""
    lines = [
        f"A: {a}: {weights.tensors_a} tensors, {weights.bytes_a} bytes",
        f"B: {b}: {weights.tensors_b} tensors, {weights.bytes_b} bytes",
        f"weights: {weights.same} tensors the same, {len(weights.near)} within the tolerance, "
        f"{len(weights.different)} different",
    ]
    for head, found in (
        ("only in A", weights.only_a),
        ("only in B", weights.only_b),
        ("other shapes", weights.shapes),
        ("other types", weights.dtypes),
    ):
        lines += _section(head, found)
    lines += _table(weights.different or weights.near)
    lines += _section("config.json differs", files.config)
    lines += _section("other files differ", files.files)
    if files.same:
        lines.append(f"same content: {one_line(', '.join(files.same))}")
    lines += [f"note: {one_line(note)}" for note in (*weights.notes, *files.notes)]
    lines.append("the same" if weights.alike and files.alike else "different")
    return escaped("\n".join(lines))


def _section(head: str, found: Sequence[str]) -> list[str]:
    if not found:
        return []
    more = [f"  ... and {len(found) - _SHOWN} more (--json lists all)"] if len(found) > _SHOWN else []
    return [f"{head} ({len(found)}):", *(f"  {one_line(line)}" for line in found[:_SHOWN]), *more]


def _table(found: Sequence[Difference]) -> list[str]:
    if not found:
        return []
    head = ("tensor", "shape", "type", "differing", "max abs", "max rel", "NaN A", "NaN B", "first")
    rows = [head, *(_row(difference) for difference in found[:_SHOWN])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if len(found) > _SHOWN:
        lines.append(f"... and {len(found) - _SHOWN} more (--json lists all)")
    return lines


def _row(difference: Difference) -> tuple[str, ...]:
    d = difference
    dtype = d.dtype_a if d.dtype_a == d.dtype_b else f"{d.dtype_a}/{d.dtype_b}"
    return (
        one_line(d.name), "x".join(map(str, d.shape)) or "1", dtype,
        f"{d.differing} of {d.elements}", f"{d.max_abs:.4g}", f"{d.max_rel:.4g}", str(d.nan_a), str(d.nan_b),
        str(d.first),
    )  # fmt: skip


def as_json(a: Path, b: Path, weights: ModelDifference, files: FileDifference) -> dict[str, Any]:
    """The object that --json prints."""
    return {
        "same": weights.alike and files.alike,
        "a": {"folder": str(a), "tensors": weights.tensors_a, "bytes": weights.bytes_a},
        "b": {"folder": str(b), "tensors": weights.tensors_b, "bytes": weights.bytes_b},
        "weights": {
            "same": weights.same,
            "near": len(weights.near),
            "only_a": weights.only_a,
            "only_b": weights.only_b,
            "shapes": weights.shapes,
            "dtypes": weights.dtypes,
            "different": [_finite(asdict(difference)) for difference in weights.different],
        },
        "config": files.config,
        "files": files.files,
        "same_files": files.same,
        "notes": [*weights.notes, *files.notes],
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {k: "inf" if isinstance(v, float) and isinf(v) else v for k, v in values.items()}


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no tolerance; a number of at least 0 is expected")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "converters.compare",
        "Compare two Hugging Face model folders, tensor by tensor.",
        notes=_NOTES,
        examples=_EXAMPLES,
        exit_codes={0: "the same", 1: "different, or not compared to the end", 2: "usage"},
    )
    parser.add_argument("a", type=named, metavar="A", help="folder of a Hugging Face model")
    parser.add_argument("b", type=named, metavar="B", help="another")
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON (its keys are in converters/compare.py)"
    )
    parser.add_argument("--atol", type=_tolerance, metavar="X", help="absolute tolerance [bit for bit]")
    parser.add_argument("--rtol", type=_tolerance, metavar="Y", help="tolerance relative to B [bit for bit]")
    parser.add_argument("--ignore-dtype", action="store_true", help="compare values where the types differ")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args([a.replace("_", "-") if a == "--ignore_dtype" else a for a in arguments])
    try:
        weights, files = compare(args.a, args.b, Tolerance(args.atol, args.rtol, args.ignore_dtype))
    except (ConvertError, OSError) as error:
        return fail(told(error), as_json=args.json, same=False)
    if args.json:
        put(json.dumps(as_json(args.a, args.b, weights, files), indent=2, allow_nan=False))
    else:
        put(as_text(args.a, args.b, weights, files))
    return 0 if weights.alike and files.alike else 1


if __name__ == "__main__":
    sys.exit(run(main))
