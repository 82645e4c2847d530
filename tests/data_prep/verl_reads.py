"""Load files with verl's own data set class and hand their rows to its reward manager, in any environment of verl.

    python verl_reads.py WORK NAME=FILE...

prints one line, FOUND and a JSON object: by name, what became of each row. Works with verl 0.6.1 and 0.9.1.
"""

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from chat_tokenizer import save_tokenizer  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn  # noqa: E402

from data_prep.lengths import PromptLengths  # noqa: E402

RESPONSE = "an answer"
Calls = list[dict[str, Any]]


def dataset(files: list[str], tokenizer: Any, work: Path, limit: int) -> Any:
    """The data set as verl's trainers make it."""
    config = {
        "cache_dir": str(work / "cache"),
        "max_prompt_length": limit,
        "filter_overlong_prompts": True,
        "filter_overlong_prompts_workers": None,
        "return_raw_chat": True,
    }
    return RLHFDataset(files, tokenizer, OmegaConf.create(config))


def rewarded(rows: list[dict[str, Any]], tokenizer: Any) -> Calls:
    """What a reward function is called with, by verl's naive reward manager."""
    calls: Calls = []

    def compute_score(**given: Any) -> float:
        calls.append(given)
        return 0.0

    batch = collate_fn(rows)
    response = torch.tensor([tokenizer(RESPONSE, add_special_tokens=False)["input_ids"]] * len(rows))
    mask = torch.ones(len(rows), 2 * response.shape[1], dtype=torch.long)
    ids = {"prompts": response, "responses": response.clone(), "attention_mask": mask}
    data = DataProto(
        batch=TensorDict(ids, batch_size=len(rows)),
        non_tensor_batch={name: batch[name] for name in ("data_source", "reward_model", "extra_info")},
    )
    if version("verl") == "0.6.1":
        from verl.workers.reward_manager.naive import NaiveRewardManager

        NaiveRewardManager(tokenizer, num_examine=0, compute_score=compute_score)(data)
        return calls

    async def in_the_loop() -> None:
        from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

        manager = NaiveRewardManager(OmegaConf.create({}), tokenizer, compute_score)
        for place in range(len(rows)):
            await manager.run_single(data[place : place + 1])

    asyncio.run(in_the_loop())
    return calls


def plain(value: Any) -> Any:
    """What NumPy made of a value, as JSON can hold it."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def main() -> None:
    work = Path(sys.argv[1])
    folder = save_tokenizer(work / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lengths = PromptLengths(folder)
    found = {}
    for argument in sys.argv[2:]:
        name, _, file = argument.partition("=")
        whole = dataset([file], tokenizer, work, 100_000)
        rows = [whole[place] for place in range(len(whole))]
        prompts = [[dict(message) for message in row["raw_prompt"]] for row in rows]
        counts = [lengths.count(prompt) for prompt in prompts]
        # Half of the rows have more tokens; which ones, verl's filter tells.
        limit = sorted(counts)[len(counts) // 2]
        kept = dataset([file], tokenizer, work, limit)
        calls = rewarded(rows, tokenizer)
        found[name] = {
            "prompts": prompts,
            "written": [
                tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False) for p in prompts
            ],
            "index": [row["index"] for row in rows],
            "ground_truths": [call["ground_truth"] for call in calls],
            "data_sources": [call["data_source"] for call in calls],
            "metadata": [call["extra_info"].get("metadata") for call in calls],
            "responses": [call["solution_str"] for call in calls],
            "kept": [row["index"] for row in (kept[place] for place in range(len(kept)))],
            "fits": [row["index"] for row, count in zip(rows, counts, strict=True) if count <= limit],
        }
    print("FOUND " + json.dumps(found, default=plain))


if __name__ == "__main__":
    main()
