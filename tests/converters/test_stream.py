"""Rows of steps: whatever the chunks, runs and types are, in bounded memory; no damaged byte goes by."""

from __future__ import annotations

import io
import json
import struct
import time
import weakref
import zlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converters import families
from converters.checkpoint import torch_zip
from converters.errors import ConvertError
from converters.families import Run
from converters.hf import hf_config
from converters.planning import plan
from converters.planning.steps import LowRank, Output, Step, whole
from converters.storage import checksum, pieces, row_reader, stored
from converters.storage.checksum import combine
from converters.storage.rounding import convert
from converters.storage.row_reader import Reader
from converters.storage.stored import Storage, StoredTensor
from converters.storage.tensors import Chunk, GlobalTensor, Stored, Words, words
from converters.writing import stream

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class File:
    """A file like `__0_0.distcp`: one torch.save after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ranges: list[tuple[int, int]] = []
        path.write_bytes(b"")

    def add(self, tensor: Any) -> Callable[[], Stored]:
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        first = self.path.stat().st_size
        with self.path.open("ab") as file:
            file.write(buffer.getvalue())
        self.ranges.append((first, len(buffer.getvalue())))
        return partial(torch_zip.load, self.path, first, len(buffer.getvalue()))


def _numbers(shape: tuple[int, ...]) -> Any:
    return torch.arange(int(np.prod(shape)), dtype=torch.int16).reshape(shape).view(torch.bfloat16)


def _chunked(file: File, tensor: Any, cuts: list[list[int]], kind: str) -> GlobalTensor:
    """`tensor` in chunks between the cuts of each axis; `kind` is how a chunk is stored."""
    chunks = []
    for corner in product(*(list(pairwise([0, *c, n])) for c, n in zip(cuts, tensor.shape, strict=True))):
        part = tensor[tuple(slice(a, b) for a, b in corner)]
        if kind == "plain":
            part = part.contiguous().clone()
        elif kind == "transposed":
            part = part.permute(*reversed(range(part.ndim))).contiguous().permute(*reversed(range(part.ndim)))
        elif kind == "shared":  # in the middle of a flat buffer
            flat = torch.zeros(part.numel() * 3 + 5, dtype=part.dtype)
            flat[3 : 3 + part.numel()] = part.reshape(-1)
            part = flat[3 : 3 + part.numel()].view(part.shape)
        sizes = tuple(b - a for a, b in corner)  # "view": the storage is the whole tensor
        chunks.append(Chunk(tuple(a for a, _ in corner), sizes, file.add(part)))
    return GlobalTensor("t", tuple(tensor.shape), "BF16", tuple(chunks))


def _run(step: Step, reader: Reader | None = None) -> dict[str, Words]:
    rows: dict[str, Words] = {o.name: np.zeros(o.shape or (1,), words(o.dtype)) for o in step.outputs}
    done = dict.fromkeys(rows, 0)
    for block in stream.blocks(step, reader):
        assert block.first_row == done[block.output.name]
        assert block.words.dtype == words(block.output.dtype)
        assert block.crc in (None, zlib.crc32(block.words.tobytes()))
        rows[block.output.name][block.first_row : block.first_row + len(block.words)] = block.words
        done[block.output.name] += len(block.words)
    assert done == {name: len(value) for name, value in rows.items()}
    return rows


def _draw_cuts(data: st.DataObject, size: int) -> list[int]:
    return sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=3))) if size > 1 else []


@QUICK
@given(
    data=st.data(), kind=st.sampled_from(["plain", "transposed", "shared", "view"]), block=st.sampled_from([1, 40])
)
def test_any_chunks_and_runs_give_the_rows(tmp_path: Path, data: st.DataObject, kind: str, block: int) -> None:
    leading = data.draw(st.lists(st.integers(1, 3), max_size=2))
    shape = (*leading, *data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    tensor = _numbers(shape)
    source = _chunked(File(tmp_path / "f"), tensor, [_draw_cuts(data, n) for n in shape], kind)
    index = tuple(data.draw(st.integers(0, n - 1)) for n in leading)
    rest = tensor[index].view(torch.int16).numpy().view("<u2")
    # Runs: some rows left out, the others dealt out to two outputs.
    edges = [0, *_draw_cuts(data, len(rest)), len(rest)]
    owners = [data.draw(st.sampled_from([None, 0, 1])) for _ in edges[1:]]
    runs, taken = [], {0: 0, 1: 0}
    for (a, b), owner in zip(pairwise(edges), owners, strict=True):
        if owner is not None:
            runs.append(Run(a, b - a, owner, taken[owner]))
            taken[owner] += b - a
    outputs = tuple(Output(str(n), (taken[n], *rest.shape[1:]), "BF16") for n in (0, 1))
    found = _run(Step(source, index, outputs, tuple(runs)), Reader(block))
    for number in (0, 1):
        parts = [rest[r.source_row : r.source_row + r.rows] for r in runs if r.output == number]
        assert np.array_equal(found[str(number)], np.concatenate(parts) if parts else rest[:0])


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    file = File(tmp_path / "f")
    one = torch.tensor(7, dtype=torch.int64)
    assert _run(whole(GlobalTensor("s", (), "I64", (Chunk((), (), file.add(one)),))))["s"] == [7]
    for shape in ((0, 5), (5, 0), (0,)):
        empty = Chunk((0,) * len(shape), shape, file.add(torch.zeros(shape, dtype=torch.int64)))
        assert _run(whole(GlobalTensor("e", shape, "I64", (empty,))))["e"].shape == shape


def test_many_columns_are_not_compared_each_with_each(tmp_path: Path) -> None:
    """8,000 pieces of one column; pair by pair that takes half a minute."""
    count = 8_000
    tensor = GlobalTensor("t", (1, count), "U8", ())
    part = File(tmp_path / "f").add(_numbers((1, 1)))()
    band = [pieces.Piece(pieces.Checks(), (0, i), (0, i), (1, 1), part, (), 1) for i in range(count)]
    started = time.process_time()
    row_reader._check_band(tensor, (1, count), 0, 1, band)
    assert time.process_time() - started < 2
    with pytest.raises(ConvertError, match=r"f: t: shards at \(0, 7\) and \(0, 7\) overlap"):
        row_reader._check_band(tensor, (1, count), 0, 1, [*band, band[7]])


def test_chunks_that_do_not_make_the_tensor(tmp_path: Path) -> None:
    part = File(tmp_path / "f").add(_numbers((2, 3)))

    def rows(shape: tuple[int, int], *offsets: tuple[int, int]) -> None:
        _run(whole(GlobalTensor("t", shape, "BF16", tuple(Chunk(o, (2, 3), part) for o in offsets))))

    rows((4, 6), (0, 0), (0, 3), (2, 0), (2, 3))
    with pytest.raises(ConvertError, match="0 of 3 elements of the rows 2 to 3"):
        rows((5, 3), (0, 0), (3, 0))
    with pytest.raises(ConvertError, match="3 of 4 elements"):
        rows((2, 4), (0, 0))
    with pytest.raises(ConvertError, match="overlap"):
        rows((3, 3), (0, 0), (1, 0))
    with pytest.raises(ConvertError, match="elements of the rows"):
        rows((2, 3), (0, 2))
    with pytest.raises(ConvertError, match="holds BF16"):
        _run(whole(GlobalTensor("t", (3, 2), "BF16", (Chunk((0, 0), (3, 2), part),))))


def test_flipped_bytes_are_found_or_harmless(tmp_path: Path) -> None:
    """Every ninth byte of a file of two chunks: the words are right, or it is an error."""
    file = File(tmp_path / "f")
    tensor = _numbers((6, 4))
    chunks = tuple(Chunk((row, 0), (3, 4), file.add(tensor[row : row + 3].clone())) for row in (0, 3))
    step = whole(GlobalTensor("t", (6, 4), "BF16", chunks))
    right = tensor.view(torch.int16).numpy().view("<u2")
    good = file.path.read_bytes()
    found = 0
    for at in range(0, len(good), 9):
        with file.path.open("r+b") as handle:
            handle.seek(at)
            handle.write(bytes([good[at] ^ (1 << at % 8)]))
            handle.flush()
            try:
                assert np.array_equal(_run(step)["t"], right), at
            except ConvertError:
                found += 1
            handle.seek(at)
            handle.write(good[at : at + 1])
    assert found > 2 * 24 / 9


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize("rows", [1, 5, 9])
@pytest.mark.parametrize("place", [0, 1])
def test_bytes_that_no_output_takes_are_checked_too(tmp_path: Path, rows: int, place: int, block: int) -> None:
    """A cut vocabulary, other layers in the chunk: any byte of the storage, before the step has ended."""
    file = File(tmp_path / "f")
    chunk = Chunk((0, 0, 0), (2, 9, 4), file.add(_numbers((2, 9, 4))))
    source = GlobalTensor("t", (2, 9, 4), "BF16", (chunk,))
    step = Step(source, (place,), (Output("o", (rows, 4), "BF16"),), (Run(0, rows, 0, 0),))
    stored_ = torch_zip.load(file.path)
    good = file.path.read_bytes()
    for byte in range(0, stored_.storage.nbytes, 11):  # the last one, too
        bad = bytearray(good)
        bad[stored_.storage.start + byte] ^= 4
        file.path.write_bytes(bad)
        with pytest.raises(ConvertError, match="CRC-32"):
            _run(step, Reader(block))


def test_truncated_file(tmp_path: Path) -> None:
    file = File(tmp_path / "f")
    opened = file.add(_numbers((6, 4)))()
    source = GlobalTensor("t", (6, 4), "BF16", (Chunk((0, 0), (6, 4), lambda: opened),))
    assert isinstance(opened, StoredTensor)
    with file.path.open("r+b") as handle:
        handle.truncate(opened.storage.start + 20)
    with pytest.raises(ConvertError, match="truncated"):
        _run(whole(source))


def test_each_storage_is_checked_once_and_each_table_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four layers in one chunk, and a chunk for each layer and rank."""
    summed, loads = [0], [0]

    def crc32(view: Any, crc: int = 0) -> int:
        summed[0] += len(view)
        return zlib.crc32(view, crc)

    def counting(load: Callable[[], Stored]) -> Stored:
        loads[0] += 1
        return load()

    monkeypatch.setattr(checksum, "crc32", crc32)
    tensor = _numbers((4, 30, 8))
    for cuts in ([[], [], []], [[1, 2, 3], [15], []], [[1, 2, 3], [], [4]], [[2], [], []]):
        file = File(tmp_path / "f")
        source = _chunked(file, tensor, cuts, "plain")
        chunks = tuple(Chunk(c.offsets, c.sizes, partial(counting, c.open)) for c in source.chunks)
        source = GlobalTensor("t", (4, 30, 8), "BF16", chunks)
        summed[0] = loads[0] = 0
        reader = Reader(100)
        for layer in range(4):
            step = Step(source, (layer,), (Output("o", (30, 8), "BF16"),), (Run(0, 30, 0, 0),))
            assert np.array_equal(_run(step, reader)["o"], tensor[layer].view(torch.int16).numpy().view("<u2"))
        assert (summed[0], loads[0]) == (tensor.numel() * 2, len(chunks))


