"""Preference pairs: a prompt, the chosen response, the rejected one; in the forms in which they are published."""

from __future__ import annotations

import re

from data_prep.errors import FieldError
from data_prep.formats.chat import check_prompt, messages_of, prompt_of, split_dialogue
from data_prep.formats.example import Example, Format, Message
from data_prep.formats.prompt_response import response_of
from data_prep.formats.text import check_text, own_truth, require, rest, shown
from data_prep.reading.block import RawRow

# Anthropic's hh-rlhf: "\n\nHuman: ...\n\nAssistant: ...", the whole dialogue in one text.
_TURN = re.compile(r"\n\n(Human|Assistant):[ ]?")
_DIALOGUE = "\n\nHuman:"


def _to_example(row: RawRow) -> Example:
    chosen, rejected = require(row, "chosen"), require(row, "rejected")
    if row.get("prompt") is None:
        prompt, answer = _dialogue(chosen, "chosen")
        other, worse = _dialogue(rejected, "rejected")
        if other != prompt:
            place = next((at for at, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), None)
            raise FieldError(
                "rejected",
                "expected the same messages as in 'chosen' before the last one, got "
                + (f"{len(other)} messages, not {len(prompt)}" if place is None else f"another message {place}"),
            )
    else:
        prompt = _prompt(row["prompt"])
        answer = _response(chosen, "chosen", prompt)
        worse = _response(rejected, "rejected", prompt)
    truth, field = own_truth(row, "ground_truth", "answer")
    metadata = rest(row, "prompt", "chosen", "rejected", field)
    metadata["rejected"] = worse
    return Example(prompt, truth if field else answer, answer, None, metadata)


def _prompt(value: object) -> list[Message]:
    if not isinstance(value, str) or not value.startswith(_DIALOGUE):
        return prompt_of(value, "prompt")
    messages = _turns(value, "prompt")
    if messages[-1]["role"] == "assistant" and not messages[-1]["content"].strip():
        messages.pop()
    return check_prompt(messages, "prompt")


def _response(value: object, path: str, prompt: list[Message]) -> str:
    """The response in ``value``, which may repeat the prompt before it."""
    if isinstance(value, list | tuple) and len(value) > 1:
        before, answer = _dialogue(value, path)
        # A system message is often in one of the two only.
        if _without_system(before) != _without_system(prompt):
            raise FieldError(path, "expected the messages of 'prompt' and then one response, got other messages")
        return answer
    if isinstance(value, str) and value.startswith(_DIALOGUE):
        before, answer = _dialogue(value, path)
        if before == prompt:
            return answer
    return response_of(value, path)


def _without_system(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["role"] != "system"]


def _dialogue(value: object, path: str) -> tuple[list[Message], str]:
    """(messages before, text) of a response with the dialogue that led to it."""
    messages = _turns(value, path) if isinstance(value, str) else messages_of(value, path)
    prompt, answer = split_dialogue(messages, path)
    if answer is None:
        raise FieldError(path, f"expected a last message of the assistant, got {messages[-1]['role']}")
    return prompt, answer


def _turns(text: str, path: str) -> list[Message]:
    before, *parts = _TURN.split(check_text(text, path))
    if before.strip() or not parts:
        raise FieldError(path, f"no 'prompt', so expected messages or '\\n\\nHuman: ...' text, got {shown(text)}")
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said} for who, said in zip(parts[::2], parts[1::2], strict=True)]


PREFERENCE = Format(
    name="preference",
    fields="'chosen', 'rejected' (and 'prompt', or the dialogue in both)",
    matches=lambda row: "chosen" in row and "rejected" in row,
    to_example=_to_example,
)
