"""The OpenAPI page: every status that can come, with its body, and the bearer token where one is needed."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from reward.serving.schema import BatchRequest, Invalid, Problem, ScoreRequest

_SCHEMAS = "#/components/schemas/"
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}

_PROBLEMS = {
    408: "The body was not here in time.",
    413: "The body, or the number of its pairs, is over the server's limit.",
    429: "The queue is full.",
    500: "The model's output is NaN or infinite, or its forward pass failed.",
    502: "The server behind this one gave no usable answer.",
    503: "The model is loading, or the server is shutting down.",
}


def scoring_responses(token: bool) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a scoring route, for FastAPI."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": text, "model": Problem} for status, text in _PROBLEMS.items()
    }
    responses[422] = {
        "description": "No pair: wrong JSON, an empty pair, or a forbidden length.",
        "model": Invalid,
    }
    if token:
        responses[401] = {"description": "Wrong or missing bearer token.", "model": Problem}
    for status in (429, 503):
        responses[status]["headers"] = _RETRY_AFTER
    return responses


def body_of(model: type[BaseModel], token: bool) -> dict[str, Any]:
    """``openapi_extra`` of a scoring route, which parses its body itself."""
    extra: dict[str, Any] = {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _SCHEMAS + model.__name__}}},
        }
    }
    if token:
        extra["security"] = [{"bearer": []}]
    return extra


def describe(app: FastAPI, token: bool) -> None:
    """Add to FastAPI's page what it cannot see in the routes: the bodies of requests, and the token."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            components = generate().setdefault("components", {})
            _, definitions = models_json_schema(
                [(ScoreRequest, "validation"), (BatchRequest, "validation")], ref_template=_SCHEMAS + "{model}"
            )
            components.setdefault("schemas", {}).update(definitions["$defs"])
            if token:
                components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        page = app.openapi_schema
        assert page is not None
        return page

    app.openapi = openapi  # type: ignore[method-assign]