def test_memory_is_that_of_blocks(tmp_path: Path) -> None:
    """64 MB in columns of two ranks and in rows, by blocks of 1 MiB."""
    import tracemalloc

    file = File(tmp_path / "f")
    tensor = torch.zeros((1 << 13, 1 << 12), dtype=torch.int16).view(torch.bfloat16)
    halves = (file.add(tensor[:, : 1 << 11].clone()), file.add(tensor[:, 1 << 11 :].clone()))
    chunks = tuple(Chunk((0, n << 11), (1 << 13, 1 << 11), half) for n, half in enumerate(halves))
    step = whole(GlobalTensor("t", (1 << 13, 1 << 12), "BF16", chunks))
    tracemalloc.start()
    try:
        count = sum(len(block.words) for block in stream.blocks(step))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 1 << 13
    assert peak < 3 << 20


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_are_joined(one: bytes, other: bytes) -> None:
    assert combine(zlib.crc32(one), zlib.crc32(other), len(other)) == zlib.crc32(one + other)


def test_runs_that_take_a_row_twice(tmp_path: Path) -> None:
    source = _chunked(File(tmp_path / "f"), _numbers((4, 2)), [[], []], "plain")
    runs = (Run(0, 3, 0, 0), Run(2, 2, 0, 3))
    with pytest.raises(ValueError, match="take a row twice"):
        _run(Step(source, (), (Output("o", (5, 2), "BF16"),), runs))


