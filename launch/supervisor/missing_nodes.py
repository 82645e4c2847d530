"""Nodes of the job that died before they said hello: nobody else would tell for minutes.

A node is asked by opening a connection to a port where nothing listens: a machine that lives refuses it. Silence
alone proves nothing, since firewalls are silent as well: it counts where another node of the job does answer. All
are asked by their names: the network of these need not be the one that the job uses.
"""

import socket
import threading
import time
from typing import Collection, Dict, Iterable, List, Optional

from launch.supervisor.nodelist import addresses_of

# tcpmux, RFC 1078: nobody serves it.
_PORT = 1
_ANSWER_S = 1.5
_FIRST_S = 10.0
_EVERY_S = 2.0
_SILENCES = 3


def answers(address: str, port: int = _PORT, limit_s: float = _ANSWER_S) -> bool:
    """Whether a machine is there: it accepts or refuses a connection within `limit_s` seconds."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(limit_s)
        try:
            probe.connect((address, port))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return True


class MissingNodes:
    """Asks the missing nodes again and again, from a thread: names and silent machines take their time."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._asking: Optional[threading.Thread] = None
        self._asked = self._since
        self._silences: Dict[str, int] = {}

    def dead(self, joined: Collection[str], missing: Iterable[str]) -> List[str]:
        """Missing nodes that were silent several times in a row while a node that joined did answer.

        Args:
            joined: names of the nodes that said hello.
            missing: names of the others.
        """
        now = time.monotonic()
        idle = self._asking is None or not self._asking.is_alive()
        if joined and idle and now - self._since > _FIRST_S and now - self._asked > _EVERY_S:
            self._asked = now
            self._asking = threading.Thread(target=self._ask, args=(list(joined), list(missing)), daemon=True)
            self._asking.start()
        return sorted(name for name, times in self._silences.items() if times >= _SILENCES and name not in joined)

    def _ask(self, joined: List[str], missing: List[str]) -> None:
        if not any(answers(address) for name in joined[:3] for address in addresses_of([name])):
            return
        for name in missing[:16]:
            addresses = addresses_of([name])
            if addresses:  # without one there is nobody to ask
                silent = not any(answers(address) for address in addresses)
                self._silences[name] = self._silences.get(name, 0) + 1 if silent else 0
