"""ShareGPT rows: ``{"conversations": [{"from", "value"}]}``, with a ``system`` field or without."""

from __future__ import annotations

from data_prep.formats.chat import ROLES, dialogue_example, messages_of
from data_prep.formats.example import Example, Format
from data_prep.formats.text import check_text, require
from data_prep.reading.block import RawRow

_PATH = "conversations"
_ROLES = {
    **ROLES,
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "function": "tool",
    "observation": "tool",
}


def _to_example(row: RawRow) -> Example:
    turns = require(row, _PATH)
    first = turns[0] if isinstance(turns, list | tuple) and turns else None
    if isinstance(first, dict) and "from" not in first and "role" in first:
        messages = messages_of(turns, _PATH, roles=_ROLES)
    else:
        messages = messages_of(turns, _PATH, role="from", content="value", roles=_ROLES)
    system = row.get("system")
    used: tuple[str, ...] = (_PATH,)
    if system is not None:
        used = (_PATH, "system")
        if check_text(system, "system", blank=True).strip():
            messages = [{"role": "system", "content": system}, *messages]
    return dialogue_example(row, messages, _PATH, *used)


SHAREGPT = Format(
    name="sharegpt",
    fields="'conversations': a list of {'from', 'value'}",
    matches=lambda row: isinstance(row.get(_PATH), list | tuple),
    to_example=_to_example,
)
