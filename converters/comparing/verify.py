"""Re-read both sides of a conversion, the checkpoint by its plan and the files of the result, and compare.

Every byte is compared. A difference names the tensor, its file, the first element and the checksums of both sides.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from converters.comparing.shard_ranges import OpenTensor, place_in
from converters.comparing.values import text
from converters.errors import ConvertError, listing
from converters.hf import hf_model
from converters.hf.folder_difference import value_differences
from converters.hf.hf_files import CONFIG, INDEX
from converters.hf.names import EMBED, HEAD
from converters.json_file import read_json
from converters.planning.steps import Output, Step
from converters.storage import checksum
from converters.storage.checksum import combine
from converters.storage.row_reader import Reader
from converters.storage.tensors import GlobalTensor, as_bytes
from converters.writing import stream
from converters.writing.stream import Block

_REMEDY = "The folder is not what the checkpoint holds: write it again, and look at the disk if this comes back."
_FILE_BLOCK = 1 << 20
# transformers 5 `modeling_utils.py` (from_pretrained): weights of other forms, code, an adapter over the model.
_LOADED = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".py", "adapter_config.json")
Progress = Callable[[int], None]


def verify(
    steps: Sequence[Step],
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    companions: Mapping[str, Path] | None = None,
    beside: Sequence[str] = (),
    workers: int = 1,
    progress: Progress | None = None,
) -> None:
    """Compare every tensor of `folder` with what `steps` make of the checkpoint.

    Args:
        steps: the plan, as it was for writing: with another type or an adapter the computation is repeated.
        config: what config.json must say (`config_drift.adjusted`).
        companions: file in `folder` -> the one that it was copied from (`hf_files.companions`).
        beside: other files that `folder` must have.
        workers: steps at a time; each holds one block of both sides.
        progress: called with the number of bytes compared, block by block.

    Raises:
        ConvertError: a shard, tensor or file is missing, left over, damaged or different; up to 20 are listed.
        OSError: one of the sides cannot be read.
    """
    outputs = {output.name: output for step in steps for output in step.outputs}
    found = hf_model.read_index(folder)
    problems = _planned_twice(steps) + _as_planned(outputs, found)
    problems += _wrong_total(folder, outputs) + _config_problems(folder, outputs, config)
    problems += [
        problem for name, path in (companions or {}).items() for problem in _not_copied(folder, name, path)
    ]
    problems += [f"{name} is missing" for name in beside if not (folder / name).is_file()]
    problems += _unreadable_json(folder) + _left_over(folder, {hf_model.place(t)[0].name for t in found.values()})
    comparable = [step for step in steps if all(_fits(found.get(o.name), o) for o in step.outputs)]
    _forget({hf_model.place(tensor)[0] for tensor in found.values()})
    lock, reader = Lock(), Reader()

    def advance(count: int) -> None:
        if progress is not None:
            with lock:
                progress(count)

    def compare(step: Step) -> list[str]:
        return _compare(step, found, reader, advance)

    for differences in _each(compare, comparable, workers):
        problems += differences
    if problems:
        raise listing(f"{folder}: not verified", problems, _REMEDY)


def _each(compare: Callable[[Step], list[str]], steps: Sequence[Step], workers: int) -> Iterable[list[str]]:
    if workers <= 1:
        yield from map(compare, steps)
        return
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from pool.map(compare, steps)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _planned_twice(steps: Sequence[Step]) -> list[str]:
    counts = Counter(output.name for step in steps for output in step.outputs)
    return [f"{name} is planned twice" for name, count in counts.items() if count > 1]


def _as_planned(outputs: Mapping[str, Output], found: Mapping[str, GlobalTensor]) -> list[str]:
    """Names, shapes and types."""
    problems = [
        f"{o.name} {o.dtype} {list(o.shape)} is in no shard" for o in outputs.values() if o.name not in found
    ]
    for name, tensor in found.items():
        file = hf_model.place(tensor)[0].name
        output = outputs.get(name)
        if output is None:
            problems.append(f"{name} {list(tensor.shape)} in {file} is not of this model")
        elif not _fits(tensor, output):
            problems.append(
                f"{name} in {file} is {tensor.dtype} {list(tensor.shape)}, the plan makes it {output.dtype} "
                f"{list(output.shape)}"
            )
    return problems


def _fits(tensor: GlobalTensor | None, output: Output) -> bool:
    return tensor is not None and (tensor.shape, tensor.dtype) == (output.shape, output.dtype)


def _wrong_total(folder: Path, outputs: Mapping[str, Output]) -> list[str]:
    """The index must have the bytes of all tensors; verl 0.9.1's merger writes the number of elements there."""
    if not (folder / INDEX).is_file():
        return []
    metadata = read_json(folder / INDEX).get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(output.nbytes for output in outputs.values())
    return [] if said == total else [f"{INDEX}: total_size is {said}, the tensors have {total} bytes"]


