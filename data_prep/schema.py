"""The one Arrow schema of the files that this package writes.

verl joins files with ``datasets.concatenate_datasets``, which fails when two files differ in a type
(``RLHFDataset``, verl/utils/dataset/rl_dataset.py, 0.9.1): every file has this schema, whatever its rows.
"""

from __future__ import annotations

from typing import TypedDict

import pyarrow as pa

SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("data_source", pa.string(), nullable=False),
        pa.field(
            "prompt",
            pa.list_(pa.field("element", pa.struct([("role", pa.string()), ("content", pa.string())]))),
            nullable=False,
        ),
        pa.field("ability", pa.string(), nullable=False),
        pa.field(
            "reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())]), nullable=False
        ),
        pa.field(
            "extra_info",
            pa.struct(
                [
                    ("split", pa.string()),
                    ("index", pa.int64()),
                    ("question", pa.string()),
                    ("answer", pa.string()),
                ]
            ),
            nullable=False,
        ),
    ]
)


class Message(TypedDict):
    """One chat message of a prompt."""

    role: str
    content: str


class RewardModel(TypedDict):
    """What the reward function gets: ``ground_truth`` reaches ``compute_score`` unchanged."""

    style: str
    ground_truth: str


class ExtraInfo(TypedDict):
    """``extra_info`` of ``compute_score``; verl takes ``index`` as the row's id."""

    split: str
    index: int
    question: str
    answer: str


class VerlRow(TypedDict):
    """One row as verl reads it."""

    data_source: str
    prompt: list[Message]
    ability: str
    reward_model: RewardModel
    extra_info: ExtraInfo
