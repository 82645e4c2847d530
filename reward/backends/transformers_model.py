"""The reward model in this process: batches of tokenised pairs in, one logit each out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reward.backends.checkpoint import choose_devices, choose_dtype, describe, load_classifier, padding_token
from reward.backends.interface import Tokens
from reward.backends.options import ModelOptions

_FIRST_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


class TransformersModel:
    """A :class:`reward.backends.interface.Backend`: one model on the CPU, or one on each GPU."""

    def __init__(self, options: ModelOptions, pad_id: int) -> None:
        """Load the model.

        Args:
            pad_id: the tokenizer's padding token, for a model whose configuration has none.

        Raises:
            ModelDirError: the files do not make a usable model, or not on this machine.
        """
        devices = choose_devices(options)
        self.device = devices[0].type
        self.dtype = choose_dtype(options, devices[0])
        self._models = [load_classifier(options, device, self.dtype) for device in devices]
        for model in self._models:
            self._pad_id = padding_token(model, pad_id)
        self._takes_types = "token_type_ids" in inspect.signature(self._models[0].forward).parameters
        self._info = describe(options.model, self._models[0])
        self.threads = options.threads or torch.get_num_threads()
        torch.set_num_threads(self.threads)
        self.lanes = len(devices) if self.device == "cuda" else options.replicas or 1
        self.batch_tokens = options.batch_tokens or _FIRST_BATCH_TOKENS[self.device]
        self.packs = False

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        """See :class:`reward.backends.interface.Backend`."""
        return self._padded(batch, self._models[lane % len(self._models)])

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

    def info(self) -> Mapping[str, Any]:
        """See :class:`reward.backends.interface.Backend`."""
        return {
            "name": "transformers",
            **self._info,
            "device": self.device,
            "dtype": str(self.dtype).removeprefix("torch."),
            "threads": self.threads,
            "packing": self.packs,
        }

    def close(self) -> None:
        """Drop the weights."""
        self._models.clear()
