"""The command line of ``python -m data_prep.convert``: arguments to Options."""

from __future__ import annotations

import argparse
import textwrap
from fractions import Fraction
from typing import TypeVar

from data_prep.command_line import CommandParser, filled, named
from data_prep.formats.registry import FORMATS
from data_prep.options import Options, SourceOptions
from data_prep.planning.split import parse_test_size
from data_prep.rows import PLACEHOLDER

_LONGEST_TEXT = 1 << 20

T = TypeVar("T")

_NOTES = """\
SOURCE is a file (JSONL, JSON, CSV, TSV or parquet, each also .gz or .zst), a folder that holds train.* (and \
test.*), - for standard input, or sample:gsm8k, a shipped sample of 400 + 100 rows. Options marked * are given \
once for all sources, or once for each in their order. Rows keep their order unless --shuffle or --weight is given.

formats:
{formats}
  map             anything else: --map prompt=a.b[0] --map ground_truth=c

A row that cannot be used stops the conversion and nothing is written; --skip-bad FILE sets such rows aside. What \
rows hold beside prompt and answer is JSON text in extra_info.metadata. Running again with the same files and \
options does nothing.
"""
_EXAMPLES = (
    "python -m data_prep.convert sample:gsm8k --out data",
    "python -m data_prep.convert gsm8k/train.jsonl --test-size 0.05 --out data",
    "python -m data_prep.convert math.jsonl.gz chat.parquet \\\n"
    "    --weight 3 --weight 1 --test-last 200 --out data",
    "python -m data_prep.convert rows.csv \\\n"
    "    --map prompt=ask --map ground_truth=truth --test-size 100 --out data",
)
_EXIT_CODES = {
    0: "written, or nothing to do",
    1: "the data cannot be used; nothing is written",
    2: "usage",
    3: "as 0, and rows were set aside by --skip-bad",
    130: "stopped by Ctrl-C",
    143: "stopped by SIGTERM",
}


def parser() -> argparse.ArgumentParser:
    """Every option, with help and examples."""
    formats = "\n".join(
        textwrap.fill(format.fields, 76, initial_indent=f"  {name:<16}", subsequent_indent=" " * 18)
        for name, format in FORMATS.items()
    )
    command = CommandParser(
        "data_prep.convert",
        "Write the train.parquet and test.parquet that verl reads.",
        notes=_NOTES.replace("{formats}", formats),
        examples=_EXAMPLES,
        exit_codes=_EXIT_CODES,
    )
    command.add_argument(
        "sources", nargs="+", type=filled, metavar="SOURCE", help="file, folder, - or sample:gsm8k, in order"
    )
    command.add_argument(
        "--out", required=True, type=named, metavar="DIR", help="folder to write to, made if missing"
    )
    command.add_argument(
        "--format",
        action="append",
        choices=("auto", *FORMATS, "map"),
        metavar="FORMAT",
        help="* one of those below [auto: by the first rows]",
    )
    command.add_argument(
        "--data-source",
        action="append",
        type=_name,
        metavar="NAME",
        help="* data_source, by which verl picks a reward rule [the row's, the format's, the file's name]",
    )
    command.add_argument("--ability", action="append", type=_name, metavar="NAME", help="* ability of each row")
    command.add_argument(
        "--weight",
        action="append",
        type=_weight,
        metavar="W",
        help="* share of the source in a blend (3, 0.25) [all rows, one source after the other]",
    )
    command.add_argument(
        "--map",
        action="append",
        default=[],
        type=_mapping,
        metavar="FIELD=PATH",
        help="place of a field, for --format map",
    )

    split = command.add_argument_group("split").add_mutually_exclusive_group()
    split.add_argument(
        "--test-file", action="append", default=[], type=filled, metavar="FILE", help="file with the test rows"
    )
    split.add_argument(
        "--test-size",
        type=_test_size,
        metavar="N|SHARE",
        help="take N rows (100) or a share (0.05) for the test split, evenly spaced",
    )
    split.add_argument(
        "--test-last", type=_at_least_1, metavar="N", help="take the last N rows for the test split"
    )
    command.add_argument("--shuffle", type=int, metavar="SEED", help="shuffle all rows, reproducibly")

    rows = command.add_argument_group("rows")
    rows.add_argument("--system-prompt", type=_text, metavar="TEXT|@FILE", help="system message of every prompt")
    rows.add_argument(
        "--prompt-template",
        type=_template,
        metavar="TEXT|@FILE",
        help=f"the last user message; {PLACEHOLDER} stands for the row's own [the format's]",
    )
    rows.add_argument(
        "--style",
        choices=("rule", "model"),
        help="reward_model.style; model: the question is the ground truth [rule]",
    )
    rows.add_argument(
        "--ground-truth",
        choices=("answer", "question"),
        help="what the reward function gets: the answer, for a rule, or the question, "
        "for a reward model that scores the pair (question, response) [answer]",
    )

    drop = command.add_argument_group("what is left out, and told")
    drop.add_argument(
        "--max-prompt-tokens", type=_at_least_1, metavar="N", help="drop longer prompts; needs --tokenizer"
    )
    drop.add_argument(
        "--tokenizer", type=named, metavar="DIR", help="model folder with tokenizer and chat template"
    )
    kinds = ("exact", "normalized")
    drop.add_argument(
        "--remove-duplicates", choices=kinds, help="drop later rows with the prompt of an earlier one; "
        "normalized: white space and case do not count"
    )  # fmt: skip
    drop.add_argument("--remove-leakage", choices=kinds, help="drop training rows with the prompt of a test row")
    drop.add_argument("--skip-bad", type=named, metavar="FILE", help="set bad rows aside there, with the reasons")

    command.add_argument("--force", action="store_true", help="convert even where nothing has changed")
    command.add_argument(
        "--workers", type=_workers, metavar="N", help="processes that read [by input and processors]"
    )
    command.add_argument("--quiet", action="store_true", help="no progress, no table")
    command.add_argument("--json", action="store_true", help="print the record (dataset.json) as JSON")
    return command


