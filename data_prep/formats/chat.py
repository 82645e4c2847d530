"""Chat messages: ``{"messages": [{"role", "content"}]}``, and the checks that formats with messages share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_prep.errors import FieldError
from data_prep.formats.example import Example, Format, Message
from data_prep.formats.text import check_text, own_truth, require, rest, shown
from data_prep.reading.block import RawRow

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")


def messages_of(
    value: object,
    path: str,
    *,
    role: str = "role",
    content: str = "content",
    roles: Mapping[str, str] = ROLES,
    ignored: tuple[str, ...] = (),
) -> list[Message]:
    """``value`` as messages.

    Args:
        path: of ``value``, for messages of errors.
        role, content: the keys of a message.
        roles: what each role is called by a chat template.
        ignored: further keys that say nothing to a model.

    Raises:
        FieldError: no list of messages, an unknown role, a content that is no text, or a key that verl's prompt
            column cannot hold (it has role and content only, so a tool call would be lost).
    """
    if not isinstance(value, list | tuple) or not value:
        raise FieldError(path, f"expected a list of messages with {role!r} and {content!r}, got {shown(value)}")
    found = [_message(item, f"{path}[{place}]", role, content, roles, ignored) for place, item in enumerate(value)]
    # A blank system message says nothing.
    messages = [message for message in found if message["content"].strip()]
    if not messages:
        raise FieldError(path, "expected a message that says something")
    return messages


def _message(
    item: object, path: str, role: str, content: str, roles: Mapping[str, str], ignored: tuple[str, ...]
) -> Message:
    if not isinstance(item, dict):
        raise FieldError(path, f"expected a message with {role!r} and {content!r}, got {shown(item)}")
    if len(item) > 2:
        for key, extra in item.items():
            if key not in (role, content) and key not in ignored and extra not in (None, "", [], {}):
                raise FieldError(
                    f"{path}.{key}",
                    f"a message of verl's prompt holds role and content only; this would be lost: {shown(extra)}",
                )
    for key in (role, content):
        if key not in item:
            raise FieldError(f"{path}.{key}", f"missing; the message has {shown(list(item))}")
    name = item[role]
    known = roles.get(name) if isinstance(name, str) else None
    if known is None:
        raise FieldError(f"{path}.{role}", f"expected one of {', '.join(roles)}, got {shown(name)}")
    text = _content(item[content], f"{path}.{content}", blank=known == "system")
    return {"role": known, "content": text}


def _content(value: object, path: str, *, blank: bool) -> str:
    if not isinstance(value, list | tuple):
        return check_text(value, path, blank=blank)
    texts: list[str] = []
    for place, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type", "text") not in _TEXT_PARTS or "text" not in part:
            kind = part.get("type", part) if isinstance(part, dict) else part
            raise FieldError(f"{path}[{place}]", f"expected a part of type 'text', got {shown(kind)}")
        texts.append(check_text(part["text"], f"{path}[{place}].text", blank=True))
    return check_text("".join(texts), path, blank=blank)


def prompt_of(value: object, path: str) -> list[Message]:
    """A prompt: text (one user message), or messages of which the last is not the assistant's.

    Raises:
        FieldError: see :func:`messages_of`.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": check_text(value, path)}]
    return check_prompt(messages_of(value, path), path)


def check_prompt(messages: list[Message], path: str) -> list[Message]:
    """``messages``, which a model is to continue.

    Raises:
        FieldError: none, or the last one is the assistant's.
    """
    if not messages:
        raise FieldError(path, "expected a message before the answer, got none")
    if messages[-1]["role"] == "assistant":
        raise FieldError(
            f"{path}[{len(messages) - 1}].role", "expected a prompt that ends with a user's message, got assistant"
        )
    return messages


def split_dialogue(messages: list[Message], path: str) -> tuple[list[Message], str | None]:
    """(prompt, answer): the answer is the content of a last assistant message; None where another role ends it.

    Raises:
        FieldError: nothing is left as a prompt, or the answer is blank.
    """
    if messages[-1]["role"] != "assistant":
        return messages, None
    answer = check_text(messages[-1]["content"], f"{path}[{len(messages) - 1}].content")
    return check_prompt(messages[:-1], path), answer


def dialogue_example(row: RawRow, messages: list[Message], path: str, *used: str) -> Example:
    """The Example of a whole dialogue; the row's own ``ground_truth`` or ``answer`` wins over the last message.

    Args:
        used: fields of ``row`` that are in ``messages``; the others are its metadata.

    Raises:
        FieldError: see :func:`split_dialogue`.
    """
    prompt, answer = split_dialogue(messages, path)
    truth, field = own_truth(row, "ground_truth", "answer")
    metadata: dict[str, Any] = rest(row, *used, field) if len(row) > len(used) else {}
    return Example(prompt, truth if field else answer, answer, None, metadata)


def _to_example(row: RawRow) -> Example:
    return dialogue_example(row, messages_of(require(row, "messages"), "messages"), "messages", "messages")


MESSAGES = Format(
    name="messages",
    fields="'messages': a list of {'role', 'content'}",
    matches=lambda row: isinstance(row.get("messages"), list | tuple),
    to_example=_to_example,
)
