from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.bad_rows import BadRows
from data_prep.errors import DataError, RowError


def error(number: int = 3, expected: str = "expected a string") -> RowError:
    return RowError("in.jsonl", number, "answer", expected)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def one(path: Path, row: dict[str, Any] | None = None, raw: bytes | None = None) -> dict[str, Any]:
    with BadRows(path, []) as bad:
        bad.add(error(), raw, row)
        bad.publish()
    (found,) = rows_of(path)
    return found


def test_without_a_file_the_first_one_is_raised() -> None:
    with BadRows(None, []) as bad, pytest.raises(RowError, match=r"in\.jsonl:3: field 'answer'"):
        bad.add(error(), b"{}", {})


def test_rows_are_set_aside_with_their_reasons(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    with BadRows(path, []) as bad:
        bad.add(error(1), b'{"answer": 1}', {"answer": 1})
        bad.add(RowError("in.jsonl", 2, None, "not UTF-8"), b"\xff{", None)
        bad.add(error(7), None, {"answer": 2})
        assert not path.exists()
        bad.publish()
    where = {"file": "in.jsonl", "field": "answer", "expected": "expected a string"}
    assert rows_of(path) == [
        {**where, "row": 1, "raw": '{"answer": 1}'},
        {
            "file": "in.jsonl",
            "row": 2,
            "field": None,
            "expected": "not UTF-8",
            "raw_base64": base64.b64encode(b"\xff{").decode(),
        },
        {**where, "row": 7, "value": {"answer": 2}},
    ]
    assert bad.count == 3
    assert bad.reasons.most_common(1) == [("answer: expected a string", 2)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["\x1b[2J\x00", "line\nbreak\u2028", "\ud800", "数"])
def test_any_text_is_one_line_and_comes_back(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad"
    assert one(path, row={"a": text})["value"] == {"a": text}
    assert path.read_bytes().count(b"\n") == 1
    assert b"\x1b" not in path.read_bytes()


def test_values_that_json_has_not(tmp_path: Path) -> None:
    found = one(tmp_path / "bad", row={"a": b"\x00", "path": Path("x")})
    assert found["value"] == {"a": "b'\\x00'", "path": "x"}


def test_a_run_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    one(path, row={"a": 1})
    before = path.read_bytes()
    with BadRows(path, []) as bad:
        bad.add(error(), None, {"a": 2})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_without_bad_rows_removes_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    one(path, row={"a": 1})
    with BadRows(path, []) as bad:
        bad.publish()
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_with_a_long_row_is_known(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    one(path, raw=b"x" * (3 << 20))
    assert one(path, raw=b"short")["raw"] == "short"


@pytest.mark.parametrize("content", [b"precious\n", b'{"question": "a"}\n', b"[1]\n", b"\xff\xff", b"PAR1"])
def test_other_files_are_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious"
    path.write_bytes(content)
    with pytest.raises(DataError, match="name another file"):
        BadRows(path, [])
    assert path.read_bytes() == content


def test_a_source_is_not_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "in.jsonl", tmp_path / "link"
    one(path, row={"a": 1})
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(DataError, match="is a source"):
            BadRows(name, [tmp_path / "gone", path])


def test_a_folder_in_the_way_and_one_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name another file"):
        BadRows(tmp_path, [])
    with pytest.raises(DataError, match="is not there"):
        BadRows(tmp_path / "gone" / "bad", [])


def test_reasons_are_bounded(tmp_path: Path) -> None:
    with BadRows(tmp_path / "bad", []) as bad:
        for number in range(3000):
            bad.add(error(number, f"expected {number}"), b"", None)
        bad.add(error(0, "expected 5"), b"", None)
    assert bad.count == 3001
    assert len(bad.reasons) == 1000
    assert bad.reasons["answer: expected 5"] == 2
