"""The HTTP interface of the reward server."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.concurrency import run_in_threadpool

from reward.backends.local_model import RewardModel, Score
from reward.errors import QueueFullError, ScoringError
from reward.serving.batcher import Batcher, Scorer
from reward.serving.gate import Gate
from reward.serving.metrics import Metrics

_SURROGATE = re.compile("[\\ud800-\\udfff]")


@dataclass(frozen=True)
class ServerOptions:
    """Limits and model of one server. ``max_bytes`` bounds a request, ``queue`` the pairs that may wait."""

    model: Path
    device: str = "auto"
    dtype: str = "auto"
    max_length: int = 2048
    token: str | None = None
    queue: int = 4096
    max_bytes: int = 16 * 2**20
    threads: int | None = None


class ScoreRequest(BaseModel):
    """One pair. Unknown fields are ignored, as the original scripts send more than these two."""

    model_config = ConfigDict(extra="ignore", strict=True)

    prompt: str
    response: str

    @field_validator("prompt", "response")
    @classmethod
    def _unicode(cls, text: str) -> str:
        # JSON may escape half of a surrogate pair; no tokenizer takes it.
        if _SURROGATE.search(text):
            raise ValueError("holds a lone surrogate, which is not Unicode text")
        return text


class ScoreReply(BaseModel):
    """The raw model output, always finite. ``tokens`` counts the pair after truncation."""

    score: float
    truncated: bool
    tokens: int


class BatchRequest(BaseModel):
    """Pairs to score in one call."""

    model_config = ConfigDict(extra="ignore", strict=True)

    items: list[ScoreRequest] = Field(min_length=1)


class BatchReply(BaseModel):
    """Scores in the order of the items."""

    scores: list[float]
    truncated: list[bool]
    tokens: list[int]


class _State:
    """What the routes share."""

    def __init__(self, options: ServerOptions, load: Callable[[], Scorer]) -> None:
        self.options = options
        self.metrics = Metrics()
        self.batcher = Batcher(options.queue)
        self.load = load
        self.scorer: Scorer | None = None
        self.failure: BaseException | None = None
        self.metrics.gauge("reward_queue_depth", "Pairs that wait.", lambda: self.batcher.depth)
        self.metrics.gauge("reward_scoring_pairs", "Pairs that are scored now.", lambda: self.batcher.scoring)
        self.metrics.gauge("reward_queue_capacity", "Pairs that may wait.", lambda: options.queue)
        self.metrics.gauge("reward_ready", "1 once the self-test passed.", lambda: self.scorer is not None)

    def make_scorer(self) -> Scorer:
        self.scorer = self.load()
        return self.scorer

    async def score(self, pairs: list[tuple[str, str]]) -> list[Score | ScoringError]:
        try:
            results = await self.batcher.score(pairs)
        except ScoringError as error:
            self.metrics.add("reward_errors_total", reason=error.reason)
            raise
        for result in results:
            if isinstance(result, ScoringError):
                self.metrics.add("reward_errors_total", reason=result.reason)
            else:
                self.metrics.add("reward_scores_total")
                self.metrics.add("reward_tokens_total", result.tokens)
                self.metrics.add("reward_truncations_total", int(result.truncated))
        return results


def load_model(options: ServerOptions) -> RewardModel:
    """The loaded and self-tested model of ``options``.

    Raises:
        ModelDirError: it cannot be loaded or fails its self-test.
    """
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    model = RewardModel(options.model, options.device, options.dtype, options.max_length)
    model.self_test()
    return model


def create_app(
    options: ServerOptions, load: Callable[[], Scorer], failed: Callable[[BaseException], None]
) -> FastAPI:
    """The application. Its worker thread calls ``load`` at start; ``failed`` gets what that raised."""
    state = _State(options, load)

    def on_failure(error: BaseException) -> None:
        state.failure = error
        failed(error)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.batcher.start(state.make_scorer, on_failure)
        yield
        await run_in_threadpool(state.batcher.close)

    app = FastAPI(title="Reward server", version="1", lifespan=lifespan)
    app.state.batcher = state.batcher
    app.add_middleware(Gate, token=options.token, max_bytes=options.max_bytes, metrics=state.metrics)
    _add_error_handlers(app)
    _add_scoring(app, state)
    _add_status(app, state)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # The input is not echoed: it is prompt text, and may hold what UTF-8 cannot.
        detail = [{"loc": list(item["loc"]), "msg": item["msg"], "type": item["type"]} for item in error.errors()]
        return JSONResponse({"detail": detail}, status_code=422)

    @app.exception_handler(ScoringError)
    async def no_score(request: Request, error: ScoringError) -> JSONResponse:
        headers = {"Retry-After": str(error.retry_after)} if isinstance(error, QueueFullError) else None
        return JSONResponse(
            {"detail": str(error), "reason": error.reason}, status_code=error.status, headers=headers
        )


def _add_scoring(app: FastAPI, state: _State) -> None:
    @app.post("/score")
    async def score(pair: ScoreRequest) -> ScoreReply:
        """Score one pair."""
        (result,) = await state.score([(pair.prompt, pair.response)])
        if isinstance(result, ScoringError):
            raise result
        return ScoreReply(score=result.value, truncated=result.truncated, tokens=result.tokens)

    @app.post("/score/batch")
    async def score_batch(batch: BatchRequest) -> BatchReply:
        """Score many pairs; one pair without a score fails the call and is named."""
        results = await state.score([(item.prompt, item.response) for item in batch.items])
        scores: list[Score] = []
        for position, result in enumerate(results):
            if isinstance(result, ScoringError):
                raise type(result)(f"items[{position}]: {result}") from result
            scores.append(result)
        return BatchReply(
            scores=[item.value for item in scores],
            truncated=[item.truncated for item in scores],
            tokens=[item.tokens for item in scores],
        )


def _add_status(app: FastAPI, state: _State) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        """The process answers; says nothing about the model."""
        return {"status": "ok", "pid": os.getpid()}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """200 once the model is loaded and its self-test passed, else 503."""
        if state.scorer is not None:
            return JSONResponse({"status": "ready"})
        reason = "loading" if state.failure is None else f"failed: {state.failure}"
        return JSONResponse({"status": reason}, status_code=503)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        """Counters in the Prometheus text format."""
        return PlainTextResponse(state.metrics.page(), media_type="text/plain; version=0.0.4")

    @app.get("/info")
    async def info() -> dict[str, Any]:
        """Model, limits and versions."""
        options = state.options
        page: dict[str, Any] = {
            "model": str(options.model),
            "ready": state.scorer is not None,
            "limits": {"queue": options.queue, "request_bytes": options.max_bytes},
            "versions": {name: version(name) for name in ("torch", "transformers", "fastapi", "uvicorn")},
        }
        if isinstance(state.scorer, RewardModel):
            page["architecture"] = state.scorer.architecture
            page["device"] = state.scorer.device
            page["dtype"] = str(state.scorer.dtype).removeprefix("torch.")
            page["limits"]["max_length"] = state.scorer.max_length
            page["limits"]["batch_tokens"] = state.scorer.token_budget
        return page
