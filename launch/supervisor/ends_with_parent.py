"""Become a command that ends when the process that started it ends, however that happens.

    python3 -I -S ends_with_parent.py PID COMMAND ARGUMENT...

PID is the starting process. PR_SET_PDEATHSIG belongs between fork and exec, where `subprocess` would run Python
(preexec_fn), which can hang for ever in a process with threads: this program sets it and then becomes the command.
The kernel sends SIGTERM when the *thread* that started the command ends. Its children do not inherit it; `ray
start --block` ties its own to itself in the same way. Exit codes: those of the command; 127 there is no such
command; 126 it cannot be run.
"""

import ctypes
import os
import signal
import sys
from typing import List

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(words: List[str]) -> int:
    """Returns only where there is no command."""
    parent, command = int(words[0]), words[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        print(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 126
    if os.getppid() != parent:
        return 128 + signal.SIGTERM  # it ended before the kernel knew
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
