"""The reward server's settings: values that go together, times, what an outage does, the server behind it."""

import ipaddress
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from launch.config import Job
from launch.config.services import Reward
from launch.finding import Finding, error, warning


def check_reward_server(job: Job) -> Iterator[Finding]:
    """Everything that the job alone tells; the model's folder is for `model`."""
    if job.reward.kind != "server":
        return
    yield from _scores(job.reward)
    yield from _backend(job.reward)
    yield from _times(job)
    if job.reward.on_outage == "penalty":
        yield warning(
            "reward-outage",
            f"reward.on_outage=penalty: a response that nobody could score gets {job.reward.min_score:g}, and the "
            "policy learns from it as from a bad answer",
            "set reward.on_outage=wait:600 to bridge an outage, or raise to end the job",
        )
    if job.reward.upstream is not None:
        yield from _upstream(job.reward.upstream)


def _scores(reward: Reward) -> Iterator[Finding]:
    if reward.min_score >= reward.max_score:
        yield error(
            "reward-scores",
            f"reward.min_score={reward.min_score:g} is not below reward.max_score={reward.max_score:g}: every "
            "reward would be the same",
            "set both, the lower one as reward.min_score",
        )


def _backend(reward: Reward) -> Iterator[Finding]:
    """Either the reward server computes, or another one does: each broken rule, not only the first."""
    if reward.backend == "transformers":
        if reward.upstream is not None:
            yield error(
                "reward-backend",
                "reward.upstream is the server behind reward.backend=vllm or sglang; transformers asks none",
                "set reward.backend to what runs there, or remove reward.upstream",
            )
        elif reward.upstream_key_file is not None:
            yield error(
                "reward-backend",
                f"reward.upstream_key_file={reward.upstream_key_file} is the key of reward.upstream, which is not "
                "set",
                "set reward.backend and reward.upstream, too, or remove it",
            )
        return
    if reward.upstream is None:
        yield error(
            "reward-backend",
            f"reward.backend={reward.backend} needs the URL of a running {reward.backend} server",
            "set reward.upstream=http://HOST:PORT",
        )
    if reward.gpus:
        yield error(
            "reward-backend",
            f"reward.backend={reward.backend} computes elsewhere, and reward.gpus={reward.gpus} would idle",
            "set reward.gpus=0",
        )


def _times(job: Job) -> Iterator[Finding]:
    reward, stalled = job.reward, job.recovery.stalled_s
    field = "on_outage" if reward.on_outage.startswith("wait:") else "deadline_s"
    named = f"reward.{field}={getattr(reward, field)}"
    if reward.outage_s < reward.timeout_s:
        yield warning(
            "reward-deadline",
            f"{named} is shorter than reward.timeout_s={reward.timeout_s:g}: a request is given up before its "
            "time, and never tried again",
            f"set reward.timeout_s={reward.outage_s / 4:.10g}, a quarter of that, or raise reward.{field}",
        )
    if stalled is not None and reward.outage_s >= stalled:
        yield error(
            "reward-deadline",
            f"{named} is not less than recovery.stalled_s={stalled:g}: the trainer prints nothing while it waits, "
            "and the job ends as hung before",
            f"set recovery.stalled_s={reward.outage_s + 1800:.10g}, or null, or wait less",
        )


def _upstream(url: str) -> Iterator[Finding]:
    """http://HOST:PORT of another machine. A message shows the host at most: a URL may hold a password."""
    wrong = _wrong(url)
    if wrong is not None:
        yield error("reward-upstream", f"reward.upstream: {wrong}", "write http://HOST:PORT")
        return
    host = urlsplit(url).hostname
    if host is not None and _is_this_machine(host):
        yield warning(
            "reward-upstream",
            f"reward.upstream: {host} is the node on which the reward server itself runs, and the job starts "
            "nothing else there",
            "name the host that serves the model, as compute nodes see it",
        )


def _wrong(url: str) -> str | None:
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or port cannot be read"
    if parts.scheme not in ("http", "https"):
        return "it does not start with http:// or https://"
    if not parts.hostname or any(letter.isspace() for letter in url):
        return "it names no host"
    if parts.username is not None or parts.password is not None:
        return "it holds a user name or password, which would stand in the script; use reward.upstream_key_file"
    if parts.query or parts.fragment:
        return "it has a part from ? or # on, and paths are added to its end"
    return "port 0 is none" if port == 0 else None


def _is_this_machine(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", "localhost.localdomain")
    return address.is_loopback or address.is_unspecified
