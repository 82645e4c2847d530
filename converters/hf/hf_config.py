"""config.json of the model: which dimensions, tied or not."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from converters.errors import ConvertError
from converters.json_file import read_json

# Far above every model there is (61 layers of 384 experts, 128 heads): lists of them are made.
_MOST_LAYERS, _MOST_HEADS, _MOST_EXPERTS = 10_000, 100_000, 200_000
_MOST = 2**40
_WRONG = "Correct config.json, or give the right --base_model."

# verl has no Megatron model for Mistral: as Llama, which it is, it can be trained. Kimi K2 is published like this.
_ALSO = {"mistral": "LlamaForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM"}


class Change(NamedTuple):
    """What the output's config.json must say otherwise; None leaves the key out."""

    value: Any
    why: str


class Numbers:
    """The numbers of config.json, over what the config class takes where it is silent.

    A key that is null counts as absent where a number is needed: the class's `None` says so too.
    """

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values, self._path = values, path

    def __call__(self, key: str, default: int | None = None, most: int = _MOST) -> int:
        """A positive whole number, at most `most`.

        Raises:
            ConvertError: it is missing, or something else.
        """
        return _positive(self._values, key, self._path, default, most)

    def or_zero(self, key: str) -> int:
        """A whole number of zero or more; null is zero."""
        return self(key) if self._values.get(key) not in (None, 0) else 0

    def listed(self, key: str) -> list[int]:
        """A list of whole numbers; null is empty."""
        value = self._values.get(key) or []
        if not isinstance(value, list) or not all(type(n) is int for n in value):
            raise ConvertError(f"{self._path}: {key} is {value!r}, a list of layer numbers is expected")
        return value


def _nothing_more(number: Numbers) -> dict[str, int]:
    return {}


def _no_experts(number: Numbers, layers: int) -> frozenset[int]:
    return frozenset()


