# PYTHON_ARGCOMPLETE_OK
"""What a few rows of a parquet file tell about it: ``python -m data_prep.sample FILE.parquet...``.

Rows, types, splits, and prompts that are too long, from a bounded number of rows and in bounded memory: quick on a
file of any size. ``python -m data_prep.validate`` reads every row.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from data_prep.command_line import CommandParser, fail, named, quiet_imports, run

if __name__ == "__main__":
    quiet_imports(extra="data")

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.printing import printable
from data_prep.row_checks import row_problem
from data_prep.verl_schema import COLUMNS, schema_problems
from data_prep.written import UNREADABLE, batches, open_parquet, unreadable

_GROUPS = 8
# Rows that are decoded at most, of which `--rows` are looked at.
_SCANNED_ROWS = 50_000
_SHOWN_PROBLEMS = 3
# Characters; a shorter ground truth stands in a prompt by chance.
_SHORTEST_QUESTION = 12
_LINE_CHARS = 4096
# Characters of a prompt that are tokenized, for each token that is allowed: enough to know that it is too long.
_CHARACTERS_PER_TOKEN = 40
_ASSUMED_CHARACTERS_PER_TOKEN = 4


class Tokenizer(Protocol):
    """What is used of the class in the `tokenizers` package."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any:
        """The encoding; `ids` are its tokens."""


def load_tokenizer(path: Path | None) -> Tokenizer | None:
    """The tokenizer.json in `path`; None without a file or the package, or where it is broken."""
    if path is None or not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer as Fast
    except ImportError:
        return None
    try:
        found: Tokenizer = Fast.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the package raises nothing more special than Exception
        print(f"{path}: not used: {error}", file=sys.stderr)
        return None
    return found


