"""Files as users have them, and as they should not be."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.errors import DataError, FieldError
from data_prep.reading.block import Record
from data_prep.reading.files import InputFile, open_input

ROWS = [{"question": f"q{n}: é\u2028\x85", "answer": n, "share": n / 4} for n in range(3000)]
LINES = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in ROWS)


def packed(data: bytes) -> bytes:
    """gzip, without the time: these bytes are in the names of tests, on which test processes must agree."""
    return gzip.compress(data, mtime=0)


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, **options)
    return sink.getvalue()


ARRAY = json.dumps(ROWS, indent=1).encode()
PARQUET = parquet(ROWS)
CSV = "﻿question,answer\r\n".encode() + b"".join(
    b'"a ""quoted"" one,\r\nover two lines",%d\r\n' % n for n in range(2000)
)


def opened(folder: Path, name: str, data: bytes) -> InputFile:
    path = folder / name
    path.write_bytes(data)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return open_input(str(path), work)


def records(file: InputFile, block_bytes: int = 10_000) -> list[Record]:
    """All records; blocks go through pickle, as to a worker."""
    return [record for block in file.blocks(block_bytes) for record in pickle.loads(pickle.dumps(block)).records()]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n \t\r\n")),
        ("a.jsonl", LINES.removesuffix(b"\n")),
        ("a.jsonl.gz", packed(LINES)),
        ("several members.jsonl.gz", packed(LINES[:20_000]) + packed(LINES[20_000:])),
        ("a.jsonl.zst", zstd(LINES)),
        ("several frames.jsonl.zst", zstd(LINES[:20_000]) + zstd(LINES[20_000:])),
        ("JSONL by content.json", LINES),
        ("JSONL.txt", LINES),
        ("packed without saying so.jsonl", packed(LINES)),
        ("a.json", ARRAY),
        ("a.json", b"\xef\xbb\xbf\n " + ARRAY + b"\n\n"),
        ("a.json.gz", packed(ARRAY)),
        ("a.parquet", PARQUET),
        ("many groups.parquet", parquet(ROWS, row_group_size=7)),
        ("a.parquet.gz", packed(PARQUET)),
        ("a.parquet.zst", zstd(PARQUET)),
        ("parquet by content", PARQUET),
    ],
)
def test_rows_of_every_kind_of_file(tmp_path: Path, name: str, data: bytes) -> None:
    file = opened(tmp_path, name, data)
    found = records(file)
    assert [record.row for record in found] == ROWS
    assert file.bytes_read == file.size
    assert [record.row for record in file.peek(5)] == ROWS[:5]
    numbers = [record.number for record in found]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == (1 if file.kind == "jsonl" else 0)


def test_csv(tmp_path: Path) -> None:
    for name, data in (
        ("a.csv", CSV),
        ("a.csv.gz", packed(CSV)),
        ("a.tsv", CSV.replace(b"question,", b"question\t").replace(b'lines",', b'lines"\t')),
    ):
        found = records(opened(tmp_path, name, data))
        assert len(found) == 2000
        assert found[7].row == {"question": 'a "quoted" one,\r\nover two lines', "answer": "7"}
        assert [record.number for record in found[:3]] == [2, 4, 6]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b"", "no rows: the file is empty"),
        ("a.jsonl", b"\n \r\n", "no rows"),
        ("a.jsonl.gz", packed(b""), "no rows"),
        ("a.json", b"[]", "no rows"),
        ("a.csv", b"a,b\n", "no rows below the header"),
        ("a.parquet", parquet(ROWS[:1])[:4], "not a whole parquet file"),
        ("a.parquet", parquet(ROWS)[:-9], "not a whole parquet file"),
        ("a.parquet", LINES, "not a whole parquet file"),
        ("a.parquet", PARQUET[:4] + b"\xff" * 10 + PARQUET[14:], "don't know what type: \\x0f"),
        ("a.parquet", PARQUET[:8] + b"\xff" * 40 + PARQUET[48:], "damaged, after row 0 (from 0)"),
        ("a.jsonl.gz", packed(LINES)[:-300], "gzip stream is cut off or damaged"),
        ("a.jsonl.gz", packed(LINES)[:-4], "gzip stream is cut off or damaged"),
        ("a.jsonl.gz", packed(LINES) + b"more", "gzip stream is cut off or damaged"),
        ("a.jsonl.zst", zstd(LINES)[:-300], "zstd stream is cut off or damaged"),
        ("a.jsonl.zst", zstd(LINES)[:-3], "zstd stream is cut off or damaged"),
        ("a.jsonl.zst", zstd(LINES) + b"more", "zstd stream is cut off or damaged"),
        ("a.jsonl.gz", LINES, "not a gzip file, as its name says"),
        ("a.parquet.gz", packed(PARQUET)[:-9], "gzip stream is cut off or damaged"),
        ("a.json", ARRAY[:-1], "row 2999 (from 0): expected , or ] after it, got the end of the file"),
        ("a.json", ARRAY[:30_000], "is it whole?"),
        ("a.json", b'[{"a": 1},]', "row 1 (from 0): not JSON: Expecting value"),
        ("a.json", b'[{"a": 1} {"a": 2}]', "row 0 (from 0): expected , or ] after it, got '{'"),
        ("a.json", b'[{"a": 1}] {}', "more text after the array"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", json.dumps({"data": ROWS[:2]}, indent=1).encode(), "If a list in it holds the rows: jq"),
        ("a.jsonl", "{}".encode("utf-16"), "UTF-16 text"),
        ("a.csv", b"a,a\n1,2\n", "a.csv:1: expected a header with a different name for each column"),
        ("a.csv", b'a,b\n1,2\n"3,4\n', "a.csv:3: not CSV"),
        ("notes.txt", b"hello", "kind not recognised"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(DataError) as error:
        records(opened(tmp_path, name, data))
    assert message in str(error.value)
    assert name in str(error.value)
    assert str(error.value).isprintable()  # bytes of the data do not reach a terminal


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "expected a JSON object on one line"),
        (b"[1]", "expected a JSON object, got list [1]"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1e999}', "the number '1e999' is too large"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "Exceeds the limit"),
        (b'{"a": 1, "a": 1}', "field 'a': the key occurs twice"),
        (b'{"x": [{"b": 1, "c": 2, "b": 3}]}', "field 'b': the key occurs twice"),
        (b'{"a": "\xff"}', "expected UTF-8, got byte 0xFF at 7"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' + b"[" * 128 + b"]" * 128 + b"}", "nested too deeply"),
    ],
)
def test_bad_lines_have_numbers_and_reasons(tmp_path: Path, line: bytes, message: str) -> None:
    found = records(opened(tmp_path, "a.jsonl", b'{"a": 0}\n\n' + line + b'\n{"a": 2}'))
    assert [record.number for record in found] == [1, 3, 4]
    bad = found[1]
    assert isinstance(bad.row, FieldError)
    assert message in str(bad.row)
    assert bad.raw == line


def test_what_is_allowed_in_a_line(tmp_path: Path) -> None:
    deep = {"a": "[" * 500}
    inner: Any = 0
    for _ in range(100):
        inner = [inner]
    big = {"a": "x" * 1_000_000}
    lines = [json.dumps(row).encode() for row in (deep, {"a": inner}, big, {"a": 2**80}, {"a": "\0\u2029"})]
    lines.append('{"a": "line\u2028separators\u2029and\x85"}'.encode())
    assert [record.row for record in records(opened(tmp_path, "a.jsonl", b"\n".join(lines)))] == list(
        map(json.loads, lines)
    )


def test_numbers_keep_how_they_were_written(tmp_path: Path) -> None:
    for name, data in (("a.jsonl", b'{"a": 1.50, "b": 3}'), ("a.json", b'[{"a": 1.50, "b": 3}]')):
        (record,) = records(opened(tmp_path, name, data))
        row = pickle.loads(pickle.dumps(record.row))
        assert row == {"a": 1.5, "b": 3}
        assert row["a"].text == "1.50"
        assert type(row["b"]) is int


def test_bad_rows_of_csv_arrays_and_parquet(tmp_path: Path) -> None:
    found = records(opened(tmp_path, "a.csv", b"a,b\n1,2\n1\n\xff,2\n3,4\n"))
    assert [(record.number, isinstance(record.row, FieldError)) for record in found] == [
        (2, False),
        (3, True),
        (4, True),
        (5, False),
    ]
    assert "expected 2 cells" in str(found[1].row)
    assert "field 'a': expected UTF-8, got byte 0xFF" in str(found[2].row)
    found = records(opened(tmp_path, "a.json", b'[{"a": 1}, 5, {"a": 1, "a": 2}]'))
    assert [isinstance(record.row, FieldError) for record in found] == [False, True, True]
    text = pa.array([b"ok", b"\xff", b"ok"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"a": text}), tmp_path / "b.parquet")
    found = records(opened(tmp_path, "a.parquet", (tmp_path / "b.parquet").read_bytes()))
    assert [isinstance(record.row, FieldError) for record in found] == [False, True, False]


def test_objects_in_a_parquet_list_have_only_the_keys_they_came_with(tmp_path: Path) -> None:
    """FIELD_CASES E12: Arrow gives the dicts of a list the keys of all of them."""
    row = {"kwargs": [{"paragraphs": 4}, {"word": "contest"}], "none": None}
    (record,) = records(opened(tmp_path, "a.parquet", parquet([row])))
    assert record.row == row


def test_no_file_and_changed_file(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none.jsonl", "no such file"), (tmp_path, "not a regular file")):
        with pytest.raises(DataError, match=message):
            open_input(str(path), tmp_path)
    file = opened(tmp_path, "a.jsonl", LINES)
    file.unchanged()
    (tmp_path / "a.jsonl").write_bytes(LINES * 2)
    with pytest.raises(DataError, match="changed while it was read"):
        file.unchanged()


def test_a_line_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.reading.lines.MOST_ROW_BYTES", 1 << 20)
    monkeypatch.setattr("data_prep.reading.json_array.MOST_ROW_BYTES", 1 << 20)
    for name, data in (
        ("a.jsonl", b'{"a": 1}\n{"a": "' + b"x" * (3 << 20)),
        ("a.json", b'[{"a": "' + b"x" * (8 << 20)),
    ):
        with pytest.raises(DataError, match=r"a\.jsonl:2: the line is longer than|row 0 \(from 0\): longer than"):
            records(opened(tmp_path, name, data))


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        yield write


@pytest.mark.parametrize("data", [LINES[:9000].rpartition(b"\n")[0], packed(LINES), parquet(ROWS[:5])])
def test_standard_input(tmp_path: Path, stdin: int, data: bytes) -> None:
    with os.fdopen(stdin, "wb") as file:
        file.write(data)  # fits the pipe
    opened_file = open_input("-", tmp_path)
    assert opened_file.shown == "stdin"
    rows = [record.row for record in records(opened_file)]
    assert rows == ROWS[: len(rows)]
    assert len(rows) > 4
    assert opened_file.sha256() == hashlib.sha256(data).hexdigest()
