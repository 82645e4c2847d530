"""PEFT folders: adapter_config.json and adapter_model.safetensors, as PeftModel.from_pretrained loads them.

Names in the file are those of the model without the adapter's own name: `...lora_A.weight`. verl 0.6.1 writes one
beside the shards of an FSDP actor, verl 0.9.1 with Megatron-Bridge as `model/huggingface/adapter`. Source:
peft 0.21 `utils/save_and_load.py` (get_peft_model_state_dict).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from converters.errors import ConvertError, listing
from converters.hf import hf_model
from converters.hf.folder_difference import value_differences
from converters.hf.hf_files import write_json
from converters.hf.names import ADAPTER_CONFIG
from converters.json_file import read_json
from converters.lora import adapters, lora_config
from converters.lora.adapters import Adapter
from converters.planning import shards
from converters.planning.steps import Output
from converters.storage.row_reader import Reader
from converters.storage.tensors import GlobalTensor, as_bytes

WEIGHTS = "adapter_model.safetensors"


def read_adapter(folder: Path, alpha: float | None = None) -> Adapter:
    """The adapter in a PEFT folder. Its base is `adapters.with_base`.

    Args:
        alpha: `--lora-alpha`.

    Raises:
        ConvertError: a file is missing or damaged, or the adapter is not one that is merged here.
    """
    path = folder / ADAPTER_CONFIG
    config = lora_config.read_config(path, alpha)
    if not hf_model.has_weights(folder):
        raise ConvertError(
            f"{folder / WEIGHTS}: missing. Copy it here; an adapter_model.bin is not read, save it again with "
            "PEFT (save_pretrained)."
        )
    rest, matrices, replaced = adapters.sort(hf_model.read_index(folder), folder)
    if not matrices:
        raise ConvertError(f"{folder / WEIGHTS}: no LoRA matrix in it. Copy the folder again.")
    if config.get("modules_to_save") and not (rest or replaced):
        raise ConvertError(
            f"{folder / WEIGHTS}: none of modules_to_save {config['modules_to_save']} of {path} is in it: they "
            "were trained whole, and are lost. Copy the folder again."
        )
    return adapters.assemble(matrices, {**rest, **replaced}, config, path)


def write_adapter(adapter: Adapter, folder: Path, base_names: Iterable[str]) -> None:
    """Write `adapter` as a new PEFT folder that fits a model with the weights `base_names`.

    The settings are complete and say what the matrices are: the modules that have some, no start of a training
    (`init_lora_weights`: PiSSA and others would change the base again when the adapter is loaded).

    Raises:
        ConvertError: a matrix is damaged.
        OSError: writing failed.
    """
    folder.mkdir(parents=True)
    tensors, whole = _names(adapter)
    _write_safetensors(folder / WEIGHTS, tensors)
    write_json(folder / ADAPTER_CONFIG, _settings(adapter, base_names, whole))


def check_written(adapter: Adapter, folder: Path, base_names: Iterable[str]) -> None:
    """Compare the folder that `write_adapter` wrote with `adapter`, bit for bit.

    Raises:
        ConvertError: it holds other matrices, or says another scale or other settings.
    """
    expected, whole = _names(adapter)
    found, reader = hf_model.read_index(folder), Reader()
    problems = [f"{name} is not in both" for name in sorted(found.keys() ^ expected.keys())]
    problems += [
        f"{name} differs"
        for name, tensor in expected.items()
        if name in found and not reader.same_bits(tensor, found[name])
    ]
    again = read_adapter(folder).pairs if not problems else {}
    problems += [
        f"{m}: scale {pair.scale}, {adapter.pairs[m].scale} was trained"
        for m, pair in again.items()
        if pair.scale != adapter.pairs[m].scale
    ]
    said, settings = read_json(folder / ADAPTER_CONFIG), _settings(adapter, base_names, whole)
    differing = value_differences(said, json.loads(json.dumps(settings)), ("in the file", "as it must be"))
    problems += [f"{ADAPTER_CONFIG}: {line}" for line in differing]
    if problems:
        raise listing(f"{folder}: not the adapter that was trained", problems, "Write it again.")


def _settings(adapter: Adapter, base_names: Iterable[str], whole: list[str]) -> dict[str, object]:
    """adapter_config.json."""
    config = {
        **lora_config.DEFAULTS,
        **adapter.config,
        "target_modules": _targets(adapter, base_names),
        "exclude_modules": None,
        "layers_to_transform": None,
        "layers_pattern": None,
        "modules_to_save": whole or None,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    config.pop("runtime_config", None)  # PEFT warns of one in a file
    return config


def _names(adapter: Adapter) -> tuple[dict[str, GlobalTensor], list[str]]:
    """(tensors by their names in the file, modules that were trained whole)."""
    tensors: dict[str, GlobalTensor] = {}
    for module, pair in adapter.pairs.items():
        ends = ("lora_embedding_A", "lora_embedding_B") if pair.embedding else ("lora_A.weight", "lora_B.weight")
        for end, matrix in zip(ends, (pair.a, pair.b), strict=True):
            tensors[f"{adapters.PREFIX}{module}.{end}"] = matrix
    whole: list[str] = []
    for name, tensor in adapter.replaced.items():
        module, _, last = name.rpartition(".")
        if module in adapter.pairs:
            tensors[f"{adapters.PREFIX}{module}.base_layer.{last}"] = tensor
            continue
        tensors[f"{adapters.PREFIX}{name}"] = tensor
        if f"{module}.weight" in adapter.replaced and module not in whole:
            whole.append(module)
    return tensors, whole


def _targets(adapter: Adapter, base_names: Iterable[str]) -> list[str]:
    """Last parts of the modules' names where these name no other module, else the whole names."""
    modules = {name.removesuffix(".weight") for name in base_names if name.endswith(".weight")}
    lasts = sorted({module.rpartition(".")[2] for module in adapter.pairs})
    if {module for module in modules if module.rpartition(".")[2] in lasts} == set(adapter.pairs):
        return lasts
    return sorted(adapter.pairs)


def _write_safetensors(path: Path, tensors: Mapping[str, GlobalTensor]) -> None:
    outputs = [Output(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
    reader = Reader()
    with path.open("xb") as file:
        file.write(shards.header(outputs))
        for tensor in tensors.values():
            for _, rows, _ in reader.rows(tensor):
                file.write(as_bytes(rows))
