"""Bodies of requests and replies."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

_NOT_BOTH_EMPTY: dict[str, Any] = {
    "anyOf": [{"properties": {name: {"minLength": 1}}, "required": [name]} for name in ("prompt", "response")]
}


class ScoreRequest(BaseModel):
    """One pair, not both texts empty. Unknown fields are ignored: other clients send more than these two."""

    model_config = ConfigDict(extra="ignore", strict=True, json_schema_extra=_NOT_BOTH_EMPTY)

    prompt: str
    response: str

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.prompt and not self.response:
            raise ValueError("prompt and response are both empty: there is nothing to score")
        return self


class BatchRequest(BaseModel):
    """Pairs to score in one call."""

    model_config = ConfigDict(extra="ignore", strict=True)

    items: list[ScoreRequest] = Field(min_length=1)


class ScoreReply(BaseModel):
    """The raw model output, always finite. ``tokens`` went into the model, ``dropped_tokens`` were cut off."""

    score: float
    truncated: bool
    tokens: int = Field(ge=1)
    dropped_tokens: int = Field(ge=0)


class BatchReply(BaseModel):
    """As of one pair, in the order of the items."""

    scores: list[float]
    truncated: list[bool]
    tokens: list[int]
    dropped_tokens: list[int]


class Problem(BaseModel):
    """Why there is no score. ``reason`` is its label in ``reward_errors_total``."""

    detail: str
    reason: str


class InvalidField(BaseModel):
    """One thing that is wrong with a request. The input is not echoed: it is prompt text."""

    loc: list[str | int]
    msg: str
    type: str


class Invalid(BaseModel):
    """The request cannot be scored, now or later."""

    detail: list[InvalidField] | str
    reason: str


class Health(BaseModel):
    """The process answers; says nothing about the model."""

    status: str
    pid: int


class Readiness(BaseModel):
    """``ready``, or what is in the way."""

    status: str


class Limits(BaseModel):
    """What a request and the queue may hold; the last three are known once the model is loaded."""

    queue: int
    request_bytes: int
    max_length: int | None = None
    batch_tokens: int | None = None
    lanes: int | None = None


class Info(BaseModel):
    """What is served, by what, within which limits."""

    model: str
    ready: bool
    backend: dict[str, Any]
    input: str
    truncate: str
    limits: Limits
    versions: dict[str, str]
