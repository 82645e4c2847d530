"""verl's own dataset class reads what convert writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep import convert

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.engine
@pytest.mark.parametrize("ground_truth", ["answer", "question"])
def test_rlhf_dataset_keeps_every_row(tmp_path: Path, ground_truth: str) -> None:
    from omegaconf import OmegaConf
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from verl.utils.dataset.rl_dataset import RLHFDataset

    assert convert.main(["sample:gsm8k", "--out", str(tmp_path), "--ground-truth", ground_truth]) == 0
    alphabet = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=TEMPLATE)
    config = OmegaConf.create(
        {
            "cache_dir": str(tmp_path / "cache"),
            "max_prompt_length": 4096,
            "filter_overlong_prompts": True,
            "filter_overlong_prompts_workers": 1,
            "return_raw_chat": True,
        }
    )
    files = [str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")]
    dataset = RLHFDataset(files, tokenizer, config)
    assert len(dataset) == 500
    row = dataset[400]
    assert row["index"] == 0
    assert row["data_source"] == "openai/gsm8k"
    assert row["raw_prompt"][0]["role"] == "user"
    assert row["extra_info"]["split"] == "test"
    expected = "18" if ground_truth == "answer" else row["extra_info"]["question"]
    assert row["reward_model"]["ground_truth"] == expected
