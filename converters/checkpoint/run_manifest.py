"""What the manifest of a run tells about a model, without what only concerns the place where it ran.

`launch.supervisor.manifest` writes RUN/manifest.json and RUN/hashes.json. The checkpoints are in RUN/checkpoints,
or beside the runs: OUTPUT/checkpoints and OUTPUT/run-N. A manifest holds names of hosts, addresses, paths and text
that a user wrote; a model is passed on. Hence a list of what is taken, not of what is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

MANIFEST, HASHES = "manifest.json", "hashes.json"
RUN_MANIFEST = "run_manifest.json"  # its name beside the model
_MOST_BYTES = 16 << 20
# Versions, choices, hashes: one word.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")
_HASH = re.compile(r"[0-9a-f]{64}")
_SIF_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Section of the job -> keys; None: every number, flag and word.
_JOB_SECTIONS: Mapping[str, tuple[str, ...] | None] = {
    "engine": ("verl", "mode"),
    "rollout": ("engine", "n", "temperature", "top_p"),
    "actor": ("strategy", "lr", "mini_batch_size", "lora_rank", "lora_alpha"),
    "data": ("train_batch_size", "max_prompt_length", "max_response_length"),
    "algorithm": None,
}


def find(root: Path) -> tuple[dict[str, Any], list[str]]:
    """What is known of the run that wrote the checkpoint at `root`, {} if nothing is; notes for a person.

    Of several runs that wrote to one folder of checkpoints it is the one that was going on when the files of
    `root` were written. A manifest that cannot be read is told: a model does not depend on it.
    """
    notes: list[str] = []
    found = []
    try:
        paths = list(_manifests(root.absolute()))
    except OSError as error:  # a folder above the checkpoint that may not be read
        return {}, [f"no manifest of the run: {error}"]
    for path in paths:
        try:
            manifest = _read(path)
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"{path} cannot be read: {error}")
            continue
        if path.parent == _checkpoints(root.absolute()).parent or _is_of(manifest, root):
            found.append((_time(manifest), path, manifest))
    if not found:
        return {}, notes
    saved = max((path.stat().st_mtime for path in root.rglob("*") if path.is_file()), default=0.0)
    found.sort(key=lambda entry: (entry[0], str(entry[1])))
    _, path, manifest = next((entry for entry in found if entry[0] >= saved), found[-1])
    return harmless(_with_hashes(manifest, path.with_name(HASHES))), notes


def harmless(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, image, hashes of the data, and the settings that made the model."""
    told: dict[str, Any] = {}
    for key in ("toolkit", "python"):
        told |= {key: manifest[key]} if _is_word(manifest.get(key)) else {}
    written = manifest.get("written")
    if isinstance(written, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([+-]\d{4})?", written):
        told["written"] = written
    told["engines"] = _words(_section(manifest, "engines"))
    image = _section(manifest, "image")
    told["image"] = {
        key: image[key]
        for key, form in (("sha256", _HASH), ("sif_id", _SIF_ID))
        if isinstance(image.get(key), str) and form.fullmatch(image[key])
    }
    data = manifest.get("data")
    told["data"] = [
        {"sha256": entry["sha256"]}
        for entry in (data if isinstance(data, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and _HASH.fullmatch(entry["sha256"])
    ]
    job = _section(manifest, "resolved_job")
    settings: dict[str, Any] = {"template": job["template"]} if _is_word(job.get("template")) else {}
    for name, keys in _JOB_SECTIONS.items():
        section = _section(job, name)
        settings[name] = _words(section if keys is None else {k: section[k] for k in keys if k in section})
    model = _section(job, "model").get("path")
    if isinstance(model, str) and (base := model_name(model)) is not None:
        settings["model"] = base
    told["job"] = {key: value for key, value in settings.items() if value}
    return {key: value for key, value in told.items() if value}


def model_name(path: str) -> str | None:
    """'Qwen/Qwen3-4B' for a place in the hub's cache, else the last part of a path; None if that is no name."""
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+?)(/|$)", path)
    if cached:
        return f"{cached[1]}/{cached[2]}"
    last = path.rstrip("/").rsplit("/", 1)[-1]
    return last if _is_word(last) else None


def _manifests(root: Path) -> Iterator[Path]:
    output = _checkpoints(root).parent
    yield from (path for path in (output / MANIFEST, *sorted(output.glob(f"run-*/{MANIFEST}"))) if path.is_file())


def _checkpoints(root: Path) -> Path:
    """The folder that holds global_step_N."""
    for folder in (root, *root.parents):
        if re.fullmatch(r"global_step_\d+", folder.name):
            return folder.parent
    return root


def _is_of(manifest: Mapping[str, Any], root: Path) -> bool:
    folder = manifest.get("checkpoint_dir")
    return isinstance(folder, str) and Path(folder).resolve() == _checkpoints(root.absolute()).resolve()


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES} bytes")
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} where an object is expected")
    return value


def _time(manifest: Mapping[str, Any]) -> float:
    """Seconds since 1970 of `written`; 0 if it does not say."""
    try:
        return datetime.strptime(str(manifest.get("written")), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return 0.0


def _with_hashes(manifest: dict[str, Any], hashes: Path) -> dict[str, Any]:
    """The hashes come later than the manifest, in a file of their own: path -> size, mtime, sha256."""
    try:
        if not hashes.is_file():  # a pipe would be waited for
            return manifest
        known = _read(hashes)
    except (OSError, ValueError, RecursionError):
        return manifest
    data = manifest.get("data")
    for told in [manifest.get("image"), *(data if isinstance(data, list) else [])]:
        later = known.get(str(told.get("path"))) if isinstance(told, dict) else None
        if not (isinstance(told, dict) and isinstance(later, dict)) or told.get("sha256"):
            continue
        if (later.get("size"), later.get("mtime")) == (told.get("size"), told.get("mtime")):
            told["sha256"] = later.get("sha256")
    return manifest


def _section(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def _words(section: Mapping[str, Any]) -> dict[str, Any]:
    """Its numbers, flags and words, sections inside it too."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        if not _is_word(key):
            continue
        if isinstance(value, dict):
            inner = _words(value)
            found |= {key: inner} if inner else {}
        elif isinstance(value, bool | int | float) or _is_word(value):
            found[key] = value
    return found
