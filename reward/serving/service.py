"""The model's life beside the HTTP service: loading, ready, ending, or failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from reward.backends.interface import Backend
from reward.errors import ModelDirError, NotReadyError, ScoringError, TooManyPairsError
from reward.serving.batcher import Batcher
from reward.serving.calls import PairFailedError, Result
from reward.serving.metrics import Metrics
from reward.serving.options import ServerOptions
from reward.serving.schema import Info, Limits

if TYPE_CHECKING:
    from reward.inputs import PairTokenizer

log = logging.getLogger("reward.serving.service")

# For batches that are in a lane when all calls have ended: nobody waits for their scores.
_LAST_BATCHES_S = 10.0
_VERSIONS = ("torch", "transformers", "tokenizers", "fastapi", "uvicorn")


def load(options: ServerOptions) -> tuple[PairTokenizer, Backend]:
    """The tokenizer and the loaded, tested and tuned backend of ``options``. Takes seconds to minutes.

    Raises:
        ModelDirError: they cannot be loaded, or fail their self-test.
    """
    from reward.backends.load import load_backend
    from reward.inputs import PairTokenizer

    tokenizer = PairTokenizer(
        options.model.model,
        style=options.input,
        truncate=options.truncate,
        max_length=options.max_length,
        trust_remote_code=options.model.trust_remote_code,
    )
    return tokenizer, load_backend(options.model, tokenizer)


class Service:
    """Loads in a thread of its own, then scores."""

    def __init__(
        self,
        options: ServerOptions,
        load: Callable[[], tuple[PairTokenizer, Backend]],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Nothing is loaded yet.

        Args:
            load: called once, in the loading thread.
            failed: gets what ended the loading, or a thread of the batcher; from that thread.
        """
        self.options = options
        self.metrics = Metrics()
        self.failure: BaseException | None = None
        self._load = load
        self._tell = failed
        self._batcher: Batcher | None = None
        self._max_length = 0
        self._closing = False
        gauge = self.metrics.gauge
        gauge(
            "reward_queue_depth", "Accepted pairs that wait.", lambda: self._batcher.depth if self._batcher else 0
        )
        gauge(
            "reward_scoring_pairs", "Pairs that are scored.", lambda: self._batcher.scoring if self._batcher else 0
        )
        gauge("reward_queue_capacity", "Pairs that may be here, waiting or scored.", lambda: options.queue)
        gauge("reward_ready", "1 once the model is loaded and tested.", lambda: self.status == "ready")

    def start(self) -> None:
        """Load in the background."""
        threading.Thread(target=self._run, name="reward-loader", daemon=True).start()

    @property
    def status(self) -> str:
        """``ready``, or what is in the way."""
        if self.failure is not None:
            return f"failed: {self.failure}"
        if self._closing:
            return "shutting down"
        return "loading" if self._batcher is None else "ready"

    async def score(self, pairs: Sequence[tuple[str, str]]) -> list[Result]:
        """Scores of (prompt, response) pairs, in order.

        Raises:
            ScoringError: there is none for all of them; counted already.
            PairFailedError: there is none for one of them; counted already.
        """
        try:
            if len(pairs) > self.options.queue:
                raise TooManyPairsError(
                    f"{len(pairs)} pairs in one call, --queue is {self.options.queue}; send fewer"
                )
            if self._batcher is None or self._closing:
                raise NotReadyError(f"the model is not ready: {self.status}")
            results = await self._batcher.score(pairs)
        except ScoringError as error:
            self.metrics.errors.labels(reason=error.reason).inc()
            raise
        except PairFailedError as error:
            self._log_text(pairs[error.position], "no score: %s", error.error)
            raise
        if self.options.log_texts:
            for pair, result in zip(pairs, results, strict=True):
                self._log_text(pair, "score %.6g, %d tokens", result.score.value, result.score.tokens)
        return results

    def close(self) -> None:
        """Finish what was accepted. Neither a model that is still loading nor a forward without end is awaited."""
        self._closing = True
        if self._batcher is not None:
            self._batcher.close(_LAST_BATCHES_S)

    def info(self) -> Info:
        """The page ``/info``."""
        options = self.options
        limits = Limits(queue=options.queue, request_bytes=options.max_bytes)
        backend: dict[str, Any] = {}
        if self._batcher is not None:
            backend = dict(self._batcher.backend.info())
            limits.max_length = self._max_length
            limits.batch_tokens = self._batcher.backend.batch_tokens
            limits.lanes = self._batcher.backend.lanes
        return Info(
            model=str(options.model.model),
            ready=self.status == "ready",
            backend=backend,
            input=options.input,
            truncate=options.truncate,
            limits=limits,
            versions=_versions(),
        )

    def _run(self) -> None:
        try:
            tokenizer, backend = self._load()
            self._max_length = tokenizer.max_length
            self._batcher = Batcher(tokenizer, backend, self.options.queue, self.metrics, self._fail)
            log.info("ready")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the process must end with it as the reason
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, ModelDirError):  # which says all that there is to say
            log.error("a fault of this program", exc_info=error)
        self.failure = error
        self._tell(error)

    def _log_text(self, pair: tuple[str, str], message: str, *values: object) -> None:
        if self.options.log_texts:
            log.info(f"{message}: prompt %r, response %r", *values, *pair)


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # a server in front of another one needs no torch
    return found
