"""What a chat template puts around a prompt and a response, found once and then applied as plain text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_PROMPT, _RESPONSE = "PromptGoesHere7315", "ResponseGoesHere7315"
# Tells apart what the templates in use do to a text: nothing, strip newlines, strip all white space.
_PADDING = "\n \n"
_Strip = Literal["", "\n", "all"]


def _strip_left(text: str, what: _Strip) -> str:
    return text.lstrip() if what == "all" else text.lstrip(what) if what else text


def _strip_right(text: str, what: _Strip) -> str:
    return text.rstrip() if what == "all" else text.rstrip(what) if what else text


@dataclass(frozen=True)
class Slot:
    """How a template places one text: what it strips from the two ends."""

    left: _Strip
    right: _Strip

    def fit(self, text: str) -> str:
        """The text as it stands in the chat."""
        return _strip_right(_strip_left(text, self.left), self.right)


@dataclass(frozen=True)
class Chat:
    """One rendered chat, with the [start, end) of the two texts in it."""

    text: str
    prompt: tuple[int, int]
    response: tuple[int, int]


@dataclass(frozen=True)
class ChatFrame:
    """The constant text before, between and after the two texts.

    Equal to the template for every pair whose content the template does not look into. Where it does (Qwen3's
    cuts an assistant's text at ``</think>``), the text goes in as it is: no text can change the frame.
    """

    before: str
    between: str
    after: str
    prompt: Slot
    response: Slot

    def apply(self, prompt: str, response: str) -> Chat:
        """The chat of one pair."""
        return self.place(self.prompt.fit(prompt), self.response.fit(response))

    def place(self, prompt: str, response: str) -> Chat:
        """The chat of two texts that are stripped already."""
        first = len(self.before)
        second = first + len(prompt) + len(self.between)
        return Chat(
            f"{self.before}{prompt}{self.between}{response}{self.after}",
            (first, first + len(prompt)),
            (second, second + len(response)),
        )


def find_frame(render: Callable[[str, str], str]) -> ChatFrame:
    """The frame of a template, found by rendering it with marked texts.

    Args:
        render: ``(prompt, response) -> text``; deterministic.

    Raises:
        ValueError: the two texts do not each come once and in order, or come changed.
    """
    plain = render(_PROMPT, _RESPONSE)
    marks = re.findall(f"{_PROMPT}|{_RESPONSE}", plain)
    if marks != [_PROMPT, _RESPONSE]:
        raise ValueError(
            "the chat template has to give the user's and the assistant's text once each, in this order; it "
            f"gives the user's {marks.count(_PROMPT)} times and the assistant's {marks.count(_RESPONSE)} times"
        )
    before, rest = plain.split(_PROMPT)
    between, after = rest.split(_RESPONSE)
    texts = (f"{_PADDING}{_PROMPT}{_PADDING}", f"{_PADDING}{_RESPONSE}{_PADDING}")
    padded = render(*texts)
    ends: tuple[_Strip, ...] = ("", "\n", "all")
    slots = [Slot(left, right) for left in ends for right in ends]
    for prompt, response in itertools.product(slots, slots):
        frame = ChatFrame(before, between, after, prompt, response)
        if frame.apply(*texts).text == padded:
            return frame
    raise ValueError(
        "the chat template changes a text, or what is around it, depending on white space at its ends"
    )
