"""A table of rules: each tensor of Megatron-core -> its Hugging Face tensors, and how to split it.

Shapes are written in the sizes of `hf_config.ModelConfig`: H hidden, F feed-forward, V vocabulary, D head, Q all
query heads, K all key heads, and what the family's config class adds (E experts, M feed-forward of an expert...).
They are what the output must have; the shape in Megatron follows from the split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from converters.hf.hf_config import ModelConfig

COPY, QKV, GATE_UP, VOCAB = "copy", "qkv", "gate_up", "vocab"
ALL, DENSE, SPARSE = "all", "dense", "sparse"
# Split -> number of tensors that it gives.
_GIVES = {COPY: 1, QKV: 3, GATE_UP: 2, VOCAB: 1}


@dataclass(frozen=True)
class Rule:
    """One Megatron tensor.

    Attributes:
        mcore: its name; a tuple where the layer spec decides which of them is used. `decoder.layers.` stands for
            every layer: in the checkpoint the layers are stacked on the first axis, or have a number in the name.
        hf: output name -> shape in sizes, in the order of the split. `{layer}` is the layer's number; with
            `{expert}` the rule stands for every expert, which Megatron stacks on the axis after the layers.
        split: COPY as it is; QKV interleaved by query group, [q..q, k, v] for each key head; GATE_UP one after the
            other; VOCAB rows beyond the vocabulary are padding and cut.
        when: only if this flag of config.json is true ("not x": false); "untied" if the embeddings are not tied.
        layers: ALL, or those with a DENSE feed-forward, or those with experts (SPARSE).
        live: name inside a model of transformers 5 where it is another than on disk: experts are fused there,
            [E, ...] with gate and up one after the other. FSDP shards have these names.
        zeros: Megatron's model may lack it, and then it is zero in the Hugging Face model.
        keeps_dtype: stays as it is stored when the model's type is changed.
    """

    mcore: tuple[str, ...]
    hf: Mapping[str, str]
    split: str = COPY
    when: str = ""
    layers: str = ALL
    live: str = ""
    zeros: bool = False
    keeps_dtype: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for what a table cannot say: README.md beside this file has the list."""
        where = f"rule for {' or '.join(self.mcore) or 'no name'}"
        if not self.mcore or self.split not in _GIVES or self.layers not in (ALL, DENSE, SPARSE):
            raise ValueError(f"{where}: split {self.split!r}, layers {self.layers!r}: not one that is known")
        if len(self.hf) != _GIVES[self.split]:
            raise ValueError(
                f"{where}: {self.split} gives {_GIVES[self.split]} tensors, {len(self.hf)} are named. Rows of one "
                "output are written in the order in which Megatron has them: a fused tensor (qkv_proj) that has "
                "them in another cannot be made by a rule."
            )
        for name in self.hf:
            if ("{layer}" in name) != self.per_layer or ("{expert}" in name) != self.per_expert:
                raise ValueError(f"{where}: {name}: all names have {{layer}} (and {{expert}}), or none has")
        if (self.per_expert and self.layers != SPARSE) or (self.layers != ALL and not self.per_layer):
            raise ValueError(f"{where}: layers is {self.layers}: SPARSE for experts, ALL for what is in no layer")

    @property
    def per_layer(self) -> bool:
        return self.mcore[0].startswith("decoder.layers.")

    @property
    def per_expert(self) -> bool:
        return "{expert}" in next(iter(self.hf))

    def applies(self, config: ModelConfig) -> bool:
        if self.when == "untied":
            return not config.tied
        if self.when.startswith("not "):
            return not config.flag(self.when.removeprefix("not "))
        return not self.when or config.flag(self.when)

    def in_layer(self, layer: int, config: ModelConfig) -> bool:
        return self.layers == ALL or (layer in config.sparse) == (self.layers == SPARSE)

    def hf_shapes(
        self, config: ModelConfig, layer: int | None, expert: int | None = None
    ) -> dict[str, tuple[int, ...]]:
        return {
            name.format(layer=layer, expert=expert): tuple(config.size(size) for size in sizes.split())
            for name, sizes in self.hf.items()
        }

    def mcore_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Of one layer and one expert. With VOCAB the first number is the least: padding may follow."""
        shapes = list(self.hf_shapes(config, 0, 0).values())
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


@dataclass(frozen=True)
class Run:
    """Rows of a source that lie together in one output."""

    source_row: int
    rows: int
    output: int  # number of the output among those of its step
    output_row: int


class Place(NamedTuple):
    """A rule for one layer and one expert."""

    rule: Rule
    layer: int | None = None
    expert: int | None = None


def hf_shapes(rules: tuple[Rule, ...], config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the Hugging Face model and its shape, in the order of the output."""
    shapes: dict[str, tuple[int, ...]] = {}
    for rule, layer, expert in in_order(rules, config):
        shapes.update(rule.hf_shapes(config, layer, expert))
    return shapes


def keep_dtype(rules: tuple[Rule, ...], config: ModelConfig) -> set[str]:
    """Outputs that stay in their type when the model's is changed."""
    kept = (place for place in in_order(rules, config) if place.rule.keeps_dtype)
    return {name for rule, layer, expert in kept for name in rule.hf_shapes(config, layer, expert)}


def in_order(rules: tuple[Rule, ...], config: ModelConfig) -> list[Place]:
    """Each rule that applies, with each layer and expert: embedding, layer after layer, the rest.

    Rules of experts that follow each other are taken expert by expert.
    """
    applying = [rule for rule in rules if rule.applies(config)]
    per_layer = [rule for rule in applying if rule.per_layer]
    first = applying.index(per_layer[0])
    order = [Place(rule) for rule in applying[:first]]
    for layer in range(config.layers):
        here = [rule for rule in per_layer if rule.in_layer(layer, config)]
        for of_experts, group in groupby(here, key=lambda rule: rule.per_expert):
            rules_here = list(group)
            if of_experts:
                order += [Place(r, layer, expert) for expert in range(config.size("E")) for r in rules_here]
            else:
                order += [Place(rule, layer) for rule in rules_here]
    return order + [Place(rule) for rule in applying[first:] if not rule.per_layer]


def runs(rule: Rule, config: ModelConfig) -> tuple[Run, ...]:
    """Which rows of a Megatron tensor (of one layer, one expert) are which rows of the tensors of `rule.hf`.

    A QKV of shape [Q + 2K, ...] holds for each of the `kv_heads` groups its query heads, then one key, then
    one value head; cutting it in three blocks would load without an error and give garbage.
    """
    if rule.split == QKV:
        queries, D = config.heads // config.kv_heads * config.D, config.D
        found = []
        for group in range(config.kv_heads):
            at = group * (queries + 2 * D)
            found += [
                Run(at, queries, 0, group * queries),
                Run(at + queries, D, 1, group * D),
                Run(at + queries + D, D, 2, group * D),
            ]
        return tuple(found)
    found, at = [], 0
    for number, shape in enumerate(rule.hf_shapes(config, 0, 0).values()):
        found.append(Run(at, shape[0], number, 0))
        at += shape[0]
    return tuple(found)
