# PYTHON_ARGCOMPLETE_OK
"""One known request through the reward client, before a training is started.

    python -m reward.canary

It takes the way of every sample: the client (reward/verl_client/scoring.py) with the environment of the trainer
(REWARD_SERVER_URL, REWARD_SERVER_TOKEN_FILE, the limits), twice, and once past it with a wrong token. Nothing is
written into the trainer's reward log.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from reward.command_line import CommandParser, fail, quiet_imports, run

if __name__ == "__main__":
    quiet_imports(extra="reward")

import requests

from reward.errors import RewardConfigError, RewardError, RewardOutageError
from reward.verl_client.scoring import STATUS_OK, compute_score
from reward.verl_client.settings import ClientSettings

PROMPT = "Natalia has 12 apples and buys 30 more. How many apples has she?"
RESPONSE = "She has 12 + 30 = 42 apples. #### 42"
DATA_SOURCE = "canary"

# The server said that it is ready a moment ago: a long outage is told by the trainer's own retries.
_PATIENCE_S = 30.0
_WRONG_TOKEN = "canary-with-a-wrong-token"

EXIT_CODES = {
    "usage": 2,
    "settings": 3,
    "unreachable": 4,
    "unauthorized": 5,
    "reply": 6,
    "unsteady": 7,
    "open": 8,
}


class CanaryError(RuntimeError):
    """What is wrong with rewards, with its exit code."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.exit_code = EXIT_CODES[kind]


@dataclass(frozen=True)
class Report:
    """What the canary saw.

    Attributes:
        score: of the first request, within the limits; `raw_score` as the model gave it.
        again: the score of the same request, asked a second time.
        latency_s: seconds of the first request and of the second.
        clamped: the raw score was outside of the limits.
        truncated: the pair was longer than the server takes.
        token: whether a wrong token was tried (and refused); the server needs none otherwise.
    """

    url: str
    score: float
    raw_score: float
    again: float
    latency_s: tuple[float, float]
    clamped: bool
    truncated: bool
    token: bool

    def lines(self) -> list[str]:
        """For a person."""
        first, second = self.latency_s
        told = [f"reward server {self.url}: score {self.score:.6g} in {first:.3f} s, again in {second:.3f} s"]
        if self.token:
            told.append("a wrong token is refused")
        if self.clamped:
            told.append(
                f"warning: the raw score {self.raw_score:.6g} is outside of reward.min_score..max_score and "
                f"was cut to {self.score:.6g}"
            )
        if self.truncated:
            told.append(
                f"warning: a pair of {len(PROMPT) + len(RESPONSE)} characters was truncated; see max_length"
            )
        return told


def _settings() -> ClientSettings:
    try:
        return ClientSettings.read({})
    except RewardConfigError as wrong:
        raise CanaryError("settings", str(wrong)) from wrong


def _ask(settings: ClientSettings) -> dict[str, float]:
    """One request as the trainer sends it, without its log and without a number that stands for an outage."""
    deadline = min(settings.deadline, max(_PATIENCE_S, settings.timeout))
    try:
        # An empty log path is no log, and no failure file that would end the job in the trainer's name.
        got = compute_score(DATA_SOURCE, RESPONSE, PROMPT, None, log_path="", on_outage="raise", deadline=deadline)
    except RewardConfigError as wrong:
        raise CanaryError("settings", str(wrong)) from wrong
    except RewardOutageError as outage:
        raise CanaryError("unreachable", f"{outage}; is the server up, and reachable from this node?") from outage
    except RewardError as refused:
        text = str(refused)
        if "HTTP 401" in text:
            raise CanaryError("unauthorized", text) from refused
        raise CanaryError(
            "reply", f"{text}; that is no answer of `python -m reward.server`: does another program listen there?"
        ) from refused
    if not all(math.isfinite(value) for value in got.values()) or got["status"] != STATUS_OK:
        raise CanaryError("reply", f"reward server {settings.url}: not a plain score: {got}")
    if not settings.min_score <= got["score"] <= settings.max_score:
        raise CanaryError(
            "reply",
            f"score {got['score']} is outside of {settings.min_score:g}..{settings.max_score:g} "
            "(REWARD_MIN_SCORE, REWARD_MAX_SCORE)",
        )
    return got


