"""The value that a raw Hydra override gives a key, as far as text tells."""

from collections.abc import Iterable


def raw_value(overrides: Iterable[str], key: str) -> str | None:
    """The value of the last override of `key`, without its quotes; None where none names it."""
    found = None
    for text in overrides:
        name, equals, value = text.partition("=")
        if equals and name.lstrip("+") == key:
            found = value.strip().strip("'\"")
    return found
