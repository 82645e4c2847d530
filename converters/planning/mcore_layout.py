"""Find a rule's tensor among those of a Megatron-core checkpoint.

megatron-core 0.13 to 0.16 (`transformer/{transformer_block,mlp,moe/experts}.py`) writes a layer in one of three
ways:

- all layers stacked: `decoder.layers.mlp...` [layers, ...], experts [layers, experts, ...];
- each layer by its number, where layers differ (`moe_layer_freq` is a list or above 1): `decoder.layers.7.mlp...`,
  experts [experts, ...];
- each expert by its number as well, with `singleton_local_shards`: `...mlp.experts.experts.3.linear_fc2.weight`,
  and gate and up apart, `...linear_fc1.weight_w` and `weight_v`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from converters import families
from converters.families import Place, Run
from converters.hf.hf_config import ModelConfig
from converters.planning import steps
from converters.planning.padding import may_be_padding
from converters.planning.steps import Output, Step
from converters.storage.tensors import Chunk, GlobalTensor

HEAD = "output_layer.weight"
_LAYERS, _EXPERTS = "decoder.layers.", ".experts.experts."

Index = tuple[int, ...]


class Match:
    """Finds the tensors of rules, each found one once and for all.

    Attributes:
        taken: names of the tensors that belong to a rule.
    """

    def __init__(self, tensors: dict[str, GlobalTensor], config: ModelConfig, problems: list[str]) -> None:
        self.taken: set[str] = set()
        self._tensors, self._config, self._problems = tensors, config, problems
        self._told: set[tuple[str, int | None]] = set()
        self._chunks: dict[str, dict[Index, list[Chunk]]] = {}

    def steps(self, place: Place) -> list[Step]:
        """The steps of one place; what is wrong becomes a line in `problems`."""
        rule, layer, expert = place
        shapes = rule.hf_shapes(self._config, layer, expert)
        for name in rule.mcore:
            found = self._find(name, place)
            if found:
                runs = families.runs(rule, self._config)
                return self._step(*found, place, shapes, rule.mcore_shape(self._config), runs)
            halves = (
                [self._find(name + end, place) for end in ("_w", "_v")] if rule.split == families.GATE_UP else []
            )
            if any(halves):
                made = []
                for half, (output, shape) in zip(halves, shapes.items(), strict=True):
                    if half:
                        made += self._step(*half, place, {output: shape}, shape, (Run(0, shape[0], 0, 0),))
                    else:
                        self._tell(place, f"{name}_w or {name}_v")
                return made
        if rule.zeros:
            return [steps.zeros(name, shape, self._tensors[HEAD].dtype) for name, shape in shapes.items()]
        self._tell(place, " or ".join(rule.mcore))
        return []

    def _tell(self, place: Place, names: str) -> None:
        """A missing tensor; once for all experts of a layer."""
        if (names, place.layer) not in self._told:
            self._told.add((names, place.layer))
            of = f" (layer {place.layer})" if place.layer is not None else ""
            self._problems.append(f"{names}{of} is missing from the checkpoint")

    def _find(self, name: str, place: Place) -> tuple[GlobalTensor, Index] | None:
        for spelled, index in _spellings(name, place):
            if spelled in self._tensors:
                return self._tensors[spelled], index
        return None

    def _step(
        self,
        source: GlobalTensor,
        index: Index,
        place: Place,
        shapes: dict[str, tuple[int, ...]],
        expected: tuple[int, ...],
        runs: tuple[Run, ...],
    ) -> list[Step]:
        self.taken.add(source.name)
        if not self._stacked_right(source, index, place):
            return []
        shape = source.shape[len(index) :]
        longer = place.rule.split == families.VOCAB and shape[:1] > expected[:1] and shape[1:] == expected[1:]
        if shape != expected and not (longer and may_be_padding(shape[0], expected[0])):
            of = f" of layer {place.layer}" if place.layer is not None else ""
            of += f", expert {place.expert}," if place.expert is not None else ""
            why = f": {shape[0] - expected[0]} rows more are no padding of a vocabulary" if longer else ""
            self._problems.append(
                f"{source.name}{of} is {list(shape)}, config.json makes it {list(expected)}{why}"
            )
            return []
        outputs = tuple(Output(name, size, source.dtype) for name, size in shapes.items())
        return [Step(self._narrowed(source, index), index, outputs, runs)]

    def _stacked_right(self, source: GlobalTensor, index: Index, place: Place) -> bool:
        """Whether the leading axes have as many places as the model has layers and experts."""
        counts = (
            [(self._config.layers, "layers", "num_hidden_layers")]
            if len(index) > (place.expert is not None)
            else []
        )
        if place.expert is not None and index:
            counts.append((self._config.size("E"), "experts", "experts"))
        for axis, (count, what, key) in enumerate(counts):
            there = source.shape[axis] if len(source.shape) > axis else 0
            if there != count:
                if (source.name, None) not in self._told:
                    self._told.add((source.name, None))
                    self._problems.append(
                        f"{source.name} is {list(source.shape)}: {there} {what}, config.json says {key} {count}"
                    )
                return False
        return True

    def _narrowed(self, source: GlobalTensor, index: Index) -> GlobalTensor:
        """`source` with the chunks that have a part of this place: experts make ten thousands of chunks."""
        if not index:
            return source
        if source.name not in self._chunks:
            at: dict[Index, list[Chunk]] = {}
            for chunk in source.chunks:
                spans = (range(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
                for covered in product(*(span for span, _ in zip(spans, index, strict=False))):
                    at.setdefault(covered, []).append(chunk)
            self._chunks[source.name] = at
        return replace(source, chunks=tuple(self._chunks[source.name].get(index, ())))


def _spellings(name: str, place: Place) -> Iterator[tuple[str, Index]]:
    """Names that a tensor may have, each with its place on the leading axes."""
    _, layer, expert = place
    of_expert = () if expert is None else (expert,)
    if layer is None:
        yield name, ()
        return
    yield name, (layer, *of_expert)
    numbered = name.replace(_LAYERS, f"{_LAYERS}{layer}.", 1)
    yield numbered, of_expert
    if expert is not None:
        yield numbered.replace(_EXPERTS, f"{_EXPERTS}{expert}.", 1), ()
