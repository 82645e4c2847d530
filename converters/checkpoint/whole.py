"""Whether a saved step of verl is whole, by names, sizes and tables of contents; no tensor is read, no code run.

A save that was cut (time limit, power, full disk) leaves files out, short, or without what is written last: the
central directory of a `torch.save` file, `.metadata` and `metadata.json` of a dist_ckpt, `ckpt_contents.json` of
layout v2, `fsdp_config.json`, and `data.pt` of the whole step (verl 0.6.1 to 0.9.1, `_save_checkpoint` of the
trainers and `utils/checkpoint/*_checkpoint_manager.py`; layouts: `converters/checkpoint/locate.py`).
"""

from __future__ import annotations

import errno
import re
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from converters.checkpoint import fsdp, torch_dist
from converters.checkpoint.locate import ROLES
from converters.errors import ConvertError
from converters.hf import hf_model
from converters.hf.names import ADAPTER_CONFIG
from converters.json_file import read_json

_RANK_FILE = re.compile(r"(model|optim|extra_state)_world_size_(\d{1,7})_rank_(\d{1,7})\.pt")
_MOST_TOLD = 20
MANIFEST = "ckpt_contents.json"
_PARTS_OF_V2 = ("model", "optimizer", "extra")


def problems_of_step(step: Path) -> list[str]:
    """What is missing, short or damaged in `global_step_N`, 20 lines at most; empty when verl can go on from it.

    Raises:
        OSError: it cannot be read just now, which says nothing of the save: no permission, a fault of the disk.

    The critic is checked where there is one: `data.pt`, which is written after both, tells of one that never came.
    """
    problems = []
    if not (step / "actor").is_dir():
        problems.append("actor: missing")
    for role in ROLES:
        if (step / role).is_dir():
            problems += _told(step, _role_problems, step / role)
    problems += _told(step, _torch_file_problems, step / "data.pt")
    more = len(problems) - _MOST_TOLD
    return problems if more <= 0 else [*problems[: _MOST_TOLD - 1], "... and more"]


def _told(step: Path, check: Callable[[Path], Iterator[str]], path: Path) -> list[str]:
    """The problems that `check` finds, or stops at."""
    found: list[str] = []
    try:
        found += check(path)
    except (ConvertError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        # The advice is for a merge.
        found.append(re.sub(r"\s+(Copy|Take) [^\n]*$", "", str(error)).replace(f"{step}/", ""))
    return [line for line in found if line]


def _role_problems(role: Path) -> Iterator[str]:
    """Problems in the folder of one role, whatever its layout."""
    if any(_RANK_FILE.fullmatch(path.name) for path in role.iterdir()):
        yield from _fsdp_problems(role)
    elif (role / MANIFEST).exists() or any((role / part).is_dir() for part in _PARTS_OF_V2):
        yield from _v2_problems(role)
    elif (role / "dist_ckpt").is_dir():
        yield from _dist_problems(role / "dist_ckpt")
        if hf_model.has_weights(role / "huggingface"):
            hf_model.read_index(role / "huggingface")
        elif not torch_dist.holds_model(role / "dist_ckpt"):
            yield f"{role.name}: no model in dist_ckpt, and no *.safetensors in huggingface"
    else:
        folder = role / "huggingface" if (role / "huggingface").is_dir() else role
        if not hf_model.has_weights(folder):
            yield f"{role.name}: no weights: no *_world_size_*_rank_*.pt, dist_ckpt or *.safetensors"
        else:
            hf_model.read_index(folder)


def _fsdp_problems(role: Path) -> Iterator[str]:
    """Every rank has the files that rank 0 has; shards of an earlier world size do not count."""
    config = role / "fsdp_config.json"
    if not config.is_file():
        yield f"{role.name}/{config.name}: missing: rank 0 did not come to its end"
        return
    world = fsdp.world_size(config)
    found = (_RANK_FILE.fullmatch(path.name) for path in role.iterdir())
    matches = [match for match in found if match and int(match[2]) == world]
    kinds = {match[1] for match in matches}
    for kind in sorted(kinds | {"model"}):
        ranks = {int(match[3]) for match in matches if match[1] == kind}
        absent = (rank for rank in range(world) if rank not in ranks)
        for rank in sorted({rank for rank in ranks if rank < world} | {*islice(absent, _MOST_TOLD + 1)}):
            yield from _torch_file_problems(role / f"{kind}_world_size_{world}_rank_{rank}.pt")


def _v2_problems(role: Path) -> Iterator[str]:
    """Layout v2 of Megatron: the manifest is written last and names the folders."""
    if not (role / MANIFEST).is_file():
        yield f"{role.name}/{MANIFEST}: missing: it is written last"
        return
    folders = read_json(role / MANIFEST).get("directories")
    if not isinstance(folders, dict) or not folders:
        yield f"{role.name}/{MANIFEST}: names no directories"
        return
    for name in sorted(folders):
        parts = PurePosixPath(name).parts
        if ".." in parts or PurePosixPath(name).is_absolute():
            yield f"{role.name}/{MANIFEST}: names {name!r}, which is not below it"
        elif not (role / name).is_dir():
            yield f"{role.name}/{name}: missing"
        elif parts[-1] == "dist_ckpt":
            yield from _dist_problems(role / name)
        elif hf_model.has_weights(role / name):
            hf_model.read_index(role / name)
        elif (role / name / "adapter" / ADAPTER_CONFIG).is_file():  # LoRA: only what is trained is written
            hf_model.read_index(role / name / "adapter")
        else:
            yield f"{role.name}/{name}: no *.safetensors"


def _dist_problems(folder: Path) -> Iterator[str]:
    """`.metadata` and every byte that it names, `common.pt`, `metadata.json` of megatron-core."""
    torch_dist.check_files(folder)
    common, written_last = folder / "common.pt", folder / "metadata.json"
    if written_last.is_file():
        if read_json(written_last).get("common_backend") == "torch":
            yield from _torch_file_problems(common)
    elif common.exists():  # without both it was torch that wrote the folder, for Megatron-FSDP
        yield f"{_short(written_last)}: missing: it is written last"


def _torch_file_problems(path: Path) -> Iterator[str]:
    """A file of torch.save is a zip file: its table of contents is at its end."""
    name = _short(path)
    if not path.is_file():
        yield f"{name}: missing"
        return
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            end = archive.start_dir
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        # zipfile looks before the start of a short file (EINVAL).
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        yield f"{name}: {size} bytes, not a whole torch.save file ({error})"
        return
    if not members or any(member.header_offset + member.compress_size > end for member in members):
        yield f"{name}: {size} bytes, less than its table of contents says"


def _short(path: Path) -> str:
    """The path below global_step_N."""
    parts = path.parts
    last = max((place for place, part in enumerate(parts) if part.startswith("global_step_")), default=-2)
    return "/".join(parts[last + 1 :])