def _config_problems(folder: Path, outputs: Mapping[str, Output], expected: Mapping[str, Any] | None) -> list[str]:
    """config.json is there, says what it must, and agrees with the weights in what loaders do not check."""
    try:
        config = read_json(folder / CONFIG)
    except ConvertError as error:
        return [str(error)]
    problems = []
    if expected is not None and config != dict(expected):
        lines = value_differences(config, dict(expected), ("in the file", "as it must be"))
        problems += [f"{CONFIG}: {line}" for line in lines]
    vocabulary = config.get("vocab_size")
    for name in (EMBED, HEAD):
        rows = outputs[name].shape[0] if name in outputs and outputs[name].shape else vocabulary
        if isinstance(vocabulary, int) and rows != vocabulary:
            problems.append(f"{name} has {rows} rows, config.json says vocab_size {vocabulary}")
    causal = any(str(name).endswith("ForCausalLM") for name in config.get("architectures") or [])
    if causal and EMBED in outputs:
        tied = config.get("tie_word_embeddings")
        if tied is True and HEAD in outputs:
            problems.append(f"{HEAD} is written, config.json says tie_word_embeddings true")
        if tied is False and HEAD not in outputs:
            problems.append(f"{HEAD} is not written, config.json says tie_word_embeddings false")
    return problems


def _unreadable_json(folder: Path) -> list[str]:
    """Every other JSON file parses: tokenizer, generation config, templates."""
    problems = []
    for path in sorted(folder.glob("*.json")):
        try:
            if path.name != CONFIG:
                json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            problems.append(f"{path.name}: {path.stat().st_size} bytes, no JSON ({error})")
    return problems


def _left_over(folder: Path, shards: set[str]) -> list[str]:
    """Files that no merge writes there, and that loaders take for weights, an adapter or code of the model."""
    return [
        f"{path.name} is not of this model, and loaders may take it"
        for path in sorted(folder.iterdir())
        if (path.suffix in _LOADED and path.name not in shards) or path.name in _LOADED
    ]


def _not_copied(folder: Path, name: str, source: Path) -> list[str]:
    """Whether a file is the copy of its source, byte for byte."""
    copy = folder / name
    if not copy.is_file():
        return [f"{name} is missing, {source} has it"]
    at = 0
    with copy.open("rb") as one, source.open("rb") as other:
        while True:
            here, there = one.read(_FILE_BLOCK), other.read(_FILE_BLOCK)
            if here != there:
                sizes = f"{copy.stat().st_size} and {source.stat().st_size} bytes"
                return [f"{name} differs from {source} in the block at byte {at} ({sizes})"]
            if not here:
                return []
            at += len(here)


def _forget(files: Iterable[Path]) -> None:
    """Ask the system to drop its copies of the files, so that they are read from where they are stored."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@dataclass
class _Side:
    """What was seen so far of one output: rows, checksums, differences."""

    file: OpenTensor
    rows: int = 0
    expected_crc: int = 0
    found_crc: int = 0
    differing: int = 0
    first: tuple[int, Any, Any] | None = None  # number of the element, its word in the checkpoint, in the file

    def take(self, block: Block) -> None:
        shape = self.file.tensor.shape or (1,)
        begin = block.first_row * prod(shape[1:])
        flat = np.ascontiguousarray(block.words).reshape(-1)
        found = self.file.read(begin, flat.size)
        if block.crc is None:
            self.expected_crc = checksum.crc32(as_bytes(flat), self.expected_crc)
        else:
            self.expected_crc = combine(self.expected_crc, block.crc, flat.nbytes)
        self.rows += len(block.words)
        if np.array_equal(flat, found):
            # After the first difference the two sums go their own ways.
            same = self.differing == 0
            self.found_crc = self.expected_crc if same else checksum.crc32(as_bytes(found), self.found_crc)
            return
        self.found_crc = checksum.crc32(as_bytes(found), self.found_crc)
        places = np.flatnonzero(flat != found)
        self.differing += len(places)
        if self.first is None:
            self.first = (begin + int(places[0]), flat[places[0]], found[places[0]])

    def problem(self) -> str | None:
        tensor = self.file.tensor
        where = f"{tensor.name} in {self.file.path.name}"
        rows = (tensor.shape or (1,))[0]
        if self.rows != rows:
            return f"{where}: the checkpoint gives {self.rows} of {rows} rows"
        if self.first is None:
            return None
        element, expected, found = self.first
        return (
            f"{where}: {self.differing} of {self.file.elements} elements differ, the first at "
            f"{place_in(tensor, element)}: {text(expected, tensor.dtype)} in the checkpoint, "
            f"{text(found, tensor.dtype)} in the file; CRC-32 {self.expected_crc:08x} and {self.found_crc:08x}"
        )


def _compare(
    step: Step, found: Mapping[str, GlobalTensor], reader: Reader, advance: Callable[[int], None]
) -> list[str]:
    """A line for each output of one step that differs."""
    with ExitStack() as stack:
        sides = {o.name: _Side(stack.enter_context(OpenTensor(found[o.name]))) for o in step.outputs}
        try:
            for block in stream.blocks(step, reader):
                side = sides[block.output.name]
                if block.first_row != side.rows:
                    raise ConvertError(f"{block.output.name}: row {block.first_row} comes after {side.rows} rows")
                side.take(block)
                advance(block.words.nbytes)
        except ConvertError as error:  # the checkpoint is damaged: what else differs is still told
            return [str(error)]
    return [problem for side in sides.values() if (problem := side.problem()) is not None]
