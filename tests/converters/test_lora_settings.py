"""Settings of an adapter that a hostile or damaged file may have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from converters.errors import ConvertError
from converters.lora import lora_config

MODULE = "model.layers.10.mlp.experts.7.down_proj"


def _scale(pattern: str, module: str = MODULE) -> float:
    return lora_config.scale({"alpha_pattern": {pattern: 3}, "lora_alpha": 1, "r": 1}, module, 1, Path("x.json"))


@pytest.mark.parametrize(
    "pattern",
    [
        "down_proj", r".*mlp.*", r"layers\.(9|10)\..*down_proj", r"q_proj|k_proj|down_proj", r"layers\.1[0-5]\..*",
        r"layers\.\d+\.mlp.*", "^.*down_proj$",
    ],
)  # fmt: skip
def test_patterns_of_module_names(pattern: str) -> None:
    assert _scale(pattern) == 3
    assert _scale(pattern, "lm_head") == 1


@pytest.mark.parametrize(
    "pattern",
    [
        "([a-z._0-9]+)+X", "(a|a)*X", "(.*)?X", "(a+){9}X", ".*.*.*.*X", "a?a?a?a?X", "(a|a)(a|a)(a|a)(a|a)X",
        "(?=a)X", r"(a)\1", "a{1,9999}X", "a" * 1001,
    ],
)  # fmt: skip
def test_patterns_that_may_never_end_are_refused(pattern: str) -> None:
    with pytest.raises(ConvertError, match=r"^x\.json: the pattern '.*' of module names is not one that is read"):
        _scale(pattern)


def test_a_long_name_is_not_matched_with_repeats() -> None:
    assert _scale("down_proj", "a." * 1000 + "down_proj") == 3
    with pytest.raises(ConvertError, match="is too long a name for"):
        _scale(".*down_proj", "a." * 1000 + "down_proj")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"lora_alpha": 10**400}, "a whole number of 401 characters"),
        ({"lora_alpha": "9" * 9999}, "lora_alpha is '9+\\.\\.\\.9+', a positive"),
        ({"r": "9" * 9999}, "r is '9+\\.\\.\\.9+', a positive"),
        ({"peft_type": "9" * 9999}, "peft_type '9+\\.\\.\\.9+', not LORA"),
        ({"new": "9" * 9999}, "new is '9+\\.\\.\\.9+': not a setting"),
        ({"rank_pattern": {"a": "9" * 9999}}, "rank_pattern is .*: numbers by module name"),
    ],
    ids=["digits", "alpha", "rank", "type", "unknown", "pattern"],
)
def test_messages_are_short(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, **changes}))
    with pytest.raises(ConvertError, match=match) as caught:
        lora_config.read_config(path)
    assert len(str(caught.value)) < 600
