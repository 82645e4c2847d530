"""From a prompt and a response to the tokens that the model is given."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

from transformers import AutoConfig, AutoTokenizer

from reward.backends.interface import Tokens
from reward.chat_frame import find_frame
from reward.encoders import Encoded, Encoder, FastChats, FastPairs, SlowPairs
from reward.errors import EmptyPairError, InputTextError, ModelDirError, ScoringError, TooLongError
from reward.truncation import Truncate, kept_positions

log = logging.getLogger("reward.inputs")

Style = Literal["pair", "chat"]

# These count positions from the padding token's id + 1 (create_position_ids_from_input_ids, transformers 4.56).
_OFFSET_POSITIONS = frozenset(
    {
        "camembert",
        "data2vec-text",
        "longformer",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
_SHOWN_CHARS = 200
# As many words each, since words outside of a vocabulary are all the same; a model may know one script only.
_DIFFERENT = (("The apple is red", "Some house was old"), ("1 2", "3 4"), ("漢字", "仮名"))
# What templates take for today: with the real one a job that goes on tomorrow would get other rewards. It is the
# day that Llama 3's templates fall back to.
_TODAY = date(2024, 7, 26)


class PairTokenizer:
    """Tokenises pairs as the model directory's own tokenizer does. Safe to share among threads.

    Attributes:
        max_length: tokens of a pair that the model is given at most, special and template tokens included.
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
            style: ``pair`` is ``tokenizer(prompt, response)``; ``chat`` is the model's chat template over a
                user's and an assistant's message, without another begin token.
            truncate: what becomes of a pair that is too long, see :mod:`reward.truncation`.
            max_length: upper bound; the tokenizer's and the model's own limits may be lower, which a line in the
                log tells.
            trust_remote_code: whether Python code in the model directory may be executed.

        Raises:
            ModelDirError: there is no usable tokenizer, it cannot do ``style``, or ``max_length`` is too small.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                path, trust_remote_code=trust_remote_code, local_files_only=True
            )
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
        except Exception as error:  # tokenizers raises nothing more exact for a file it cannot read
            raise ModelDirError(f"{path}: transformers cannot load its tokenizer: {error}") from error
        self._with_types = "token_type_ids" in tokenizer.model_input_names
        self._encoder = _encoder(path, tokenizer, style, self._with_types)
        self._truncate = truncate
        self.pad_id = _padding_token(path, tokenizer, config)
        self.max_length, whose = min((max_length, ""), *_limits(path, tokenizer, config))
        if whose:
            log.warning(
                "max_length %d is more than the %d %s, and becomes %d: longer pairs are %s (--truncate %s)",
                max_length, self.max_length, whose, self.max_length, "refused" if truncate == "error" else "cut",
                truncate,
            )  # fmt: skip
        self._require_vocabulary(path)
        fixed = list(self._encoder.encode_many([("a", "b")])[0].owners()).count(None)
        if fixed >= self.max_length:
            raise ModelDirError(
                f"{path}: {self.max_length} tokens a pair leave no room for text: {fixed} are special or template "
                "tokens; raise --max-length, or the model_max_length of tokenizer_config.json"
            )

    def _require_vocabulary(self, path: Path) -> None:
        """transformers 5 makes a tokenizer without words where tokenizer.json is missing; refuse it."""
        for texts in _DIFFERENT:
            one, other = self._encoder.encode_many([("", text) for text in texts])
            if one.ids != other.ids:
                return
        raise ModelDirError(
            f"{path}: its tokenizer gives different texts the same tokens: the vocabulary is missing "
            "(tokenizer.json, or what this tokenizer has in its place); copy the tokenizer again"
        )

    def encode(self, prompt: str, response: str) -> Tokens:
        """The tokens of one pair, at most ``max_length``.

        Raises:
            EmptyPairError: there is no token.
            TooLongError: there are too many, and truncate is ``error``.
            InputTextError: the tokenizer refuses a text.
        """
        (result,) = self.encode_many([(prompt, response)])
        if isinstance(result, ScoringError):
            raise result
        return result

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens | ScoringError]:
        """The tokens of each pair, or the error for this pair alone; the GIL is free while tokenizers works."""
        return [
            encoded if isinstance(encoded, ScoringError) else self._cut(encoded)
            for encoded in self._encoded(pairs)
        ]

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> Sequence[Encoded | ScoringError]:
        try:
            return self._encoder.encode_many(pairs)
        except ScoringError as error:
            if len(pairs) == 1:
                return [error]
        except Exception as error:  # noqa: BLE001  tokenizers raises nothing more exact for a text it cannot take
            if len(pairs) == 1:
                return [InputTextError(f"the tokenizer refuses a text of the pair: {str(error)[:_SHOWN_CHARS]}")]
        return [encoded for pair in pairs for encoded in self._encoded([pair])]

    def _cut(self, encoded: Encoded) -> Tokens | ScoringError:
        ids, types = encoded.ids, encoded.types if self._with_types else []
        if not ids:
            return EmptyPairError("prompt and response together have no token")
        if len(ids) <= self.max_length:
            return Tokens(ids, types)
        if self._truncate == "error":
            return TooLongError(
                f"the pair has {len(ids)} tokens, the model takes {self.max_length}, and --truncate error forbids "
                "to cut it: shorten it, or serve with --truncate left or right"
            )
        try:
            kept = kept_positions(encoded.owners(), self._truncate, self.max_length)
        except ValueError as error:
            return TooLongError(f"the pair cannot be cut: {error}")
        return Tokens(
            [ids[position] for position in kept],
            [types[position] for position in kept] if types else [],
            len(ids) - len(kept),
        )


