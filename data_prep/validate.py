# PYTHON_ARGCOMPLETE_OK
"""Whether verl will read a parquet file as intended: ``python -m data_prep.validate FILE.parquet...``.

verl counts a row whose prompt does not fit the chat template as too long and drops it without an error
(``maybe_filter_out_long_prompts`` in verl/utils/dataset/rl_dataset.py, 0.6.1 and 0.9.1); they are found here. It
joins the files of one list, and stops where a value has two types; that is found too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_prep.command_line import CommandParser, fail, named, quiet_imports, run

if __name__ == "__main__":
    quiet_imports(extra="data")

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.errors import DataError, FieldError
from data_prep.lengths import PromptLengths
from data_prep.printing import printable
from data_prep.row_checks import bad_rows
from data_prep.verl_schema import COLUMNS, schema_notes, schema_problems, unlike
from data_prep.written import UNREADABLE, batches, open_parquet, unreadable
from data_prep.written_record import record_note

_SHOWN_PROBLEMS = 10
_PROMPTS_AT_ONCE = 512

_NOTES = """\
A row that verl would drop in silence or fail on is a problem, and so are files that verl could not join (give \
those for training and those for validation apart). What verl reads, but maybe not as intended, is a note.
"""
_EXAMPLES = (
    "python -m data_prep.validate data/train.parquet data/test.parquet",
    "python -m data_prep.validate data/train.parquet \\\n    --tokenizer models/Qwen3-4B --max-prompt-tokens 1024",
)


@dataclass
class Tokens:
    """Tokens of the prompts of one file, by the chat template.

    Attributes:
        longest, mean: of the prompts that the template takes.
        too_long: prompts with more than the allowed number, which verl leaves out.
        refused: prompts that the template or the tokenizer refuses, which verl leaves out too.
    """

    longest: int = 0
    mean: float = 0.0
    too_long: int = 0
    refused: int = 0


@dataclass
class FileReport:
    """What was found in one file; it is fit for verl where ``problems`` is empty.

    Attributes:
        rows: in the file; 0 where it cannot be read.
        bad: rows with a problem.
        tokens: None without a tokenizer, and where the schema is not verl's.
    """

    path: str
    rows: int = 0
    bad: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tokens: Tokens | None = None


class _Problems:
    """Problems of rows: the first ones in words, all of them in number."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, row: int, problem: str) -> None:
        self.count += 1
        if len(self._first) < _SHOWN_PROBLEMS:
            self._first.append(f"row {row}: {problem}")

    def told(self, more: str) -> list[str]:
        left = self.count - len(self._first)
        return [*self._first, f"and {left} more {more}"] if left else self._first


def check_file(
    path: Path, lengths: PromptLengths | None = None, max_prompt_tokens: int | None = None
) -> tuple[FileReport, pa.Schema | None]:
    """Read the whole file, in the memory of one batch; rows are counted from 0.

    Returns:
        The report, and the file's schema, None where it cannot be read.
    """
    report = FileReport(str(path))
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            report.rows = file.metadata.num_rows
            report.problems += schema_problems(schema)
            if not report.problems:
                report.notes += schema_notes(schema)
                if not report.rows:
                    report.problems.append("no rows")
                _check_rows(report, file, lengths, max_prompt_tokens)
        note = record_note(path, report.rows)
    except UNREADABLE as error:
        return FileReport(str(path), problems=[unreadable(error)]), None
    if note is not None:
        report.notes.append(note)
    return report, schema


def _check_rows(
    report: FileReport, file: pq.ParquetFile, lengths: PromptLengths | None, max_prompt_tokens: int | None
) -> None:
    bad, tokens = _Problems(), _TokenCheck(lengths, max_prompt_tokens) if lengths is not None else None
    first = 0
    for batch in batches(file, COLUMNS):
        wrong = set()
        for place, problem in bad_rows(batch):
            bad.add(first + place, problem)
            wrong.add(place)
        if tokens is not None:
            tokens.add(batch, first, wrong)
        first += len(batch)
    report.problems += bad.told("rows")
    report.bad = bad.count
    if tokens is not None:
        report.tokens = tokens.figures()
        report.problems += tokens.told()


