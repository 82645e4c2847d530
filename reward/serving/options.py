"""The command line of the server, without importing torch or a web framework."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from reward.backends.options import (
    Attention,
    BackendName,
    Device,
    Dtype,
    ModelOptions,
    Packing,
    checked_upstream,
)
from reward.command_line import CommandParser, named
from reward.truncation import Truncate

Input = Literal["pair", "chat"]

_MOST_THREADS = 1024
_NOTES = """\
  POST /score        {"prompt": ..., "response": ...}
  POST /score/batch  {"items": [{"prompt": ..., "response": ...}, ...]}
  GET  /health  /ready  /metrics  /info  /docs
"""
_EXIT_CODES = {
    0: "stopped by SIGTERM or Ctrl-C, after finishing what it accepted (a second Ctrl-C, or 60 seconds, end that)",
    1: "the model cannot be served, the upstream is not there, or the address cannot be bound",
    2: "usage",
}


@dataclass(frozen=True)
class ServerOptions:
    """One server.

    Attributes:
        model: what computes the scores.
        input: how a pair becomes text: ``tokenizer(prompt, response)``, or the model's chat template.
        truncate: what happens to a pair of more than ``max_length`` tokens.
        token: bearer token of every scoring call.
        queue: pairs that may be between acceptance and score.
        max_bytes: of one request's body.
        read_timeout: seconds for a request's head, and again for its body.
        log_texts: whether prompts and responses go into the log.
    """

    model: ModelOptions
    host: str = "127.0.0.1"
    port: int = 8000
    input: Input = "pair"
    truncate: Truncate = "right"
    max_length: int = 2048
    token: str | None = None
    queue: int = 4096
    max_bytes: int = 16 * 2**20
    read_timeout: float = 30.0
    log_texts: bool = False


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _threads(text: str) -> int:
    # OpenMP crashes the process where it cannot start as many as it was told.
    if (count := _positive(text)) > _MOST_THREADS:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_THREADS}, got {text!r}")
    return count


def _positive_or_auto(text: str) -> int | None:
    return None if text == "auto" else _positive(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds from 0, got {text!r}")
    return value


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; exits with 2 on wrong usage."""
    parser = CommandParser(
        "reward.server",
        "Serve a one-label sequence classifier as a reward model over HTTP.",
        notes=_NOTES,
        examples=["python -m reward.server --model models/reward --port 8000"],
        exit_codes=_EXIT_CODES,
    )
    _add_model(parser)
    _add_service(parser)
    args: argparse.Namespace = parser.parse_args(argv)
    if args.device not in get_args(Device):
        # argparse does not hold defaults to the choices.
        parser.error(f"CONFIG_REWARD_DEVICE={args.device!r}: expected one of {', '.join(get_args(Device))}")
    if (args.backend == "transformers") != (args.upstream is None):
        parser.error(
            f"--backend {args.backend} {'takes no' if args.upstream else 'needs'} --upstream URL: "
            "vllm and sglang are servers behind this one, transformers is in this process"
        )
    if args.upstream_key_file is not None and args.upstream is None:
        parser.error("--upstream-key-file is the key of --upstream, which is not given")
    if args.read_timeout == 0:
        parser.error("--read-timeout 0: no request can be that quick; expected more seconds")
    return args