def _encoder(path: Path, tokenizer: Any, style: Style, with_types: bool) -> Encoder:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        # Truncation is a setting of the shared tokenizer; here it is arithmetic on the result, for any thread.
        fast.no_truncation()
        fast.no_padding()
    if style == "pair":
        return SlowPairs(tokenizer) if fast is None else FastPairs(fast, with_types)
    if fast is None:
        raise ModelDirError(
            f"{path}: {type(tokenizer).__name__} is written in Python and does not tell which tokens are of the "
            "template; --input chat needs a tokenizer.json"
        )
    if not tokenizer.chat_template:
        raise ModelDirError(
            f"{path}: its tokenizer has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); serve with --input pair, or add the template that the model was trained with"
        )

    def render(prompt: str, response: str) -> str:
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=False, strftime_now=_TODAY.strftime
        )
        return text

    try:
        return FastChats(fast, find_frame(render), tokenizer.unk_token_id)
    except Exception as error:  # the template is a program of its own and may raise anything
        raise ModelDirError(f"{path}: --input chat: {type(error).__name__}: {error}") from error


def _padding_token(path: Path, tokenizer: Any, config: Any) -> int:
    for source in (tokenizer.pad_token_id, getattr(config, "pad_token_id", None), tokenizer.eos_token_id):
        if source is not None:
            return int(source)
    raise ModelDirError(f"{path}: neither tokenizer nor config has a padding or end token; set pad_token_id.")


def _limits(path: Path, tokenizer: Any, config: Any) -> list[tuple[int, str]]:
    """The tokens that the tokenizer and the model take at most, and whose limit that is."""
    longest = tokenizer.model_max_length
    file = path / "tokenizer_config.json"
    if not isinstance(longest, (int, float)) or math.isnan(longest):
        raise ModelDirError(f"{file}: model_max_length is {longest!r}; expected a number of tokens")
    # A tokenizer without a limit has 1e30, or infinity.
    limits = [(int(min(longest, sys.maxsize)), f"tokens of model_max_length in {file}")]
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and positions > 0:
        first = (config.pad_token_id or 0) + 1 if config.model_type in _OFFSET_POSITIONS else 0
        limits.append((int(positions) - first, f"positions of the model ({path / 'config.json'})"))
    return limits
