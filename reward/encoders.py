"""Three ways from texts to tokens that know which text each token is of, before anything is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tokenizers import Encoding, Tokenizer

from reward.chat_frame import Chat, ChatFrame
from reward.errors import InputTextError
from reward.truncation import PROMPT, RESPONSE

# Rounds of breaking up control tokens; breaking one up may at worst lay bare another.
_ROUNDS = 8
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Encoded:
    """All tokens of one pair. ``owners`` is asked for only where tokens must be dropped."""

    ids: list[int]
    types: list[int]
    owners: Callable[[], Sequence[int | None]]


class Encoder(Protocol):
    """Tokenises whole pairs; may be called by several threads at once."""

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        """All tokens of each pair, in order."""


class FastPairs:
    """``tokenizer(prompt, response)`` of a tokenizer that is made of tokenizers' Rust parts.

    A special token that a text spells out becomes that token, as in transformers: prompts of reward models that
    were trained on rendered chats rely on it.
    """

    def __init__(self, tokenizer: Tokenizer, with_types: bool) -> None:
        # encode_batch_fast saves a third of the time, but gives every token type 0 where the tokenizer has no
        # post-processor (tokenizers 0.22.2).
        self._encode = tokenizer.encode_batch if with_types else tokenizer.encode_batch_fast

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        # transformers takes a pair whose second text is empty for a single text (4.56, 5.10: _encode_plus).
        texts = [(prompt, response) if response else prompt for prompt, response in pairs]
        return [_pair(encoding) for encoding in self._encode(texts)]


def _pair(encoding: Encoding) -> Encoded:
    return Encoded(encoding.ids, encoding.type_ids, lambda: encoding.sequence_ids)


class SlowPairs:
    """``tokenizer(prompt, response)`` of a tokenizer written in Python, one thread at a time.

    Cut as the Rust ones do it; where both texts give way and an odd number stays, transformers' Python form
    gives the token more to the prompt (4.56, 5.10: truncate_sequences).
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        with self._lock:
            return [self._encode(prompt, response) for prompt, response in pairs]

    def _encode(self, prompt: str, response: str) -> Encoded:
        tokenizer = self._tokenizer
        first, second = (tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in (prompt, response))
        ids = tokenizer.build_inputs_with_special_tokens(first, second)
        types = tokenizer.create_token_type_ids_from_sequences(first, second)
        # The same call with marks in the place of ids tells where it put its special tokens.
        marks = tokenizer.build_inputs_with_special_tokens(
            [-1 - PROMPT] * len(first), [-1 - RESPONSE] * len(second)
        )
        owners = [-1 - mark if mark in (-1 - PROMPT, -1 - RESPONSE) else None for mark in marks]
        return Encoded(list(ids), list(types), lambda: owners)


class FastChats:
    """The chat template around the two texts, no control token of which comes from a text.

    Where a text spells out a control token (``<|im_end|>``), a space is put behind its first character: the
    model sees nearly the same text, and no text can end its own turn or begin another.
    """

    def __init__(self, tokenizer: Tokenizer, frame: ChatFrame, unknown_id: int | None) -> None:
        self._tokenizer = tokenizer
        self._frame = frame
        self._unknown = unknown_id
        around = frame.before + frame.between + frame.after
        # Some templates build on tokens that are not marked as special (DeepSeek's <|User|>).
        self._control = {
            number: token.content
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special or (token.content in around and not token.content.strip().isalnum())
            if token.content.strip()
        }

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        chats = [self._frame.apply(prompt, response) for prompt, response in pairs]
        return [self._encoded(*both) for both in zip(chats, self._tokens(chats), strict=True)]

    def _tokens(self, chats: Sequence[Chat]) -> list[Encoding]:
        # A list of one too: only encode_batch lets other threads run.
        encodings: list[Encoding] = self._tokenizer.encode_batch(
            [chat.text for chat in chats], add_special_tokens=False
        )
        return encodings

    def _encoded(self, chat: Chat, encoding: Encoding) -> Encoded:
        for _ in range(_ROUNDS):
            spelled = self._spelled_out(chat, encoding)
            if not spelled:
                return Encoded(encoding.ids, encoding.type_ids, partial(_owners, chat, encoding))
            chat = self._frame.place(*(_broken(text, spelled, chat.text) for text in (chat.prompt, chat.response)))
            (encoding,) = self._tokens([chat])
        raise InputTextError("a text still holds control tokens of the model after they were broken up")

    def _spelled_out(self, chat: Chat, encoding: Encoding) -> list[tuple[int, int]]:
        """[start, end) in the chat's text of each control token that stands inside a text."""
        found = []
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number not in self._control:
                continue
            # Tokens may take in the white space beside them (lstrip, rstrip), also across a text's end.
            piece = chat.text[start:end]
            start, end = start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
            if number == self._unknown and chat.text[start:end] != self._control[number]:
                continue
            if any(first <= start < end <= last for first, last in (chat.prompt, chat.response)):
                found.append((start, end))
        return found


def _broken(text: tuple[int, int], spelled: Sequence[tuple[int, int]], chat: str) -> str:
    """One text of the chat with the spelled out tokens in it broken up."""
    first, last = text
    parts, done = [], first
    for start, end in spelled:
        if first <= start < last:
            parts += [chat[done:start], f"{chat[start]} " if end - start > 1 else _REPLACEMENT]
            done = start + 1
    return "".join([*parts, chat[done:last]])


def _owners(chat: Chat, encoding: Encoding) -> list[int | None]:
    """Whose each token is; one that reaches into the template belongs to the template."""
    (first, last), (second, end) = chat.prompt, chat.response
    return [
        PROMPT if first <= start < stop <= last else RESPONSE if second <= start < stop <= end else None
        for start, stop in encoding.offsets
    ]
