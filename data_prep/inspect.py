# PYTHON_ARGCOMPLETE_OK
"""What is in a file for verl: ``python -m data_prep.inspect FILE...`` shows it in the terminal.

Rows, columns, composition, turns, histograms of lengths, and some rows, in bounded memory.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from data_prep.command_line import CommandParser, fail, named, quiet_imports, run

if __name__ == "__main__":
    quiet_imports(extra="data")

from data_prep.errors import DataError
from data_prep.histogram import Histogram
from data_prep.lengths import PromptLengths
from data_prep.pretty import escape, fit, row_lines, table_lines
from data_prep.printing import printable
from data_prep.raw_summary import RawSummary, summarize_raw
from data_prep.summary import COMPOSITION, Summary, rows_at, summarize
from data_prep.written import UNREADABLE, is_parquet, open_parquet, unreadable

_WIDTH = 80
_LEAST_WIDTH = 60
_SHOWN_GROUPS = 20
_SHOWN_ROLES = 8
_PATH_CHARS = 4096

_NOTES = """\
FILE is parquet as data_prep.convert writes it, or any file that it reads (JSONL, JSON, CSV, other parquet, .gz, \
.zst, - for standard input): fields, lengths of texts and rows are shown of those.
"""
_EXAMPLES = (
    "python -m data_prep.inspect data/train.parquet",
    "python -m data_prep.inspect data/train.parquet --rows 0 --row 17 --row 399",
    "python -m data_prep.inspect data/train.parquet data/test.parquet \\\n    --tokenizer models/Qwen3-4B --json",
)


def summary_lines(found: Summary, width: int, *, plain: bool = False) -> Iterator[str]:
    """A summary as lines of ``width`` columns at most; ``plain``: ASCII bars."""
    yield fit(f"{found.rows:,} rows, {_size(found.bytes)}", width)
    yield ""
    room = min(max(map(len, found.columns), default=0), width // 2)
    for name, kind in found.columns.items():
        yield fit(f"  {escape(name):<{room}}  {kind}", width)
    if found.groups:
        yield ""
        yield from _composition(found, width)
    if found.messages:
        yield ""
        yield from _turns(found, width)
    yield from _lengths(found.lengths, width, plain)
    if found.refused:
        yield ""
        yield fit(
            f"{found.refused:,} prompts are refused by the chat template: verl drops them in silence.", width
        )
        yield "python -m data_prep.validate --tokenizer DIR lists them."


def raw_lines(found: RawSummary, width: int, *, plain: bool = False) -> Iterator[str]:
    """As :func:`summary_lines`, of a file that is not converted yet."""
    yield fit(f"{found.rows:,} rows, {_size(found.bytes)}, {found.kind}", width)
    if found.bad:
        yield fit(f"{found.bad:,} rows cannot be used:", width)
        yield from (fit(f"  {problem}", width) for problem in found.problems)
    yield ""
    rows = [
        [name, ", ".join(f"{kind} {count:,}" if len(kinds) > 1 else kind for kind, count in kinds.most_common()),
         f"{sum(kinds.values()):,}"]
        for name, kinds in found.fields.items()
    ]  # fmt: skip
    yield from table_lines(["field", "type", "rows"], rows, width, 1)
    yield from _lengths(found.lengths, width, plain)


def _lengths(lengths: dict[str, Histogram], width: int, plain: bool) -> Iterator[str]:
    for label, found in lengths.items():
        yield ""
        if not found.count:
            yield fit(f"{label}: none", width)
            continue
        figures = found.figures()
        shares = ", ".join(f"{share[1:]} % up to {figures[share]:,}" for share in ("p50", "p95", "p99"))
        yield fit(label, width)
        yield fit(f"  {figures['low']:,} to {figures['high']:,}, mean {figures['mean']:,}; {shares}", width)
        yield from (f"  {line}" for line in found.lines(width - 2, plain=plain))


def _composition(found: Summary, width: int) -> Iterator[str]:
    names = [path.rpartition(".")[2] for path in COMPOSITION]
    groups = found.groups.most_common(_SHOWN_GROUPS)
    rows = [[*group, f"{count:,}", f"{count / found.rows:.1%}"] for group, count in groups]
    yield from table_lines([*names, "rows", "share"], rows, width, 2)
    if len(found.groups) > len(groups):
        left = sum(found.groups.values()) - sum(count for _, count in groups)
        yield fit(f"and {len(found.groups) - len(groups):,} more combinations, {left:,} rows (--json)", width)


def _turns(found: Summary, width: int) -> Iterator[str]:
    roles = found.roles.most_common(_SHOWN_ROLES)
    rows = [[name or "-", f"{count:,}", f"{count / found.rows:.1%}"] for name, count in roles]
    yield from table_lines(["roles of a prompt's messages", "rows", "share"], rows, width, 2)
    if len(found.roles) > len(roles):
        yield fit(
            f"and {len(found.roles) - len(roles):,} more (--json); {max(found.messages)} messages at most", width
        )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, {"bytes": "KB", "KB": "MB", "MB": "GB", "GB": "TB"}[unit]
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def _parser() -> CommandParser:
    parser = CommandParser(
        "data_prep.inspect",
        "Show what is in each file: composition, turns, lengths, rows.",
        notes=_NOTES,
        examples=_EXAMPLES,
        exit_codes={0: "shown", 1: "a file cannot be read, or lacks a row", 2: "usage"},
    )
    parser.add_argument("files", nargs="+", type=named, metavar="FILE", help="files, or - for standard input")
    parser.add_argument("--rows", type=int, default=2, metavar="N", help="show the first N rows [%(default)s]")
    parser.add_argument(
        "--row", type=int, action="append", default=[], metavar="K", help="show row K, from 0; may be given again"
    )
    parser.add_argument(
        "--tokenizer", type=named, metavar="DIR", help="folder of the model: count the tokens of prompts too"
    )
    parser.add_argument("--json", action="store_true", help="print the reports as a JSON list")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 shown, 1 a file cannot be read or lacks a row; usage errors exit with 2."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.rows < 0 or any(number < 0 for number in args.row):
        parser.error("--rows and --row count from 0")
    try:
        lengths = PromptLengths(args.tokenizer) if args.tokenizer is not None else None
    except DataError as error:
        return fail(str(error), as_json=args.json)
    width = max(shutil.get_terminal_size((_WIDTH, 24)).columns, _LEAST_WIDTH)
    reports: list[dict[str, Any]] = []
    done = True
    for path in args.files:
        found: Summary | RawSummary
        try:
            if str(path) == "-" or not is_parquet(path):
                found = summarize_raw(path, {*range(args.rows), *args.row})
                rows = found.shown
            else:
                found = summarize(path, lengths)
                with open_parquet(path) as file:
                    rows = rows_at(file, [*range(min(args.rows, found.rows)), *args.row])
        except DataError as error:
            done, told = False, printable(str(error), _PATH_CHARS)
            fail(told)
            reports.append({"path": str(path), "error": told})
            continue
        except UNREADABLE as error:
            done, told = False, f"{printable(str(path), _PATH_CHARS)}: {unreadable(error)}"
            fail(told)
            reports.append({"path": str(path), "error": told})
            continue
        lacking = [number for number in args.row if number >= found.rows]
        if lacking:
            told = f"no row {lacking[0]}: its rows are 0 to {found.rows - 1}" if found.rows else "it has no rows"
            fail(f"{printable(str(path), _PATH_CHARS)}: {told}")
            done = False
        if args.json:
            reports.append({**found.as_json(), "shown": [{"row": number, "value": row} for number, row in rows]})
        else:
            _tell(found, rows, width)
    if args.json:
        print(json.dumps(reports, indent=2, default=ascii))
    return 0 if done else 1


def _tell(found: Summary | RawSummary, rows: list[tuple[int, dict[str, Any]]], width: int) -> None:
    encoding = sys.stdout.encoding or "ascii"
    plain = "█".encode(encoding, "replace") == b"?"
    if isinstance(found, RawSummary):
        figures = raw_lines(found, width, plain=plain)
    else:
        figures = summary_lines(found, width, plain=plain)
    lines = [printable(found.path, _PATH_CHARS), *figures]
    for number, row in rows:
        lines += ["", f"row {number:,}", *(f"  {line}" for line in row_lines(row, width - 2))]
    # A terminal that cannot show a character gets its escape.
    print("\n".join([*lines, ""]).encode(encoding, "backslashreplace").decode(encoding))


if __name__ == "__main__":
    sys.exit(run(main))
