"""The limit that a server without packing can hope for: all pairs known beforehand, sorted by length, no HTTP.

    python sorted_limit.py MODEL_DIR THREADS < PAIRS.json

Plain transformers, padded batches of at most so many tokens, the best of two budgets. Tells first the scores, by
which the servers are checked; then measures once for each line on standard input, and answers with a line of JSON.
"""

import json
import sys
import time

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

BUDGETS = (1024, 2048)
MAX_LENGTH = 512


class SortedLimit:
    """The model and the tokenised pairs."""

    def __init__(self, path: str, pairs: list[tuple[str, str]]) -> None:
        tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
        self.pad = tokenizer.pad
        self.encoded = [
            dict(tokenizer(prompt, response, truncation=True, max_length=MAX_LENGTH)) for prompt, response in pairs
        ]

    def scores(self, budget: int) -> list[float]:
        """All scores, in the order of the pairs."""
        lengths = [len(one["input_ids"]) for one in self.encoded]
        results = [0.0] * len(lengths)
        batch: list[int] = []
        for place in [*sorted(range(len(lengths)), key=lengths.__getitem__), -1]:
            if batch and (place == -1 or lengths[place] * (len(batch) + 1) > budget):
                inputs = self.pad([self.encoded[index] for index in batch], return_tensors="pt")
                with torch.inference_mode():
                    logits = self.model(**inputs).logits[:, 0].tolist()
                for index, logit in zip(batch, logits, strict=True):
                    results[index] = logit
                batch = []
            batch.append(place)
        return results


def main() -> None:
    """Load, tell the scores, then measure at each line."""
    torch.set_num_threads(int(sys.argv[2]))
    limit = SortedLimit(sys.argv[1], [tuple(pair) for pair in json.loads(sys.stdin.readline())])
    print(json.dumps(limit.scores(BUDGETS[0])), flush=True)
    for _ in sys.stdin:
        rates = {}
        for budget in BUDGETS:
            started = time.perf_counter()
            limit.scores(budget)
            rates[budget] = len(limit.encoded) / (time.perf_counter() - started)
        print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    main()
