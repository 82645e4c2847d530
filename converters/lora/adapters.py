"""LoRA adapters: told apart from the base's weights in a checkpoint, and added to the steps of a plan.

PEFT calls the weights of a wrapped model `base_model.model.` and their name, with `.base_layer.` where a module
is adapted; the matrices are `lora_A` [r, in] and `lora_B` [out, r], those of an embedding `lora_embedding_A`
[r, rows] and `lora_embedding_B` [hidden, r]. The merged weight is W + scale * (B @ A) in float32, rounded once, to
the output's type (`stream`). PEFT's merge_and_unload rounds the product to the adapter's type before it adds: in
float32 the same bits wherever both sum the r products in one order, one rounding more in bfloat16. Sources: peft
0.21 `tuners/lora/layer.py`, `utils/save_and_load.py`; verl 0.6.1 and 0.9.1
`utils/checkpoint/fsdp_checkpoint_manager.py` (save_lora_only).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.errors import ConvertError, listing
from converters.hf import hf_model
from converters.hf.names import ADAPTER_CONFIG
from converters.lora import lora_config
from converters.planning.steps import LowRank, Step
from converters.storage.stored import StoredTensor
from converters.storage.tensors import Chunk, GlobalTensor, Stored

PREFIX = "base_model.model."
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<letter>[AB])(\.(?P<adapter>[^.]+))?\.weight")
_EMBEDDING = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<letter>[AB])(\.(?P<adapter>[^.]+))?")
_SAVED = re.compile(r"(?P<module>.+)\.modules_to_save\.(?P<adapter>[^.]+)\.(?P<rest>.+)")
_OTHER = re.compile(r"\.lora_|\.adapter_|\.token_adapter\.|lora_magnitude_vector")
_FLOATS = ("F32", "BF16", "F16")
_TIED = ("model.embed_tokens", "lm_head")
_REMEDY = "Merge it with PEFT itself (merge_and_unload)."


@dataclass(frozen=True)
class Pair:
    """The matrices of one module, as they are stored. `scale` is what their product is multiplied with."""

    a: GlobalTensor
    b: GlobalTensor
    scale: float
    embedding: bool = False

    @property
    def low_rank(self) -> LowRank:
        """For a weight [out, in]; an embedding's [rows, hidden] is adapted by (B @ A) transposed."""
        if self.embedding:
            return LowRank(_transposed(self.b), _transposed(self.a), self.scale)
        return LowRank(self.a, self.b, self.scale)


@dataclass(frozen=True)
class Adapter:
    """One LoRA adapter.

    Attributes:
        pairs: by module, named as in the base model (`model.layers.0.self_attn.q_proj`).
        replaced: weights of the base that were trained whole (`modules_to_save`), by their names there.
        config: as in adapter_config.json.
        source: the file that says `config`.
    """

    pairs: Mapping[str, Pair]
    replaced: Mapping[str, GlobalTensor]
    config: Mapping[str, Any]
    source: Path

    @property
    def summary(self) -> str:
        """Rank, number of modules and scale, for a note to the user."""
        ranks = sorted({pair.a.shape[0] for pair in self.pairs.values()})
        scales = sorted({pair.scale for pair in self.pairs.values()})
        return (
            f"LoRA adapter of rank {_few(ranks)} on {len(self.pairs)} modules, scale {_few(scales)} "
            f"(lora_alpha {self.config['lora_alpha']:g} of {self.source})"
        )


