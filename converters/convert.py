"""A conversion from end to end: what is there, what it becomes, and carrying that out.

`prepare` reads tables only, `write` makes the folder, `compare` reads both sides again, `dry_run` shows the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from converters import families
from converters.arguments import Options
from converters.checkpoint import foreign, fsdp, run_manifest, torch_dist, value_head
from converters.checkpoint.locate import Checkpoint, locate, steps_in
from converters.checkpoint.run_manifest import RUN_MANIFEST
from converters.comparing.verify import verify
from converters.errors import ConvertError, listing
from converters.hf import config_drift, hf_config, hf_files, hf_model
from converters.hf.hf_config import ModelConfig
from converters.hf.hf_files import write_json
from converters.json_file import read_json
from converters.lora import adapters, lora_folder
from converters.lora.adapters import Adapter
from converters.planning import padding, plan, training_config
from converters.planning.dry_run import DryRun
from converters.planning.steps import Output, Step, whole
from converters.storage.tensors import GlobalTensor
from converters.writing import earlier_result, journal, run_plan, target_folder
from converters.writing.hf_writer import SafetensorsWriter
from converters.writing.model_card import CARD, model_card
from converters.writing.progress import Progress

_ADAPTER = "lora_adapter"
_FLOATS = ("F64", "F32", "BF16", "F16")


@dataclass(frozen=True)
class Conversion:
    """What will be written.

    Attributes:
        config_path: config.json that describes the model.
        config: of the output; `changed` from that file.
        files: name in the output -> where it is taken from.
        run: what is known of the training.
        adapter: to be written beside the model.
        sources: files that the steps read.
    """

    found: Checkpoint
    steps: Sequence[Step]
    config_path: Path
    config: Mapping[str, Any]
    changed: bool
    files: Mapping[str, Path]
    run: Mapping[str, Any]
    adapter: Adapter | None
    sources: tuple[Path, ...]
    notes: tuple[str, ...]

    @property
    def outputs(self) -> list[Output]:
        return [output for step in self.steps for output in step.outputs]

    @property
    def total_bytes(self) -> int:
        return sum(output.nbytes for output in self.outputs)

    @property
    def dtypes(self) -> list[str]:
        return sorted({output.dtype for output in self.outputs})


def prepare(options: Options) -> Conversion:
    """Find the checkpoint and plan every tensor of the output.

    Raises:
        ConvertError: with all that is missing, left over, damaged or does not fit, and what to do.
        OSError: reading failed.
    """
    if options.base_model is not None and not options.base_model.is_dir():
        raise ConvertError(f"{options.base_model}: --base_model is no folder")
    found = locate(options.local_dir, options.step, options.backend, options.role)
    folder = hf_files.config_folder(found.huggingface, options.base_model, found.root)
    path = folder / hf_files.CONFIG
    if folder != options.base_model:
        hf_files.refuse_leaving(folder, [path])
    if found.backend != "hf":
        foreign.refuse_vision(path)
    tensors, adapter = _tensors(found, options)
    steps, model, notes = _plan(found, path, tensors, options.value_model)
    notes = [*found.notes, *notes]
    raw = read_json(path)
    _check_asserted(options, raw, model, path)
    if adapter is not None and options.lora == "merge":
        steps = adapters.added(adapter, steps, model.tied if model else bool(raw.get("tie_word_embeddings")))
        notes.append(f"{adapter.summary}: merged")
    elif adapter is not None:
        notes.append(f"{adapter.summary}: kept in {_ADAPTER}")
    else:
        notes += _without_adapter(options)
    if options.dtype is not None:
        steps = _converted(steps, options.dtype, model, path)
        notes += _not_converted(steps, options.dtype)
    config, changes = model.adapted(raw) if model else (raw, [])
    outputs = [output for step in steps for output in step.outputs]
    _refuse_names(outputs, found.weights)
    config, more = config_drift.adjusted(
        config,
        max(outputs, key=lambda output: output.nbytes).dtype,
        tied=model.tied if model else None,
        where=path,
    )
    changes += more
    folders = [found.huggingface, folder, options.base_model]
    there = list(dict.fromkeys(f for f in folders if f is not None and f.is_dir()))
    files = hf_files.companions(there, options.base_model)
    notes += padding.left_out(steps, files, path)
    base = options.base_model if options.base_model != folder else None
    notes += [f"config.json: {change}" for change in changes]
    notes += config_drift.drift(config, files, base)
    if not hf_files.has_tokenizer(files):
        notes.append("no tokenizer in the checkpoint or in --base_model: the output has none")
    notes += hf_files.tokenizer_code(files)
    run, unread = run_manifest.find(found.root)
    kept = adapter if options.lora == "keep" else None
    sources = _sources(found, adapter, options.base_model)
    return Conversion(found, steps, path, config, bool(changes), files, run, kept, sources, (*notes, *unread))


def write(conversion: Conversion, options: Options, *, shown: bool = True) -> None:
    """Write the folder; it appears when all of it is on disk, and equal to the checkpoint where that is asked for.

    Args:
        shown: whether progress goes to standard error.

    Raises:
        ConvertError: a tensor is damaged, the disk is full, the target is taken or cannot be written.
        OSError: reading or writing failed.
    """
    outputs, workers = conversion.outputs, options.workers or run_plan.default_workers()
    begun_as = journal.digest(conversion.steps, conversion.sources, shard=options.max_shard_bytes)
    with (
        target_folder.target(
            options.target_dir, conversion.total_bytes, begun_as,
            force=options.force, resume=options.resume,
            trees=_trees(conversion.found, options), files=_read(conversion),
        ) as partial,
        Progress(conversion.total_bytes, shown=shown) as progress,
    ):  # fmt: skip
        folder = partial.folder
        writer = SafetensorsWriter(folder, outputs, options.max_shard_bytes, partial.journal)
        run_plan.copy(conversion.steps, writer, workers, progress)
        writer.finish()
        if conversion.adapter is not None:
            lora_folder.write_adapter(conversion.adapter, folder / _ADAPTER, [output.name for output in outputs])
        hf_files.copy(dict(conversion.files), folder)
        if conversion.changed:
            write_json(folder / hf_files.CONFIG, conversion.config)
        else:
            hf_files.copy({hf_files.CONFIG: conversion.config_path}, folder)
        _describe(conversion, options, folder)
        if options.verify:
            compare(conversion, folder, workers, shown=shown)


def _describe(conversion: Conversion, options: Options, folder: Path) -> None:
    """The model card, what is known of the run, and the record of this conversion."""
    found = conversion.found
    card = model_card(
        found,
        conversion.config,
        tensors=len(conversion.outputs),
        total_bytes=conversion.total_bytes,
        dtypes=conversion.dtypes,
        run=conversion.run,
        base_model=options.base_model,
        has_tokenizer=hf_files.has_tokenizer(dict(conversion.files)),
    )
    (folder / CARD).write_text(card, encoding="utf-8")
    if conversion.run:
        write_json(folder / RUN_MANIFEST, conversion.run)
    made: dict[str, object] = {
        "source": earlier_result.below_the_run(found.root),
        "step": found.step,
        "role": found.role,
        "backend": found.backend,
        "layout": found.layout,
        "tensors": len(conversion.outputs),
        "total_size": conversion.total_bytes,
        "dtypes": conversion.dtypes,
        # A model is passed on: paths would tell of the machine and its users.
        "notes": [note for note in conversion.notes if "/" not in note],
    }
    earlier_result.record(folder, made)


def _trees(found: Checkpoint, options: Options) -> list[Path]:
    """Folders that are read. The folder of a job may hold the target beside that of its checkpoints."""
    given = None if steps_in(options.local_dir / "checkpoints") else options.local_dir
    folders = (given, found.root, found.weights, found.adapter, options.base_model)
    return [folder for folder in folders if folder is not None]


def _read(conversion: Conversion) -> list[Path]:
    return [*conversion.sources, *conversion.files.values(), conversion.config_path]


def compare(conversion: Conversion, folder: Path, workers: int | None = None, *, shown: bool = True) -> None:
    """Read the checkpoint and `folder` again and compare every byte.

    Raises:
        ConvertError: with all that differs.
        OSError: reading failed.
    """
    workers = workers or run_plan.default_workers()
    with Progress(conversion.total_bytes, shown=shown) as progress:
        verify(
            conversion.steps, folder,
            config=conversion.config, companions=conversion.files, workers=workers, progress=progress,
            beside=[CARD, earlier_result.MANIFEST, *([RUN_MANIFEST] if conversion.run else [])],
        )  # fmt: skip
    if conversion.adapter is not None:
        names = [output.name for output in conversion.outputs]
        lora_folder.check_written(conversion.adapter, folder / _ADAPTER, names)


def dry_run(conversion: Conversion, options: Options) -> DryRun:
    """What `write` would do; why it could not is a note."""
    notes = list(conversion.notes)
    try:
        trees, files = _trees(conversion.found, options), _read(conversion)
        target_folder.check(options.target_dir, force=options.force, trees=trees, files=files)
    except (ConvertError, OSError) as error:
        notes.append(f"the merge would be refused: {error}")
    return DryRun(
        conversion.found,
        conversion.steps,
        conversion.config_path,
        conversion.files,
        options.target_dir,
        options.max_shard_bytes,
        tuple(notes),
    )


def _tensors(found: Checkpoint, options: Options) -> tuple[dict[str, GlobalTensor], Adapter | None]:
    """The weights by the names that they have, and a LoRA adapter over them."""
    adapter = None
    if found.backend == "megatron":
        return torch_dist.read_index(found.weights), None
    if found.backend == "fsdp":
        tensors = value_head.renamed(fsdp.read_index(found.weights), found.root)
        tensors, adapter = adapters.separate(tensors, found.root, options.lora_alpha)
    else:
        tensors = hf_model.read_index(found.weights) if found.backend == "hf" else {}
        if found.adapter is not None:
            adapter = lora_folder.read_adapter(found.adapter, options.lora_alpha)
    if adapter is not None and not tensors:
        tensors = adapters.with_base(adapter, options.base_model)
    if adapter is not None and options.lora == "merge":
        tensors = adapters.with_replaced(tensors, adapter)
    return tensors, adapter


def _sources(found: Checkpoint, adapter: Adapter | None, base_model: Path | None) -> tuple[Path, ...]:
    """Files of the folders that weights come from: of an adapter, its own and those of its base too."""
    files = [path for path in found.weights.rglob("*") if path.is_file()]
    folders = [] if adapter is None else [found.adapter, base_model]
    # Below the folder of a base model may lie anything, checkpoints of other trainings too.
    files += [path for folder in folders if folder is not None for path in folder.iterdir() if path.is_file()]
    return tuple(files)


def _plan(
    found: Checkpoint, config_path: Path, tensors: dict[str, GlobalTensor], value_model: bool
) -> tuple[list[Step], ModelConfig | None, list[str]]:
    """Steps; the config if there is a table for the family (a Hugging Face model can do without); notes."""
    architecture = hf_config.architecture(config_path)
    if found.backend in ("hf", "lora") and architecture not in families.FAMILIES:
        code = hf_files.code_files(config_path)
        if code:
            raise ConvertError(
                f"{config_path}: auto_map names code ({', '.join(code)}), and no code is copied: the result would "
                "not load. Copy the folder as it is (cp -r); or take auto_map out of it, if transformers has "
                "the class itself."
            )
        note = f"no table for {architecture}: copied, names and shapes not compared with config.json"
        return [whole(tensor) for tensor in tensors.values()], None, [note]
    family = families.family(architecture, config_path)
    config = hf_config.read(config_path, family.config)
    problems = training_config.trained_otherwise(config, found.transformer_config)
    if problems:
        remedy = "Give --base_model the model that the training started from."
        raise listing(f"{config_path} is not the model of {found.transformer_config}", problems, remedy)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    asked = "Give the critic's folder, or leave --is-value-model out." if value_model else ""
    if not asked and found.role == "critic":
        asked = f"{found.root} is a critic's folder by its name: rename it, or give the one that the critic is in."
    config = families.fitted(shapes, config, asked)
    family = families.family(config.architecture, config_path)
    make = plan.from_mcore if found.backend == "megatron" else plan.from_hf_names
    notes = training_config.not_compared(config, found.transformer_config) if found.backend == "megatron" else []
    return make(tensors, family, config), config, notes


def _without_adapter(options: Options) -> list[str]:
    given = [("--lora keep", options.lora == "keep"), ("--lora-alpha", options.lora_alpha is not None)]
    return [
        f"{option} has no effect: no LoRA adapter is in the checkpoint" for option, is_given in given if is_given
    ]


def _not_converted(steps: Sequence[Step], dtype: str) -> list[str]:
    """Quantized weights: their scales are other tensors, so that no type can be changed alone."""
    kept = Counter(o.dtype for step in steps for o in step.outputs if o.dtype.startswith(("F8", "F4", "F6")))
    return [f"--dtype: {stored} stays as it is, not {dtype} (tensors: {n})" for stored, n in sorted(kept.items())]


def _refuse_names(outputs: Sequence[Output], where: Path) -> None:
    """Readers of safetensors want names in UTF-8."""
    problems = [ascii(o.name) for o in outputs if o.name != o.name.encode(errors="replace").decode()]
    if problems:
        raise listing(f"{where}: names of tensors that are no text", problems, "Save the checkpoint again.")


def _check_asserted(options: Options, raw: Mapping[str, Any], model: ModelConfig | None, path: Path) -> None:
    """What the caller says of the model is not believed: the weights say it."""
    tied = model.tied if model else bool(raw.get("tie_word_embeddings"))
    if options.tied and not tied:
        raise ConvertError(
            f"{path}: --tie-word-embedding was given, and the model is not tied (tie_word_embeddings=false, as "
            "the weights are). Leave the option out: it is not needed."
        )


def _converted(steps: Sequence[Step], dtype: str, model: ModelConfig | None, path: Path) -> list[Step]:
    """Steps with floating-point outputs of type `dtype`, but for those that a family keeps as they are stored."""
    kept: set[str] = set()
    if model is not None:
        kept = families.keep_dtype(families.family(model.architecture, path).rules, model)

    def converted(output: Output) -> Output:
        return replace(output, dtype=dtype) if output.dtype in _FLOATS and output.name not in kept else output

    return [replace(step, outputs=tuple(map(converted, step.outputs))) for step in steps]
