"""The same work as data_prep.convert, done as people do it: python others.py NAME INPUT.jsonl OUTPUT.parquet

pandas      read_json by lines in chunks, a function for each row, the rows appended to one parquet file
datasets    load_dataset("json").map(function).to_parquet, in one process
datasets2   the same with num_proc=2
limit       no work at all: pyarrow parses the JSONL in blocks and writes its two columns to parquet
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_CHUNK_ROWS = 50_000


def to_verl(row: dict[str, Any], index: int) -> dict[str, Any]:
    """One row, as verl's examples/data_preprocess/gsm8k.py (0.9.1) makes it."""
    question, answer = row["question"], row["answer"]
    match = _FINAL_ANSWER.search(answer)
    assert match is not None
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} {_INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": match.group(1).replace(",", "")},
        "extra_info": {
            "split": "train",
            "index": index,
            "question": question,
            "answer": answer,
            "metadata": "{}",
        },
    }


def with_pandas(source: Path, target: Path) -> None:
    """In chunks, since the whole of a large file takes several times its size in memory."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    # Strings that look like dates or numbers stay strings.
    kinds: dict[str, Any] = {"dtype": False, "convert_dates": False}
    for chunk in pd.read_json(source, lines=True, chunksize=_CHUNK_ROWS, **kinds):
        rows = [to_verl(row, index) for index, row in zip(chunk.index, chunk.to_dict("records"), strict=True)]
        table = pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)
        if writer is None:
            writer = pq.ParquetWriter(target, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def with_datasets(source: Path, target: Path, processes: int | None) -> None:
    """With a cache that is gone afterwards: a second run would only read the first one's."""
    import datasets  # type: ignore[import-untyped]

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(dir=target.parent) as cache:
        loaded = datasets.load_dataset("json", data_files=str(source), split="train", cache_dir=cache)
        mapped = loaded.map(to_verl, with_indices=True, remove_columns=["question", "answer"], num_proc=processes)
        mapped.to_parquet(str(target))


def limit(source: Path, target: Path) -> None:
    """What reading and encoding the same bytes takes."""
    import pyarrow.json as pj
    import pyarrow.parquet as pq

    reader = pj.open_json(source, read_options=pj.ReadOptions(block_size=4 << 20))
    with pq.ParquetWriter(target, reader.schema, compression="zstd", use_dictionary=False) as writer:
        for batch in reader:
            writer.write_batch(batch)


OTHERS: dict[str, Callable[[Path, Path], None]] = {
    "pandas": with_pandas,
    "datasets": lambda source, target: with_datasets(source, target, None),
    "datasets2": lambda source, target: with_datasets(source, target, 2),
    "limit": limit,
}

if __name__ == "__main__":
    OTHERS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
