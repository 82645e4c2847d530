"""The one error that the converters raise for a checkpoint, configuration or target that is not right."""

from __future__ import annotations

from collections.abc import Sequence

from converters.printing import one_line

_SHOWN = 20


class ConvertError(Exception):
    """The input or the target is not right; the message names the file or tensor, the rule and the remedy."""


def listing(head: str, problems: Sequence[str], remedy: str) -> ConvertError:
    """One error for several problems: `head`, a line for each of the first 20 with a count, `remedy`."""
    shown = [f"  - {one_line(problem)}" for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        shown.append(f"  ... and {len(problems) - _SHOWN} more")
    return ConvertError("\n".join([f"{head} ({len(problems)} found):", *shown, remedy]))
