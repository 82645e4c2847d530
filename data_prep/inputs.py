"""The files of a conversion: found, opened, their format recognised, the columns of the output agreed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from data_prep.errors import DataError
from data_prep.formats.registry import FORMATS, detect
from data_prep.options import Options, SourceOptions
from data_prep.reading.files import InputFile, open_input
from data_prep.reading.sources import Found, resolve
from data_prep.rows import RowSettings
from data_prep.schema import output_fields


@dataclass(frozen=True)
class Input:
    """One file to read.

    Attributes:
        part: number of its source; files with test rows are parts of their own, after all sources.
        test: whether its rows are the test split's.
    """

    file: InputFile
    part: int
    test: bool
    source: SourceOptions
    name: str


@dataclass(frozen=True)
class Inputs:
    """All files, in the order in which they are read.

    Attributes:
        train_parts: how many parts are sources.
        makes_test: whether there is to be a test split.
        not_used: test files that sources bring and that ``--test-size`` and the like replace, as told in messages.
    """

    files: list[Input]
    train_parts: int
    makes_test: bool
    not_used: list[str]


def find_inputs(sources: Sequence[SourceOptions], options: Options, work: Path) -> Inputs:
    """Open every file; ``work`` is a folder for what has to be copied first (standard input).

    Raises:
        DataError: a source or file is missing or unreadable; a file is read for both splits.
    """
    found = [resolve(source.source) for source in sources]
    split_here = options.test_size is not None or options.test_last is not None
    replaced = split_here or bool(options.test_files)
    opened = [
        Input(open_input(path, work), part, False, source, files.name)
        for part, (source, files) in enumerate(zip(sources, found, strict=True))
        for path in files.train
    ]
    tests = list(_test_files(sources, found, options)) if not split_here else []
    opened += [
        Input(open_input(path, work), len(sources) + number, True, source, name)
        for number, (path, source, name) in enumerate(tests)
    ]
    _check_overlap(opened)
    not_used = [path for files in found for path in files.test] if replaced else []
    return Inputs(opened, len(sources), split_here or bool(tests), not_used)


def _test_files(
    sources: Sequence[SourceOptions], found: Sequence[Found], options: Options
) -> Iterator[tuple[str, SourceOptions, str]]:
    """(file, options, name) of each file with test rows: those asked for, else those that sources bring."""
    if not options.test_files:
        for source, files in zip(sources, found, strict=True):
            for path in files.test:
                yield path, source, files.name
        return
    # A test file belongs to the sources: where these agree on something, it is so in the test file too.
    format = _agreed([source.format for source in sources]) or "auto"
    data_source = _agreed([source.data_source for source in sources])
    ability = _agreed([source.ability for source in sources])
    name = _agreed([files.name for files in found])
    for path in options.test_files:
        own = resolve(path)
        if own.test or len(own.train) != 1:
            raise DataError(f"--test-file {path}: expected one file; give the folder's files one by one.")
        yield own.train[0], SourceOptions(path, format, data_source, ability), name or own.name


def _agreed(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None


def _check_overlap(files: Sequence[Input]) -> None:
    train = {_identity(file) for file in files if not file.test}
    for file in files:
        if file.test and _identity(file) in train:
            raise DataError(f"--test-file {file.file.shown} is also a source: the test rows would be trained on.")


def _identity(file: Input) -> tuple[int, int]:
    stat = file.file.origin.stat()
    return stat.st_dev, stat.st_ino


def row_settings(inputs: Sequence[Input], options: Options) -> list[RowSettings]:
    """How the rows of each file are converted; all files give the same columns.

    Raises:
        DataError: a format is not recognised; columns of verl files do not go together.
    """
    formats = [_format_name(file, options) for file in inputs]
    schemas: list[pa.Schema | None] = [
        file.file.arrow_schema if name == "verl" else None for file, name in zip(inputs, formats, strict=True)
    ]
    fields = output_fields(
        ((file.file.shown, schema) for file, schema in zip(inputs, schemas, strict=True)),
        truth_is_text=(options.ground_truth or ("question" if options.style == "model" else "answer"))
        == "question",
    )
    return [
        RowSettings(
            shown=file.file.shown,
            format=name,
            fields=fields,
            default_source=(FORMATS[name].data_source if name in FORMATS else None) or file.name,
            options=options,
            arrow_schema=schema,
            data_source=file.source.data_source,
            ability=file.source.ability,
        )
        for file, name, schema in zip(inputs, formats, schemas, strict=True)
    ]


def _format_name(file: Input, options: Options) -> str:
    if file.source.format != "auto":
        return file.source.format
    return detect(file.file.peek(), file.file.shown).name
