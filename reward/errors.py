"""Errors of the server (with the HTTP status that they become) and of the client."""

from __future__ import annotations


class ModelDirError(Exception):
    """The model directory cannot be served; the message names the file, the value and the remedy."""


class ScoringError(Exception):
    """One pair got no score. ``status`` is the HTTP status of the answer, ``reason`` its label in metrics."""

    status = 500
    reason = "internal"


class EmptyPairError(ScoringError):
    """The pair has no token at all (both texts empty, and a tokenizer that adds none)."""

    status = 422
    reason = "empty_pair"


class TooLongError(ScoringError):
    """The pair has more tokens than the model takes, and ``--truncate error`` forbids to cut it."""

    status = 422
    reason = "too_long"


class InputTextError(ScoringError):
    """The tokenizer cannot take a text of this pair; the message does not hold the text."""

    status = 422
    reason = "input_text"


class UpstreamError(ScoringError):
    """The server behind this one gave no answer, or one that cannot be understood; trying again may help."""

    status = 502
    reason = "upstream"


class UpstreamRefusedError(ScoringError):
    """The server behind this one answers, but not to this request; asking again changes nothing."""

    status = 500
    reason = "upstream_refused"


class NonFiniteScoreError(ScoringError):
    """The model's output is NaN or infinite: an error, never a score."""

    status = 500
    reason = "non_finite"


class QueueFullError(ScoringError):
    """The bounded queue has no room: try again after ``retry_after`` seconds."""

    status = 429
    reason = "queue_full"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyPairsError(ScoringError):
    """One call holds more pairs than the queue ever has room for."""

    status = 413
    reason = "too_many_pairs"


class NotReadyError(ScoringError):
    """The server does not score now: its model is loading, or it is stopping."""

    status = 503
    reason = "not_ready"


class ShuttingDownError(NotReadyError):
    """The server is stopping and takes no new pairs."""

    reason = "shutting_down"


class RewardError(RuntimeError):
    """The client has no score for a response. The job must end: no number stands in for it."""


class RewardConfigError(RewardError):
    """A setting of the client (argument or environment variable) is missing or wrong."""


class RewardReplyError(RewardError):
    """The server refused the request (4xx, 500) or its reply holds no finite score; retrying cannot help."""


class RewardOutageError(RewardError):
    """The server could not be reached, or had no capacity, until the deadline.

    Crosses process borders by pickle (Ray), so all state beside the message is in plain attributes.
    """

    def __init__(self, message: str, url: str = "", cause: str = "", attempts: int = 0) -> None:
        super().__init__(message)
        self.url = url
        self.cause = cause
        self.attempts = attempts