def from_args(args: argparse.Namespace, token: str | None) -> ServerOptions:
    """The options that were given; ``token`` is what ``--token-file`` holds.

    Raises:
        ModelDirError: ``--upstream`` is no URL.
    """
    model = ModelOptions(
        model=args.model,
        backend=args.backend,
        upstream=None if args.upstream is None else checked_upstream(args.upstream),
        upstream_key_file=args.upstream_key_file,
        device=args.device,
        dtype=args.dtype,
        attention=args.attention,
        threads=args.threads,
        replicas=args.replicas,
        batch_tokens=args.batch_tokens,
        packing=args.packing,
        calibrate_s=args.calibrate_seconds,
        trust_remote_code=args.trust_remote_code,
    )
    return ServerOptions(
        model=model,
        host=args.host,
        port=args.port,
        input=args.input,
        truncate=args.truncate,
        max_length=args.max_length,
        token=token,
        queue=args.queue,
        max_bytes=args.max_request_bytes,
        read_timeout=args.read_timeout,
        log_texts=args.log_texts,
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    env = os.environ
    group = parser.add_argument_group("model")
    model = env.get("CONFIG_REWARD_MODEL_PATH") or None
    group.add_argument(
        "--model",
        type=named,
        metavar="DIR",
        default=model,
        required=model is None,
        help="model directory [CONFIG_REWARD_MODEL_PATH]",
    )
    group.add_argument(
        "--backend",
        choices=get_args(BackendName),
        default="transformers",
        help="what computes: this process, or the server at --upstream [%(default)s]",
    )
    group.add_argument("--upstream", metavar="URL", help="a running vLLM or SGLang server of the same model")
    group.add_argument("--upstream-key-file", type=named, metavar="FILE", help="file with that server's API key")
    group.add_argument(
        "--device",
        choices=get_args(Device),
        default=env.get("CONFIG_REWARD_DEVICE") or "auto",
        help="where the model computes [CONFIG_REWARD_DEVICE, else auto: cuda where there is one]",
    )
    group.add_argument(
        "--dtype",
        choices=get_args(Dtype),
        default="auto",
        help="type of weights and activations [auto: bfloat16 on cuda, float32 on cpu]",
    )
    group.add_argument(
        "--attention",
        choices=get_args(Attention),
        default="auto",
        help="attention implementation of transformers [auto: its own choice]",
    )
    group.add_argument(
        "--replicas",
        type=_threads,
        metavar="N",
        help="copies of the model on as many GPUs; on CPU, batches side by side [all GPUs that are visible]",
    )
    group.add_argument("--threads", type=_threads, metavar="N", help="CPU threads in all [torch's own]")
    group.add_argument(
        "--batch-tokens",
        type=_positive_or_auto,
        metavar="N|auto",
        help="tokens of a batch, padding included [auto: measured at the start]",
    )
    group.add_argument(
        "--packing",
        choices=get_args(Packing),
        default="auto",
        help="pairs in one row without padding [auto: where it changes no score]",
    )
    group.add_argument(
        "--calibrate-seconds",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="most seconds to measure what is quickest, 0 for no measuring [%(default)g]",
    )
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that lies in the model directory",
    )
    group.add_argument(
        "--input",
        choices=get_args(Input),
        default="pair",
        help="pair: tokenizer(prompt, response); chat: the model's chat template [%(default)s]",
    )
    group.add_argument(
        "--truncate",
        choices=get_args(Truncate),
        default="right",
        help="longer pairs lose the end of the longer text (right), the beginning of the prompt and then of the "
        "response (left), or are refused (error); told in the reply and counted [%(default)s]",
    )
    group.add_argument(
        "--max-length",
        type=_positive,
        default=2048,
        metavar="N",
        help="tokens of a pair [%(default)s, or the model's limit if that is lower]",
    )


def _add_service(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("service")
    group.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on [%(default)s]")
    group.add_argument(
        "--port",
        type=_port,
        default=os.environ.get("CONFIG_REWARD_SERVER_PORT") or "8000",
        metavar="PORT",
        help="port, 0 for a free one [CONFIG_REWARD_SERVER_PORT, else 8000]",
    )
    group.add_argument("--token-file", type=named, metavar="FILE", help="file with the bearer token for /score*")
    group.add_argument(
        "--queue",
        type=_positive,
        default=4096,
        metavar="N",
        help="pairs between acceptance and score before 429 [%(default)s]",
    )
    group.add_argument(
        "--max-request-bytes",
        type=_positive,
        default=16 * 2**20,
        metavar="N",
        help="bytes; larger requests get 413 [%(default)s]",
    )
    group.add_argument(
        "--read-timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds for a request's head, and again for its body [%(default)g]",
    )
    group.add_argument("--log-texts", action="store_true", help="log prompts and responses")
