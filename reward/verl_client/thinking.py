"""The thinking part of a response, which the reward model must not see."""

from __future__ import annotations

import re
from typing import NamedTuple

_OPEN, _CLOSE = "<think>", "</think>"
# Backticks first: a tag inside `inline code` is text that talks about the tag.
_MARK = re.compile(r"`{3,}|`[^`\n]+`|<think>|</think>")


class Split(NamedTuple):
    """``answer`` is stripped of white space. ``stray`` says that the tags do not pair up."""

    answer: str
    stray: bool


def split_thinking(text: str) -> Split:
    """The text after the last ``</think>``.

    The first ``<think>`` may be missing, since chat templates put it into the prompt. Stray are: a tag that
    is never closed, and a ``</think>`` that closes nothing, as in ``<think>a</think>answer</think>b``:
    taking what follows it would let a response choose what is scored. The answer is then the text outside
    thinking, tags removed. Tags in inline code are text; so are tags in a fenced block once thinking has
    ended (before that a fence left open would hide the end of thinking).
    """
    outside: list[str] = []
    begin = 0
    thinking = ended = fenced = stray = False
    for mark in _MARK.finditer(text):
        token = mark.group()
        if token.startswith("`"):
            if ended and not thinking and token.startswith("```"):
                fenced = not fenced
        elif fenced or (token == _OPEN and thinking):
            continue
        elif token == _OPEN:
            outside.append(text[begin : mark.start()])
            thinking = True
        else:
            if ended and not thinking:
                stray = True
                outside.append(text[begin : mark.start()])
            thinking, ended = False, True
            begin = mark.end()
    if thinking:
        stray = True
    else:
        outside.append(text[begin:])
    return Split(("".join(outside) if stray else outside[-1]).strip(), stray)
