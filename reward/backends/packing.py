"""Pairs one after the other in one row: no padding is computed.

The row's position ids begin again with each pair, and :mod:`reward.backends.packed_attention` lets a token see
its own pair only. The model's own head then reads the scores off the first or last tokens of the pairs. Whether a
model allows it is never assumed: :func:`verify` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from reward.backends.interface import Tokens
from reward.backends.packed_attention import ATTENTION, CannotPackError, Segments, packed_row

Head = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Pooling:
    """How a classifier comes from hidden states to a score.

    Attributes:
        rows: which hidden states of a pair: of its first token, its last that is no padding, or their mean.
        head: (model, hidden states (pairs, hidden)) -> logits (pairs, 1).
        counted: positions count from behind the padding token's id and skip padding tokens, as RoBERTa's do.
    """

    rows: Literal["first", "last", "mean"]
    head: Head
    counted: bool = False


def _score(model: Any, rows: Tensor) -> Tensor:
    return model.score(rows)


def _bert(model: Any, rows: Tensor) -> Tensor:
    return model.classifier(model.bert.pooler(rows[:, None]))


def _albert(model: Any, rows: Tensor) -> Tensor:
    return model.classifier(model.albert.pooler_activation(model.albert.pooler(rows)))


def _first_of_many(model: Any, rows: Tensor) -> Tensor:
    return model.classifier(rows[:, None])


def _distilbert(model: Any, rows: Tensor) -> Tensor:
    return model.classifier(torch.relu(model.pre_classifier(rows)))


def _modernbert(model: Any, rows: Tensor) -> Tensor:
    return model.classifier(model.head(rows))


_ENCODERS = {
    "bert": Pooling("first", _bert),
    "albert": Pooling("first", _albert),
    "electra": Pooling("first", _first_of_many),
    "roberta": Pooling("first", _first_of_many, counted=True),
    "xlm-roberta": Pooling("first", _first_of_many, counted=True),
    "camembert": Pooling("first", _first_of_many, counted=True),
    "distilbert": Pooling("first", _distilbert),
}


def pooling_of(model: Any) -> Pooling:
    """The rule for a ``*ForSequenceClassification`` of transformers (4.56 to 5.10).

    Raises:
        CannotPackError: no rule is known for it.
    """
    kind = model.config.model_type
    if kind in _ENCODERS:
        return _ENCODERS[kind]
    if kind == "modernbert":
        return Pooling("mean" if model.config.classifier_pooling == "mean" else "first", _modernbert)
    if isinstance(getattr(model, "score", None), torch.nn.Module):
        return Pooling("last", _score)
    raise CannotPackError(f"no rule how {type(model).__name__} pools")


class PackedModel:
    """Packed rows through one model, whose attention it replaces."""

    def __init__(self, model: Any, pad_id: int, varlen: Callable[..., Tensor] | None = None) -> None:
        """Switch the model to packed attention; until :meth:`undo` nothing else can run it.

        Raises:
            CannotPackError: the model's class is not one of those that can be packed.
        """
        self.pooling = pooling_of(model)
        self._model = model
        self._pad_id = pad_id
        self._varlen = varlen
        self._before = model.config._attn_implementation
        embeddings = getattr(model.base_model, "embeddings", None)
        self._takes_types = hasattr(embeddings, "token_type_embeddings")
        settable = getattr(model, "_can_set_attn_implementation", None)
        if settable is not None and not settable():
            raise CannotPackError(f"{type(model).__name__} does not use transformers' AttentionInterface")
        model.set_attn_implementation(ATTENTION)

    def undo(self) -> None:
        """Give the model its own attention back."""
        self._model.set_attn_implementation(self._before)

    def forward(self, batch: Sequence[Tokens], fill: int = 0) -> Tensor:
        """Logits of the pairs, (pairs,) as float32, on the CPU.

        Args:
            fill: padding tokens after the last pair, so that rows come in fewer lengths.

        Raises:
            CannotPackError: the model does not compute attention with the function given to it.
        """
        device = self._model.device
        starts = [0]
        for pair in batch:
            starts.append(starts[-1] + len(pair))
        segments = Segments(starts + [starts[-1] + fill] * (fill > 0), device, self._varlen)
        inputs = {
            "input_ids": [*chain.from_iterable(pair.input_ids for pair in batch), *[self._pad_id] * fill],
            "position_ids": [*chain.from_iterable(self._positions(pair) for pair in batch), *[0] * fill],
        }
        if self._takes_types:
            types = (pair.token_type_ids or [0] * len(pair) for pair in batch)
            inputs["token_type_ids"] = [*chain.from_iterable(types), *[0] * fill]
        tensors = {name: torch.tensor([ids], dtype=torch.long).to(device) for name, ids in inputs.items()}
        with torch.inference_mode(), packed_row(segments):
            hidden = self._model.base_model(**tensors).last_hidden_state[0]
            logits = self.pooling.head(self._model, self._pool(hidden, batch, starts))
        if not segments.calls:
            raise CannotPackError(f"{type(self._model).__name__} does not use transformers' AttentionInterface")
        return logits.reshape(len(batch)).float().cpu()

    def _positions(self, pair: Tokens) -> Sequence[int]:
        if not self.pooling.counted:
            return range(len(pair))
        padding = self._model.base_model.embeddings.padding_idx
        positions, last = [], padding
        for token in pair.input_ids:
            last += token != padding
            positions.append(padding if token == padding else last)
        return positions

    def _pool(self, hidden: Tensor, batch: Sequence[Tokens], starts: list[int]) -> Tensor:
        """Hidden states of the row (tokens, hidden) -> (pairs, hidden)."""
        if self.pooling.rows == "mean":
            return torch.stack([hidden[a:b].mean(dim=0) for a, b in pairwise(starts)])
        places = starts[: len(batch)]
        if self.pooling.rows == "last":
            places = [start + self._last(pair) for start, pair in zip(places, batch, strict=True)]
        return hidden[places]

    def _last(self, pair: Tokens) -> int:
        """The last token that is not padding, else the first: as in transformers' modeling_layers.py."""
        for place in range(len(pair) - 1, -1, -1):
            if pair.input_ids[place] != self._pad_id:
                return place
        return 0


