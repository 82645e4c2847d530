from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from data_prep.options import Options
from data_prep.printing import shortened
from data_prep.record import DatasetRecord, FileRecord, OutputRecord, PartRecord, options_json, versions
from data_prep.report import report_lines, table

NONE = {"train": 0, "test": 0, "leaked": 0, "leaked_test": 0}


def record_of(**changed: Any) -> DatasetRecord:
    values: dict[str, Any] = {
        "sources": [FileRecord("in.jsonl", "aa", 5, "gsm8k", "train", read=1200)],
        "parts": [PartRecord("in.jsonl", 1200, 0, 0, 0, 1100, 100)],
        "outputs": [OutputRecord("train.parquet", 1100, 9, "bb")],
        "composition": [],
        "repeats": {"exact": NONE, "normalized": NONE, "conflicting": 0},
        "columns": {},
        "options": options_json(Options()),
        "versions": versions(),
    }
    return DatasetRecord(**{**values, **changed})


def lines_of(record: DatasetRecord, reasons: Counter[str] | None = None) -> list[str]:
    return report_lines(record, reasons or Counter(), "bad.jsonl")


def test_a_clean_conversion_tells_its_sources_alone() -> None:
    assert lines_of(record_of()) == [
        "file      format    for   rows",
        "in.jsonl   gsm8k  train  1,200",
        "",
    ]


def test_what_was_left_out_and_why() -> None:
    entry = FileRecord("in.jsonl", "aa", 5, "gsm8k", "train", read=1200, bad=3, too_long=40, systems_replaced=7)
    part = PartRecord("in.jsonl", 1157, 10, 2, 45, 1000, 100)
    told = "\n".join(lines_of(record_of(sources=[entry], parts=[part]), Counter({"answer: missing": 3})))
    for words, count in (
        ("bad, set aside", "3"),
        ("longer than --max-prompt-tokens", "40"),
        ("duplicates", "10"),
        ("with the prompt of a test row", "2"),
        ("left over by the blend", "45"),
    ):
        assert any(line.startswith(words) and line.split()[-1] == count for line in told.splitlines()), words
    assert "7 system messages" in told
    assert "bad rows, all in bad.jsonl" in told
    assert "3  answer: missing" in told


def test_shares_are_of_the_split() -> None:
    composition = [
        {"data_source": "openai/gsm8k", "ability": "math", "split": "train", "rows": 750},
        {"data_source": "code", "ability": "code", "split": "train", "rows": 250},
        {"data_source": "code", "ability": "code", "split": "test", "rows": 10},
    ]
    told = lines_of(record_of(composition=composition))
    start = told.index("") + 1
    assert [line.split() for line in told[start : start + 4]] == [
        ["data_source", "ability", "split", "rows", "share"],
        ["openai/gsm8k", "math", "train", "750", "75.0", "%"],
        ["code", "code", "train", "250", "25.0", "%"],
        ["code", "code", "test", "10", "100.0", "%"],
    ]


def test_repeats_name_the_option_that_removes_them() -> None:
    exact = {"train": 4, "test": 0, "leaked": 2, "leaked_test": 2}
    normalized = {"train": 4, "test": 1, "leaked": 3, "leaked_test": 2}
    record = record_of(repeats={"exact": exact, "normalized": normalized, "conflicting": 6})
    told = lines_of(record)[3:]
    assert told == [
        "4 train rows have an earlier one's prompt (4 exactly):",
        "  --remove-duplicates exact",
        "1 test rows have an earlier one's prompt (0 exactly):",
        "  --remove-duplicates normalized",
        "3 train rows have a test row's prompt (2 exactly):",
        "  --remove-leakage normalized",
        "6 rows have the prompt of a row with another ground truth",
        "",
    ]


def test_many_files_and_many_kinds_of_rows_are_cut_and_told() -> None:
    sources = [FileRecord(f"{number}.jsonl", "aa", 5, "gsm8k", "train", read=1) for number in range(1000)]
    composition = [{"data_source": f"s{n}", "ability": "a", "split": "train", "rows": 1} for n in range(1000)]
    told = lines_of(record_of(sources=sources, composition=composition))
    assert "and 980 more files" in told
    assert "and 980 more" in told
    assert len(told) < 60


def test_files_that_are_not_read_are_told() -> None:
    assert "gsm8k/test.jsonl" in lines_of(record_of(not_used=["gsm8k/test.jsonl"]))[-2]


def test_columns_line_up() -> None:
    assert table(("name", "rows"), [("a", 1), ("longer", 12_345)]) == [
        "name      rows",
        "a            1",
        "longer  12,345",
    ]


@given(st.text(st.characters(), max_size=200), st.integers(3, 80))
def test_no_text_moves_a_cursor_or_breaks_a_line(text: str, width: int) -> None:
    found = shortened(text, width)
    assert found.isprintable()
    assert len(found) <= width


@given(st.text(st.characters(), max_size=100))
def test_reports_fit_a_terminal_whatever_the_data_holds(text: str) -> None:
    billions = 10**10
    repeats = {"train": billions, "test": billions, "leaked": billions, "leaked_test": billions}
    record = record_of(
        sources=[FileRecord(text, "aa", 5, "prompt_response", "train", None, billions, billions, billions)],
        parts=[PartRecord(text, billions, billions, billions, billions, billions, billions)],
        composition=[{"data_source": text, "ability": text, "split": "train", "rows": billions}],
        repeats={"exact": repeats, "normalized": repeats, "conflicting": billions},
        not_used=[text],
    )
    for line in report_lines(record, Counter({text: billions}), text):
        assert line.isprintable(), ascii(line)
        assert len(line) <= 80, line
