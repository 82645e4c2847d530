"""The Arrow schema of the files that this package writes: fixed, whatever the rows are.

verl joins files with ``datasets.concatenate_datasets``, which fails when two files differ in a type
(``RLHFDataset``, verl/utils/dataset/rl_dataset.py, 0.9.1). So every input format gives the columns of SCHEMA, and
what rows hold beside them is JSON text in ``extra_info.metadata``. Only verl's own parquet keeps more: the columns
and keys that it has, since verl or a reward function may read them by name.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from data_prep.errors import DataError

MESSAGES = pa.list_(pa.field("element", pa.struct([("role", pa.string()), ("content", pa.string())])))
_PLACE = (("split", pa.string()), ("index", pa.int64()))
_PLACE_PATHS = frozenset(f"extra_info.{key}" for key, _ in _PLACE)
_INFO = (("question", pa.string()), ("answer", pa.string()), ("metadata", pa.string()))

SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("data_source", pa.string(), nullable=False),
        pa.field("prompt", MESSAGES, nullable=False),
        pa.field("ability", pa.string(), nullable=False),
        pa.field(
            "reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())]), nullable=False
        ),
        pa.field("extra_info", pa.struct([*_PLACE, *_INFO]), nullable=False),
    ]
)

GROUND_TRUTH = "reward_model.ground_truth"
# Text in what this package makes; other people's files have lists, numbers and structs here, which stay so.
_ANY_TYPE = (GROUND_TRUTH, "extra_info.question", "extra_info.answer", "extra_info.metadata")
_STRUCTS = ("reward_model", "extra_info")


def leaves(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Type by path of each column, and of each key of ``reward_model`` and ``extra_info``."""
    found: dict[str, pa.DataType] = {}
    for column in schema:
        if column.name in _STRUCTS and pa.types.is_struct(column.type):
            found.update({f"{column.name}.{key.name}": key.type for key in column.type})
        else:
            found[column.name] = column.type
    return found


_FIXED = leaves(SCHEMA)


def carried_fields(schema: pa.Schema) -> dict[str, pa.DataType]:
    """What a verl parquet file has beyond SCHEMA, by path; also ground truth, question... that are no text."""
    own = leaves(schema)
    carried = {path: kind for path, kind in own.items() if path not in _FIXED and path not in _STRUCTS}
    carried.update((path, own[path]) for path in _ANY_TYPE if path in own and not _is_text(own[path]))
    return carried


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def output_fields(
    files: Iterable[tuple[str, pa.Schema | None]], *, truth_is_text: bool = False
) -> dict[str, pa.DataType]:
    """Type by path of every column of the output.

    Args:
        files: (name for messages, schema) of each input; the schema is that of a verl parquet file, else None.
        truth_is_text: the ground truth is not the one of the files.

    Raises:
        DataError: two files hold something under one path, in different types; a column is named like a key of
            a struct, ``extra_info.x``.
    """
    fields = dict(_FIXED)
    text = {path: pa.string() for path in _ANY_TYPE}
    told_by: dict[str, str] = {}
    for shown, schema in files:
        carried = carried_fields(schema) if schema is not None else {}
        for name in schema.names if schema is not None else ():
            if name.startswith(tuple(f"{struct}." for struct in _STRUCTS)):
                raise DataError(f"{shown}: column {name!a} is named like a key of a struct; rename or drop it.")
        if truth_is_text:
            carried.pop(GROUND_TRUTH, None)
        for path, kind in (text | carried).items():
            before = told_by.setdefault(path, shown)
            if before == shown:
                fields[path] = kind
            elif fields[path] != kind:
                raise DataError(
                    f"{path} is {fields[path]} in {before} and {kind} in {shown}, and a column has one type. "
                    "Convert them one by one, or as text: "
                    f"--format map --map prompt=prompt --map ground_truth={GROUND_TRUTH}."
                )
    return fields


def spool_schema(fields: dict[str, pa.DataType]) -> pa.Schema:
    """:func:`output_schema` without ``extra_info.split`` and ``.index``, which come with a row's place."""
    return _schema({path: kind for path, kind in fields.items() if path not in _PLACE_PATHS})


def output_schema(fields: dict[str, pa.DataType]) -> pa.Schema:
    """The schema of the files, from :func:`output_fields`."""
    return _schema(fields)


def _schema(fields: dict[str, pa.DataType]) -> pa.Schema:
    columns: dict[str, pa.DataType] = {}
    keys: dict[str, list[tuple[str, pa.DataType]]] = {name: [] for name in _STRUCTS}
    for path, kind in fields.items():
        top, _, key = path.partition(".")
        if key and top in keys:
            keys[top].append((key, kind))
            columns[top] = pa.struct(keys[top])
        else:
            columns[path] = kind
    required = set(SCHEMA.names)
    return pa.schema([pa.field(name, kind, nullable=name not in required) for name, kind in columns.items()])


def with_places(batch: pa.RecordBatch, schema: pa.Schema, split: str, first: int) -> pa.RecordBatch:
    """Rows of :func:`spool_schema` as rows of the output: each knows its split and its index from ``first`` on."""
    info = batch.column("extra_info")
    keys = {
        "split": pa.array([split] * len(batch), pa.string()),
        "index": pa.array(range(first, first + len(batch))),
    }
    keys.update({key.name: info.field(key.name) for key in info.type})
    kind = schema.field("extra_info").type
    placed = pa.StructArray.from_arrays([keys[key.name] for key in kind], fields=list(kind))
    return pa.RecordBatch.from_arrays(
        [placed if name == "extra_info" else batch.column(name) for name in schema.names], schema=schema
    )
