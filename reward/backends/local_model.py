"""The reward model: tokenised pairs in, one float each out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from reward.errors import EmptyPairError, ModelDirError, NonFiniteScoreError, ScoringError
from reward.serving.plan import plan_batches

_TOKEN_BUDGET = {"cpu": 2048, "cuda": 16384}
_MAX_PAIRS = 256
_SELF_TEST = (("What is 2 + 2?", "4"), ("What is 2 + 2?", "Two and two make four. " * 8), ("", "yes"))
# Padded against alone; bfloat16 has 8 bits of mantissa, so only float32 is held to the last digits.
_SELF_TEST_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25}


@dataclass(frozen=True)
class Pair:
    """One tokenised (prompt, response). ``token_type_ids`` is empty for tokenizers that make none."""

    input_ids: list[int]
    token_type_ids: list[int]
    truncated: bool


@dataclass(frozen=True)
class Score:
    """The model's raw output for one pair, always finite."""

    value: float
    tokens: int
    truncated: bool


class RewardModel:
    """A sequence classifier with one label. Not thread-safe: one thread calls :meth:`score`."""

    def __init__(self, path: Path, device: str = "auto", dtype: str = "auto", max_length: int = 2048) -> None:
        """Load the model.

        Args:
            path: directory that :func:`reward.model_dir.check_model_dir` accepts.
            device: auto (cuda where there is one), cpu or cuda.
            dtype: auto (bfloat16 on cuda, float32 on cpu), float32 or bfloat16.
            max_length: tokens of a pair with special tokens; longer pairs lose the end of the longer text.

        Raises:
            ModelDirError: the files do not make a usable model.
        """
        cuda = torch.cuda.is_available()
        if device == "cuda" and not cuda:
            raise ModelDirError("--device cuda: torch finds no CUDA device here; use --device auto or cpu.")
        self.device = "cuda" if device == "cuda" or (device == "auto" and cuda) else "cpu"
        self.dtype = {
            "auto": torch.bfloat16 if self.device == "cuda" else torch.float32,
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
        }[dtype]
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                path,
                dtype=self.dtype,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelDirError(f"{path}: transformers cannot load it: {error}") from error
        if loading["missing_keys"]:
            raise ModelDirError(
                f"{path}: the weights lack {', '.join(sorted(loading['missing_keys']))}; they would be random"
            )
        self._model = model.to(self.device).eval()
        # Padding on the left would move the positions of models that are given none.
        self._tokenizer.padding_side = "right"
        self._pad_id = self._padding_token(path)
        self._model.config.pad_token_id = self._pad_id
        self.architecture = type(model).__name__
        self.max_length = self._limit(max_length)
        self.token_budget = _TOKEN_BUDGET[self.device]

    def _padding_token(self, path: Path) -> int:
        for source in (
            self._tokenizer.pad_token_id,
            self._model.config.pad_token_id,
            self._tokenizer.eos_token_id,
        ):
            if source is not None:
                return int(source)
        raise ModelDirError(f"{path}: neither tokenizer nor config has a padding or end token; set pad_token_id.")

    def _limit(self, max_length: int) -> int:
        positions = getattr(self._model.config, "max_position_embeddings", None)
        limits = [max_length, int(self._tokenizer.model_max_length)]
        if positions is not None:
            # RoBERTa-like models count positions from padding_idx + 1.
            offset = 2 if self._model.config.model_type in {"roberta", "xlm-roberta", "camembert"} else 0
            limits.append(int(positions) - offset)
        return min(limits)

    def tokenize(self, prompt: str, response: str) -> Pair:
        """Tokens of ``tokenizer(prompt, response)``, at most ``max_length`` of them.

        Raises:
            EmptyPairError: there is no token.
        """
        encoded = self._tokenizer(prompt, response, verbose=False)
        truncated = len(encoded["input_ids"]) > self.max_length
        if truncated:
            encoded = self._tokenizer(prompt, response, truncation=True, max_length=self.max_length, verbose=False)
        if not encoded["input_ids"]:
            raise EmptyPairError("prompt and response together have no token")
        return Pair(list(encoded["input_ids"]), list(encoded.get("token_type_ids", ())), truncated)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score | ScoringError]:
        """Score (prompt, response) pairs, in batches of similar length.

        Returns:
            one entry a pair, in order: its score, or the error for this pair alone.
        """
        results: list[Score | ScoringError | None] = [None] * len(pairs)
        tokenised: list[tuple[int, Pair]] = []
        for position, (prompt, response) in enumerate(pairs):
            try:
                tokenised.append((position, self.tokenize(prompt, response)))
            except EmptyPairError as error:
                results[position] = error
        lengths = [len(pair.input_ids) for _, pair in tokenised]
        for batch in plan_batches(lengths, self.token_budget, _MAX_PAIRS):
            members = [tokenised[index] for index in batch]
            for (position, pair), value in zip(members, self._forward([pair for _, pair in members]), strict=True):
                if math.isfinite(value):
                    results[position] = Score(value, len(pair.input_ids), pair.truncated)
                else:
                    results[position] = NonFiniteScoreError(f"the model's output is {value}, not a score")
        return [result for result in results if result is not None]

    def _forward(self, pairs: Sequence[Pair]) -> list[float]:
        """Logits of one padded batch: input_ids (pairs, longest) -> (pairs,) as float32."""
        longest = max(len(pair.input_ids) for pair in pairs)
        ids = torch.full((len(pairs), longest), self._pad_id, dtype=torch.long)
        mask = torch.zeros((len(pairs), longest), dtype=torch.long)
        types = torch.zeros((len(pairs), longest), dtype=torch.long)
        for row, pair in enumerate(pairs):
            ids[row, : len(pair.input_ids)] = torch.tensor(pair.input_ids, dtype=torch.long)
            mask[row, : len(pair.input_ids)] = 1
            if pair.token_type_ids:
                types[row, : len(pair.token_type_ids)] = torch.tensor(pair.token_type_ids, dtype=torch.long)
        inputs = {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}
        if pairs[0].token_type_ids:
            inputs["token_type_ids"] = types.to(self.device)
        with torch.inference_mode():
            logits = self._model(**inputs).logits
        values: list[float] = logits[:, 0].float().cpu().tolist()
        return values

    def self_test(self) -> None:
        """Score a few fixed pairs, alone and in one padded batch.

        Raises:
            ModelDirError: a score is not finite, or padding changes it.
        """
        pairs = [self.tokenize(prompt, response) for prompt, response in _SELF_TEST]
        together = self._forward(pairs)
        alone = [self._forward([pair])[0] for pair in pairs]
        tolerance = _SELF_TEST_TOLERANCE[self.dtype]
        for padded, single in zip(together, alone, strict=True):
            if not (math.isfinite(padded) and math.isfinite(single)):
                raise ModelDirError(f"self-test: the model's output is {single} (alone), {padded} (in a batch)")
            if abs(padded - single) > tolerance * max(1.0, abs(single)):
                raise ModelDirError(
                    f"self-test: padding changes a score from {single} to {padded}; "
                    f"check pad_token_id {self._pad_id}"
                )
