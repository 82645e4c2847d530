"""One numeric IPv4 address for a node, on one interface."""

import fcntl
import os
import socket
import struct
from typing import Dict, Optional

from launch.supervisor.verdict import SetupError

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_SKIPPED = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "kube", "podman", "tun", "tap")
_PREFERRED = ("ib", "bond", "hsn")


class AddressError(SetupError):
    """The node has no usable address."""


def interfaces() -> Dict[str, str]:
    """Every interface of this node that has an IPv4 address: name -> address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def choose(found: Dict[str, str], wanted: Optional[str], node: str, nodes: int = 1) -> "tuple[str, str]":
    """(interface, address) for a node: the wanted interface, else InfiniBand or a bond, else the first real one.

    Loopback and container bridges are never chosen by themselves: other nodes cannot reach them. With several
    `nodes` a loopback address is refused also where it is wanted.

    Raises:
        AddressError: naming the node, the interface and what there is.
    """
    listing = ", ".join(f"{name} {address}" for name, address in found.items()) or "none"
    if wanted is not None:
        if wanted not in found:
            raise AddressError(
                f"node {node} has no interface {wanted!r} with an IPv4 address; it has: {listing}; "
                f"correct cluster.network_interface"
            )
        if nodes > 1 and found[wanted].startswith("127."):
            raise AddressError(
                f"interface {wanted!r} of node {node} has the address {found[wanted]}, which the other "
                f"{nodes - 1} nodes cannot reach; it has: {listing}; correct cluster.network_interface"
            )
        return wanted, found[wanted]
    usable = {
        name: address
        for name, address in found.items()
        if not name.startswith(_SKIPPED) and not address.startswith(("127.", "169.254."))
    }
    for prefix in _PREFERRED:
        for name, address in usable.items():
            if name.startswith(prefix):
                return name, address
    for name, address in usable.items():
        return name, address
    raise AddressError(
        f"node {node} has no interface that other nodes can reach; it has: {listing}; "
        f"name one with cluster.network_interface"
    )