def _test_size(text: str) -> Fraction | int:
    try:
        return parse_test_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _weight(text: str) -> Fraction:
    try:
        # An exponent could stand for a number of any length.
        weight = Fraction(text if len(text) <= 40 and "e" not in text.lower() else "")
    except (ValueError, ZeroDivisionError):
        weight = Fraction(0)
    if weight <= 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, like 3 or 0.25, got {text!r}")
    return weight


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least}, got {text!r}")
    return number


def _at_least_1(text: str) -> int:
    return _whole(text, 1)


def _workers(text: str) -> int:
    return _whole(text, 0)


def _mapping(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not name or not equals or not path:
        raise argparse.ArgumentTypeError(f"expected FIELD=PATH, like prompt=messages[0].content, got {text!r}")
    return name, path


def _name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError("not UTF-8") from error
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a name, got nothing")
    return text


def _text(text: str) -> str:
    """The text itself, or the content of the file that ``@FILE`` names."""
    if not text.startswith("@"):
        found = text
    else:
        try:
            with open(text[1:], encoding="utf-8", newline="") as file:  # noqa: PTH123  newlines stay as they are
                found = file.read(_LONGEST_TEXT + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"{text[1:]}: {error}") from error
        if len(found) > _LONGEST_TEXT:
            raise argparse.ArgumentTypeError(f"{text[1:]}: longer than {_LONGEST_TEXT} characters")
        found = found.removesuffix("\n")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError("not UTF-8") from error
    if not found.strip():
        raise argparse.ArgumentTypeError("expected text, got nothing")
    return found


def _template(text: str) -> str:
    found = _text(text)
    if PLACEHOLDER not in found:
        raise argparse.ArgumentTypeError(f"expected {PLACEHOLDER} in it, where the row's own text goes")
    return found


def _each(parser: argparse.ArgumentParser, name: str, given: list[T] | None, sources: int) -> list[T] | list[None]:
    """One value for each source: given once, it is for all of them."""
    if given is None:
        return [None] * sources
    if len(given) == 1:
        return given * sources
    if len(given) != sources:
        parser.error(f"--{name} is given {len(given)} times for {sources} sources: give it once, or once for each")
    return given


def options_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[list[SourceOptions], Options]:
    """What the arguments ask for; exits with 2 where they do not go together."""
    count = len(args.sources)
    columns = [
        _each(parser, name, given, count)
        for name, given in (
            ("format", args.format),
            ("data-source", args.data_source),
            ("ability", args.ability),
            ("weight", args.weight),
        )
    ]
    sources = [
        SourceOptions(source, format or ("map" if args.map else "auto"), data_source, ability, weight)
        for source, format, data_source, ability, weight in zip(args.sources, *columns, strict=True)
    ]
    mapping = dict(args.map)
    if len(mapping) != len(args.map):
        parser.error("--map names one field twice")
    if bool(mapping) != any(source.format == "map" for source in sources):
        parser.error("--map FIELD=PATH and --format map go together")
    if mapping and "prompt" not in mapping:
        parser.error("--map prompt=PATH is missing: without a prompt there is no row")
    if (args.max_prompt_tokens is None) != (args.tokenizer is None):
        parser.error("--max-prompt-tokens and --tokenizer go together")
    if args.sources.count("-") + args.test_file.count("-") > 1:
        parser.error("standard input (-) can be read once")
    return sources, Options(
        mapping=mapping,
        test_files=tuple(args.test_file),
        test_size=args.test_size,
        test_last=args.test_last,
        shuffle=args.shuffle,
        system_prompt=args.system_prompt,
        prompt_template=args.prompt_template,
        style=args.style,
        ground_truth=args.ground_truth,
        max_prompt_tokens=args.max_prompt_tokens,
        tokenizer=args.tokenizer,
        remove_duplicates=args.remove_duplicates,
        remove_leakage=args.remove_leakage,
        skip_bad=args.skip_bad,
    )
