"""What a failed attempt says of itself, in the same words for both HTTP libraries and without theirs."""

from __future__ import annotations

import errno
import os
import socket
import ssl

from reward.verl_client.retries import CONNECT_TIMEOUT_S


def cause_text(error: BaseException, timeout: float) -> str:
    """``error`` of an attempt that had ``timeout`` seconds, by what the operating system said of it."""
    # aiohttp carries it as an attribute and repeats it with words on TLS; urllib3 chains it.
    inner = [getattr(error, "os_error", None), error.__cause__, error.__context__, error]
    system = next((one for one in inner if isinstance(one, OSError)), None)
    if isinstance(system, (socket.gaierror, ssl.SSLError)):  # with numbers of their own
        return f"{system.strerror or system}"
    if system is not None and system.errno is not None:
        hint = " (does the server run there?)" if system.errno == errno.ECONNREFUSED else ""
        return f"{os.strerror(system.errno)}{hint}"
    if "Timeout" in type(error).__name__:
        if "Connect" in type(error).__name__:
            return f"no connection within {min(timeout, CONNECT_TIMEOUT_S):.3g} s"
        return f"no answer within {timeout:.3g} s"
    return str(system) if system is not None and str(system) else f"{type(error).__name__}: {error}"
