"""What verl makes of the columns of a file, and of the columns of files that it joins."""

from __future__ import annotations

import pyarrow as pa

COLUMNS = ("prompt", "data_source", "reward_model")


def schema_problems(schema: pa.Schema) -> list[str]:
    """What in ``schema`` keeps verl from reading the file as intended; empty where nothing does.

    The rules are those of ``RLHFDataset`` (verl/utils/dataset/rl_dataset.py) and of the reward managers, 0.6.1 and
    0.9.1.
    """
    problems = [f"no column {name!r}" for name in COLUMNS if name not in schema.names]
    if problems:
        return problems
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        return [f"two columns {name!r}" for name in twice]
    problems.extend(_prompt_problems(schema.field("prompt").type))
    source = schema.field("data_source").type
    if not is_text(source):
        problems.append(f"column 'data_source' is {_told(source)}; expected string")
    reward = schema.field("reward_model").type
    if not pa.types.is_struct(reward) or "ground_truth" not in reward.names:
        problems.append(f"column 'reward_model' is {_told(reward)}; expected a struct with ground_truth")
    if "extra_info" in schema.names:
        info = schema.field("extra_info").type
        if not (pa.types.is_struct(info) or pa.types.is_null(info)):
            problems.append(
                f"column 'extra_info' is {_told(info)}; expected a struct: verl asks it for each row's index"
            )
    return problems


def _prompt_problems(prompt: pa.DataType) -> list[str]:
    if is_text(prompt):
        return [
            f"column 'prompt' is {prompt}; expected a list of {{role, content}}: no chat template takes a text, "
            "so that verl counts every row as too long and leaves an empty data set, without an error"
        ]
    if not is_list(prompt):
        return [f"column 'prompt' is {_told(prompt)}; expected a list of {{role, content}}"]
    message = prompt.value_type
    if not pa.types.is_struct(message) or not {"role", "content"} <= set(message.names):
        return [f"column 'prompt' is a list of {_told(message)}; expected a list of {{role, content}}"]
    role, content = message.field("role").type, message.field("content").type
    wrong = []
    if not is_text(role) and not pa.types.is_null(role):
        wrong.append(f"prompt[].role is {_told(role)}; expected string")
    # A list of parts is left to the chat template.
    if not is_text(content) and not is_list(content) and not pa.types.is_null(content):
        wrong.append(f"prompt[].content is {_told(content)}; expected string")
    return wrong


def schema_notes(schema: pa.Schema) -> list[str]:
    """What verl reads, but maybe not as intended."""
    info = schema.field("extra_info").type if "extra_info" in schema.names else pa.null()
    names = info.names if pa.types.is_struct(info) else []
    if "index" not in names:
        return ["extra_info has no index: verl gives every row the index 0"]
    index = info.field("index").type
    if not pa.types.is_integer(index):
        return [
            f"extra_info.index is {_told(index)}: data_prep.convert writes int64, and verl joins files of one type"
        ]
    return []


def unlike(first: pa.Schema, other: pa.Schema) -> str | None:
    """The first difference for which ``datasets.concatenate_datasets`` does not join two files, or None.

    Columns and keys of structs that one file lacks are filled with nulls (datasets 5.0 and 5.2,
    ``_check_if_features_can_be_aligned``); every value has one type, and string and large_string are two.
    """
    for column in first:
        if other.get_field_index(column.name) >= 0:
            told = _unlike(column.name, column.type, other.field(column.name).type)
            if told is not None:
                return told
    return None


def _unlike(path: str, first: pa.DataType, other: pa.DataType) -> str | None:
    first, other = _plain(first), _plain(other)
    if pa.types.is_struct(first) and pa.types.is_struct(other):
        for key in first:
            if other.get_field_index(key.name) >= 0:
                told = _unlike(f"{path}.{key.name}", key.type, other.field(key.name).type)
                if told is not None:
                    return told
        return None
    # A null column takes the type of the other file's, unless that is a struct.
    if pa.types.is_null(other) or (pa.types.is_null(first) and not pa.types.is_struct(other)):
        return None
    return None if _same(first, other) else f"{path} is {_told(first)} and {_told(other)}"


def _same(first: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types are one for ``datasets``: keys in another order are, another name of a list's items is."""
    first, other = _plain(first), _plain(other)
    if pa.types.is_struct(first) and pa.types.is_struct(other):
        return set(first.names) == set(other.names) and all(
            _same(key.type, other.field(key.name).type) for key in first
        )
    if pa.types.is_list(first) and pa.types.is_list(other):
        nulls = pa.types.is_null(first.value_type) or pa.types.is_null(other.value_type)
        return nulls or _same(first.value_type, other.value_type)
    if pa.types.is_large_list(first) and pa.types.is_large_list(other):
        return _same(first.value_type, other.value_type)
    return bool(first == other)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are strings for verl."""
    kind = _plain(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _told(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= 120 else text[:117] + "..."