def verify(packed: PackedModel, pairs: Sequence[Tokens], alone: Sequence[float], tolerance: float) -> None:
    """Compare packed scores with those of the pairs alone, unpacked.

    Two properties: a pair's score is the same packed, and what its neighbours in the row are does not matter at
    all. The second needs no tolerance for narrow dtypes, since the shapes are the same.

    Args:
        tolerance: relative to scores above 1.

    Raises:
        CannotPackError: a score differs, or the forward pass fails.
    """
    try:
        together = packed.forward(pairs).tolist()
        if len(pairs) > 2:
            others = [
                Tokens([*reversed(pair.input_ids)], pair.token_type_ids) if place % 2 else pair
                for place, pair in enumerate(pairs)
            ]
            beside_others = packed.forward(others).tolist()
        else:
            beside_others = together
    except CannotPackError:
        raise
    except Exception as error:
        # Whatever a model makes of a row that it was not written for.
        raise CannotPackError(f"the packed forward pass fails: {type(error).__name__}: {error}") from error
    for place, (row, single) in enumerate(zip(together, alone, strict=True)):
        if not abs(row - single) <= tolerance * max(1.0, abs(single)):
            raise CannotPackError(f"a pair of {len(pairs[place])} tokens scores {row} packed and {single} alone")
        if place % 2 == 0 and abs(row - beside_others[place]) > 1e-5 * max(1.0, abs(row)):
            raise CannotPackError(
                f"a pair of {len(pairs[place])} tokens scores {row} or {beside_others[place]}, "
                "depending on its neighbours in the row"
            )
