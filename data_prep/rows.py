"""Rows of one file to columns of the output: prompt templated, ground truth chosen, length checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from data_prep.columns import Columns
from data_prep.errors import FieldError, RowError
from data_prep.formats.example import Example, Format, Message
from data_prep.formats.mapped import mapped
from data_prep.formats.registry import FORMATS
from data_prep.formats.text import json_text
from data_prep.formats.verl_rows import verl_format
from data_prep.lengths import PromptLengths
from data_prep.options import Options
from data_prep.reading.block import Block, RawRow, Record
from data_prep.schema import spool_schema
from data_prep.spool import encoded

PLACEHOLDER = "{prompt}"


@dataclass(frozen=True)
class RowSettings:
    """How the rows of one file become rows of the output; what a worker process needs to know.

    Attributes:
        shown: the file, as told in messages.
        format: ``map`` or a name of ``data_prep.formats.registry.FORMATS``.
        fields: ``data_prep.schema.output_fields``.
        options: of the whole conversion.
        arrow_schema: of a parquet file.
        data_source, ability: given for the source; None: the row's own, else ``default_source`` and the format's.
    """

    shown: str
    format: str
    fields: dict[str, pa.DataType]
    default_source: str
    options: Options
    arrow_schema: pa.Schema | None = None
    data_source: str | None = None
    ability: str | None = None


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: why, and the row itself (``raw`` where it was a line of text)."""

    error: RowError
    raw: bytes | None
    row: RawRow | None


@dataclass
class Converted:
    """One block, converted.

    Attributes:
        rows: how many can be used.
        data: these, in order, by ``data_prep.schema.spool_schema``: ``data_prep.spool.encoded``.
        nbytes: their size in memory.
        keys: ``data_prep.planning.keys.KEY`` of each of them, as bytes.
        read: rows in the block.
        too_long: numbers of the rows whose prompt has too many tokens.
        systems_replaced: rows whose own system message gave way to ``system_prompt``.
    """

    rows: int = 0
    data: pa.Buffer | None = None
    nbytes: int = 0
    keys: bytes = b""
    read: int = 0
    bad: list[BadRow] = field(default_factory=list)
    too_long: list[int] = field(default_factory=list)
    systems_replaced: int = 0


class RowConverter:
    """Converts the blocks of one file.

    Raises:
        DataError: the tokenizer cannot be loaded.
    """

    def __init__(self, settings: RowSettings) -> None:
        self._settings = settings
        format = _format(settings)
        self._to_example = format.to_example
        self._options = settings.options
        self._template = self._options.prompt_template or format.template
        self._default_ability = format.ability
        self._schema = spool_schema(settings.fields)
        self._lengths = PromptLengths(self._options.tokenizer) if self._options.tokenizer is not None else None

    def convert(self, block: Block) -> Converted:
        """The rows of ``block``; bad ones are told, not raised."""
        columns = Columns(self._schema)
        done = Converted()
        waiting: list[tuple[Record, _Values]] = []
        for record in block.records():
            done.read += 1
            try:
                if isinstance(record.row, FieldError):
                    raise record.row
                values = self._values(done, self._to_example(record.row))
            except FieldError as error:
                done.bad.append(self._bad(block, record, error))
                if self._options.skip_bad is None:
                    break
                continue
            if self._lengths is None:
                values.add_to(columns)
            else:
                waiting.append((record, values))
        if waiting:
            self._add_short(block, waiting, columns, done)
        done.rows, done.keys = len(columns.keys), b"".join(columns.keys)
        if done.rows:
            batch = columns.batch()
            done.data, done.nbytes = encoded(batch), batch.nbytes
        return done

    def _values(self, done: Converted, example: Example) -> _Values:
        settings = self._settings
        question = _question(example)
        prompt = self._prompt(example.prompt, done)
        style, truth = self._truth(example, question)
        data_source = settings.data_source or example.data_source or settings.default_source
        ability = settings.ability or example.ability or self._default_ability
        metadata = json_text(example.metadata) if example.metadata else "{}"
        own = (data_source, prompt, ability, style, truth, question, example.answer or "", metadata)
        return _Values(own, example.carried)

    def _add_short(
        self, block: Block, waiting: list[tuple[Record, _Values]], columns: Columns, done: Converted
    ) -> None:
        """Add the rows with no more tokens in their prompt than are allowed; counted at once, which is faster."""
        limit = self._options.max_prompt_tokens
        counts = self._lengths.count_many([values.own[1] for _, values in waiting]) if self._lengths else []
        for (record, values), count in zip(waiting, counts, strict=True):
            if isinstance(count, FieldError):
                done.bad.append(self._bad(block, record, count))
            elif limit is not None and count > limit:
                done.too_long.append(record.number)
            else:
                values.add_to(columns)
        done.bad.sort(key=lambda bad: bad.error.number)

    def _bad(self, block: Block, record: Record, error: FieldError) -> BadRow:
        reason = RowError(self._settings.shown, record.number, error.field, error.expected, lines=block.lines)
        return BadRow(reason, record.raw, None if isinstance(record.row, FieldError) else record.row)

    def _prompt(self, messages: list[Message], done: Converted) -> list[Message]:
        prompt = messages
        if self._template != PLACEHOLDER:
            place = _last_user(messages)
            asked = self._template.replace(PLACEHOLDER, messages[place]["content"])
            prompt = [*messages[:place], {"role": "user", "content": asked}, *messages[place + 1 :]]
        if self._options.system_prompt is not None:
            own = [message for message in prompt if message["role"] != "system"]
            done.systems_replaced += len(own) != len(prompt)
            prompt = [{"role": "system", "content": self._options.system_prompt}, *own]
        return prompt

    def _truth(self, example: Example, question: str) -> tuple[str, str]:
        """(style, ground truth) of the row, as text."""
        style = self._options.style or example.style
        chosen = self._options.ground_truth or ("question" if self._options.style == "model" else "answer")
        if chosen == "question":
            return style or "model", question
        if example.ground_truth is None:
            raise FieldError(
                None,
                "no answer, and a rule needs one as its ground truth; for a reward model, which scores the "
                "question with the response, give --style model",
            )
        if style != "model" and not example.ground_truth.strip():
            raise FieldError(None, "the ground truth is empty; a rule would compare every response with nothing")
        return style or "rule", example.ground_truth


@dataclass(frozen=True, slots=True)
class _Values:
    """One row, converted: what ``Columns.add`` takes, and what ``Columns.carry`` takes."""

    own: tuple[str, list[Message], str, str, str, str, str, str]
    carried: dict[str, Any]

    def add_to(self, columns: Columns) -> None:
        columns.add(*self.own)
        columns.carry(self.carried)


def _format(settings: RowSettings) -> Format:
    if settings.format == "map":
        return mapped(settings.options.mapping)
    if settings.format == "verl":
        return verl_format(settings.arrow_schema)
    return FORMATS[settings.format]


def _last_user(messages: list[Message]) -> int:
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] == "user":
            return place
    raise FieldError("prompt", "no user message, and the prompt template is for the last one")


def _question(example: Example) -> str:
    """What the user asked: the row's own question, else the last user message, else the last message."""
    if example.question is not None:
        return example.question
    for message in reversed(example.prompt):
        if message["role"] == "user":
            return message["content"]
    return example.prompt[-1]["content"]
