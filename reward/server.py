# PYTHON_ARGCOMPLETE_OK
"""The reward-model server: ``python -m reward.server --model DIR``.

CONFIG_REWARD_MODEL_PATH, CONFIG_REWARD_DEVICE and CONFIG_REWARD_SERVER_PORT are defaults; options win.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from reward.command_line import fail, quiet_imports, run, told

if __name__ == "__main__":
    quiet_imports(extra="reward")

from reward.errors import ModelDirError
from reward.model_dir import check_model_dir
from reward.serving.options import from_args, parse
from reward.token_file import read_token

if TYPE_CHECKING:
    from reward.serving.options import ServerOptions

log = logging.getLogger("reward.server")

_BACKLOG = 4096
# Seconds between two requests of a connection.
_KEEP_ALIVE_S = 75
# Seconds for what was accepted before a stop; a connection that never sends its request ends here too.
_STOP_S = 60


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening TCP socket on the first address of ``host``.

    Raises:
        OSError: unknown host, or the address is taken.
        UnicodeError: no name of a host.
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


def token_of(file: Path) -> str:
    """The token of ``--token-file``.

    Raises:
        ValueError: there is none, or the file cannot be read.
    """
    try:
        return read_token(file)
    except OSError as error:
        raise ValueError(f"--token-file {file}: {error.strerror}; name a file that holds one token") from error


def allow_many_connections() -> None:
    """Raise the soft limit of open files, often 1,024, to the hard one: each connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(options: ServerOptions, sock: socket.socket) -> int:
    """Serve on ``sock`` until a signal or a failure. Returns the exit code."""
    import uvicorn

    from reward.serving.app import create_app
    from reward.serving.service import Service, load
    from reward.serving.slow_clients import guarded_protocol, uvicorn_protocol

    def failed(error: BaseException) -> None:
        server.should_exit = True

    service = Service(options, lambda: load(options), failed)

    def count(reason: str) -> None:
        service.metrics.errors.labels(reason=reason).inc()

    config = uvicorn.Config(
        create_app(service),
        http=guarded_protocol(uvicorn_protocol(), options.read_timeout, 2 * options.max_bytes, count),
        ws="none",
        # Our format, and no word of a startup that is complete before the model is there.
        log_config=None,
        log_level="warning",
        access_log=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOP_S,
    )
    server = uvicorn.Server(config)
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("listening on http://%s:%d, loading %s", shown, port, options.model.model)

    def stop(number: int, frame: FrameType | None) -> None:
        # Before uvicorn has its own handlers; and after its graceful shutdown, when it raises the signal again.
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run(sockets=[sock])
    if service.failure is not None:
        error = service.failure
        kind = "" if isinstance(error, ModelDirError) else f"{type(error).__name__}: "
        log.error("cannot serve: %s%s", kind, error)
        return 1
    if not server.started:
        return 1
    log.info("stopped")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The lanes have the cores; the tokenizer's own threads would take them away.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # libgomp's threads wait for each other by spinning, for milliseconds: where others use the cores, that keeps
    # them from computing (a forward pass of 15 ms took 30 to 250 then). With this they soon sleep.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        check_model_dir(args.model, weights=args.upstream is None, trust_remote_code=args.trust_remote_code)
        options = from_args(args, None if args.token_file is None else token_of(args.token_file))
    except (ModelDirError, OSError, ValueError) as error:
        return fail(told(error))
    try:
        sock = bind(options.host, options.port)
    except (OSError, UnicodeError) as error:
        return fail(
            f"cannot listen on {options.host}:{options.port}: {error}; --port 0 takes a free port, "
            "--host an address of this machine"
        )
    allow_many_connections()
    return serve(options, sock)


if __name__ == "__main__":
    code = run(main)
    logging.shutdown()
    # Not by the interpreter's end: with torch that takes a second, and aborts where a thread is still inside it.
    os._exit(code)
