"""Numbers of config.json that are of no model, and how many rows may be padding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from converters import families
from converters.errors import ConvertError
from converters.hf import hf_config
from converters.planning.padding import may_be_padding


@pytest.mark.parametrize(
    ("rows", "vocabulary", "expected"),
    [
        (1008, 1003, True),
        (151936, 151643, True),
        (40192, 32000, False),
        (40191, 32767, True),
        (512, 8, False),
        (512, 410, True),
        (512, 409, False),
        (512, 512, False),
        (512, 513, False),
    ],
)
def test_padding_is_bounded(rows: int, vocabulary: int, expected: bool) -> None:
    assert may_be_padding(rows, vocabulary) is expected


CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 48, "vocab_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "num_experts": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, more than 10000: of no model"),
        ({"num_hidden_layers": 10_000, "num_experts": 100_000}, "10000 layers of 100000 experts"),
        ({"num_attention_heads": 10**9, "num_key_value_heads": 10**9}, "num_attention_heads is 1000000000, more"),
        ({"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers is 1000000000, more"),
        (
            {"num_nextn_predict_layers": "x"},
            "num_nextn_predict_layers is 'x', a positive whole number is expected",
        ),
        ({"hidden_size": 10**400}, "a whole number of 401 characters"),
        ({"hidden_size": 10**39}, "hidden_size is 10+, more than"),
        ({"vocab_size": "x" * 10_000}, r"vocab_size is 'x+\.\.\.x+', a positive"),
        (
            {"model_type": "mixtral"},
            "model_type is 'mixtral' and architectures Qwen3MoeForCausalLM: not one model",
        ),
        ({"model_type": "qwen3"}, "model_type is 'qwen3' and"),
        ({"model_type": [1]}, r"model_type is \[1\] and"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_numbers_of_no_model(tmp_path: Path, changes: dict[str, object], match: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    with pytest.raises(ConvertError, match=match) as caught:
        hf_config.read(path, families.FAMILIES["Qwen3MoeForCausalLM"].config)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("kind", "name"),
    [("mistral", "LlamaForCausalLM"), ("kimi_k2", "DeepseekV3ForCausalLM"), (None, "XForCausalLM")],
)
def test_types_that_go_by_another_architecture(tmp_path: Path, kind: str | None, name: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "architectures": [name], "model_type": kind}))
    assert hf_config.read(path).architecture == name
