"""The options of a conversion: the only list of them. The command line makes one, dataset.json records it."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

Duplicates = Literal["exact", "normalized"]
Style = Literal["rule", "model"]
GroundTruth = Literal["answer", "question"]


@dataclass(frozen=True)
class SourceOptions:
    """One SOURCE of the command line.

    Attributes:
        source: as given: a file, a folder, ``-`` (standard input) or ``sample:NAME``.
        format: a name of ``data_prep.formats.registry.FORMATS``, ``map`` or ``auto``.
        data_source, ability: of its rows; None: the rows' own, else the format's.
        weight: its share in a blend; None: all of its rows, in sequence.
    """

    source: str
    format: str = "auto"
    data_source: str | None = None
    ability: str | None = None
    weight: Fraction | None = None


@dataclass(frozen=True)
class Options:
    """What a conversion does, whatever its sources are.

    Attributes:
        mapping: for the format ``map``: target (``prompt``, ``ground_truth``, ``answer``, ``data_source``,
            ``ability``) -> path in the row.
        test_files: files with the test rows, instead of a split.
        test_size: rows (int) or share of the rows, evenly spaced, for the test split.
        test_last: rows at the end, for the test split.
        shuffle: seed; None keeps the order.
        system_prompt: the system message of every prompt; None leaves each as it is.
        prompt_template: for the last user message; None: the format's own.
        style: reward_model.style of rows; None: rule where the ground truth is the answer, else model.
        ground_truth: what the reward function gets; None: question with style model, else answer.
        max_prompt_tokens, tokenizer: prompts with more tokens, by the chat template of this model folder, are
            dropped and counted.
        remove_duplicates: later rows with the prompt of an earlier one are dropped.
        remove_leakage: training rows with the prompt of a test row are dropped.
        skip_bad: file for rows that cannot be used; None: the first one stops the conversion.
    """

    mapping: dict[str, str] = field(default_factory=dict)
    test_files: tuple[str, ...] = ()
    test_size: Fraction | int | None = None
    test_last: int | None = None
    shuffle: int | None = None
    system_prompt: str | None = None
    prompt_template: str | None = None
    style: Style | None = None
    ground_truth: GroundTruth | None = None
    max_prompt_tokens: int | None = None
    tokenizer: Path | None = None
    remove_duplicates: Duplicates | None = None
    remove_leakage: Duplicates | None = None
    skip_bad: Path | None = None
