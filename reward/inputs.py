"""From a prompt and a response to the tokens that the model is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import Encoding, Tokenizer
from transformers import AutoConfig, AutoTokenizer

from reward.backends.interface import Tokens
from reward.errors import EmptyPairError, ModelDirError, ScoringError, TooLongError
from reward.truncation import Truncate, kept_positions

Style = Literal["pair", "chat"]

# Models that count positions from the padding token's id + 1 (transformers, modeling_roberta.py).
_OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert"})


class PairTokenizer:
    """Tokenises pairs as the model directory's own tokenizer does. Safe to share among threads.

    Attributes:
        max_length: tokens of a pair, special tokens included, that the model takes.
        pad_id: id of the padding token.
    """

    def __init__(
        self,
        path: Path,
        *,
        style: Style = "pair",
        truncate: Truncate = "right",
        max_length: int = 2048,
        trust_remote_code: bool = False,
    ) -> None:
        """Load the tokenizer.

        Args:
            path: directory that :func:`reward.model_dir.check_model_dir` accepts.
            style: ``pair`` is ``tokenizer(prompt, response)``; ``chat`` is the model's chat template.
            truncate: what happens to a pair that is too long, see :mod:`reward.truncation`.
            max_length: upper bound; the tokenizer's and the model's own limits may be lower.
            trust_remote_code: whether code in the model directory may be executed.

        Raises:
            ModelDirError: there is no usable tokenizer, or it cannot do ``style``.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                path, trust_remote_code=trust_remote_code, local_files_only=True
            )
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelDirError(f"{path}: transformers cannot load its tokenizer: {error}") from error
        if style == "chat":
            raise ModelDirError(f"{path}: --input chat is not there yet")
        self._fast: Tokenizer = tokenizer.backend_tokenizer
        # Truncation is a setting of the shared tokenizer; here it is arithmetic on the result, for any thread.
        self._fast.no_truncation()
        self._fast.no_padding()
        self._with_types = "token_type_ids" in tokenizer.model_input_names
        self._truncate = truncate
        self.pad_id = _padding_token(path, tokenizer, config)
        self.max_length = _limit(max_length, tokenizer, config)

    def encode(self, prompt: str, response: str) -> Tokens:
        """The tokens of one pair, at most ``max_length``.

        Raises:
            EmptyPairError: there is no token.
            TooLongError: there are too many, and truncate is ``error``.
        """
        (result,) = self.encode_many([(prompt, response)])
        if isinstance(result, ScoringError):
            raise result
        return result

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens | ScoringError]:
        """The tokens of each pair, or the error for this pair alone; the GIL is free while it works."""
        # transformers takes a pair whose second text is empty for a single text.
        texts = [(prompt, response) if response else prompt for prompt, response in pairs]
        return [self._tokens(encoding) for encoding in self._fast.encode_batch_fast(texts)]

    def _tokens(self, encoding: Encoding) -> Tokens | ScoringError:
        ids = encoding.ids
        types = encoding.type_ids if self._with_types else ()
        if not ids:
            return EmptyPairError("prompt and response together have no token")
        if len(ids) <= self.max_length:
            return Tokens(ids, types)
        if self._truncate == "error":
            return TooLongError(
                f"the pair has {len(ids)} tokens, the model takes {self.max_length}, and --truncate error forbids "
                "to cut it; shorten it, or serve with --truncate left or right"
            )
        kept = kept_positions(encoding.sequence_ids, self._truncate, self.max_length)
        return Tokens(
            [ids[position] for position in kept],
            [types[position] for position in kept] if types else (),
            len(ids) - len(kept),
        )


def _padding_token(path: Path, tokenizer: Any, config: Any) -> int:
    for source in (tokenizer.pad_token_id, getattr(config, "pad_token_id", None), tokenizer.eos_token_id):
        if source is not None:
            return int(source)
    raise ModelDirError(f"{path}: neither tokenizer nor config has a padding or end token; set pad_token_id.")


def _limit(max_length: int, tokenizer: Any, config: Any) -> int:
    limits = [max_length, int(tokenizer.model_max_length)]
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None:
        limits.append(int(positions) - (2 if config.model_type in _OFFSET_POSITIONS else 0))
    return min(limits)
