"""The reward of the engine tests: the share of digits, each call written to the reward log."""

import json
import os
from pathlib import Path


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    score = sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))
    folder = Path(os.environ["REWARD_LOG_PATH"])
    folder.mkdir(exist_ok=True)
    with (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"solution": solution_str, "ground_truth": ground_truth, "score": score}) + "\n")
    return score
