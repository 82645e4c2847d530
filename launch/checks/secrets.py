"""Secrets do not stand in a script that everybody may read: neither by their name nor by their look or value."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.supervisor.env_file import EnvFileError, read_env_file
from launch.tokens import TOKENS, WANDB

# Names in container.env: the value would be written down.
_SHORT_NAME = r"(?<=_)(PWD|PASS|PAT|AUTH)$|^(PASS|PAT|AUTH)$"  # PWD alone is a folder
SECRET_NAME = re.compile(
    rf"TOKEN(?!IZE)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY|{_SHORT_NAME}",
    re.IGNORECASE,
)
# Names in the environment of the one who renders: wider, since only their values are looked for.
_SECRET_VARIABLE = re.compile(rf"KEY|TOKEN(?!IZE)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|{_SHORT_NAME}", re.IGNORECASE)
_A_PATH = re.compile(r"_(FILE|PATH|DIR)$", re.IGNORECASE)
_SHORTEST = 8
_OF_SLURM = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
# Of launch/supervisor/environment.py. NCCL_SOCKET_IFNAME and PYTHONPATH of the user count there.
_OF_THE_LAUNCHER = (
    "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RUN_DIR", "CHECKPOINT_DIR", "TMPDIR",
    "PYTHONNOUSERSITE", "REWARD_SERVER_URL", "REWARD_SERVER_TOKEN_FILE", "REWARD_LOG_PATH", "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
)  # fmt: skip
# A commit has 40 hex digits, too.
_COMMIT_KEY = re.compile(r"(revision|commit|sha|hash|version)[\w.]*\s*[=:]", re.IGNORECASE)


def _plain(text: str) -> str:
    """`text` without what the quoting of bash and Hydra adds, so that a value is found inside a quoted word."""
    return re.sub(r"['\"\\]", "", text)


def _tells_nothing(name: str, value: str) -> bool:
    """A value that is no secret whatever its name says: short, a path, a number that is no password."""
    if len(value) < _SHORTEST:
        return True
    if value.isdigit():
        return re.search(r"SECRET|PASSW", name, re.IGNORECASE) is None
    if value.startswith("/"):  # one of 64 secrets in base64 does, too
        return _A_PATH.search(name) is not None or Path("/", *Path(value).parts[1:2]).exists()
    return value.startswith(("~", "./", "../", "file:")) or re.fullmatch(r"[0-9.,:x+-]+", value) is not None


def _own_words(text: str) -> set[str]:
    """Words that a script holds whoever renders it: of its template, of the job's fields, of verl's keys in it."""
    template = resources.files("launch").joinpath("templates/job.sh.j2").read_text(encoding="utf-8")
    fields = json.dumps(Job.model_json_schema(), ensure_ascii=False)
    keys = " ".join(re.findall(r"^ *'?\+*([A-Za-z_][\w./@-]*)=", text, re.MULTILINE))
    return set(re.findall(r"[\w-]+", f"{template} {fields} {keys}"))


def secrets_in(text: str, environ: Mapping[str, str]) -> list[Finding]:
    """One error for each variable of `environ` that looks secret and whose value stands in the script `text`.

    The message names the variable and never holds the value. A value of several lines (a key file) is found by any
    of its long lines. Short values, paths, numbers and words that every script holds are no secrets.
    """
    written = _plain(text)
    words: set[str] = set()
    findings = []
    for name, value in environ.items():
        if not _SECRET_VARIABLE.search(name):
            continue
        lines = [line.strip() for line in value.splitlines()]
        parts = [value.strip()] if len(lines) <= 1 else [line for line in lines if not line.startswith("-----")]
        found = {part for part in parts if not _tells_nothing(name, part) and _plain(part) in written}
        if found:
            words = words or _own_words(text)
        if found - words:
            findings.append(
                error(
                    "secret",
                    f"the value of the variable {name} of this shell stands in the script, for all to read",
                    "take it out of the job: a job inherits the variables of the shell that submits it, or reads "
                    "container.env_file",
                )
            )
    return findings


def _texts(value: object, place: str) -> Iterator[tuple[str, str]]:
    """(field, text) of every text in a dumped job."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{place}[{index}]")


def check_secrets(job: Job) -> Iterator[Finding]:
    """Names and texts of a job that look like secrets. The messages never hold the text."""
    for name, value in job.container.env.items():
        a_path = _A_PATH.search(name) and value.startswith("/")
        if SECRET_NAME.search(name) and not a_path:
            yield error(
                "secret",
                f"container.env.{name} would stand in the script for all to read",
                f"export {name} in the shell that submits, or write it into container.env_file",
            )
    for field, text in _texts(job.model_dump(mode="json"), ""):
        for what, pattern in TOKENS:
            match = pattern.search(text)
            if match is None or (what == WANDB and _COMMIT_KEY.search(f"{field}={text[: match.start()]}=")):
                continue
            yield error(
                "secret",
                f"{field} holds what looks like {what}, which would stand in the script for all to read",
                "take it out and renew it; the job inherits the variables of the shell that submits it, or reads "
                "container.env_file",
            )
            break


def _check_reserved(field: str, names: Iterable[str]) -> Iterator[Finding]:
    for name in names:
        if name in _OF_SLURM:
            yield error(
                "reserved-variable",
                f"{field}: {name} would replace the GPUs that Slurm gives the job on each node",
                "leave it out; cluster.gpus_per_node says how many",
            )
        elif name in _OF_THE_LAUNCHER:
            yield warning(
                "reserved-variable",
                f"{field}: {name}: the launcher sets it; yours has no effect",
                "leave it out",
            )


def check_env_file(job: Job, project: Path) -> Iterator[Finding]:
    """container.env_file is there, private, and plain NAME=VALUE lines; neither it nor container.env sets what the
    launcher sets."""
    yield from _check_reserved("container.env", job.container.env)
    if job.container.env_file is None:
        return
    path = project / job.container.env_file
    try:
        variables = read_env_file(path)
    except EnvFileError as broken:
        yield error("env-file", str(broken), "write NAME=VALUE lines into a file of your own with mode 0600")
        return
    yield from _check_reserved("container.env_file", variables)
    for name, value in variables.items():
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            yield warning(
                "env-file",
                f"container.env_file: the value of {name} in {path} starts and ends with a quote, which is kept",
                "leave the quotes out: the file is not read by a shell",
            )
        elif value != value.strip():
            yield warning(
                "env-file",
                f"container.env_file: the value of {name} in {path} starts or ends with a space, which is kept",
                "leave the space out",
            )


def check_wandb(job: Job, project: Path, environ: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """W&B needs a key where the job runs; without one it asks, and nobody answers."""
    environ = os.environ if environ is None else environ
    if "wandb" not in job.logging.loggers or job.container.env_file is not None:
        return
    settings = {**environ, **job.container.env}
    if settings.get("WANDB_API_KEY") or settings.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        return
    netrc = Path(environ.get("NETRC") or Path(environ.get("HOME", "/nonexistent")) / ".netrc")
    if not netrc.is_file():
        yield warning(
            "wandb-login",
            f"logging.loggers holds wandb, but this shell has no WANDB_API_KEY and there is neither a "
            f"container.env_file nor {netrc}",
            "export WANDB_API_KEY, set container.env_file, or set container.env.WANDB_MODE=offline",
        )
