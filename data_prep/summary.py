"""What a verl parquet file holds, from all of its rows in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep.errors import FieldError
from data_prep.histogram import Histogram
from data_prep.lengths import PromptLengths
from data_prep.printing import printable
from data_prep.verl_schema import is_list, is_text
from data_prep.written import batches, open_parquet

COMPOSITION = ("data_source", "ability", "reward_model.style", "extra_info.split")
OTHERS = "(others)"
_MOST_GROUPS = 200
_MOST_TEXTS = 12
_SHOWN_ROLES = 6
_TYPE_CHARS = 200
_PROMPTS_AT_ONCE = 512

Group = tuple[str, ...]


@dataclass
class Summary:
    """One file.

    Attributes:
        columns: Arrow type of each column, and of each key of a struct, by path, as text.
        groups: rows by the values of :data:`COMPOSITION`; from 200 different ones on, the rest is ``(others)``.
        messages: prompts by their number of messages.
        roles: prompts by the roles of their messages, in order: ``system user``.
        lengths: lengths by what is measured, such as ``prompt, characters``.
        refused: prompts that the chat template or the tokenizer refuses; None without a tokenizer.
    """

    path: str
    bytes: int
    rows: int
    columns: dict[str, str] = field(default_factory=dict)
    groups: Counter[Group] = field(default_factory=Counter)
    messages: Counter[int] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    lengths: dict[str, Histogram] = field(default_factory=dict)
    refused: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The figures, for ``--json``."""
        names = [path.rpartition(".")[2] for path in COMPOSITION]
        return {
            "path": self.path,
            "bytes": self.bytes,
            "rows": self.rows,
            "columns": self.columns,
            "composition": [
                {**dict(zip(names, group, strict=True)), "rows": rows} for group, rows in self.groups.most_common()
            ],
            "messages": dict(sorted(self.messages.items())),
            "roles": dict(self.roles.most_common()),
            "lengths": {name: {**found.figures(), "bins": found.bins()} for name, found in self.lengths.items()},
            "refused": self.refused,
        }


def summarize(path: Path, lengths: PromptLengths | None = None) -> Summary:
    """Read every row of the columns that are measured.

    Raises:
        OSError, pyarrow.ArrowException, ValueError (``data_prep.written.UNREADABLE``): no whole parquet file.
    """
    with open_parquet(path) as file:
        schema = file.schema_arrow
        found = Summary(str(path), path.stat().st_size, file.metadata.num_rows)
        leaves = _leaves(schema)
        found.columns = {
            name: printable(str(kind), _TYPE_CHARS)
            for name, kind in leaves.items()
            if not pa.types.is_struct(kind)
        }
        texts = _measured(leaves)
        grouped = [name for name in COMPOSITION if name in leaves]
        chats = "prompt" in leaves and _is_chat(leaves["prompt"])
        if lengths is not None and chats:
            found.refused = 0
        wanted = [*dict.fromkeys([*grouped, *texts, *(["prompt"] if chats else [])])]
        for batch in batches(file, wanted) if wanted else ():
            _add(found, batch, grouped, texts, lengths if chats else None, chats=chats)
    return found


def rows_at(file: pq.ParquetFile, numbers: list[int]) -> list[tuple[int, dict[str, Any]]]:
    """(number from 0, row) of the rows of ``numbers`` that the file has, in order; whole rows, bounded memory."""
    found, first = [], 0
    wanted = sorted(set(numbers))
    for group in range(file.metadata.num_row_groups):
        end = first + file.metadata.row_group(group).num_rows
        if any(first <= number < end for number in wanted):
            start = first
            for batch in batches(file, file.schema_arrow.names, row_groups=[group]):
                for number in wanted:
                    if start <= number < start + len(batch):
                        found.append((number, batch.slice(number - start, 1).to_pylist()[0]))
                start += len(batch)
                if not wanted or start > wanted[-1]:
                    break
        first = end
    return found