@dataclass(frozen=True)
class ConfigClass:
    """What a family's config class adds to the common keys of config.json.

    Attributes:
        defaults: key -> what the class takes where config.json has no such key.
        renamed: key that transformers 5 writes -> the one of transformers 4, which does not know the other.
        sizes: the family's own sizes, by the names that its table uses.
        sparse: which layers have experts.
        own_code: part of the name of upstream's module in `auto_map`. transformers has the class itself, so that
            the entry is not needed; for other families, and for other modules, it is refused.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    sizes: Callable[[Numbers], dict[str, int]] = _nothing_more
    sparse: Callable[[Numbers, int], frozenset[int]] = _no_experts
    own_code: str = ""


@dataclass(frozen=True)
class ModelConfig:
    """What the tables of `families` need, in elements, named as in them.

    H hidden, F feed-forward, V vocabulary, D head, Q all query heads, K all key (or value) heads.

    Attributes:
        raw: config.json over the defaults of its class; `silent`: keys that only these defaults have.
        tied: the embedding is the head too.
        sparse: layers with experts.
        own_sizes: of the family, by name.
        labels: outputs of a value or reward head.
        changes: by key.
    """

    path: Path
    raw: dict[str, Any]
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    H: int
    F: int
    V: int
    D: int
    tied: bool
    silent: frozenset[str] = frozenset()
    sparse: frozenset[int] = frozenset()
    own_sizes: Mapping[str, int] = field(default_factory=dict)
    labels: int = 2
    changes: Mapping[str, Change] = field(default_factory=dict)

    @property
    def Q(self) -> int:
        return self.heads * self.D

    @property
    def K(self) -> int:
        return self.kv_heads * self.D

    def size(self, name: str) -> int:
        """A size by the name that the tables use."""
        return self.own_sizes[name] if name in self.own_sizes else int(getattr(self, name))

    def flag(self, name: str) -> bool:
        return bool(self.raw.get(name, False))

    def says(self, *keys: str) -> bool:
        """Whether config.json has one of these keys itself."""
        return any(self.raw.get(key) is not None and key not in self.silent for key in keys)

    def adapted(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """`raw` (config.json as it is) with `changes`, and a line for each."""
        config, lines = dict(raw), []
        for key, (value, why) in self.changes.items():
            if config.get(key) == value:
                continue
            lines.append(f"{key}: {config.get(key)!r} -> {value!r}, {why}")
            if value is None:
                del config[key]
            else:
                config[key] = value
        return config, lines


def read(path: Path, kind: ConfigClass | None = None) -> ModelConfig:
    """config.json as dimensions; `kind` is what the family's config class adds.

    Raises:
        ConvertError: a value is missing or does not fit, or the config asks for something that is refused
            (quantized weights, code from the checkpoint).
    """
    kind = kind or ConfigClass()
    own = read_json(path)
    changes = _without_code(own, kind, path) | _old_names(own, kind, path)
    raw = {**kind.defaults, **own, **{key: change.value for key, change in changes.items()}}
    if raw.get("quantization_config"):
        raise ConvertError(
            f"{path}: quantization_config describes quantized weights, the checkpoint holds plain ones. "
            "Give --base_model a folder with the unquantized model's config.json."
        )
    number = Numbers(raw, path)
    layers, hidden = number("num_hidden_layers", most=_MOST_LAYERS), number("hidden_size")
    heads = number("num_attention_heads", most=_MOST_HEADS)
    kv_heads = number("num_key_value_heads", heads)
    if number.or_zero("num_nextn_predict_layers"):
        number("num_nextn_predict_layers", most=_MOST_LAYERS)
    if heads % kv_heads:
        raise ConvertError(
            f"{path}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    sizes = kind.sizes(number)
    if layers * sizes.get("E", 0) > _MOST_EXPERTS:
        raise ConvertError(
            f"{path}: {layers} layers of {sizes['E']} experts, more than {_MOST_EXPERTS} in all: of no model. "
            + _WRONG
        )
    if "D" not in sizes and raw.get("head_dim") is None and hidden % heads:
        raise ConvertError(f"{path}: no head_dim, and hidden_size {hidden} is not a multiple of {heads} heads")
    return ModelConfig(
        path=path,
        raw=raw,
        architecture=_agreed(architecture(path), own, path),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        H=hidden,
        F=number("intermediate_size"),
        V=number("vocab_size"),
        D=sizes.pop("D", 0) or number("head_dim", hidden // heads),
        tied=bool(raw.get("tie_word_embeddings", False)),
        silent=frozenset(raw) - frozenset(own),
        sparse=kind.sparse(number, layers),
        own_sizes=sizes,
        labels=_labels(raw, path),
        changes=changes,
    )


def _old_names(raw: dict[str, Any], kind: ConfigClass, path: Path) -> dict[str, Change]:
    """Both names of a key that transformers 5 renamed: version 4 would take its default without a word."""
    changes = {}
    for new, old in kind.renamed.items():
        if new in raw and raw.get(old, raw[new]) != raw[new]:
            raise ConvertError(f"{path}: {new} is {raw[new]!r} and {old} {raw[old]!r}: they must be the same")
        if new in raw and old not in raw:
            changes[old] = Change(raw[new], f"as {new}, for readers of transformers 4")
    return changes


def _without_code(raw: dict[str, Any], kind: ConfigClass, path: Path) -> dict[str, Change]:
    """Leaves `auto_map` out where transformers has upstream's code as a class of its own."""
    code = raw.get("auto_map")
    if not code:
        return {}
    known = isinstance(code, dict) and kind.own_code
    if not known or not all(
        isinstance(module, str) and re.fullmatch(rf"(configuration|modeling)_{kind.own_code}\.\w+", module)
        for module in code.values()
    ):
        raise ConvertError(f"{path}: auto_map names code to run ({code}); such models are not converted")
    return {"auto_map": Change(None, "transformers has this class itself")}


def _labels(raw: dict[str, Any], path: Path) -> int:
    names = raw.get("id2label")
    if names is None:
        return _positive(raw, "num_labels", path, 2)  # 2: transformers' PretrainedConfig
    if not isinstance(names, dict) or not names:
        raise ConvertError(f"{path}: id2label is {names!r}, a table of names is expected")
    return len(names)


def architecture(path: Path) -> str:
    """The one entry of `architectures`."""
    names = read_json(path).get("architectures")
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise ConvertError(f"{path}: architectures is {names!r}, one name is expected (Qwen3ForCausalLM, ...)")
    return names[0]


def _agreed(name: str, raw: Mapping[str, Any], path: Path) -> str:
    """`name`, an entry of `architectures`; transformers' AutoModel goes by `model_type` alone."""
    kind = raw.get("model_type")
    stem = str(kind).replace("_", "").lower()
    if kind is not None and not name.lower().startswith(stem + "for") and _ALSO.get(str(kind)) != name:
        raise ConvertError(
            f"{path}: model_type is {reprlib.repr(kind)} and architectures {name}: not one model. {_WRONG}"
        )
    return name


def _positive(raw: Mapping[str, Any], key: str, path: Path, default: int | None = None, most: int = _MOST) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConvertError(f"{path}: {key} is {reprlib.repr(value)}, a positive whole number is expected")
    if value > most:
        raise ConvertError(f"{path}: {key} is {reprlib.repr(value)}, more than {most}: of no model. {_WRONG}")
    return value
