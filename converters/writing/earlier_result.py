"""Whether a target may be replaced: nothing that is read lies there, and nothing that no merge wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from converters.errors import ConvertError
from converters.hf import hf_files
from converters.json_file import read_json
from converters.writing import journal

MANIFEST = "merge_manifest.json"
MADE_BY = "converters.merge"
_STEP = re.compile(r"global_step_\d+")
_SHOWN = 10
# What merges wrote before their record named the files.
_WRITTEN = re.compile(
    r"config\.json|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json|README\.md"
    r"|merge_manifest\.json|run_manifest\.json|lora_adapter/adapter_(config\.json|model\.safetensors)"
)


def refuse_overlap(out: Path, trees: Sequence[Path], files: Iterable[Path] = ()) -> None:
    """`out` and a folder that is read must not contain each other, and no file that is read lies in `out`.

    Raises:
        ConvertError: they do; links count for what they lead to.
    """
    target = out.resolve()
    for tree in trees:
        read = tree.resolve()
        if target.is_relative_to(read):
            raise ConvertError(
                f"{out}: lies in the checkpoint or base model {tree}, where nothing is written. Choose another "
                "target."
            )
        if read.is_relative_to(target):
            raise ConvertError(
                f"{out}: the checkpoint or base model {tree} lies in it, and would be replaced. Choose another "
                "target."
            )
    if not target.exists():
        return
    for path in files:
        if path.resolve().is_relative_to(target):
            raise ConvertError(f"{out}: {path} lies in it, which is read. Choose another target.")


def below_the_run(root: Path) -> str:
    """`global_step_7/actor`; without a step in the path the last folder's name."""
    parts = root.absolute().parts
    steps = [place for place, part in enumerate(parts) if _STEP.fullmatch(part)]
    return "/".join(parts[steps[-1] if steps else -1 :])


def refuse_foreign(out: Path) -> None:
    """Everything in `out` was written by a merge.

    Raises:
        ConvertError: there is no record of one, or files that it does not name; they are listed.
    """
    try:
        told = read_json(out / MANIFEST) if (out / MANIFEST).is_file() else {}
    except ConvertError:
        told = {}
    if told.get("made_by") != MADE_BY:
        raise ConvertError(
            f"{out}: not empty, and not made by this command (no {MANIFEST} of it). Choose another target."
        )
    files = told.get("files")
    known = set(map(str, files)) if isinstance(files, list) else None
    strange = [name for name in names(out) if not _written(name, known)]
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise ConvertError(
            f"{out}: holds what no merge wrote: {', '.join(strange[:_SHOWN])}{more}. Move that away, or choose "
            "another target."
        )


def names(folder: Path) -> list[str]:
    """Files and links below `folder`, by their paths from there."""
    found = []
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        found += [Path(parent, name).relative_to(folder).as_posix() for name in (*files, *links)]
    return sorted(found)


def _written(name: str, known: set[str] | None) -> bool:
    if name in (MANIFEST, journal.NAME):
        return True
    if known is not None:
        return name in known
    return _WRITTEN.fullmatch(name) is not None or hf_files.is_kept(name)


def record(folder: Path, told: dict[str, object]) -> None:
    """Write the record of a merge into `folder`, where everything else is written."""
    files = sorted({*names(folder), MANIFEST} - {journal.NAME})
    hf_files.write_json(folder / MANIFEST, {"made_by": MADE_BY, **told, "files": files})
