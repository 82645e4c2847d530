"""The rows that verl would drop in silence or fail on, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.printing import quoted
from data_prep.verl_schema import is_text

ROLES = ("system", "user", "assistant", "tool")


def row_problem(row: dict[str, Any]) -> str | None:
    """The first thing that is wrong with a row, or None. A ground truth may be empty text but not null."""
    if not row["data_source"]:
        return "data_source is empty"
    if not row["prompt"]:
        return "prompt is empty"
    for position, message in enumerate(row["prompt"]):
        if message is None or message["role"] not in ROLES:
            role = None if message is None else message["role"]
            return f"prompt[{position}].role is {quoted(role)}; expected one of {', '.join(ROLES)}"
        if not message["content"]:
            return f"prompt[{position}].content is empty"
    if row["reward_model"] is None or row["reward_model"]["ground_truth"] is None:
        return "reward_model.ground_truth is missing"
    return None


def bad_rows(batch: pa.RecordBatch) -> Iterator[tuple[int, str]]:
    """(position in ``batch``, what is wrong with it) of rows of ``data_prep.verl_schema.COLUMNS``.

    Only rows that the columns as a whole make suspect become Python objects.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError):
        suspects: NDArray[np.bool_] = np.ones(len(batch), dtype=bool)
    else:
        suspects = _suspects(batch)
    for place in np.flatnonzero(suspects).tolist():
        row = batch.slice(place, 1)
        try:
            problem = row_problem(row.to_pylist()[0])
        except UnicodeDecodeError:
            problem = _not_utf8(row)
        if problem is not None:
            yield place, problem


def _not_utf8(row: pa.RecordBatch) -> str:
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            column.to_pylist()
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            return f"{name} holds text that is not UTF-8: byte 0x{byte:02X} at {error.start}"
    raise AssertionError("no column holds it")


def _suspects(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Whether a row may have a problem; a row without one may be suspect, never the other way round."""
    source = batch.column("data_source")
    empty = pc.equal(pc.binary_length(_decoded(source)), 0)
    suspect = _true(pc.or_kleene(pc.is_null(source), empty))
    reward = batch.column("reward_model")
    truth = pc.struct_field(reward, "ground_truth")
    suspect |= _true(pc.or_(pc.is_null(reward), pc.is_null(truth)))
    prompt = batch.column("prompt")
    counts = pc.fill_null(pc.list_value_length(prompt), 0).to_numpy(zero_copy_only=False)
    suspect |= counts == 0
    messages = pc.list_flatten(prompt)
    if not is_text(messages.type.field("content").type) or not is_text(messages.type.field("role").type):
        return np.ones(len(batch), dtype=bool)
    role, content = _decoded(pc.struct_field(messages, "role")), _decoded(pc.struct_field(messages, "content"))
    wrong = pc.invert(pc.is_in(role, value_set=pa.array(ROLES, role.type)))
    blank = pc.or_kleene(pc.is_null(content), pc.equal(pc.binary_length(content), 0))
    bad = _true(pc.or_kleene(pc.or_kleene(wrong, blank), pc.is_null(messages)))
    owners = np.repeat(np.arange(len(batch)), counts)
    suspect[owners[bad]] = True
    return suspect


def _decoded(texts: pa.Array) -> pa.Array:
    return texts.dictionary_decode() if pa.types.is_dictionary(texts.type) else texts


def _true(mask: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(mask, True).to_numpy(zero_copy_only=False).astype(bool)
    return found
