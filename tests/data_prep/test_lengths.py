from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizer import AROUND, CHATML, NO_SYSTEM, save_tokenizer

from data_prep.errors import DataError, FieldError
from data_prep.lengths import PromptLengths

PROMPTS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "abc"}],
    [{"role": "user", "content": "x" * 5000}],
    [{"role": "user", "content": "漢字 \u2028 <|im_start|> \x00"}],
    [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "tool", "content": "b"},
    ],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": ""}],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def lengths(folder: Path) -> PromptLengths:
    return PromptLengths(folder)


def test_the_tokens_of_the_chat_template_and_of_nothing_else(lengths: PromptLengths) -> None:
    assert lengths.count(PROMPTS[0]) == AROUND + 3
    assert lengths.count(PROMPTS[1]) == AROUND + 5000
    assert lengths.tokens("abc") == 3


def test_what_verl_counts(folder: Path, lengths: PromptLengths) -> None:
    """The call in verl's filter; without return_dict=False, transformers 5 counts the keys of a dict."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = [
        len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False))
        for prompt in PROMPTS
    ]
    assert lengths.count_many(PROMPTS) == expected
    assert [lengths.count(prompt) for prompt in PROMPTS] == expected
    assert lengths.count_many([]) == []


def test_a_prompt_that_the_template_refuses(tmp_path: Path) -> None:
    lengths = PromptLengths(save_tokenizer(tmp_path, template=NO_SYSTEM + CHATML))
    with pytest.raises(FieldError, match="refuses it: System role not supported; verl drops"):
        lengths.count(PROMPTS[3])
    counts = lengths.count_many([PROMPTS[0], PROMPTS[3], PROMPTS[0]])
    assert counts[0] == counts[2] == AROUND + 3
    assert isinstance(counts[1], FieldError)


def test_a_text_that_the_tokenizer_refuses_is_told_apart(lengths: PromptLengths) -> None:
    bad = [{"role": "user", "content": "\ud800"}]
    with pytest.raises(FieldError) as caught:
        lengths.count(bad)
    assert caught.value.field == "prompt"
    counts = lengths.count_many([PROMPTS[0], bad, PROMPTS[0]])
    assert [isinstance(count, FieldError) for count in counts] == [False, True, False]
    assert counts[2] == AROUND + 3


def test_what_a_template_says_is_printable_and_bounded(tmp_path: Path) -> None:
    shout = "{{ raise_exception('\\x1b[2J\\n' + 'x' * 9000) }}"
    lengths = PromptLengths(save_tokenizer(tmp_path, template=shout))
    with pytest.raises(FieldError) as caught:
        lengths.count(PROMPTS[0])
    assert caught.value.expected.isprintable()
    assert len(caught.value.expected) < 600


def test_another_process_can_have_it(lengths: PromptLengths) -> None:
    assert pickle.loads(pickle.dumps(lengths)).count_many(PROMPTS) == lengths.count_many(PROMPTS)


def test_folders_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        PromptLengths(tmp_path / "absent")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    )
    with pytest.raises(DataError, match=r"cannot load its tokenizer|knows no words"):
        PromptLengths(tmp_path)
    save_tokenizer(tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="cannot load its tokenizer"):
        PromptLengths(tmp_path / "broken")
    with pytest.raises(DataError, match=r"no chat template.*chat_template\.jinja"):
        PromptLengths(save_tokenizer(tmp_path / "base", template=None))


def test_code_of_the_folder_is_not_run(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings: dict[str, Any] = json.loads(path.read_text())
    settings |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    path.write_text(json.dumps(settings))
    mark = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(mark)!r}, 'w')\n")
    with pytest.raises(DataError, match="cannot load its tokenizer"):
        PromptLengths(tmp_path)
    assert not mark.exists()


def test_without_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DataError, match="pip install transformers"):
        PromptLengths(folder)
