"""Rows of a prompt and its answer under the usual names; the prompt is text or, as in TRL, a list of messages."""

from __future__ import annotations

from data_prep.errors import FieldError
from data_prep.formats.chat import messages_of, prompt_of
from data_prep.formats.example import Example, Format
from data_prep.formats.text import answer_text, check_text, own_truth, rest, shown_fields
from data_prep.reading.block import RawRow

_PROMPTS = ("prompt", "question", "query", "input")
_RESPONSES = ("response", "completion", "answer", "output")


def response_of(value: object, path: str) -> str:
    """The text of a response: text, a number as written, or a list of one assistant message.

    Raises:
        FieldError: anything else.
    """
    if not isinstance(value, list | tuple):
        return answer_text(value, path)
    messages = messages_of(value, path)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        roles = ", ".join(message["role"] for message in messages[:10])
        raise FieldError(path, f"expected text or one assistant message, got messages of {roles}")
    return check_text(messages[0]["content"], f"{path}[0].content")


def _first(row: RawRow, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)


def _to_example(row: RawRow) -> Example:
    asked = _first(row, _PROMPTS)
    if asked is None:
        raise FieldError(_PROMPTS[0], f"missing, or {', '.join(_PROMPTS[1:])}; the row has {shown_fields(row)}")
    prompt = prompt_of(row[asked], asked)
    replied = _first(row, _RESPONSES)
    answer = response_of(row[replied], replied) if replied is not None else None
    truth, field = own_truth(row, "ground_truth", *(() if replied == "answer" else ("answer",)))
    metadata = rest(row, asked, replied or asked, field or asked)
    return Example(prompt, truth if field else answer, answer, None, metadata)


def _matches(row: RawRow) -> bool:
    answered = "ground_truth" in row or any(name in row for name in _RESPONSES)
    return "prompt" in row or (answered and any(name in row for name in _PROMPTS))


PROMPT_RESPONSE = Format(
    name="prompt_response",
    fields="'prompt' (or 'question', 'query', 'input') and 'response' (or 'completion', 'answer', 'output')",
    matches=_matches,
    to_example=_to_example,
)
