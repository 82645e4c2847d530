"""NeMo Gym rows: ``responses_create_params`` (OpenAI Responses) and whatever the environment's verifier reads.

A verifier reads fields of its own names, so nothing is left out: the ground truth is the row's answer where it
names one, else all verifier fields; the whole row, tools and all, is in the metadata.
"""

from __future__ import annotations

from data_prep.errors import FieldError
from data_prep.formats.chat import check_prompt, messages_of, prompt_of
from data_prep.formats.example import Example, Format
from data_prep.formats.text import check_text, json_text, require, rest, shown, shown_fields, truth_text
from data_prep.reading.block import RawRow

_PARAMS = "responses_create_params"
_INPUT = f"{_PARAMS}.input"
# What an item of a Responses input says beside role and content.
_BOOKKEEPING = ("type", "id", "status")


def _to_example(row: RawRow) -> Example:
    params = require(row, _PARAMS)
    if not isinstance(params, dict):
        raise FieldError(_PARAMS, f"expected an object with 'input', got {shown(params)}")
    if "input" not in params:
        raise FieldError(_INPUT, f"missing; {_PARAMS} has {shown_fields(params)}")
    given = params["input"]
    if isinstance(given, list | tuple):
        for place, item in enumerate(given):
            kind = item.get("type", "message") if isinstance(item, dict) else "message"
            if kind not in ("message", None):
                raise FieldError(
                    f"{_INPUT}[{place}].type", f"expected a message; verl's prompt has no {shown(kind)}"
                )
        prompt = check_prompt(messages_of(given, _INPUT, ignored=_BOOKKEEPING), _INPUT)
    else:
        prompt = prompt_of(given, _INPUT)
    instructions = params.get("instructions")
    if instructions is not None:
        text = check_text(instructions, f"{_PARAMS}.instructions", blank=True)
        if text.strip():
            prompt = [{"role": "system", "content": text}, *prompt]
    metadata = {name: rest(params, "input") if name == _PARAMS else value for name, value in row.items()}
    expected = row.get("expected_answer")
    return Example(
        prompt,
        _truth(row),
        None if expected is None else truth_text(expected, "expected_answer"),
        None,
        metadata,
        ability=_environment(row),
    )


def _truth(row: RawRow) -> str | None:
    expected = row.get("expected_answer")
    if expected is not None:
        return truth_text(expected, "expected_answer")
    if row.get("ground_truth") is not None:
        return truth_text(row["ground_truth"])
    fields = rest(row, _PARAMS)
    return json_text(fields) if fields else None


def _environment(row: RawRow) -> str | None:
    """The environment, where the row names it: of use to tell rows of a blend apart."""
    agent = row.get("agent_ref")
    name = row.get("environment_name") or (agent.get("name") if isinstance(agent, dict) else None)
    return check_text(name, "environment_name") if isinstance(name, str) and name.strip() else None


NEMO_GYM = Format(
    name="nemo_gym",
    fields=f"'{_PARAMS}' with 'input', and verifier fields",
    matches=lambda row: _PARAMS in row,
    to_example=_to_example,
)