class _TokenCheck:
    """Counts the tokens of prompts that have no other problem."""

    def __init__(self, lengths: PromptLengths, limit: int | None) -> None:
        self._lengths = lengths
        self._limit = limit
        self._found = Tokens()
        self._refused, self._long = _Problems(), _Problems()
        self._counted = self._total = 0

    def add(self, batch: pa.RecordBatch, first: int, without: set[int]) -> None:
        places = [place for place in range(len(batch)) if place not in without]
        prompts = batch.column("prompt")
        for start in range(0, len(places), _PROMPTS_AT_ONCE):
            some = places[start : start + _PROMPTS_AT_ONCE]
            counts = self._lengths.count_many([prompts[place].as_py() for place in some])
            for place, count in zip(some, counts, strict=True):
                self._add(first + place, count)

    def _add(self, row: int, count: int | FieldError) -> None:
        if isinstance(count, FieldError):
            self._refused.add(row, f"prompt: {count.expected}")
            return
        self._counted += 1
        self._total += count
        self._found.longest = max(self._found.longest, count)
        if self._limit is not None and count > self._limit:
            self._long.add(row, f"prompt of {count} tokens, more than {self._limit}: verl leaves it out")

    def figures(self) -> Tokens:
        self._found.mean = round(self._total / self._counted, 1) if self._counted else 0.0
        self._found.too_long, self._found.refused = self._long.count, self._refused.count
        return self._found

    def told(self) -> list[str]:
        return [*self._refused.told("prompts that are refused"), *self._long.told("prompts that are too long")]


def check_files(
    paths: Sequence[Path], lengths: PromptLengths | None = None, max_prompt_tokens: int | None = None
) -> list[FileReport]:
    """A report for each file; one that verl could not join with an earlier one has that as a problem."""
    reports: list[FileReport] = []
    earlier: list[tuple[Path, pa.Schema]] = []
    for path in paths:
        report, schema = check_file(path, lengths, max_prompt_tokens)
        reports.append(report)
        if schema is None:
            continue
        differences = ((other, unlike(known, schema)) for other, known in earlier)
        other, told = next((pair for pair in differences if pair[1] is not None), (None, None))
        if told is not None:
            report.problems.append(
                f"verl cannot join it with {other}: {told}; write both with data_prep.convert, or give the "
                "files for training and those for validation apart"
            )
        if not schema_problems(schema) and not any(schema.equals(known) for _, known in earlier):
            earlier.append((path, schema))
    return reports


def _line(report: FileReport) -> str:
    tokens = report.tokens
    told = f"; prompts of {tokens.mean:g} tokens, {tokens.longest} at most" if tokens is not None else ""
    return f"{report.path}: {report.rows} rows, fit for verl{told}"


def _parser() -> CommandParser:
    parser = CommandParser(
        "data_prep.validate",
        "Say whether verl will read each file as intended.",
        notes=_NOTES,
        examples=_EXAMPLES,
        exit_codes={0: "every file is fit", 1: "a file is not", 2: "usage"},
    )
    parser.add_argument("files", nargs="+", type=named, metavar="FILE.parquet", help="files that verl would join")
    parser.add_argument(
        "--tokenizer",
        type=named,
        metavar="DIR",
        help="folder of the model: its chat template must take every prompt",
    )
    parser.add_argument(
        "--max-prompt-tokens",
        type=int,
        metavar="N",
        help="data.max_prompt_length: longer prompts are problems",
    )
    parser.add_argument("--json", action="store_true", help="print the reports as a JSON list")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 where every file is fit for verl, else 1."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.max_prompt_tokens is not None and (args.tokenizer is None or args.max_prompt_tokens < 1):
        parser.error("--max-prompt-tokens is a number from 1, and needs --tokenizer to count by")
    try:
        lengths = PromptLengths(args.tokenizer) if args.tokenizer is not None else None
    except DataError as error:
        return fail(str(error), as_json=args.json)
    reports = check_files(args.files, lengths, args.max_prompt_tokens)
    if args.json:
        print(json.dumps([asdict(report) for report in reports], indent=2))
    _tell(reports, fit=not args.json)
    return 1 if any(report.problems for report in reports) else 0


def _tell(reports: Sequence[FileReport], *, fit: bool) -> None:
    for report in reports:
        path = printable(report.path, 4096)
        if fit and not report.problems:
            print(printable(_line(report), 4096))
        for problem in report.problems:
            print(f"error: {path}: {problem}", file=sys.stderr)
        for note in report.notes:
            print(f"note: {path}: {note}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run(main))
