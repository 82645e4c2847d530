from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.verl_client.thinking import split_thinking


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("no tags at all", "no tags at all"),
        ("  spaced \n", "spaced"),
        ("", ""),
        ("<think>r</think>The answer", "The answer"),
        # chat templates put the opening tag into the prompt
        ("reasoning\n</think>\n\nThe answer", "The answer"),
        ("<think>a <think> b</think>c", "c"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>r</think>", ""),
        # literal tags
        ("Close with `</think>` please", "Close with `</think>` please"),
        ("<think>I must end with `</think>` later</think>ok", "ok"),
        ("<think>r</think>Write `<think>` first", "Write `<think>` first"),
        ("<think>r</think>\n```\n<think>x</think>\n```\nend", "```\n<think>x</think>\n```\nend"),
        # what must not count as a literal tag
        ("<think>```python\nx = 1\n```</think>`x` is 1", "`x` is 1"),
        ("<think>a fence ``` left open</think>`x`", "`x`"),
        ("<think>one ` alone\n</think>`x`", "`x`"),
    ],
)
def test_answer(text: str, answer: str) -> None:
    assert split_thinking(text) == (answer, False)


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("<think>r</think>Here is answer</think>done", "Here is answerdone"),
        ("a</think>b</think>c", "bc"),
        ("Hello <think>x", "Hello"),
        ("<think>never closed", ""),
        ("<think>a</think>b<think>c", "b"),
        ("<think>", ""),
    ],
)
def test_stray_tag(text: str, visible: str) -> None:
    assert split_thinking(text) == (visible, True)


def original(text: str) -> str | None:
    """The rule of the scripts in use: None is the penalty."""
    if "</think>" in text:
        kept = text.split("</think>")[-1].strip()
    else:
        kept = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    return None if "<think>" in kept or "</think>" in kept else kept


@given(st.lists(st.sampled_from(["<think>", "</think>", "a ", "\n", "12"]), max_size=8).map("".join))
def test_as_the_original_rule_where_nothing_is_closed_twice(text: str) -> None:
    split = split_thinking(text)
    if not split.stray:
        assert split.answer == original(text)
    elif original(text) is not None:
        assert text.count("</think>") > 1


@given(st.lists(st.sampled_from(["<think>", "</think>", "`", "```", "\n", "x"]), max_size=12).map("".join))
def test_total(text: str) -> None:
    answer, _ = split_thinking(text)
    assert answer == answer.strip()


def test_ten_megabytes_of_one_pattern() -> None:
    text = "`\\frac{1}{ " * 1_000_000
    assert split_thinking(text + "</think>4") == ("4", False)