def separate(
    tensors: dict[str, GlobalTensor], root: Path, alpha: float | None = None
) -> tuple[dict[str, GlobalTensor], Adapter | None]:
    """(weights of the base by their Hugging Face names, adapter) in the shards of a checkpoint.

    The base is empty where only the adapter was saved (verl's `save_lora_only`); see `with_base`.

    Args:
        root: folder of the shards, where `lora_train_meta.json` or `lora_adapter/` are looked for.
        alpha: `--lora-alpha`.

    Raises:
        ConvertError: nothing says alpha, or the adapter is not one that is merged here.
    """
    if not any(name.startswith(PREFIX) or _OTHER.search(name) for name in tensors):
        return tensors, None
    base, matrices, replaced = sort(tensors, root)
    if not matrices:
        raise ConvertError(
            f"{root}: names of PEFT ({PREFIX}...) and no LoRA matrix: another kind of adapter. {_REMEDY}"
        )
    config, source = lora_config.of_checkpoint(root, alpha)
    adapter = assemble(matrices, replaced, config, source)
    if base:
        _check_modules(adapter, base)
    elif lora_config.trains_base(config) and not replaced:
        raise ConvertError(
            f"{root}: save_lora_only kept the LoRA matrices alone, and {source} says that other weights were "
            "trained too (bias or modules_to_save): they are lost. Save again without save_lora_only."
        )
    return base, adapter


def with_base(adapter: Adapter, base_model: Path | None) -> dict[str, GlobalTensor]:
    """Weights of the model that the training began with, for an adapter that was saved without.

    Raises:
        ConvertError: `base_model` is not given or has no weights, or the adapter does not fit them.
    """
    of = adapter.config.get("base_model_name_or_path") or "the model that the training began with"
    if base_model is None or not hf_model.has_weights(base_model):
        has = "is not given" if base_model is None else f"{base_model} has no *.safetensors"
        raise ConvertError(
            f"{adapter.source.parent}: only the LoRA adapter was saved, and --base_model {has}. Give "
            f"--base_model a folder with the weights of {of}."
        )
    why = lora_config.needs_own_base(adapter.config)
    if why:
        raise ConvertError(
            f"{adapter.source}: {why}: the adapter does not fit {base_model}. Save again without save_lora_only."
        )
    base = hf_model.read_index(base_model)
    _check_modules(adapter, base)
    return base


def with_replaced(base: dict[str, GlobalTensor], adapter: Adapter) -> dict[str, GlobalTensor]:
    """The base with the weights that were trained whole in their places: what `added` works on."""
    return {**base, **adapter.replaced}


def added(adapter: Adapter, steps: Sequence[Step], tied: bool) -> list[Step]:
    """`steps` with the adapter's products added to the weights that it adapts.

    Args:
        steps: of a plan whose outputs have Hugging Face's names, from `with_replaced`.
        tied: whether the output layer is the embedding.

    Raises:
        ConvertError: a module has no weight of its own among the outputs, or another shape; or one of two tied
            weights is adapted, which a tied model cannot express.
    """
    trained = {*adapter.pairs, *(name.removesuffix(".weight") for name in adapter.replaced)} & {*_TIED}
    if tied and trained:
        raise ConvertError(
            f"{adapter.source}: {' and '.join(sorted(trained))} trained, and the model ties the embedding to the "
            "output layer: merged they would be two weights. Keep the adapter (--lora keep)."
        )
    left = dict(adapter.pairs)
    problems: list[str] = []
    result = []
    for step in steps:
        module = step.outputs[0].name.removesuffix(".weight")
        pair = left.pop(module, None) if step.outputs[0].name.endswith(".weight") else None
        if pair is None:
            result.append(step)
            continue
        product = pair.low_rank
        shape = (product.b.shape[0], product.a.shape[1])
        if step.index or len(step.outputs) > 1 or step.source.shape != shape or step.outputs[0].shape != shape:
            problems.append(f"{module} is {list(step.outputs[0].shape)}, its adapter makes {list(shape)}")
        elif {step.source.dtype, product.a.dtype, product.b.dtype} - {*_FLOATS}:
            problems.append(
                f"{module} is {step.source.dtype}, its adapter {product.a.dtype}: only {_FLOATS} are added"
            )
        result.append(dataclasses.replace(step, added=(*step.added, product)))
    problems += [f"{module} has no weight in the model" for module in left]
    if problems:
        raise listing(
            f"{adapter.source}: the adapter does not fit the model", problems, "Give the right --base_model."
        )
    return result


