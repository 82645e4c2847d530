"""The reward server's settings: times that fit together, what an outage does, the server behind it."""

import ipaddress
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from launch.config import Job
from launch.finding import Finding, error, warning


def check_reward_server(job: Job) -> Iterator[Finding]:
    """Everything that the job alone tells; the model's folder is for `model`."""
    if job.reward.kind != "server":
        return
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


def _times(job: Job) -> Iterator[Finding]:
    reward, stalled = job.reward, job.recovery.stalled_s
    field = "on_outage" if reward.on_outage.startswith("wait:") else "deadline_s"
    named = f"reward.{field}={getattr(reward, field)}"
    if reward.outage_s < reward.timeout_s:
        yield warning(
            "reward-deadline",
            f"{named} is shorter than reward.timeout_s={reward.timeout_s:g}: a request is given up before its "
            "time, and never tried again",
            f"set reward.timeout_s to a quarter of it ({reward.outage_s / 4:.10g}), or raise it",
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
