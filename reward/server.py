"""The reward-model server: ``python -m reward.server --model DIR``.

CONFIG_REWARD_MODEL_PATH, CONFIG_REWARD_DEVICE and CONFIG_REWARD_SERVER_PORT are defaults; options win.
Exit codes: 0 stopped by SIGTERM or SIGINT, after finishing what it accepted; 1 the model cannot be served, or
the address cannot be bound; 2 usage.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from reward.errors import ModelDirError
from reward.model_dir import check_model_dir
from reward.token_file import read_token

if TYPE_CHECKING:
    from reward.serving.app import ServerOptions

log = logging.getLogger("reward.server")

_DEVICES = ("auto", "cpu", "cuda")
_BACKLOG = 2048
# Seconds for what was accepted before a stop; a connection that never sends its request ends here too.
_STOP_SECONDS = 60


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    env = os.environ
    parser = argparse.ArgumentParser(
        prog="python -m reward.server",
        description="Serve a one-label sequence classifier as a reward model over HTTP.",
        epilog="POST /score {prompt, response}; POST /score/batch {items: [...]}; "
        "GET /health /ready /metrics /info. Example: python -m reward.server --model models/reward --port 8000. "
        "Exit codes: 0 ended by SIGTERM; 1 model, port or token file; 2 usage.",
    )
    model = env.get("CONFIG_REWARD_MODEL_PATH") or None
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        default=model,
        required=model is None,
        help="model directory (default: CONFIG_REWARD_MODEL_PATH)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port",
        type=_port,
        default=env.get("CONFIG_REWARD_SERVER_PORT") or "8000",
        help="port, 0 for a free one (default: CONFIG_REWARD_SERVER_PORT or 8000)",
    )
    parser.add_argument(
        "--device",
        choices=_DEVICES,
        default=env.get("CONFIG_REWARD_DEVICE") or "auto",
        help="default: CONFIG_REWARD_DEVICE or auto",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="auto: bfloat16 on cuda, float32 on cpu",
    )
    parser.add_argument(
        "--max-length",
        type=_positive,
        default=2048,
        metavar="N",
        help="tokens of a pair; longer pairs are truncated and reported so (default %(default)s)",
    )
    parser.add_argument("--token-file", type=Path, metavar="F", help="file with the bearer token for /score*")
    parser.add_argument("--threads", type=_positive, metavar="N", help="CPU threads of torch (default: its own)")
    parser.add_argument(
        "--queue",
        type=_positive,
        default=4096,
        metavar="N",
        help="pairs that may wait before 429 (%(default)s)",
    )
    parser.add_argument(
        "--max-request-bytes",
        type=_positive,
        default=16 * 2**20,
        metavar="N",
        help="larger requests get 413 (default %(default)s)",
    )
    return parser


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening TCP socket on the first address of ``host``.

    Raises:
        OSError: unknown host, or the address is taken.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def serve(options: ServerOptions, sock: socket.socket) -> int:
    """Serve on ``sock`` until a signal or a failed start. Returns the exit code."""
    import uvicorn

    from reward.serving.app import create_app, load_model

    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(options, lambda: load_model(options), failed)
    config = uvicorn.Config(
        app,
        log_level="info",
        access_log=False,
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    server = uvicorn.Server(config)
    host, port = sock.getsockname()[:2]
    log.info("listening on http://%s:%d, loading %s", host, port, options.model)
    # uvicorn raises the signal again after its graceful shutdown; this handler makes that the normal end.
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run(sockets=[sock])
    if failures:
        kind = "" if isinstance(failures[0], ModelDirError) else f"{type(failures[0]).__name__}: "
        log.error("the model cannot be served: %s%s", kind, failures[0])
        return 1
    if not server.started:
        return 1
    log.info("stopped")
    if app.state.batcher.loading:
        # torch aborts the process when the interpreter ends under a thread that is inside it.
        logging.shutdown()
        os._exit(0)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.device not in _DEVICES:
        # argparse does not hold defaults to the choices.
        parser.error(f"CONFIG_REWARD_DEVICE={args.device!r}: expected one of {', '.join(_DEVICES)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        check_model_dir(args.model)
        token = read_token(args.token_file) if args.token_file else None
    except (ModelDirError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        sock = bind(args.host, args.port)
    except OSError as error:
        print(f"error: cannot listen on {args.host}:{args.port}: {error}", file=sys.stderr)
        return 1

    from reward.serving.app import ServerOptions

    options = ServerOptions(
        model=args.model,
        device=args.device,
        dtype=args.dtype,
        max_length=args.max_length,
        token=token,
        queue=args.queue,
        max_bytes=args.max_request_bytes,
        threads=args.threads,
    )
    return serve(options, sock)


if __name__ == "__main__":
    sys.exit(main())
