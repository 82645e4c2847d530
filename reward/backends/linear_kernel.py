"""A quicker matrix product for linear layers on the CPU: oneDNN with weights reordered once.

torch computes float32 linear layers with MKL, which does not use all of what some CPUs offer (on AMD it stays
with AVX2). oneDNN does, but reorders the weights in each call unless that was done before, as torch._inductor does
for frozen models (torch/_inductor/fx_passes/mkldnn_fusion.py, torch 2.6 to 2.13); a GELU that follows comes almost
for nothing. The operators are private to torch: they are used only where they exist, give the same numbers for the
model's own layers, and are measured to be quicker.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[int, int]

# Layers below this are not worth it: the cost of a call is not in the product.
_LEAST_FEATURES = 64
_TRIAL_FLOP = 2e9
_TRIAL_ROUNDS = 5
# As much quicker must the product be, so that noise does not choose.
_GAIN = 0.95
# Largest difference between the two, relative to the largest output: rounding in the dtype, and no more.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
_LEAST_STEP = 16


def round_rows(rows: int) -> int:
    """The next of the row counts that are computed: multiples of 16 up to 512, then about 16 an octave.

    oneDNN compiles and keeps a kernel for each number of rows, about half a megabyte; any number would fill
    memory with them, and compiling takes as long as computing (measured: 1.9 GB after 3,000 batches, and
    0.15 GB with these).
    """
    step = max(_LEAST_STEP, 1 << max(0, rows.bit_length() - 5))
    return -(-rows // step) * step


class ReorderedLinear(nn.Module):  # type: ignore[misc]
    """``nn.Linear`` for inference, its weight in oneDNN's own order."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Plain attributes: nothing of this moves to another device or into a state dict.
        with torch.no_grad():
            self._reordered = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()
        self.fused: nn.Module | None = None
        """The exact GELU that is computed with the product: it is set by :func:`exchange`."""

    def forward(self, rows: Tensor) -> Tensor:
        """(..., in features) -> (..., out features)."""
        flat = rows.reshape(-1, self.in_features)
        count = flat.shape[0]
        if extra := round_rows(count) - count:
            flat = nn.functional.pad(flat, (0, 0, 0, extra))
        activation, variant = ("none", "") if self.fused is None else ("gelu", "none")
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            flat, self._reordered, self._bias, activation, [], variant
        )
        return out[:count].view(*rows.shape[:-1], self.out_features)

    def restored(self) -> nn.Linear:
        """The layer that this was made of; reordering loses nothing."""
        with torch.device("meta"):
            linear = nn.Linear(self.in_features, self.out_features, bias=self._bias is not None)
        linear.weight = nn.Parameter(self._reordered.to_dense(), requires_grad=False)
        if self._bias is not None:
            linear.bias = nn.Parameter(self._bias, requires_grad=False)
        return linear


@dataclass(frozen=True)
class Trial:
    """Both products for one shape of layers: seconds of the quickest call, and their relative difference."""

    layers: int
    rows: int
    plain_s: float
    reordered_s: float
    difference: float

    def better(self, dtype: torch.dtype) -> bool:
        """Whether the reordered product is to be used."""
        return self.reordered_s < _GAIN * self.plain_s and self.difference <= _TOLERANCE.get(dtype, 0.0)


def available(dtype: torch.dtype) -> bool:
    """Whether this torch has the operators, for this dtype."""
    if not torch.backends.mkldnn.is_available() or dtype not in _TOLERANCE:
        return False
    return all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))


def _layers(model: nn.Module) -> dict[Shape, list[str]]:
    """Names of the linear layers that can be exchanged, by (in, out) features."""
    found: dict[Shape, list[str]] = defaultdict(list)
    for name, module in model.named_modules():
        # A subclass may do more than its forward shows, and its weight may be read by others.
        if type(module) is nn.Linear and min(module.in_features, module.out_features) >= _LEAST_FEATURES:
            found[module.in_features, module.out_features].append(name)
    return dict(found)


def measure(model: nn.Module, dtype: torch.dtype) -> dict[Shape, Trial]:
    """Try both products on the first layer of each shape, in turns, with torch's present number of threads."""
    trials: dict[Shape, Trial] = {}
    generator = torch.Generator().manual_seed(0)
    for (features, outputs), names in _layers(model).items():
        plain = model.get_submodule(names[0])
        rows = round_rows(max(64, min(1024, int(_TRIAL_FLOP / (2 * features * outputs)))))
        inputs = torch.randn(rows, features, generator=generator).to(dtype)
        with torch.inference_mode():
            reordered = ReorderedLinear(plain)
            expected, got = plain(inputs).float(), reordered(inputs).float()
            difference = float((expected - got).abs().max() / expected.abs().max().clamp(min=1e-30))
            quickest = {id(plain): float("inf"), id(reordered): float("inf")}
            for _ in range(_TRIAL_ROUNDS):
                for layer in (plain, reordered):
                    started = time.perf_counter()
                    layer(inputs)
                    quickest[id(layer)] = min(quickest[id(layer)], time.perf_counter() - started)
        trials[features, outputs] = Trial(
            len(names), rows, quickest[id(plain)], quickest[id(reordered)], difference
        )
    return trials


def exchange(model: nn.Module, trials: Mapping[Shape, Trial], dtype: torch.dtype) -> int:
    """Put :class:`ReorderedLinear` where the trial was better; returns the number of layers."""
    exchanged = 0
    for shape, names in _layers(model).items():
        if shape in trials and trials[shape].better(dtype):
            for name in names:
                _replace(model, name, ReorderedLinear(model.get_submodule(name)))
                exchanged += 1
    for block in model.modules():
        # As in transformers' BertIntermediate and the many copies of it: the one follows the other.
        dense, activation = getattr(block, "dense", None), getattr(block, "intermediate_act_fn", None)
        if isinstance(dense, ReorderedLinear) and _is_exact_gelu(activation):
            dense.fused, block.intermediate_act_fn = activation, nn.Identity()
    return exchanged


def _is_exact_gelu(activation: Any) -> bool:
    if isinstance(activation, nn.GELU):
        return bool(activation.approximate == "none")
    return type(activation).__name__ == "GELUActivation" and activation.act is nn.functional.gelu


def restore(model: nn.Module) -> None:
    """Undo :func:`exchange`."""
    for block in model.modules():
        if isinstance(dense := getattr(block, "dense", None), ReorderedLinear) and dense.fused is not None:
            block.intermediate_act_fn, dense.fused = dense.fused, None
    for name, module in list(model.named_modules()):
        if isinstance(module, ReorderedLinear):
            _replace(model, name, module.restored())


def _replace(model: nn.Module, name: str, module: Any) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
