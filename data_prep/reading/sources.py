"""Which files a SOURCE on the command line stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import DataError
from data_prep.reading.compression import SUFFIXES
from data_prep.reading.files import STDIN, kind_of

SAMPLE_PREFIX = "sample:"
_SAMPLES = Path(__file__).resolve().parents[1] / "samples"
# Names that say which part of a data set a file is, not which data set.
_SPLIT_NAME = re.compile(r"(?:train|test|val|valid|validation|dev|data)(?:[-_.]\d+(?:-of-\d+)?)?", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """Files to read, in order; ``test`` is empty where the source has no test split of its own.

    ``name`` is what rows get as data_source where nothing else gives them one.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    name: str


def resolve(source: str) -> Found:
    """Files of one SOURCE: ``sample:NAME`` (shipped), ``-``, a folder with train.* (and test.*), or a file.

    Raises:
        DataError: there is no such sample, or no train.* in the folder.
    """
    if source == STDIN:
        return Found((STDIN,), (), "stdin")
    if source.startswith(SAMPLE_PREFIX):
        name = source.removeprefix(SAMPLE_PREFIX)
        known = sorted(path.name for path in _SAMPLES.iterdir() if path.is_dir())
        if name not in known:
            raise DataError(f"{source}: no such sample. Shipped: {', '.join(SAMPLE_PREFIX + k for k in known)}")
        return _folder(_SAMPLES / name)
    path = Path(source)
    return _folder(path) if path.is_dir() else Found((source,), (), _name(path))


def _folder(folder: Path) -> Found:
    for place in (folder, folder / "data"):
        train = _split(place, "train")
        if train:
            return Found(train, _split(place, "test"), _text(folder.resolve().name))
    raise DataError(
        f"{folder}: no train.jsonl, .json, .csv, .tsv or .parquet in it or in its data folder (also train-*, .gz, "
        ".zst); give the files themselves."
    )


def _split(folder: Path, split: str) -> tuple[str, ...]:
    if not folder.is_dir():
        return ()
    own = re.compile(rf"{split}(?:-[\w.-]+)?\.[a-z.]+")
    found = (path for path in folder.iterdir() if own.fullmatch(path.name) and kind_of(path.name))
    files = sorted(found, key=_numbered)
    stems = {_extension(path) for path in files}
    if len(stems) > 1:
        raise DataError(
            f"{folder}: {split} is there as {', '.join(sorted(stems))}; give the files that are meant themselves."
        )
    return tuple(map(str, files))


def _numbered(path: Path) -> list[tuple[int, str]]:
    """Sorts train-2 before train-10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.name)]


def _extension(path: Path) -> str:
    return "".join(path.suffixes[-2:]) if path.suffix in SUFFIXES else path.suffix


def _name(path: Path) -> str:
    stem = path.name
    while Path(stem).suffix.lower() in SUFFIXES or kind_of(stem):
        stem = Path(stem).stem
    if _SPLIT_NAME.fullmatch(stem):
        stem = path.resolve().parent.name or stem
    return _text(stem)


def _text(name: str) -> str:
    """A file name that is not UTF-8, with its odd bytes escaped."""
    return name.encode("utf-8", "backslashreplace").decode()
