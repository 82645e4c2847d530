"""The HTTP interface of the reward server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from reward.errors import NotReadyError, QueueFullError, ScoringError
from reward.serving.calls import PairFailedError
from reward.serving.gate import Gate
from reward.serving.openapi import body_of, describe, scoring_responses
from reward.serving.schema import (
    BatchReply,
    BatchRequest,
    Health,
    Info,
    Invalid,
    InvalidField,
    Problem,
    Readiness,
    ScoreReply,
    ScoreRequest,
)
from reward.serving.service import Service

# Seconds after which a client may ask again; loading takes seconds to minutes.
_LOADING_RETRY_AFTER_S = 2

_Body = TypeVar("_Body", bound=BaseModel)


def create_app(service: Service) -> FastAPI:
    """The application; the service starts and ends with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await run_in_threadpool(service.close)

    options = service.options
    app = FastAPI(title="Reward server", version="2", lifespan=lifespan, redirect_slashes=False)
    app.add_middleware(
        Gate,
        token=options.token,
        max_bytes=options.max_bytes,
        read_timeout=options.read_timeout,
        metrics=service.metrics,
    )
    _add_error_handlers(app, service)
    _add_scoring(app, service)
    _add_status(app, service)
    describe(app, options.token is not None)
    return app


def _json(body: BaseModel, status: int = 200, **headers: str) -> Response:
    return Response(body.model_dump_json(), status, headers, "application/json")


async def _parse(request: Request, model: type[_Body]) -> _Body:
    """The body as ``model``, whatever its Content-Type says.

    Parsed from the bytes: pydantic's parser bounds the depth, and refuses what is no UTF-8 or no Unicode.

    Raises:
        ValidationError: it is something else.
    """
    return model.model_validate_json(await request.body())


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    @app.exception_handler(ValidationError)
    async def invalid(request: Request, error: ValidationError) -> Response:
        service.metrics.errors.labels(reason="invalid").inc()
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
        fields = [
            InvalidField(loc=list(item["loc"]), msg=item["msg"].removeprefix("Value error, "), type=item["type"])
            for item in wrong
        ]
        return _json(Invalid(detail=fields, reason="invalid"), 422)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        reason = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
        return _json(Problem(detail=error.detail, reason=reason), error.status_code, **(error.headers or {}))

    @app.exception_handler(ScoringError)
    async def no_score(request: Request, error: ScoringError) -> Response:
        return _refusal(error, str(error))

    @app.exception_handler(PairFailedError)
    async def pair_failed(request: Request, error: PairFailedError) -> Response:
        batch = request.url.path.endswith("/batch")
        return _refusal(error.error, f"items[{error.position}]: {error.error}" if batch else str(error.error))


def _refusal(error: ScoringError, detail: str) -> Response:
    headers = {}
    if isinstance(error, QueueFullError):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, NotReadyError):
        headers["Retry-After"] = str(_LOADING_RETRY_AFTER_S)
    return _json(Problem(detail=detail, reason=error.reason), error.status, **headers)


def _add_scoring(app: FastAPI, service: Service) -> None:
    token = service.options.token is not None
    responses = scoring_responses(token)

    @app.post("/score", response_model=ScoreReply, responses=responses, openapi_extra=body_of(ScoreRequest, token))
    async def score(request: Request) -> Response:
        """Score one pair."""
        pair = await _parse(request, ScoreRequest)
        (result,) = await service.score([(pair.prompt, pair.response)])
        score = result.score
        return _json(
            ScoreReply(
                score=score.value,
                truncated=score.truncated,
                tokens=score.tokens,
                dropped_tokens=result.dropped,
            )
        )

    @app.post(
        "/score/batch", response_model=BatchReply, responses=responses, openapi_extra=body_of(BatchRequest, token)
    )
    async def score_batch(request: Request) -> Response:
        """Score many pairs; one pair without a score fails the call and is named."""
        batch = await _parse(request, BatchRequest)
        results = await service.score([(item.prompt, item.response) for item in batch.items])
        return _json(
            BatchReply(
                scores=[result.score.value for result in results],
                truncated=[result.score.truncated for result in results],
                tokens=[result.score.tokens for result in results],
                dropped_tokens=[result.dropped for result in results],
            )
        )


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Health:
        """The process answers; says nothing about the model."""
        return Health(status="ok", pid=os.getpid())

    @app.get(
        "/ready", response_model=Readiness, responses={503: {"description": "Not ready.", "model": Readiness}}
    )
    async def ready() -> Response:
        """200 once the model is loaded and its self-test passed, else 503."""
        status = service.status
        return _json(Readiness(status=status), 200 if status == "ready" else 503)

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @app.get("/metrics", response_class=Response, responses=text)
    async def metrics() -> Response:
        """Counters, histograms and gauges in the Prometheus text format."""
        return Response(service.metrics.page(), headers={"Content-Type": service.metrics.content_type})

    @app.get("/info")
    async def info() -> Info:
        """Model, limits and versions."""
        return service.info()
