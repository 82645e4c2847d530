"""manifest.json: what a run was made of, so that it can be told and made again."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from launch.supervisor.hash_files import HASHES
from launch.supervisor.ports import PortPlan
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import write_json
from launch.tokens import hide
from singularity.toolkit import VERSION

MANIFEST = "manifest.json"
# Asked of the image's package metadata: importing one of these takes seconds and gigabytes.
ENGINES = (
    "verl", "ray", "torch", "sglang", "vllm", "megatron-core", "transformers", "transformer-engine", "mbridge",
    "flash-attn", "nvidia-nccl-cu12", "tensordict", "hydra-core",
)  # fmt: skip
_JOB_BYTES = 8 << 20
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)(_|$)")
_HEX = re.compile(r"^[0-9a-f]{64}$")
# github.com/apptainer/sif, pkg/sif/sif.go: launch script 32 bytes, magic 10, version 3, architecture 3, then id.
_SIF_MAGIC = (b"SIF_MAGIC\0", 32)
_SIF_ID = slice(48, 64)


def describe(settings: Settings, ports: PortPlan, nodes: Sequence[Mapping[str, Any]] = ()) -> Dict[str, Any]:
    """The manifest as far as it can be told at once: nothing large is read.

    Args:
        ports: of the head node.
        nodes: what other nodes told in their hello: rank, node, address, and ports if they have some.
    """
    head = {"rank": settings.rank, "node": settings.node, "address": settings.address, "ports": ports.services}
    shown = ("rank", "node", "address", "ports")
    others = [{name: node[name] for name in shown if name in node} for node in nodes]
    told = {
        "toolkit": VERSION,
        "job": settings.job_number if settings.in_slurm else None,
        "attempt": settings.attempt,
        "attempts": earlier_attempts(settings.run_dir),
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "ends_at": settings.ends_at,
        "nodes_expected": settings.nodes,
        "nodes": sorted([head, *others], key=lambda node: int(node["rank"])),
        "head": {"node": settings.node, "interface": settings.interface, "address": settings.address},
        "ports": ports.services,
        "checkpoint_dir": str(settings.checkpoint_dir),
        "logs": str(settings.log("trainer").parent),
        "image": describe_image(settings.image, settings.notes) if settings.image else None,
        "data": [describe_file(path) for path in settings.data],
        "python": sys.version.split()[0],
        "engines": engine_versions(),
        "notes": dict(settings.notes),
        "resolved_job": _resolved_job(settings.job_file),
    }
    return {name: _without_secrets(value) for name, value in told.items()}


def write_manifest(settings: Settings, ports: PortPlan, nodes: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write RUN_DIR/manifest.json with the hashes that are known by now. The head alone calls this: at its start,
    when all nodes have joined, and at its end."""
    write_json(settings.run_dir / MANIFEST, _joined(describe(settings, ports, nodes), settings.run_dir))


def read_manifest(run_dir: Path) -> Dict[str, Any]:
    """The manifest of a run with its hashes; {} where there is none.

    Raises:
        ValueError, OSError: it is damaged or cannot be read.
    """
    try:
        data = read_object(run_dir / MANIFEST)
    except FileNotFoundError:
        return {}
    return _joined(data, run_dir)


def hash_command(settings: Settings) -> List[str]:
    """A process that hashes the image and the data files, to be started when the trainer has; [] with nothing to
    hash. It needs no environment. A hash that the script has made is not made again."""
    known = settings.image is not None and _HEX.match(settings.notes.get("image_sha256", ""))
    files = [str(path) for path in [*([settings.image] if settings.image and not known else []), *settings.data]]
    if not files:
        return []
    script = str(Path(__file__).with_name("hash_files.py"))
    return [sys.executable, "-I", script, str(settings.run_dir), *dict.fromkeys(files)]


def describe_file(path: Path) -> Dict[str, Any]:
    """{path, size, mtime} of a file, or {path, error}."""
    try:
        found = path.stat()
    except OSError as error:
        return {"path": str(path), "error": error.strerror or str(error)}
    return {"path": str(path), "size": found.st_size, "mtime": found.st_mtime, "sha256": None}


def describe_image(path: Path, notes: Mapping[str, str]) -> Dict[str, Any]:
    """A SIF's path, size, mtime and id (the UUID that its builder gave it), and its hash when it is noted.

    {path, error, sha256} where the container does not see the file that it runs from.
    """
    told = describe_file(path)
    if "error" not in told:
        told["sif_id"] = sif_id(path)
    told["sha256"] = notes["image_sha256"] if _HEX.match(notes.get("image_sha256", "")) else None
    return told


def sif_id(path: Path) -> Optional[str]:
    """The UUID in the header of a SIF; None for a file that is none."""
    magic, at = _SIF_MAGIC
    try:
        with path.open("rb") as stream:
            header = stream.read(_SIF_ID.stop)
    except OSError:
        return None
    if len(header) < _SIF_ID.stop or header[at : at + len(magic)] != magic:
        return None
    text = header[_SIF_ID].hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def engine_versions() -> Dict[str, str]:
    """Versions of the installed parts of the engine; what is not installed is left out."""
    from importlib import metadata  # takes as long as all the rest; other nodes and the status do without

    found: Dict[str, str] = {}
    for name in ENGINES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def earlier_attempts(run_dir: Path) -> List[Dict[str, Any]]:
    """How the attempts before this one ended, in their order; a damaged verdict tells only that it is damaged."""
    shown = ("attempt", "state", "component", "node", "kind", "cause", "exit_code", "started", "ended")
    found: Dict[int, Dict[str, Any]] = {}
    for file in run_dir.glob("verdict.*.json"):
        number = file.name.split(".")[1]
        if not (number.isascii() and number.isdigit()):
            continue
        try:
            data = read_object(file)
            told = {name: data.get(name) for name in (*shown, "steps_done", "last_checkpoint", "requeue_why")}
        except (OSError, ValueError) as error:
            told = {"state": "unknown", "cause": f"{file.name} cannot be read: {error}"}
        found[int(number)] = {**told, "attempt": int(number)}
    return [found[number] for number in sorted(found)]


def read_object(file: Path) -> Dict[str, Any]:
    """The JSON object in a file of a run.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or holds nothing.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(data, dict) or not data:
        raise ValueError("it holds no JSON object with anything in it")
    return data


def _resolved_job(file: Optional[Path]) -> Any:
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8") as stream:
            return json.loads(stream.read(_JOB_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        return {"error": f"{file}: {error}"}


def _joined(manifest: Dict[str, Any], run_dir: Path) -> Dict[str, Any]:
    """With the hashes of files that have not changed since they were described."""
    try:
        hashes = read_object(run_dir / HASHES)
    except (OSError, ValueError):
        return manifest
    image, data = manifest.get("image"), manifest.get("data")
    for told in [image, *(data if isinstance(data, list) else [])]:
        known = hashes.get(str(told.get("path"))) if isinstance(told, dict) else None
        if isinstance(known, dict) and not told.get("sha256"):
            if known.get("size") == told.get("size") and known.get("mtime") == told.get("mtime"):
                told["sha256"] = known.get("sha256")
            told.update({"hash_error": known["error"]} if "error" in known else {})
    return manifest


def _without_secrets(value: Any, name: str = "") -> Any:
    """`value` without texts that look like a secret, and without values of variables that are named like one."""
    if isinstance(value, dict):
        return {str(key): _without_secrets(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(inner, name) for inner in value]
    if isinstance(value, str):
        return "<hidden>" if value and name.isupper() and _SECRET_NAME.search(name) else hide(value)
    return value