class Lazy:
    """A tokenizer that is loaded (about a second) when the first prompt needs it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._loaded = False
        self._tokenizer: Tokenizer | None = None

    def get(self) -> Tokenizer | None:
        """The tokenizer, or None where there is none."""
        if not self._loaded:
            self._tokenizer, self._loaded = load_tokenizer(self._path), True
        return self._tokenizer


@dataclass
class Report:
    """One file. `problem` is set where it cannot be read, and nothing else is then.

    Attributes:
        rows: in the whole file.
        types: Arrow type of each value, e.g. `extra_info.index`: int64 and `prompt[].role`: string.
        schema: what keeps verl from reading the file.
        sampled: rows that were looked at, from up to eight places.
        bad_rows, bad: the first rows that verl would drop without a word, and how many of the sample they are.
        too_long: prompts of the sample with more than `max_prompt_length` tokens.
        counted: how tokens were counted: "bytes" (a token is at least one byte, and no prompt has more bytes than
            tokens are allowed), "tokens", or "characters" (four of them for a token: an assumption).
        splits: values of extra_info.split in the sample.
        styles: values of reward_model.style in the sample.
        answers: rows of style `rule` whose ground truth does not stand in the prompt: an answer, no question.
    """

    path: str
    problem: str | None = None
    rows: int = 0
    types: dict[str, str] = field(default_factory=dict)
    schema: list[str] = field(default_factory=list)
    sampled: int = 0
    bad_rows: list[str] = field(default_factory=list)
    bad: int = 0
    too_long: int = 0
    counted: str = "bytes"
    splits: dict[str, int] = field(default_factory=dict)
    styles: dict[str, int] = field(default_factory=dict)
    answers: int = 0


def _sample(file: pq.ParquetFile, rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of rows at equal distances, from up to eight row groups, the first and the last among them.

    Of a large row group only the beginning is decoded.
    """
    groups = file.metadata.num_row_groups
    chosen = sorted({place * (groups - 1) // (_GROUPS - 1) for place in range(_GROUPS)}) if groups else []
    starts = [0]
    for group in range(groups):
        starts.append(starts[-1] + file.metadata.row_group(group).num_rows)
    names = [*COLUMNS, *(["extra_info.split"] if _has_split(file.schema_arrow) else [])]
    each = max(rows // max(len(chosen), 1), 1)
    for group in chosen:
        scanned = min(starts[group + 1] - starts[group], _SCANNED_ROWS // len(chosen))
        step, number = max(-(-scanned // each), 1), 0
        for batch in batches(file, names, row_groups=[group]):
            for place in range(-number % step, min(batch.num_rows, scanned - number), step):
                yield starts[group] + number + place, batch.slice(place, 1).to_pylist()[0]
            number += batch.num_rows
            if number >= scanned:
                break


def _leaves(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, str]]:
    """(name, type) of every value that is no struct or list."""
    for entry in fields:
        yield from _leaves_of(above + entry.name, entry.type)


def _leaves_of(name: str, kind: pa.DataType) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(kind):
        yield from _leaves(kind, f"{name}.")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves_of(f"{name}[]", kind.value_type)
    else:
        yield name, str(kind)


def _has_split(schema: pa.Schema) -> bool:
    if "extra_info" not in schema.names:
        return False
    kind = schema.field("extra_info").type
    return bool(pa.types.is_struct(kind) and "split" in kind.names)


def _texts(prompt: list[dict[str, Any]]) -> list[str]:
    """The contents that are text; parts of other kinds are left to the chat template."""
    return [message["content"] for message in prompt if isinstance(message["content"], str)]


def _is_too_long(prompt: list[dict[str, Any]], limit: int, tokenizer: Lazy) -> tuple[bool, str]:
    """Whether the contents alone, without the chat template's own tokens, pass `limit`; and how that is known."""
    texts = _texts(prompt)
    if sum(len(text.encode()) for text in texts) <= limit:
        return False, "bytes"
    fast = tokenizer.get()
    if fast is None:
        return sum(map(len, texts)) > limit * _ASSUMED_CHARACTERS_PER_TOKEN, "characters"
    tokens = 0
    for text in texts:
        tokens += len(fast.encode(text[: limit * _CHARACTERS_PER_TOKEN], add_special_tokens=False).ids)
        if tokens > limit:
            return True, "tokens"
    return False, "tokens"


def _asks(row: dict[str, Any]) -> bool:
    """Whether the ground truth is a part of the prompt: what a reward model is to score the response with."""
    truth = str(row["reward_model"]["ground_truth"])
    return len(truth) >= _SHORTEST_QUESTION and any(truth in text for text in _texts(row["prompt"]))


def inspect(path: Path, *, rows: int, max_prompt_length: int | None, tokenizer: Lazy) -> Report:
    """Look at `path`; a file that cannot be read is reported, not raised."""
    report = Report(str(path))
    try:
        with open_parquet(path) as file:
            report.rows = file.metadata.num_rows
            report.types = dict(_leaves(file.schema_arrow))
            report.schema = schema_problems(file.schema_arrow)
            if not report.schema:
                _look_at_rows(report, file, rows, max_prompt_length, tokenizer)
    except UNREADABLE as error:
        return Report(str(path), problem=unreadable(error))
    return report


def _look_at_rows(report: Report, file: pq.ParquetFile, rows: int, limit: int | None, tokenizer: Lazy) -> None:
    splits: Counter[str] = Counter()
    styles: Counter[str] = Counter()
    ways = set()
    for number, row in _sample(file, rows):
        report.sampled += 1
        problem = row_problem(row)
        if problem is not None:
            report.bad += 1
            if report.bad <= _SHOWN_PROBLEMS:
                report.bad_rows.append(f"row {number}: {problem}")
        elif limit is not None:
            long, way = _is_too_long(row["prompt"], limit, tokenizer)
            report.too_long += long
            ways.add(way)
        split = (row.get("extra_info") or {}).get("split")
        if isinstance(split, str):
            splits[split[:40]] += 1
        style = (row["reward_model"] or {}).get("style")
        if isinstance(style, str):
            styles[style[:40]] += 1
            report.answers += problem is None and style == "rule" and not _asks(row)
    report.splits = dict(splits.most_common(10))
    report.styles = dict(styles.most_common(10))
    report.counted = next((way for way in ("characters", "tokens") if way in ways), "bytes")


def _line(report: Report) -> str:
    if report.problem is not None:
        return f"{report.path}: {report.problem}"
    found = [*report.schema, *report.bad_rows]
    if report.too_long:
        found.append(f"{report.too_long} of {report.sampled} sampled prompts are too long (by {report.counted})")
    splits = ", ".join(f"{name} {count}" for name, count in report.splits.items())
    told = f"{report.path}: {report.rows} rows, {report.sampled} sampled" + (
        f", split: {splits}" if splits else ""
    )
    return "; ".join([told, *found])


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 where every file can be read and has verl's schema, else 1."""
    parser = CommandParser(
        "data_prep.sample",
        "Say what a few rows of each file tell: rows, types, splits, prompts that are too long.",
        examples=[
            "python -m data_prep.sample data/train.parquet --max-prompt-length 2048 \\\n"
            "    --tokenizer models/Qwen3-4B/tokenizer.json"
        ],
        exit_codes={0: "every file can be read and has verl's schema", 1: "a file is not so", 2: "usage"},
    )
    parser.add_argument("files", nargs="+", type=named, metavar="FILE.parquet", help="files to look at")
    parser.add_argument(
        "--rows", type=int, default=512, metavar="N", help="rows to look at in each file [%(default)s]"
    )
    parser.add_argument("--max-prompt-length", type=int, metavar="TOKENS", help="count prompts that are longer")
    parser.add_argument("--tokenizer", type=named, metavar="FILE", help="tokenizer.json of the model")
    parser.add_argument("--json", action="store_true", help="print the reports as a JSON list")
    args = parser.parse_args(argv)
    if args.rows < 1 or (args.max_prompt_length is not None and args.max_prompt_length < 1):
        parser.error("--rows and --max-prompt-length are at least 1")
    tokenizer = Lazy(args.tokenizer)
    reports = [
        inspect(path, rows=args.rows, max_prompt_length=args.max_prompt_length, tokenizer=tokenizer)
        for path in args.files
    ]
    if args.json:
        print(json.dumps([asdict(report) for report in reports]))
    else:
        for report in reports:
            if report.problem is None:
                print(printable(_line(report), _LINE_CHARS))
    for report in reports:
        if report.problem is not None:
            fail(printable(_line(report), _LINE_CHARS))
    return 1 if any(report.problem or report.schema for report in reports) else 0


if __name__ == "__main__":
    sys.exit(run(main))
