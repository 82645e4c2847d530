"""Whether verl will read a parquet file as intended: ``python -m data_prep.validate FILE.parquet...``.

verl counts a row whose prompt does not fit the chat template as too long and drops it without an error
(``maybe_filter_out_long_prompts`` in verl/utils/dataset/rl_dataset.py, 0.6.1 and 0.9.1); they are found here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ("prompt", "data_source", "reward_model")
ROLES = ("system", "user", "assistant", "tool")
_SHOWN_PROBLEMS = 10


def schema_problems(schema: pa.Schema) -> list[str]:
    """What in ``schema`` keeps verl from reading the file; empty where nothing does."""
    problems = [f"no column {name!r}" for name in COLUMNS if name not in schema.names]
    if problems:
        return problems
    prompt = schema.field("prompt").type
    if not (pa.types.is_list(prompt) or pa.types.is_large_list(prompt)):
        problems.append(f"column 'prompt' is {prompt}; expected a list of {{role, content}}")
    elif not pa.types.is_struct(prompt.value_type) or not {"role", "content"} <= set(prompt.value_type.names):
        problems.append(f"column 'prompt' is a list of {prompt.value_type}; expected a list of {{role, content}}")
    source = schema.field("data_source").type
    if not (pa.types.is_string(source) or pa.types.is_large_string(source)):
        problems.append(f"column 'data_source' is {source}; expected string")
    reward = schema.field("reward_model").type
    if not pa.types.is_struct(reward) or "ground_truth" not in reward.names:
        problems.append(f"column 'reward_model' is {reward}; expected a struct with ground_truth")
    return problems


def row_problem(row: dict[str, Any]) -> str | None:
    """The first thing that is wrong with a row, or None. A ground truth may be empty text but not null."""
    if not row["data_source"]:
        return "data_source is empty"
    if not row["prompt"]:
        return "prompt is empty"
    for position, message in enumerate(row["prompt"]):
        if message is None or message["role"] not in ROLES:
            role = None if message is None else message["role"]
            return f"prompt[{position}].role is {role!r}; expected one of {', '.join(ROLES)}"
        if not message["content"]:
            return f"prompt[{position}].content is empty"
    if row["reward_model"] is None or row["reward_model"]["ground_truth"] is None:
        return "reward_model.ground_truth is missing"
    return None


def _bad_rows(file: pq.ParquetFile) -> Iterator[str]:
    number = 0
    for batch in file.iter_batches(batch_size=2048, columns=list(COLUMNS)):
        for row in batch.to_pylist():
            problem = row_problem(row)
            if problem is not None:
                yield f"row {number}: {problem}"
            number += 1


def problems(path: Path) -> tuple[int, list[str]]:
    """Rows in ``path`` and what is wrong with it; rows are counted from 0, memory is that of one batch.

    Raises:
        OSError: the file cannot be opened.
        pyarrow.ArrowInvalid: not a whole parquet file.
    """
    with pq.ParquetFile(path) as file:
        rows: int = file.metadata.num_rows
        found = schema_problems(file.schema_arrow)
        if not found and not rows:
            found.append("no rows")
        if not found:
            bad = _bad_rows(file)
            found.extend(islice(bad, _SHOWN_PROBLEMS))
            more = sum(1 for _ in bad)
            if more:
                found.append(f"and {more} more rows")
    return rows, found


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 where every file is fit for verl, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep.validate",
        description="Say whether verl will read each file as intended.",
        epilog="example: python -m data_prep.validate data/train.parquet data/test.parquet. "
        "Exit codes: 0 every file is fit; 1 a file is not; 2 usage.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.parquet")
    fit = True
    for path in parser.parse_args(argv).files:
        try:
            rows, found = problems(path)
        except (OSError, pa.ArrowInvalid) as error:
            rows, found = 0, [f"not readable as parquet: {error}"]
        if not found:
            print(f"{path}: {rows} rows, fit for verl")
            continue
        fit = False
        for problem in found:
            print(f"{path}: {problem}", file=sys.stderr)
    return 0 if fit else 1


if __name__ == "__main__":
    sys.exit(main())