def _refuses_strangers(settings: ClientSettings) -> bool:
    """Whether a wrong token was tried, which must be refused."""
    if settings.token_file is None:
        return False
    with requests.Session() as session:
        session.trust_env = False  # as the client: no proxy sees what is inside the job
        try:
            reply = session.post(
                f"{settings.url}/score",
                json={"prompt": PROMPT, "response": RESPONSE},
                headers={"Authorization": f"Bearer {_WRONG_TOKEN}"},
                timeout=settings.timeout,
                allow_redirects=False,
            )
        except requests.RequestException as broken:
            raise CanaryError("unreachable", f"reward server {settings.url}: {broken}") from broken
    if reply.status_code != 401:
        raise CanaryError(
            "open",
            f"reward server {settings.url} answers a wrong token with HTTP {reply.status_code}, not 401: it was "
            "not started with --token-file, or it is not this job's server",
        )
    return True


def ask(tolerance: float) -> Report:
    """Send the canary with the settings of the environment.

    Args:
        tolerance: of the difference of the two scores, relative to the larger of 1 and the score.

    Raises:
        CanaryError: rewards are not as they must be.
    """
    settings = _settings()
    started = time.monotonic()
    first = _ask(settings)
    between = time.monotonic()
    second = _ask(settings)
    ended = time.monotonic()
    difference = abs(first["raw_score"] - second["raw_score"])
    allowed = tolerance * max(1.0, abs(first["raw_score"]))
    if difference > allowed:
        raise CanaryError(
            "unsteady",
            f"reward server {settings.url} scores the same pair {first['raw_score']:.6g} and then "
            f"{second['raw_score']:.6g}: {difference:.3g} apart, {allowed:.3g} is allowed; does the model drop "
            "out, or is it not loaded whole?",
        )
    return Report(
        url=settings.url,
        score=first["score"],
        raw_score=first["raw_score"],
        again=second["score"],
        latency_s=(between - started, ended - between),
        clamped=bool(first["clamped"]),
        truncated=bool(first["truncated"]),
        token=_refuses_strangers(settings),
    )


def _parser() -> CommandParser:
    parser = CommandParser(
        "reward.canary",
        "Send one known request to the reward server, as the trainer's reward function does.",
        notes="Server and limits of a score are those of the environment (python -m reward.client --help).",
        examples=["REWARD_SERVER_URL=http://127.0.0.1:8000 python -m reward.canary --json"],
        exit_codes={
            0: "all is well",
            EXIT_CODES["usage"]: "usage",
            EXIT_CODES["settings"]: "settings: a variable of the environment is not usable",
            EXIT_CODES["unreachable"]: "unreachable: no answer in time",
            EXIT_CODES["unauthorized"]: "unauthorized: the token is refused",
            EXIT_CODES["reply"]: "reply: no plain score, or one outside of the limits",
            EXIT_CODES["unsteady"]: "unsteady: two scores of the same pair",
            EXIT_CODES["open"]: "open: a wrong token is accepted",
        },
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.01,
        metavar="X",
        help="most difference of two scores of a pair, relative to the larger of 1 and the score [%(default)s]",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes: see EXIT_CODES, and --help."""
    arguments = _parser().parse_args(words)
    try:
        report = ask(arguments.tolerance)
    except CanaryError as failed:
        return fail(
            str(failed), as_json=arguments.json, code=failed.exit_code,
            ok=False, kind=failed.kind, exit_code=failed.exit_code,
        )  # fmt: skip
    print(json.dumps({"ok": True, **asdict(report)}) if arguments.json else "\n".join(report.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