def test_same_bits_whatever_the_chunks(tmp_path: Path) -> None:
    file, reader = File(tmp_path / "f"), Reader(40)
    tensor = _numbers((30, 8))
    one = _chunked(file, tensor, [[7, 20], []], "plain")
    assert reader.same_bits(one, _chunked(file, tensor, [[11], [3]], "plain"))
    other = tensor.clone()
    other[29, 7] = 1
    assert not reader.same_bits(one, _chunked(file, other, [[11], [3]], "plain"))
    assert not reader.same_bits(one, _chunked(file, _numbers((8, 30)), [[], []], "plain"))


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of tensors were read, one number a read."""
    sizes: list[int] = []

    def counting(file: int, view: memoryview, at: int, path: Path) -> None:
        sizes.append(len(view))
        read(file, view, at, path)

    read = stored.read
    for module in (pieces, stored):
        monkeypatch.setattr(module, "read", counting)
    return sizes


def test_two_tensors_are_compared_in_one_pass_and_the_same_bytes_in_none(
    tmp_path: Path, bytes_read: list[int]
) -> None:
    file, reader = File(tmp_path / "f"), Reader(16)
    tensor = _numbers((30, 8))
    one, again = (_chunked(file, tensor, [[7], []], "plain") for _ in range(2))
    assert reader.same_bits(one, GlobalTensor("other", (30, 8), "BF16", one.chunks))
    assert not bytes_read
    assert reader.same_bits(one, again)
    assert sum(bytes_read) == 2 * one.nbytes


def test_a_tied_head_is_not_read_to_plan(tmp_path: Path, bytes_read: list[int]) -> None:
    """torch.save wrote tied weights once; a plan without the model's other tensors is refused after that."""
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 4,
        "vocab_size": 30,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
    }
    (tmp_path / "config.json").write_text(
        json.dumps(
            {**sizes, "architectures": ["Qwen2ForCausalLM"], "num_attention_heads": 2, "tie_word_embeddings": True}
        )
    )
    family = families.family("Qwen2ForCausalLM", tmp_path)
    one = _chunked(File(tmp_path / "f"), _numbers((30, 8)), [[7], []], "plain")
    tensors = {
        name: GlobalTensor(name, one.shape, "BF16", one.chunks)
        for name in ("lm_head.weight", "model.embed_tokens.weight")
    }
    with pytest.raises(ConvertError, match=r"model\.norm\.weight"):
        plan.from_hf_names(tensors, family, hf_config.read(tmp_path / "config.json", family.config))
    assert not bytes_read


