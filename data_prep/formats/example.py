"""What every input format comes down to, before prompts are templated and rows get their place in a split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from data_prep.reading.block import RawRow


class Message(TypedDict):
    """One chat message of a prompt; ``role`` is system, user, assistant or tool."""

    role: str
    content: str


@dataclass(slots=True)
class Example:
    """One row, checked.

    Attributes:
        prompt: one message at least; the last one is not the assistant's. As in the file: no instruction added.
        ground_truth: what a rule compares a response with, as text; None where the row has nothing of the kind.
        answer: the reference response in full; None where the row has none.
        question: a verl row's own extra_info.question; None: the last user message is the question.
        metadata: every other field of the row, whole; becomes JSON text.
        data_source, ability: the row's own, which win over the format's; None where it has none.
        style: the row's own reward_model.style (verl rows); None elsewhere.
        carried: values of columns that only verl's own parquet has, by path (``images``,
            ``extra_info.tools_kwargs``), with the types of the file.
    """

    prompt: list[Message]
    ground_truth: str | None = None
    answer: str | None = None
    question: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    data_source: str | None = None
    ability: str | None = None
    style: str | None = None
    carried: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """An input format.

    Attributes:
        name: as given to ``--format``.
        fields: what a row must have, for messages and help, e.g. ``'question', 'answer' with #### NUMBER``.
        matches: whether a row is in this format, by its fields alone; raises nothing.
        to_example: the conversion; raises FieldError with the path of the field (``messages[2].content``).
        data_source: of rows that do not name their own; None: the name of the file.
        ability: likewise.
        template: what the last user message becomes; ``{prompt}`` stands for it.
    """

    name: str
    fields: str
    matches: Callable[[RawRow], bool]
    to_example: Callable[[RawRow], Example]
    data_source: str | None = None
    ability: str = "general"
    template: str = "{prompt}"
