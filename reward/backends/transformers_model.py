"""The reward model in this process: batches of tokenised pairs in, one logit each out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reward.backends import linear_kernel
from reward.backends.checkpoint import (
    check_positions,
    choose_devices,
    choose_dtype,
    describe,
    load_classifier,
    padding_token,
)
from reward.backends.cpu_threads import ThreadShare
from reward.backends.interface import Tokens
from reward.backends.linear_kernel import round_rows
from reward.backends.options import ModelOptions
from reward.backends.packed_attention import CannotPackError
from reward.backends.packing import PackedModel, verify
from reward.backends.self_test import TOLERANCE
from reward.backends.varlen import varlen_attention

_FIRST_BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}


class TransformersModel:
    """A :class:`reward.backends.interface.Backend`: one model on the CPU, or one on each GPU.

    As loaded it pads; :meth:`pack` and :meth:`reorder` make it quicker where the scores stay the same.

    Attributes:
        device: cpu or cuda.
        dtype: float32, bfloat16 or float16.
        threads: CPU threads, shared by the lanes that compute at a time.
        tuning: what was decided at the start and why, for ``GET /info``.
    """

    def __init__(self, options: ModelOptions, pad_id: int, max_length: int) -> None:
        """Load the model.

        Args:
            pad_id: the tokenizer's padding token, for a model whose configuration has none.
            max_length: tokens of the longest pair that will come.

        Raises:
            ModelDirError: the files do not make a usable model, or not on this machine.
        """
        devices = choose_devices(options)
        dtype = choose_dtype(options, devices[0])
        self.device = devices[0].type
        self.dtype = str(dtype).removeprefix("torch.")
        self._torch_dtype = dtype
        self._models = [load_classifier(options, device, dtype) for device in devices]
        check_positions(self._models[0].config, max_length)
        for model in self._models:
            self._pad_id = padding_token(model, pad_id)
        self._vocabulary: int = self._models[0].config.get_text_config().vocab_size
        self._takes_types = "token_type_ids" in inspect.signature(self._models[0].forward).parameters
        self._info = describe(options.model, self._models[0])
        self._packed: list[PackedModel] = []
        self.packs = False
        self._rounds = False
        self.threads = options.threads or torch.get_num_threads()
        self._share = ThreadShare(self.threads)
        self.lanes = len(devices) if self.device == "cuda" else options.replicas or 1
        self.batch_tokens = options.batch_tokens or _FIRST_BATCH_TOKENS[self.device]
        self.tuning: dict[str, Any] = {}

    @property
    def window(self) -> int | None:
        """Tokens of the model's sliding window; it may or may not have layers that use it."""
        config = self._models[0].config.get_text_config()
        return getattr(config, "sliding_window", None) or getattr(config, "local_attention", None)

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        """See :class:`reward.backends.interface.Backend`.

        Raises:
            ValueError: a token that the model does not have. A GPU that looks it up can compute nothing any more.
        """
        if (highest := max(max(pair.input_ids) for pair in batch)) >= self._vocabulary:
            raise ValueError(
                f"token {highest}, and the model has {self._vocabulary}: the tokenizer is not the model's"
            )
        replica = lane % len(self._models)
        with self._share.hold():
            if not self._packed:
                return self._padded(batch, self._models[replica])
            tokens = sum(map(len, batch))
            fill = round_rows(tokens) - tokens if self._rounds else 0
            values: list[float] = self._packed[replica].forward(batch, fill).tolist()
            return values

    def _padded(self, batch: Sequence[Tokens], model: Any) -> list[float]:
        """One row a pair: input_ids (pairs, longest) -> logits (pairs,) as float32."""
        longest = max(len(pair) for pair in batch)
        ids = torch.full((len(batch), longest), self._pad_id, dtype=torch.long)
        mask = torch.zeros((len(batch), longest), dtype=torch.long)
        types = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, pair in enumerate(batch):
            # On the right: padding on the left would move the positions of models that are given none.
            ids[row, : len(pair)] = torch.tensor(pair.input_ids, dtype=torch.long)
            mask[row, : len(pair)] = 1
            if pair.token_type_ids:
                types[row, : len(pair)] = torch.tensor(pair.token_type_ids, dtype=torch.long)
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._takes_types and any(pair.token_type_ids for pair in batch):
            inputs["token_type_ids"] = types
        with torch.inference_mode():
            logits = model(**{name: tensor.to(model.device) for name, tensor in inputs.items()}).logits
        values: list[float] = logits[:, 0].float().cpu().tolist()
        return values

    def alone(self, pairs: Sequence[Tokens]) -> list[float]:
        """Logits of the pairs, one forward pass each."""
        return [self.forward([pair], 0)[0] for pair in pairs]

    def pack(
        self, pairs: Sequence[Tokens], alone: Sequence[float], *, on_gpu_without_varlen: bool = False
    ) -> None:
        """Compute rows without padding from now on.

        Args:
            pairs: real ones to compare the scores of, one of them longer than a sliding window if there is any.
            alone: what they score one by one, padded.
            on_gpu_without_varlen: pack on a GPU also without flash attention, with a call for each pair.

        Raises:
            CannotPackError: the model does not allow it, and is as it was before.
        """
        varlen = None
        if self.device == "cuda":
            varlen = varlen_attention(self.dtype)
            if varlen is None and not on_gpu_without_varlen:
                raise CannotPackError(f"no flash_attn for {self.dtype} on this GPU")
        packed: list[PackedModel] = []
        try:
            for model in self._models:
                packed.append(PackedModel(model, self._pad_id, varlen))
                verify(packed[-1], pairs, alone, TOLERANCE[self.dtype])
        except CannotPackError:
            for one in packed:
                one.undo()
            raise
        self._packed = packed
        self.packs = True

    def reorder(self, pairs: Sequence[Tokens], alone: Sequence[float]) -> str:
        """Use :mod:`reward.backends.linear_kernel` for the layers where it is quicker; returns what was found.

        The layers stay as they are where ``pairs`` would not score as they do ``alone``, before.
        """
        dtype = self._torch_dtype
        if self.device != "cpu" or not linear_kernel.available(dtype):
            return "torch (the reordered one is for float32 and bfloat16 on the CPU)"
        (model,) = self._models
        with self._share.hold():
            try:
                trials = linear_kernel.measure(model, dtype)
            except RuntimeError as error:  # an operator that this CPU lacks
                return f"torch ({error})"
            exchanged = linear_kernel.exchange(model, trials, dtype)
        plain = sum(trial.layers * trial.plain_s / trial.rows for trial in trials.values())
        quickest = sum(
            trial.layers * min(trial.plain_s, trial.reordered_s) / trial.rows for trial in trials.values()
        )
        if not exchanged:
            return "torch (oneDNN with reordered weights is not quicker here)"
        tolerance = TOLERANCE[self.dtype]
        try:
            after = self.alone(pairs)
        except (RuntimeError, AttributeError, TypeError) as error:  # code that reads a layer's weight
            after = [float("nan")]
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = f"scores {after} instead of {alone}"
        if all(abs(new - old) <= tolerance * max(1.0, abs(old)) for new, old in zip(after, alone, strict=False)):
            self._rounds = True
            return f"oneDNN, weights reordered, in {exchanged} layers, {plain / quickest:.2f} times as quick"
        linear_kernel.restore(model)
        return f"torch (oneDNN with reordered weights: {reason})"

    def info(self) -> Mapping[str, Any]:
        """See :class:`reward.backends.interface.Backend`."""
        return {
            "name": "transformers",
            **self._info,
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "lanes": self.lanes,
            "batch_tokens": self.batch_tokens,
            **self.tuning,
        }

    def close(self) -> None:
        """Drop the weights."""
        self._packed.clear()
        self._models.clear()