def test_a_reader_keeps_no_tensor(tmp_path: Path) -> None:
    """A plan makes one for each of ten thousands of places."""
    reader, chunks = Reader(), _chunked(File(tmp_path / "f"), _numbers((2, 3, 4)), [[], [], []], "plain").chunks
    for place in range(2):
        source = GlobalTensor("t", (2, 3, 4), "BF16", chunks)
        assert sum(len(rows) for _, rows, _ in reader.rows(source, (place,))) == 3
        alive = weakref.ref(source)
        del source
        assert alive() is None


TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _reference(values: Any, target: str) -> Any:
    """numpy's own rounding; bfloat16 by looking for the nearest of its neighbours in float64."""
    if target != "BF16":
        kind = "<f4" if target == "F32" else "<f2"
        with np.errstate(over="ignore"):
            return values.astype(kind).astype(np.float64)
    with np.errstate(over="ignore"):
        upper = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.int64)
    candidates = (np.stack([upper - 1, upper, upper + 1]).clip(0, 0xFFFF).astype(np.uint32) << 16).view(np.float32)
    # Beyond the largest, infinity counts as the next power of two.
    limit = np.float64(2.0**128)
    with np.errstate(invalid="ignore"):
        wide = np.where(np.isinf(candidates), np.sign(candidates) * limit, candidates.astype(np.float64))
    away = np.abs(wide - values.astype(np.float64))
    away = np.where(np.isnan(away), np.inf, away)
    odd = (candidates.view(np.uint32) >> 16) & 1
    best = np.lexsort((odd, away), axis=0)[0] if values.size else np.zeros(0, int)
    return candidates[best, np.arange(values.size)].astype(np.float64)


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    1.00390625,
    1.01171875,
    1 + 2**-8 + 2**-30,
    65519.99,
    65520.0,
    6e-8,
    1e-40,
    3.38e38,
    3.4e38,
]


