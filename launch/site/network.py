"""Network interfaces of this machine, by /sys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Fast ones first, by their usual names: IPoIB, Slingshot, Omni-Path, bonds, Ethernet.
_KINDS = (r"ib\w*", r"hsn\d\w*", r"opa?\d\w*", r"(bond|team)\w*(\.\d+)?", r"en\w+|(eth|em|p\d+p)\d\w*")
_MOST = 64


@dataclass(frozen=True)
class Network:
    """Interfaces that are up, fast ones first, and InfiniBand devices."""

    interfaces: tuple[str, ...] = ()
    infiniband: tuple[str, ...] = ()


def read_network(sys: Path = Path("/sys")) -> Network:
    """What `sys` lists; nothing where it cannot be read."""
    up = [name for name in _listed(sys / "class/net") if _is_up(sys / "class/net" / name)]
    ranked = sorted((rank, name) for name in up for rank in [_rank(name)] if rank < len(_KINDS))
    return Network(tuple(name for _, name in ranked), tuple(_listed(sys / "class/infiniband")))


def _rank(name: str) -> int:
    return next((rank for rank, kind in enumerate(_KINDS) if re.fullmatch(kind, name)), len(_KINDS))


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if path.name.isprintable())[:_MOST]
    except OSError:
        return []


def _is_up(folder: Path) -> bool:
    try:
        with (folder / "operstate").open() as file:
            return file.read(16).strip() in ("up", "unknown")
    except (OSError, UnicodeDecodeError):
        return False
