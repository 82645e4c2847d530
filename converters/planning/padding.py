"""Rows of embedding and head beyond the vocabulary: how many may be padding, and what is said of them.

Megatron-LM pads to a multiple of `make_vocab_size_divisible_by` (128) times tensor parallelism, mbridge 0.15.1
(`core/llm_bridge.py`: provider) to a multiple that is given; verl 0.6.1 and 0.9.1 give none, so that there is no
padding (`models/mcore/model_initializer.py`). Padding is never trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from converters.errors import ConvertError
from converters.hf.token_ids import read_tokens
from converters.planning.steps import Step

# 128 for each of 64 ranks: the widest tensor parallelism that is in use, several times over.
_LARGEST_MULTIPLE = 128 * 64
# Above a quarter it is another model's vocabulary: 32000 entries with the largest multiple come to just this.
_MOST_OF_VOCABULARY = 4


def may_be_padding(rows: int, vocabulary: int) -> bool:
    """Whether a tensor of `rows` may be one of `vocabulary` entries, padded."""
    return 0 < rows - vocabulary < _LARGEST_MULTIPLE and (rows - vocabulary) * _MOST_OF_VOCABULARY <= vocabulary


def left_out(steps: Sequence[Step], files: Mapping[str, Path], config: Path) -> list[str]:
    """A note for each tensor whose last rows no output has.

    Args:
        files: of the tokenizer, by name.
        config: config.json, for messages.

    Raises:
        ConvertError: the tokenizer has tokens in these rows.
    """
    notes: list[str] = []
    for step in steps:
        rows = step.source.shape[len(step.index)] if len(step.source.shape) > len(step.index) else 0
        kept = max((run.source_row + run.rows for run in step.runs), default=rows)
        if kept >= rows or len(step.outputs) != 1:
            continue
        tokens = read_tokens(files) if not notes else None
        if tokens is not None and tokens.largest >= kept:
            raise ConvertError(
                f"{config}: vocab_size is {kept}, the tokenizer has tokens up to {tokens.largest}, and "
                f"{step.source.name} has {rows} rows: rows that are in use would be left out. Correct "
                "vocab_size, or give the right --base_model."
            )
        notes.append(
            f"rows {kept} to {rows - 1} of {step.source.name} are padding and left out (vocab_size is {kept})"
        )
    return notes