@QUICK
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(SPECIAL), max_size=20),
    source=st.sampled_from(["F64", "F32", "F16", "BF16"]),
    target=st.sampled_from(["F32", "F16", "BF16"]),
)
def test_any_type_is_rounded_once(values: list[float], source: str, target: str) -> None:
    exact = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        narrow = {
            "F64": exact,
            "F32": exact.astype("<f4"),
            "F16": exact.astype("<f2"),
            "BF16": exact.astype("<f4"),
        }
    held = narrow[source]
    source_words = held.view(words("F32" if source == "BF16" else source))
    if source == "BF16":
        source_words = (source_words >> 16).astype("<u2")
        held = (source_words.astype(np.uint32) << 16).view(np.float32)
    expected = _reference(held, target)
    if (np.isinf(expected) & np.isfinite(held)).any():
        with pytest.raises(ConvertError, match=f"w: .* is beyond the range of {target}"):
            convert(source_words, source, target, "w")
        return
    found = convert(source_words, source, target, "w")
    assert found.dtype == words(target)
    back = {"F32": "<f4", "F16": "<f2"}
    wide = (found.astype(np.uint32) << 16).view(np.float32) if target == "BF16" else found.view(back[target])
    assert np.array_equal(wide.astype(np.float64), expected)
    assert np.array_equal(np.signbit(wide), np.signbit(held))


@pytest.mark.parametrize("target", ["F32", "F16", "BF16"])
def test_nan_and_infinity_stay(target: str) -> None:
    patterns = [0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x7F80FFFF]
    source = np.array(patterns, "<u4")
    found = torch.from_numpy(
        convert(source, "F32", target, "w").copy().view({4: "<i4", 2: "<i2"}[words(target).itemsize])
    )
    values = found.view(TORCH[target])
    assert values[:2].tolist() == [float("inf"), float("-inf")]
    assert values[2:].isnan().all()


@pytest.mark.parametrize("target", ["F32", "F16", "BF16"])
def test_types_as_torch_rounds_them(target: str) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1 << 16, generator=generator)
    for source, dtype in TORCH.items():
        held = values.to(dtype)
        kind = "<i4" if dtype == torch.float32 else "<i2"
        source_words = held.view(torch.int32 if kind == "<i4" else torch.int16).numpy().view(words(source))
        expected = held.to(TORCH[target])
        again = expected.view(torch.int32 if target == "F32" else torch.int16).numpy().view(words(target))
        assert np.array_equal(convert(source_words, source, target, "w"), again)


def test_types_that_are_not_converted() -> None:
    with pytest.raises(ConvertError, match="n: I64 cannot be converted to BF16"):
        convert(np.zeros(2, "<u8"), "I64", "BF16", "n")


