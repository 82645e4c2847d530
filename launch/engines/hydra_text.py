"""Write Hydra overrides whose values come back unchanged, whatever characters they hold.

The grammar is Hydra's (hydra 1.3, docs "Override grammar / basic"): a quoted value keeps every character
except its own quote, a backslash before a quote or at the end, and `${`, which starts an interpolation.
"""

import re
from dataclasses import dataclass
from typing import Union

Value = Union[None, bool, int, float, str, "Resolved", list["Value"]]

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"null", "true", "false", "nan", "inf"}


@dataclass(frozen=True)
class Resolved:
    """Text in which OmegaConf resolves `${...}` while the job runs, e.g. `${oc.env:RUN_DIR}/checkpoints`."""

    text: str


def quote(text: str) -> str:
    """A Hydra value that parses to exactly `text`, as a string.

    Raises:
        ValueError: for a NUL, which no command line can hold.
    """
    if "\0" in text:
        raise ValueError(f"{text!r} holds a NUL character; no command line can carry it")
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(\\+)$", r"\1\1", text)
    return f"'{text}'"


def hydra_value(value: Value) -> str:
    """The text of `value` on the right side of an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Resolved):
        return value.text
    if isinstance(value, list):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    return quote(value)


def override(key: str, value: Value) -> str:
    """`key=value`; a key that the configuration does not have yet starts with `+`."""
    return f"{key}={hydra_value(value)}"
