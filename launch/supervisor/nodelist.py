"""Slurm's short form of node names, and the addresses that the names have."""

import itertools
import re
import socket
import threading
from typing import Iterator, List

_LIMIT = 65536


def _names(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    yield from (name for name in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text) if name.strip())


def _numbers(text: str) -> List[str]:
    """`1,03-05` -> 1, 03, 04, 05: with the leading zeros of the range's start."""
    found: List[str] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not dash:
            found.append(low)
        elif low.isdigit() and high.isdigit() and int(high) - int(low) < _LIMIT:
            found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found


def expand(nodelist: str) -> List[str]:
    """The names in SLURM_JOB_NODELIST, as `scontrol show hostnames` gives them: `n[01-02],b7` -> n01, n02, b7.

    There may be no scontrol inside the image.
    """
    found: List[str] = []
    for name in _names(nodelist):
        pieces = [
            _numbers(piece[1:-1]) if piece.startswith("[") else [piece]
            for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", name.strip())
        ]
        found += itertools.islice(("".join(words) for words in itertools.product(*pieces)), _LIMIT)
    return [name for name in found if not set(name) & set("[], \n")]


def addresses_of(names: List[str], limit_s: float = 3.0) -> List[str]:
    """IPv4 addresses that the names resolve to within `limit_s` seconds for all; a name that does not has none.

    A name server that is down answers each question after many seconds.
    """
    found: List[str] = []

    def resolve() -> None:
        for name in names:
            try:
                answers = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                continue  # some clusters have no names for their compute nodes; the nodes tell their addresses
            found.extend(str(answer[4][0]) for answer in answers)

    asking = threading.Thread(target=resolve, name="names", daemon=True)
    asking.start()
    asking.join(limit_s)
    return list(dict.fromkeys(found))
