"""A byte-level BPE tokenizer with a chat template, trained in a second on text made here."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

VOCABULARY = 1024  # divisible by 128 and by any tensor-parallel size used here: Megatron pads nothing
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_NAMES = ("Natalia", "James", "Maria", "Weng", "Betty", "Ken", "Julie", "Albert", "Toula", "Mark")
_THINGS = ("apples", "clips", "pages", "letters", "flowers", "pizzas", "books", "eggs", "dollars", "hours")
_STORIES = (
    "{name} sold {a} {things} in April, and then she sold half as many {things} in May. "
    "How many {things} did {name} sell altogether in April and May?",
    "{name} has {a} {things} and buys {b} more every week. If each costs ${c}, "
    "how much money does {name} spend in a month?",
    "There are {a} students in the class. Each of them reads {b} pages per day. "
    "How many pages do they read in {c} days?",
    "{name} earns ${a} an hour for working {b} hours a day. Yesterday she worked only {c} minutes. "
    "How much did she earn?",
    "A train travels {a} miles in {b} hours. What is the total distance after {c} hours, "
    "if the speed is the same for the remaining time?",
)


def training_text(corpus: Sequence[Path] = ()) -> Iterator[str]:
    """Lines to train the tokenizer on: sums, short stories, and the strings of any JSONL rows given.

    Args:
        corpus: JSONL files of objects, GSM8K's {"question", "answer"} or alike.

    Raises:
        ValueError: A line of a corpus file is not a JSON object.
    """
    rng = random.Random(0)
    for _ in range(2000):
        a, b, c = (rng.randint(0, 99) for _ in range(3))
        story = rng.choice(_STORIES).format(name=rng.choice(_NAMES), things=rng.choice(_THINGS), a=a, b=b, c=c)
        answer = f"{a} + {b} = {a + b}. {a}*{b}={a * b}. The answer is {a + b}.\n#### {a + b}"
        yield f"user\n{story}\nassistant\n{answer}"
    for path in corpus:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
                yield from (value for value in row.values() if isinstance(value, str))


def build_tokenizer(corpus: Sequence[Path] = ()) -> Any:
    """Train the tokenizer.

    Returns:
        A PreTrainedTokenizerFast of exactly `VOCABULARY` tokens; it ends with <|im_end|>, pads with
        <|endoftext|>.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(corpus), trainer)
    missing = VOCABULARY - tokenizer.get_vocab_size()
    # The model's vocabulary must equal it: verl masks a tail in vLLM's logits, not in the trainer's.
    tokenizer.add_special_tokens([f"<|reserved_{index}|>" for index in range(missing)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
