"""README.md of the output: a stub that says what the model is made of, and nothing that is not known.

Every value comes out of files that others wrote: it is escaped, so that none of them makes a heading, a link, an
image or a key of the front matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from converters.checkpoint.locate import Checkpoint
from converters.checkpoint.run_manifest import RUN_MANIFEST, model_name
from converters.printing import escaped, size

CARD = "README.md"
_SHOWN = 200
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~&$@:-])")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
# First parts of relative paths that look like names on the hub.
_FOLDERS = {
    "models", "model", "checkpoints", "outputs", "output", "data", "hf", "weights", "pretrained", "runs", "home",
    "tmp", "mnt", "scratch", "work",
}  # fmt: skip
_LOADERS = {
    "ForCausalLM": "AutoModelForCausalLM",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
}
_WEIGHTS = (".distcp", ".pt", ".safetensors")
# What is told of the run, in this order.
_ENGINES = ("verl", "megatron-core", "mbridge", "torch", "transformers", "vllm", "sglang", "ray")


def model_card(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    *,
    tensors: int,
    total_bytes: int,
    dtypes: Sequence[str],
    run: Mapping[str, Any] | None = None,
    base_model: Path | None = None,
    has_tokenizer: bool = True,
) -> str:
    """The text of README.md.

    Args:
        config: config.json of the output.
        run: `run_manifest.find`.
        base_model: --base_model, if given.
    """
    run = run or {}
    base = base_name(config, run, base_model)
    front = ["---", "library_name: transformers"]
    if base is not None and _HUB_NAME.fullmatch(base):
        front.append(f"base_model: {json.dumps(base)}")
    architecture = _architecture(config)
    title = plain(base.rsplit("/", 1)[-1]) if base is not None else plain(architecture or "model")
    step = f" at step {checkpoint.step}" if checkpoint.step is not None else ""
    role = f" the {plain(checkpoint.role)} of" if checkpoint.role else ""
    lines = [
        *front,
        "---",
        "",
        f"# {title}, trained with verl",
        "",
        f"Made by `converters.merge` from{role} a verl checkpoint{step} ({plain(checkpoint.backend)}, layout "
        f"{plain(checkpoint.layout)}), saved on {_date(checkpoint.weights)}. This card is a stub: what the model "
        "is for, how it was evaluated and its license are to be added by its makers.",
        "",
        *_table(
            [
                ("architecture", architecture),
                ("tensors", str(tensors)),
                ("size", size(total_bytes)),
                ("type", " + ".join(dtypes)),
                ("trained from", base),
                *_training(run),
            ]
        ),
    ]
    if run:
        lines += ["", f"The settings and versions that are known are in `{RUN_MANIFEST}`."]
    lines += ["", "## How to load", "", "```python", *_loading(architecture, has_tokenizer), "```", ""]
    return "\n".join(lines)


def base_name(config: Mapping[str, Any], run: Mapping[str, Any], base_model: Path | None) -> str | None:
    """What the model was trained from, as far as it is written: a name on the hub, or the last part of a path."""
    written = config.get("_name_or_path")
    job = run.get("job")
    told = job.get("model") if isinstance(job, dict) else None
    for value in (written, str(base_model) if base_model is not None else None, told):
        if not isinstance(value, str) or not value:
            continue
        on_hub = _HUB_NAME.fullmatch(value) and value.split("/")[0].lower() not in _FOLDERS
        name = value if on_hub and not Path(value).exists() else model_name(value)
        if name is not None:
            return name
    return None


def plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    line = " ".join(escaped(text).split())
    line = line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
    return _SPECIAL.sub(r"\\\1", line)


def _architecture(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    return name if isinstance(name, str) else None


def _training(run: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Rows about the run."""
    job, engines = run.get("job", {}), run.get("engines", {})
    algorithm = job.get("algorithm", {})
    names = [name for name in (job.get("template"), algorithm.get("estimator")) if isinstance(name, str)]
    versions = [f"{name} {engines[name]}" for name in _ENGINES if name in engines]
    if "verl" not in engines and job.get("engine", {}).get("verl"):
        versions.insert(0, f"verl {job['engine']['verl']}")
    data = ", ".join(entry["sha256"] for entry in run.get("data", []))
    return [
        ("algorithm", ", ".join(dict.fromkeys(names)) or None),
        ("versions", ", ".join(versions) or None),
        ("image (SHA-256)", run.get("image", {}).get("sha256")),
        ("data (SHA-256)", data or None),
    ]


def _table(rows: Sequence[tuple[str, str | None]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {key} | {plain(value)} |" for key, value in rows if value)]


def _date(weights: Path) -> str:
    """The day of the newest file of weights, in UTC: what lies beside them may be newer."""
    files = [path for path in weights.iterdir() if path.is_file()]
    times = [path.stat().st_mtime for path in files if path.suffix in _WEIGHTS or path.name == ".metadata"]
    times = times or [path.stat().st_mtime for path in files]
    return datetime.fromtimestamp(max(times, default=0.0), tz=timezone.utc).strftime("%Y-%m-%d")


def _loading(architecture: str | None, has_tokenizer: bool) -> list[str]:
    """Python that loads the folder."""
    name = architecture or ""
    loader = next((auto for end, auto in _LOADERS.items() if name.endswith(end)), "AutoModel")
    names = f"{loader}, AutoTokenizer" if has_tokenizer else loader
    lines = [f"from transformers import {names}", "", 'folder = "."  # this folder']
    lines.append(f'model = {loader}.from_pretrained(folder, torch_dtype="auto")')
    return [*lines, "tokenizer = AutoTokenizer.from_pretrained(folder)"] if has_tokenizer else lines