def sort(
    tensors: Mapping[str, GlobalTensor], where: Path
) -> tuple[dict[str, GlobalTensor], dict[tuple[str, str, bool], GlobalTensor], dict[str, GlobalTensor]]:
    """Weights of the base; matrices by (module, letter, of an embedding); weights that were trained whole."""
    base: dict[str, GlobalTensor] = {}
    matrices: dict[tuple[str, str, bool], GlobalTensor] = {}
    replaced: dict[str, GlobalTensor] = {}
    adapters: set[str] = set()
    problems = []
    for full, tensor in tensors.items():
        name = full.removeprefix(PREFIX)
        match = _MATRIX.fullmatch(name) or _EMBEDDING.fullmatch(name)
        saved = _SAVED.fullmatch(name)
        if match:
            matrices[match["module"], match["letter"], "embedding" in match[0].rsplit(".lora_", 1)[1]] = tensor
        elif saved:
            new = f"{saved['module']}.{saved['rest']}"
            replaced[new] = dataclasses.replace(tensor, name=new)
        elif _OTHER.search(f".{name}"):
            problems.append(f"{full}: not a matrix of plain LoRA")
        else:
            new = name.replace(".base_layer.", ".").replace(".original_module.", ".")
            if new in base:
                problems.append(f"{full}: {new} is there twice")
            base[new] = dataclasses.replace(tensor, name=new)
        found = (match or saved or {"adapter": None})["adapter"]
        adapters |= {found} if found else set()
    if len(adapters) > 1:
        problems.append(f"adapters {', '.join(sorted(adapters))}: which of them is to be merged is not known")
    if problems:
        raise listing(f"{where}: not one plain LoRA adapter", problems, _REMEDY)
    return base, matrices, replaced


def assemble(
    matrices: dict[tuple[str, str, bool], GlobalTensor],
    replaced: dict[str, GlobalTensor],
    config: dict[str, Any],
    source: Path,
) -> Adapter:
    pairs, problems = {}, []
    for module, embedding in dict.fromkeys((module, embedding) for module, _, embedding in matrices):
        a, b = (matrices.get((module, letter, embedding)) for letter in "AB")
        if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
            shapes = [list(matrix.shape) if matrix else "missing" for matrix in (a, b)]
            problems.append(f"{module}: A {shapes[0]}, B {shapes[1]}; [r, in] and [out, r] are expected")
            continue
        pairs[module] = Pair(a, b, lora_config.scale(config, module, a.shape[0], source), embedding)
    if problems:
        raise listing(f"{source.parent}: matrices without a partner", problems, "Copy the checkpoint again.")
    ranks = {pair.a.shape[0] for pair in pairs.values()}
    if "r" not in config:
        if len(ranks) > 1:
            raise ConvertError(
                f"{source.parent}: LoRA matrices of ranks {_few(sorted(ranks))}, and no {lora_config.FOLDER}/"
                f"{ADAPTER_CONFIG} that says how alpha goes with them. Put that of the training there."
            )
        config = {**config, "r": ranks.pop()}
    return Adapter(pairs, replaced, config, source)


def _check_modules(adapter: Adapter, base: Mapping[str, GlobalTensor]) -> None:
    """Every adapted module has one weight in the base."""
    alone = [module for module in adapter.pairs if f"{module}.weight" not in base]
    if alone:
        raise listing(
            f"{adapter.source.parent}: adapted modules without a weight in the base",
            alone,
            f"Fused experts (target_parameters) are not merged here, and --base_model must be the model that the "
            f"training began with. {_REMEDY}",
        )


def _few(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values[:5]) + (", ..." if len(values) > 5 else "")


def _transposed(tensor: GlobalTensor) -> GlobalTensor:
    chunks = tuple(Chunk(c.offsets[::-1], c.sizes[::-1], _turned(c.open)) for c in tensor.chunks)
    return GlobalTensor(tensor.name, tensor.shape[::-1], tensor.dtype, chunks)


def _turned(opened: Callable[[], Stored]) -> Callable[[], Stored]:
    def turned() -> Stored:
        stored = opened()
        if not isinstance(stored, StoredTensor):
            raise TypeError(f"a matrix of an adapter is no {type(stored).__name__}")
        return dataclasses.replace(stored, shape=stored.shape[::-1], stride=stored.stride[::-1])

    return turned