def test_a_step_converts_and_names_the_tensor(tmp_path: Path) -> None:
    source = torch.tensor([[1.0, 2.5], [3.1e38, 0.1]])
    tensor = GlobalTensor("t", (2, 2), "F32", (Chunk((0, 0), (2, 2), File(tmp_path / "f").add(source)),))
    step = Step(
        tensor,
        (),
        (Output("good", (1, 2), "BF16"), Output("bad", (1, 2), "F16")),
        (Run(0, 1, 0, 0), Run(1, 1, 1, 0)),
    )
    with pytest.raises(ConvertError, match=r"bad: 3.1e\+38 is beyond the range of F16"):
        _run(step)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_low_rank_products_are_added_in_float32(tmp_path: Path, dtype: str, block: int) -> None:
    file = File(tmp_path / "f")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 16, generator=generator).to(TORCH[dtype])
    a, b = torch.randn(4, 16, generator=generator), torch.randn(24, 4, generator=generator)

    def tensor(name: str, value: Any, kind: str) -> GlobalTensor:
        shape = tuple(value.shape)
        return GlobalTensor(name, shape, kind, (Chunk((0, 0), shape, file.add(value)),))

    added = (LowRank(tensor("a", a, "F32"), tensor("b", b, "F32"), 0.5),) * 2
    plain = whole(tensor("w", weight, dtype))
    found = _run(Step(plain.source, (), plain.outputs, plain.runs, added), Reader(block))["w"]
    expected = weight.double() + 2 * 0.5 * (b.double() @ a.double())
    values = torch.from_numpy(found.view({"F32": "<i4", "BF16": "<i2"}[dtype])).view(TORCH[dtype]).double()
    assert (values - expected).abs().max() < (1e-5 if dtype == "F32" else 0.05)
    if dtype == "F32":
        assert not torch.equal(values, weight.double())
    wrong = (LowRank(tensor("a", a, "F32"), tensor("b", b[:8], "F32"), 0.5),)
    with pytest.raises(ConvertError, match="of another model"):
        _run(Step(plain.source, (), plain.outputs, plain.runs, wrong))


def test_low_rank_products_are_the_same_whatever_the_blocks(tmp_path: Path) -> None:
    """BLAS sums a single row (gemv), few rows and many in orders of their own."""
    file = File(tmp_path / "f")
    generator = torch.Generator().manual_seed(0)
    rank, rows, columns = 64, 131, 96
    values = {"w": (rows, columns), "a": (rank, columns), "b": (rows, rank)}
    w, a, b = (
        GlobalTensor(n, s, "F32", (Chunk((0, 0), s, file.add(torch.randn(s, generator=generator))),))
        for n, s in values.items()
    )
    plain = whole(w)
    step = Step(w, (), plain.outputs, plain.runs, (LowRank(a, b, 0.5),))
    at_once = _run(step, Reader(1 << 20))["w"]
    for in_block in (1, 2, 3, 7, 64, 100):
        assert np.array_equal(_run(step, Reader(in_block * columns * 4))["w"], at_once), in_block
    parts = Step(
        w,
        (),
        tuple(Output(n, (1, columns), "F32") for n in "xy"),
        (Run(70, 1, 0, 0), Run(130, 1, 1, 0)),
        step.added,
    )
    found = _run(parts)
    assert np.array_equal(np.concatenate([found["x"], found["y"]]), at_once[[70, 130]])


def test_a_checksum_in_threads(tmp_path: Path) -> None:
    """Many threads on one storage that they share: it is checked by one of them, and damage is told."""
    from concurrent.futures import ThreadPoolExecutor

    tensor = _numbers((8, 200, 50))
    file = File(tmp_path / "f")
    source = _chunked(file, tensor, [[], [], []], "plain")
    reader = Reader(1000)

    def layer(number: int) -> bool:
        step = Step(source, (number,), (Output("o", (200, 50), "BF16"),), (Run(0, 200, 0, 0),))
        return np.array_equal(_run(step, reader)["o"], tensor[number].view(torch.int16).numpy().view("<u2"))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(layer, range(8)))
    storage: Storage = torch_zip.load(file.path).storage
    data = bytearray(file.path.read_bytes())
    data[storage.start + 5] ^= 1
    file.path.write_bytes(data)
    reader = Reader(1000)
    with (
        ThreadPoolExecutor(4) as pool,
        pytest.raises(ConvertError, match=f"{struct.pack('>I', storage.crc or 0).hex()}"),
    ):
        list(pool.map(layer, range(8)))