def _leaves(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Type by path of each column and of each key of a struct column."""
    found = {}
    for column in schema:
        found[column.name] = column.type
        if pa.types.is_struct(column.type):
            found.update({f"{column.name}.{key.name}": key.type for key in column.type})
    return found


def _is_chat(kind: pa.DataType) -> bool:
    if not is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    message = kind.value_type
    return {"role", "content"} <= set(message.names) and is_text(message.field("role").type)


def _measured(leaves: dict[str, pa.DataType]) -> dict[str, str]:
    """Label by path of the texts that are measured: those of a verl file, else the first columns of text."""
    known = {"reward_model.ground_truth": "ground truth, characters", "extra_info.answer": "answer, characters"}
    texts = {path: label for path, label in known.items() if path in leaves and is_text(leaves[path])}
    if texts or ("prompt" in leaves and _is_chat(leaves["prompt"])):
        return texts
    plain = [path for path, kind in leaves.items() if is_text(kind)]
    return {path: f"{printable(path)}, characters" for path in plain[:_MOST_TEXTS]}


def _add(
    found: Summary,
    batch: pa.RecordBatch,
    grouped: list[str],
    texts: dict[str, str],
    lengths: PromptLengths | None,
    *,
    chats: bool,
) -> None:
    if grouped:
        _add_groups(found.groups, [_column(batch, name) if name in grouped else None for name in COMPOSITION])
    if chats:
        _add_prompts(found, batch.column("prompt"))
    for path, label in texts.items():
        values = pc.utf8_length(_text(_column(batch, path)).drop_null())
        _histogram(found, label).add(values.to_numpy(zero_copy_only=False).astype(np.int64))
    if lengths is not None:
        _add_tokens(found, batch.column("prompt"), lengths)


def _column(batch: pa.RecordBatch, path: str) -> pa.Array:
    if path in batch.schema.names:
        return batch.column(path)
    name, _, key = path.partition(".")
    return pc.struct_field(batch.column(name), key)


def _text(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _histogram(found: Summary, label: str) -> Histogram:
    return found.lengths.setdefault(label, Histogram())


def _add_groups(groups: Counter[Group], columns: list[pa.Array | None]) -> None:
    present = [(place, column) for place, column in enumerate(columns) if column is not None]
    names = [str(place) for place, _ in present]
    arrays = [_text(column) if is_text(column.type) else _as_text(column) for _, column in present]
    counted = pa.table(arrays, names=names).group_by(names, use_threads=False).aggregate([([], "count_all")])
    for row in counted.to_pylist():
        values = [row.get(str(place)) for place in range(len(columns))]
        group = tuple("-" if value is None else printable(value) for value in values)
        if group not in groups and len(groups) >= _MOST_GROUPS:
            group = (OTHERS,) * len(columns)
        groups[group] += row["count_all"]


def _as_text(column: pa.Array) -> pa.Array:
    """Of a column of another type than text; a file that verl does not read can have one."""
    return pa.array(
        [None if value is None else printable(str(value)) for value in column.to_pylist()], pa.string()
    )


def _add_prompts(found: Summary, prompts: pa.Array) -> None:
    counts: NDArray[np.int64] = pc.fill_null(pc.list_value_length(prompts), 0).to_numpy(zero_copy_only=False)
    for number, rows in zip(*(part.tolist() for part in np.unique(counts, return_counts=True)), strict=True):
        found.messages[number] += rows
    messages = pc.list_flatten(prompts)
    roles = _text(pc.struct_field(messages, "role")).to_pylist()
    ends = np.cumsum(counts)
    start = 0
    for end in ends.tolist():
        shown = " ".join(str(role) for role in roles[start : min(end, start + _SHOWN_ROLES)])
        _count_text(found.roles, printable(shown) + (" ..." if end - start > _SHOWN_ROLES else ""))
        start = end
    contents = pc.struct_field(messages, "content")
    if is_text(contents.type):
        sizes = pc.fill_null(pc.utf8_length(_text(contents)), 0).to_numpy(zero_copy_only=False)
        upto = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        _histogram(found, "prompt, characters").add(upto[ends] - upto[ends - counts])


def _count_text(counter: Counter[str], text: str) -> None:
    counter[text if text in counter or len(counter) < _MOST_GROUPS else OTHERS] += 1


def _add_tokens(found: Summary, prompts: pa.Array, lengths: PromptLengths) -> None:
    rows = [prompt for prompt in prompts.to_pylist() if prompt]
    for start in range(0, len(rows), _PROMPTS_AT_ONCE):
        counts = lengths.count_many(rows[start : start + _PROMPTS_AT_ONCE])
        taken = [count for count in counts if not isinstance(count, FieldError)]
        found.refused = (found.refused or 0) + len(counts) - len(taken)
        _histogram(found, "prompt, tokens").add(np.array(taken, dtype=np.int64))
