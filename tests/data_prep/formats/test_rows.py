"""What a row of each format becomes, and what is said of a row that breaks it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from data_prep.errors import FieldError
from data_prep.formats.example import Example
from data_prep.formats.registry import FORMATS
from data_prep.formats.verl_rows import verl_format
from data_prep.reading.lines import Literal, parse_object

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "2+2?"}
FOUR = {"role": "assistant", "content": "4"}
MORE = {"role": "user", "content": "And 3?"}
HUMAN = {"from": "human", "value": "2+2?"}
GPT = {"from": "gpt", "value": "4"}
HH = "\n\nHuman: 2+2?\n\nAssistant:"


def example(name: str, row: dict[str, Any]) -> Example:
    return FORMATS[name].to_example(row)


GOOD: list[tuple[str, dict[str, Any], Example]] = [
    (
        "gsm8k",
        {"question": "2+2?", "answer": "Add.\n#### 1,204", "id": 7},
        Example([ASK], "1204", "Add.\n#### 1,204", metadata={"id": 7}),
    ),
    ("gsm8k", {"question": "2+2?", "answer": "#### -4.50"}, Example([ASK], "-4.50", "#### -4.50")),
    (
        "math",
        {"problem": "2+2?", "solution": r"$\boxed{3}$, no: $\boxed{\frac{8}{2}}$.", "level": "Level 1"},
        Example(
            [ASK],
            r"\frac{8}{2}",
            r"$\boxed{3}$, no: $\boxed{\frac{8}{2}}$.",
            metadata={"level": "Level 1"},
        ),
    ),
    ("math", {"problem": "2+2?", "solution": "It is 4.", "answer": "4"}, Example([ASK], "4", "It is 4.")),
    (
        "messages",
        {"messages": [SYSTEM, ASK, FOUR], "tools": [{"name": "add"}]},
        Example([SYSTEM, ASK], "4", "4", metadata={"tools": [{"name": "add"}]}),
    ),
    ("messages", {"messages": [ASK, FOUR, MORE]}, Example([ASK, FOUR, MORE])),
    ("messages", {"messages": [ASK, FOUR], "ground_truth": [4]}, Example([ASK], "[4]", "4")),
    (
        "messages",
        {
            "messages": [
                {"role": "developer", "content": "Be brief.", "name": None, "tool_calls": []},
                {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]},
                {"role": "system", "content": " "},
                {"role": "tool", "content": "4"},
            ]
        },
        Example([SYSTEM, ASK, {"role": "tool", "content": "4"}]),
    ),
    (
        "prompt_response",
        {"prompt": "2+2?", "response": "4", "n": 1},
        Example([ASK], "4", "4", metadata={"n": 1}),
    ),
    ("prompt_response", {"query": "2+2?", "answer": Literal("4.00")}, Example([ASK], "4.00", "4.00")),
    ("prompt_response", {"prompt": [SYSTEM, ASK], "completion": [FOUR]}, Example([SYSTEM, ASK], "4", "4")),
    ("prompt_response", {"question": "2+2?", "response": "So 4.", "answer": 4}, Example([ASK], "4", "So 4.")),
    ("prompt_response", {"prompt": "2+2?"}, Example([ASK])),
    (
        "prompt_response",
        {"prompt": "2+2?", "ground_truth": {"b": Literal("1.50"), "a": "é"}},
        Example([ASK], '{"b":1.50,"a":"é"}'),
    ),
    (
        "alpaca",
        {"instruction": "Add.", "input": "2, 2", "output": "4", "text": "t"},
        Example([{"role": "user", "content": "Add.\n\n2, 2"}], "4", "4", metadata={"text": "t"}),
    ),
    ("alpaca", {"instruction": "2+2?", "input": "", "output": "4"}, Example([ASK], "4", "4")),
    (
        "alpaca",
        {"instruction": "2+2?", "system": "Be brief.", "output": "4"},
        Example([SYSTEM, ASK], "4", "4"),
    ),
    ("sharegpt", {"conversations": [HUMAN, GPT], "id": "x"}, Example([ASK], "4", "4", metadata={"id": "x"})),
    ("sharegpt", {"conversations": [HUMAN, GPT], "system": "Be brief."}, Example([SYSTEM, ASK], "4", "4")),
    ("sharegpt", {"conversations": [ASK, FOUR], "system": ""}, Example([ASK], "4", "4")),
    (
        "sharegpt",
        {"conversations": [HUMAN, {"from": "observation", "value": "{}"}]},
        Example([ASK, {"role": "tool", "content": "{}"}]),
    ),
    (
        "preference",
        {"prompt": "2+2?", "chosen": "4", "rejected": "5", "score": 1},
        Example([ASK], "4", "4", metadata={"score": 1, "rejected": "5"}),
    ),
    (
        "preference",
        {"prompt": [SYSTEM, ASK], "chosen": [FOUR], "rejected": [{"role": "assistant", "content": "5"}]},
        Example([SYSTEM, ASK], "4", "4", metadata={"rejected": "5"}),
    ),
    (
        "preference",
        {"prompt": "2+2?", "chosen": [ASK, FOUR], "rejected": [ASK, {"role": "assistant", "content": "5"}]},
        Example([ASK], "4", "4", metadata={"rejected": "5"}),
    ),
    (
        "preference",
        {"chosen": [SYSTEM, ASK, FOUR], "rejected": [SYSTEM, ASK, {"role": "assistant", "content": "5"}]},
        Example([SYSTEM, ASK], "4", "4", metadata={"rejected": "5"}),
    ),
    (
        "preference",
        {"chosen": HH + " 4", "rejected": HH + " 5"},
        Example([ASK], "4", "4", metadata={"rejected": "5"}),
    ),
    (
        "preference",
        {"prompt": HH, "chosen": HH + " 4", "rejected": "5"},
        Example([ASK], "4", "4", metadata={"rejected": "5"}),
    ),
    (
        "nemo_gym",
        {
            "responses_create_params": {
                "instructions": "Be brief.",
                "input": [{"type": "message", "id": "m1", **ASK}],
                "tools": [{"name": "add"}],
            },
            "expected_answer": "4",
        },
        Example(
            [SYSTEM, ASK],
            "4",
            "4",
            metadata={
                "responses_create_params": {"instructions": "Be brief.", "tools": [{"name": "add"}]},
                "expected_answer": "4",
            },
        ),
    ),
    (
        "nemo_gym",
        {"responses_create_params": {"input": "2+2?"}, "low": 1, "environment_name": "adding"},
        Example(
            [ASK],
            '{"low":1,"environment_name":"adding"}',
            metadata={"responses_create_params": {}, "low": 1, "environment_name": "adding"},
            ability="adding",
        ),
    ),
    (
        "verl",
        {
            "data_source": "sums",
            "prompt": [ASK],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "4"},
            "extra_info": {
                "split": "train",
                "index": 3,
                "question": "Two?",
                "answer": "",
                "metadata": '{"a":1.50}',
            },
        },
        Example([ASK], "4", None, "Two?", {"a": Literal("1.50")}, "sums", "math", "rule"),
    ),
    (
        "verl",
        {
            "prompt": "2+2?",
            "images": ["x"],
            "reward_model": {"ground_truth": [4], "extra": 1},
            "extra_info": {"kwargs": '[{"a": null}]', "metadata": "{broken"},
        },
        Example(
            [ASK],
            "[4]",
            metadata={"metadata": "{broken", "images": ["x"], "kwargs": '[{"a": null}]', "extra": 1},
        ),
    ),
]


@pytest.mark.parametrize(("name", "row", "expected"), GOOD)
def test_row(name: str, row: dict[str, Any], expected: Example) -> None:
    assert FORMATS[name].matches(row)
    assert example(name, row) == expected


def with_message(**keys: Any) -> dict[str, Any]:
    return {"messages": [ASK, {**FOUR, **keys}]}


PAIR = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
BAD: list[tuple[str, dict[str, Any], str | None, str]] = [
    ("gsm8k", {"question": "2+2?"}, "answer", "missing; the row has 'question'"),
    ("gsm8k", {"question": 5, "answer": "#### 4"}, "question", "expected a string, got int 5"),
    ("gsm8k", {"question": " \n", "answer": "#### 4"}, "question", "blank"),
    ("gsm8k", {"question": "a\ud800", "answer": "#### 4"}, "question", "lone surrogate U+D800 at character 1"),
    ("gsm8k", {"question": "2+2?", "answer": "4"}, "answer", "expected '#### NUMBER'"),
    ("gsm8k", {"question": "2+2?", "answer": "#### ,"}, "answer", "expected a number"),
    ("math", {"problem": "2+2?", "solution": "4\x1b[2J"}, "solution", r"got str '4\x1b[2J'"),
    ("math", {"problem": "2+2?", "solution": r"\boxed{\frac{8}{2}"}, "solution", "never closed"),
    ("math", {"problem": "2+2?", "solution": r"\boxed{ }"}, "solution", "nothing in the last"),
    ("math", {"problem": "2+2?", "solution": "4", "answer": [4]}, "answer", "expected a string, got list [4]"),
    ("messages", {"messages": []}, "messages", "expected a list of messages"),
    ("messages", {"messages": ["Hi"]}, "messages[0]", "expected a message"),
    ("messages", {"messages": [FOUR]}, "messages", "expected a message before the answer"),
    ("messages", {"messages": [ASK, FOUR, FOUR]}, "messages[1].role", "assistant"),
    ("messages", {"messages": [{"role": "human", "content": "Hi"}]}, "messages[0].role", "expected one of system"),
    ("messages", {"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ("messages", {"messages": [{"role": "user", "content": " "}]}, "messages[0].content", "blank"),
    ("messages", with_message(content=""), "messages[1].content", "blank"),
    ("messages", with_message(content="\udfff"), "messages[1].content", "lone surrogate U+DFFF"),
    ("messages", with_message(tool_calls=[{"id": 1}]), "messages[1].tool_calls", "would be lost"),
    (
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "messages[0].content[0]",
        "expected a part of type 'text', got str 'image_url'",
    ),
    ("prompt_response", {"response": "4"}, "prompt", "missing, or question, query, input"),
    ("prompt_response", {"prompt": "2+2?", "response": ""}, "response", "blank"),
    ("prompt_response", {"prompt": "2+2?", "response": True}, "response", "expected a string, got bool True"),
    ("prompt_response", {"prompt": [FOUR], "response": "4"}, "prompt[0].role", "assistant"),
    ("prompt_response", {"prompt": "2+2?", "completion": [ASK, FOUR]}, "completion", "user, assistant"),
    ("alpaca", {"instruction": "", "output": "4"}, "instruction", "blank"),
    ("alpaca", {"instruction": "2+2?", "output": None}, "output", "expected a string, got NoneType"),
    ("alpaca", {"instruction": "2+2?", "input": 3, "output": "4"}, "input", "expected a string, got int 3"),
    ("sharegpt", {"conversations": [{"from": "me", "value": "x"}]}, "conversations[0].from", "got str 'me'"),
    ("sharegpt", {"conversations": [{"from": "human"}]}, "conversations[0].value", "missing"),
    ("sharegpt", {"conversations": [HUMAN], "system": 1}, "system", "expected a string"),
    ("preference", {"prompt": "2+2?", "chosen": "4"}, "rejected", "missing"),
    ("preference", PAIR | {"chosen": [ASK, ASK]}, "chosen", "expected a last message of the assistant"),
    ("preference", PAIR | {"chosen": [MORE, FOUR]}, "chosen", "got other messages"),
    ("preference", {"chosen": "4", "rejected": "5"}, "chosen", "no 'prompt'"),
    ("preference", {"chosen": [ASK, FOUR], "rejected": [MORE, FOUR]}, "rejected", "another message 0"),
    ("nemo_gym", {"responses_create_params": {}}, "responses_create_params.input", "missing"),
    ("nemo_gym", {"responses_create_params": 1}, "responses_create_params", "expected an object"),
    (
        "nemo_gym",
        {"responses_create_params": {"input": [ASK, {"type": "function_call", "name": "add"}]}},
        "responses_create_params.input[1].type",
        "function_call",
    ),
    ("verl", {"prompt": [], "reward_model": {}}, "prompt", "expected a list of messages"),
    ("verl", {"prompt": "x", "reward_model": "4"}, "reward_model", "expected an object, got str '4'"),
    ("verl", {"prompt": "x", "data_source": 1}, "data_source", "expected a string"),
    (
        "verl",
        {"prompt": "x", "reward_model": {"ground_truth": {"a": ["\ud800"]}}},
        "reward_model.ground_truth.a[0]",
        "lone surrogate",
    ),
]


@pytest.mark.parametrize(("name", "row", "field", "expected"), BAD)
def test_bad_row(name: str, row: dict[str, Any], field: str | None, expected: str) -> None:
    with pytest.raises(FieldError) as caught:
        example(name, row)
    assert caught.value.field == field
    assert expected in caught.value.expected
    assert caught.value.expected.isprintable()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [None, 5, "x", "\ud800", [], [None], {}, [[1]], [{"role": []}], {"a": {}}])
def test_no_value_is_a_crash(name: str, value: Any) -> None:
    fields = [
        "question",
        "answer",
        "problem",
        "solution",
        "messages",
        "prompt",
        "response",
        "instruction",
        "input",
    ]
    fields += [
        "output",
        "conversations",
        "system",
        "chosen",
        "rejected",
        "responses_create_params",
        "reward_model",
    ]
    fields += ["extra_info", "data_source", "expected_answer", "ground_truth", "agent_ref"]
    base = next(row for good, row, _ in GOOD if good == name)
    for field in fields:
        row = base | {field: value}
        FORMATS[name].matches(row)
        try:
            made = example(name, row)
        except FieldError as error:
            fault, prompt = error.field, []
        else:
            fault, prompt = None, made.prompt
        assert fault or prompt
        assert all(type(message["content"]) is str for message in prompt)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\text{if } x=\{1}", r"\text{if } x=\{1"),
        (r"$\boxed 5$ apples", "5"),
        (r"$x = \boxed 1.5$", "1.5"),
        (r"so \boxed 7.", "7"),
        (r"\fbox{B}", "B"),
        (r"\boxed{A} or \fbox{B}", "A"),
        (r"\boxed {12}", "12"),
        (r"\boxedx{1}", None),
        (r"\boxed{1}} }", "1"),
    ],
)
def test_boxed(solution: str, answer: str | None) -> None:
    row = {"problem": "x", "solution": solution}
    if answer is None:
        with pytest.raises(FieldError):
            example("math", row)
    else:
        assert example("math", row).ground_truth == answer


def test_verl_parquet_columns_are_carried_as_they_are() -> None:
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("images", pa.list_(pa.string())),
            ("reward_model", pa.struct([("ground_truth", pa.list_(pa.int64())), ("style", pa.string())])),
            ("extra_info", pa.struct([("index", pa.int64()), ("need_tools_kwargs", pa.bool_())])),
        ]
    )
    row = {
        "data_source": None,
        "prompt": [ASK],
        "images": ["x.png"],
        "reward_model": {"ground_truth": [4], "style": "rule"},
        "extra_info": {"index": 9, "need_tools_kwargs": True},
    }
    made = verl_format(schema).to_example(row)
    assert made.carried == {
        "images": ["x.png"],
        "extra_info.need_tools_kwargs": True,
        "reward_model.ground_truth": [4],
    }
    assert (made.ground_truth, made.metadata, made.data_source) == ("[4]", {}, None)


def test_numbers_of_metadata_are_parsed_as_they_were_written() -> None:
    row = parse_object(rb'{"prompt": "x", "reward_model": {}, "extra_info": {"metadata": "{\"a\":[1e2,0.10]}"}}')
    numbers = example("verl", row).metadata["a"]
    assert [number.text for number in numbers] == ["1e2", "0.10"]
