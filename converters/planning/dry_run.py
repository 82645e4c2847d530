"""What a conversion would do, for `--dry-run`: nothing is written, and of the weights only tables are read.

The object of `--dry-run --json`: `checkpoint` (root, step, role, backend, layout, weights), `config`, `tokenizer`,
`files` (name in the output -> source), `target`, `free_bytes`, `tensors`, `bytes`, `dtypes`, `shards` (file,
tensors, bytes of the file), `mapping` (for every step: source, index, shape, dtype, split, added, outputs),
`notes`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.checkpoint.locate import Checkpoint
from converters.hf.hf_files import TOKENIZERS
from converters.planning.fold import fold, split_text
from converters.planning.shards import file_bytes, planned_shards
from converters.planning.steps import Output, Step
from converters.printing import escaped, size

_SHOWN_GROUPS = 200
_SHOWN_SHARDS = 8


@dataclass(frozen=True)
class DryRun:
    """A plan and where it comes from.

    Attributes:
        config: config.json that describes the model.
        files: name in the output -> source, of what goes beside the weights.
        target: the folder that would appear.
    """

    checkpoint: Checkpoint
    steps: Sequence[Step]
    config: Path
    files: Mapping[str, Path]
    target: Path
    max_shard_bytes: int
    notes: Sequence[str] = ()

    @property
    def outputs(self) -> list[Output]:
        return [output for step in self.steps for output in step.outputs]

    @property
    def tokenizer(self) -> Path | None:
        """The folder that the tokenizer comes from."""
        return next((self.files[name].parent for name in TOKENIZERS if name in self.files), None)

    def as_json(self) -> dict[str, Any]:
        """Everything, every step."""
        found, outputs = self.checkpoint, self.outputs
        return {
            "checkpoint": {
                "root": str(found.root),
                "step": found.step,
                "role": found.role,
                "backend": found.backend,
                "layout": found.layout,
                "weights": str(found.weights),
            },
            "config": str(self.config),
            "tokenizer": None if self.tokenizer is None else str(self.tokenizer),
            "files": {name: str(path) for name, path in self.files.items()},
            "target": str(self.target),
            "free_bytes": free_bytes(self.target),
            "tensors": len(outputs),
            "bytes": sum(output.nbytes for output in outputs),
            "dtypes": sorted({output.dtype for output in outputs}),
            "shards": [
                {"file": name, "tensors": len(held), "bytes": file_bytes(held)}
                for name, held in planned_shards(outputs, self.max_shard_bytes).items()
            ],
            "mapping": [_step(step) for step in self.steps],
            "notes": list(self.notes),
        }

    def as_text(self) -> str:
        """For a person: layers and experts that map alike are one entry."""
        found, outputs = self.checkpoint, self.outputs
        of = f" of {found.role}" if found.role else ""
        step = f"step {found.step}" if found.step is not None else "no step number"
        total = sum(output.nbytes for output in outputs)
        free = free_bytes(self.target)
        lines = [
            f"checkpoint  {found.weights} ({step}{of}, {found.backend}, layout {found.layout})",
            f"config      {self.config}",
            f"tokenizer   {self.tokenizer or 'none'}",
            f"other files {', '.join(sorted(self.files)) or 'none'}",
            "",
        ]
        groups = fold(self.steps)
        for group in groups[:_SHOWN_GROUPS]:
            times = f"{group.count} x " if group.count > 1 else ""
            lines.append(f"{times}{group.source_text()}: {split_text(group.first)}")
            lines += [f"    -> {text}" for text in group.output_texts()]
        if len(groups) > _SHOWN_GROUPS:
            lines.append(f"... and {len(groups) - _SHOWN_GROUPS} more (--json lists every tensor)")
        shards = planned_shards(outputs, self.max_shard_bytes)
        dtypes = "+".join(sorted({output.dtype for output in outputs}))
        sources = len({step.source.name for step in self.steps})
        lines += ["", f"{len(outputs)} tensors from {sources} of the checkpoint, {size(total)}, {dtypes}"]
        lines.append(f"{self.target}: {len(shards)} shard{'s' if len(shards) > 1 else ''}, {size(free)} free")
        names = list(shards)
        shown = names if len(names) <= _SHOWN_SHARDS else [*names[: _SHOWN_SHARDS - 2], "...", names[-1]]
        for name in shown:
            lines.append(f"    {name} {size(file_bytes(shards[name]))}" if name in shards else f"    {name}")
        if free < total:
            lines.append(f"not enough space: {free} bytes free, {total} needed")
        lines += [f"note: {note}" for note in self.notes]
        return escaped("\n".join(lines))


def _step(step: Step) -> dict[str, Any]:
    return {
        "source": step.source.name,
        "index": list(step.index),
        "shape": list(step.source.shape),
        "dtype": step.source.dtype,
        "split": split_text(step),
        "added": [
            {"a": product.a.name, "b": product.b.name, "rank": product.a.shape[0], "scale": product.scale}
            for product in step.added
        ],
        "outputs": [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in step.outputs],
    }


def free_bytes(target: Path) -> int:
    """Free space where `target` would be: at the first folder above it that is there."""
    folder = target.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free
