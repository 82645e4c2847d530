"""Raw data to the parquet files that verl reads: ``python -m data_prep.convert SOURCE... --out DIR``.

    python -m data_prep.convert sample:gsm8k --out data

writes data/train.parquet and data/test.parquet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

from data_prep import gsm8k
from data_prep.errors import DataError, FieldError, RowError
from data_prep.jsonl import count_rows, read_rows
from data_prep.schema import VerlRow
from data_prep.sources import Source, detect_format, resolve_all
from data_prep.split import is_test, parse_test_size, test_rows
from data_prep.writer import ParquetSink

FORMATS = ("gsm8k",)

_EPILOG = """\
SOURCE is a JSONL file, a folder that holds train.jsonl (and test.jsonl), or sample:gsm8k, a shipped sample of
400 + 100 rows. Rows keep their order. A row that cannot be used stops the conversion and nothing is written.

example:
  python -m data_prep.convert sample:gsm8k --out data
  python -m data_prep.convert gsm8k/train.jsonl --test-size 0.05 --out data

exit codes: 0 written; 1 the data cannot be used (nothing is written); 2 usage.
"""


@dataclass(frozen=True)
class Options:
    """What :func:`convert` needs beside the files. ``data_source`` None means the format's own name."""

    format: str = "auto"
    data_source: str | None = None
    ground_truth: gsm8k.GroundTruth = "answer"
    test_size: Fraction | int | None = None


@dataclass(frozen=True)
class Summary:
    """What was written. ``test`` is None where no test split was asked for."""

    train: str
    train_rows: int
    test: str | None
    test_rows: int
    format: str
    data_source: str
    sources: list[str]


class _Converter:
    """Rows of files in one format, with the position within each split."""

    def __init__(self, options: Options, source: Source) -> None:
        named = FORMATS if options.format == "auto" else (options.format,)
        for path in (*source.train, *source.test) if options.format == "auto" else ():
            detect_format(path)
        self.format = named[0]
        self.data_source = options.data_source or gsm8k.DATA_SOURCE
        self._ground_truth = options.ground_truth

    def row(self, path: Path, line: int, raw: dict[str, object], split: str, index: int) -> VerlRow:
        try:
            return gsm8k.to_verl(
                raw, data_source=self.data_source, split=split, index=index, ground_truth=self._ground_truth
            )
        except FieldError as error:
            raise RowError(str(path), line, error.field, error.expected) from error


def _rows(paths: tuple[Path, ...]) -> Iterator[tuple[Path, int, dict[str, object]]]:
    for path in paths:
        for line, raw in read_rows(path):
            yield path, line, raw


def convert(source: Source, out: Path, options: Options) -> Summary:
    """Write ``out``/train.parquet and, where there is a test split, ``out``/test.parquet.

    Both files appear only after every row of both was converted. Memory does not grow with the input.

    Raises:
        RowError: a row that cannot be used, with file, line and field.
        DataError: a split without rows; a test.parquet of an earlier run that this run does not replace.
    """
    if options.test_size is not None:
        source = Source(source.train, ())
    train_path, test_path = out / "train.parquet", out / "test.parquet"
    with_test = options.test_size is not None or bool(source.test)
    if not with_test and test_path.exists():
        raise DataError(
            f"{test_path} is there from an earlier run and this run makes no test split: "
            "give --test-size or --test-file, or remove it."
        )
    converter = _Converter(options, source)
    total = count = 0
    if options.test_size is not None:
        total = sum(count_rows(path) for path in source.train)
        count = test_rows(total, options.test_size)

    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        train = stack.enter_context(ParquetSink(train_path))
        test = stack.enter_context(ParquetSink(test_path)) if with_test else None
        for position, (path, line, raw) in enumerate(_rows(source.train)):
            if test is not None and count and is_test(position, total, count):
                test.add(converter.row(path, line, raw, "test", test.rows))
            else:
                train.add(converter.row(path, line, raw, "train", train.rows))
        for path, line, raw in _rows(source.test):
            assert test is not None
            test.add(converter.row(path, line, raw, "test", test.rows))
        sinks = [train] if test is None else [train, test]
        for sink in sinks:
            if not sink.rows:
                raise DataError(f"{sink.path.stem}: no rows in {', '.join(map(str, source.train + source.test))}")
            sink.finish()
        for sink in sinks:
            sink.publish()
    return Summary(
        train=str(train_path),
        train_rows=train.rows,
        test=str(test_path) if test is not None else None,
        test_rows=test.rows if test is not None else 0,
        format=converter.format,
        data_source=converter.data_source,
        sources=[str(path) for path in source.train + source.test],
    )


def _test_size(text: str) -> Fraction | int:
    try:
        return parse_test_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.convert",
        description="Write the train.parquet and test.parquet that verl reads.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="file, folder or sample:gsm8k, in order")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder to write to, made if missing"
    )
    parser.add_argument("--format", choices=("auto", *FORMATS), default="auto", help="default: by the first row")
    parser.add_argument(
        "--data-source", metavar="NAME", help=f"data_source of each row (default {gsm8k.DATA_SOURCE})"
    )
    parser.add_argument(
        "--ground-truth",
        choices=("answer", "question"),
        default="answer",
        help="what the reward function gets: the final number, for a rule (default), or the question, "
        "for a reward model that scores the pair (question, response)",
    )
    split = parser.add_mutually_exclusive_group()
    split.add_argument("--test-file", metavar="FILE", help="JSONL file with the test rows")
    split.add_argument(
        "--test-size",
        type=_test_size,
        metavar="N|SHARE",
        help="take N rows (100) or a share (0.05) for the test split, evenly spaced over the sources",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 written, 1 the data cannot be used; usage errors exit with 2."""
    args = _parser().parse_args(argv)
    options = Options(args.format, args.data_source, args.ground_truth, args.test_size)
    try:
        summary = convert(resolve_all(args.sources, args.test_file), args.out, options)
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(asdict(summary)))
        return 0
    print(f"{summary.train}: {summary.train_rows} rows ({summary.data_source})")
    if summary.test is None:
        print(
            "no test split: verl needs one as data.val_files; give --test-size or --test-file",
            file=sys.stderr,
        )
    else:
        print(f"{summary.test}: {summary.test_rows} rows ({summary.data_source})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
