"""Which files a SOURCE on the command line stands for, and in which format they are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from data_prep.errors import DataError
from data_prep.jsonl import read_rows

SAMPLE_PREFIX = "sample:"
_SAMPLES = Path(__file__).resolve().parent / "samples"


@dataclass(frozen=True)
class Source:
    """Files to read, in order; ``test`` is empty where the source has no test split of its own."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]


def _existing_file(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"{path}: no such file. Give a JSONL file, a folder with train.jsonl, or sample:gsm8k.")
    if not path.is_file():
        raise DataError(f"{path}: not a regular file.")
    return path


def _folder(folder: Path) -> Source:
    test = folder / "test.jsonl"
    return Source((_existing_file(folder / "train.jsonl"),), (test,) if test.is_file() else ())


def resolve(source: str) -> Source:
    """Files of one SOURCE: ``sample:NAME`` (shipped), a folder with train.jsonl (and test.jsonl), or a file.

    Raises:
        DataError: there is no such sample, folder or file.
    """
    if source.startswith(SAMPLE_PREFIX):
        name = source.removeprefix(SAMPLE_PREFIX)
        known = sorted(path.name for path in _SAMPLES.iterdir() if path.is_dir())
        if name not in known:
            raise DataError(f"{source}: no such sample. Shipped: {', '.join(SAMPLE_PREFIX + k for k in known)}")
        return _folder(_SAMPLES / name)
    path = Path(source)
    return _folder(path) if path.is_dir() else Source((_existing_file(path),), ())


def resolve_all(sources: list[str], test_file: str | None) -> Source:
    """All SOURCEs in the order given. ``test_file`` replaces the test splits that the sources bring.

    Raises:
        DataError: see :func:`resolve`; or the test file is also a source.
    """
    parts = [resolve(source) for source in sources]
    train = tuple(path for part in parts for path in part.train)
    if test_file is None:
        return Source(train, tuple(path for part in parts for path in part.test))
    test = _existing_file(Path(test_file))
    if any(test.samefile(path) for path in train):
        raise DataError(f"--test-file {test} is also a source: the test rows would be trained on.")
    return Source(train, (test,))


def detect_format(path: Path) -> str:
    """Name of the format of ``path``, by the fields of its first row.

    Raises:
        DataError: no row, or a row of no known format.
    """
    for _, row in islice(read_rows(path), 1):
        if {"question", "answer"} <= row.keys():
            return "gsm8k"
        raise DataError(
            f"{path}: format not recognised by the fields of its first row ({', '.join(map(repr, row))}). "
            "Known: gsm8k ('question', 'answer'). Name it with --format to see what each row lacks."
        )
    raise DataError(f"{path}: no rows.")
