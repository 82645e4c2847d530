"""Nodes without hardware: processes with a network, a /tmp and a process table of their own, joined by a bridge.

Linux and root only. Everything goes with its processes: nothing of this machine's network is touched.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_NEWNS, _NEWUTS, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x20000000, 0x40000000  # linux/sched.h
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000  # linux/mount.h
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8916, 0x891C, 0x8913, 0x8914  # linux/sockios.h
_IFF_UP = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}; this needs root")


def _mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, None)
    _check(done, f"mount {source} on {target}")


def address_of(rank: int) -> str:
    """10.88.1.0 and on: one for each node, on one network of 16 bits."""
    return f"10.88.{1 + rank // 200}.{1 + rank % 200}"


def enter_private_network() -> None:
    """Give this process a network of its own with the bridge that joins the nodes. Once, before the first node."""
    _check(_libc.unshare(_NEWNET), "unshare")
    _ip("link add br0 type bridge\nlink set br0 up\n")


def _ip(commands: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)


def _bring_up(interface: str, address: str, netmask: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = interface.encode()
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, netmask)):
            sockaddr = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, request, struct.pack("16s16s", name, sockaddr))
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH14x", name, 0))
        flags = struct.unpack("16sH14x", answer)[1] | _IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", name, flags))


class Node:
    """A forked process that is its node's pid 1 and calls `work` when the last writer has closed the pipe `go`."""

    def __init__(self, rank: int, hosts: Path, log: Path, go: tuple[int, int], work: Callable[[], int]) -> None:
        ready, self._told = os.pipe()
        connected, self._connect = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.close(ready)
                os.close(self._connect)
                os.close(go[1])
                code = self._run(rank, hosts, log, connected, go[0], work)
            except Exception:  # noqa: BLE001  shown here: the process ends below
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(self._told)
        os.close(connected)
        if os.read(ready, 1) != b"1":
            raise RuntimeError(f"node {rank} did not start; this needs root and namespaces")
        self._ready = ready
        port = f"v{self.pid}"  # that of an earlier node goes a little later than its processes
        _ip(f"link add {port} type veth peer name eth0 netns {self.pid}\nlink set {port} master br0 up\n")
        os.write(self._connect, b"1")
        os.close(self._connect)

    def _run(self, rank: int, hosts: Path, log: Path, connected: int, go: int, work: Callable[[], int]) -> int:
        _check(_libc.unshare(_NEWNET | _NEWNS | _NEWUTS | _NEWPID), "unshare")
        os.write(self._told, b"1")
        os.read(connected, 1)
        inner = os.fork()
        if inner:
            return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF
        code = 70
        try:
            socket.sethostname(f"sim{rank}")
            _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
            _mount("proc", "/proc", "proc")
            for folder in ("/tmp", "/dev/shm"):
                _mount("tmpfs", folder, "tmpfs")
            _mount(str(hosts), "/etc/hosts", flags=_MS_BIND)
            _bring_up("lo", "127.0.0.1", "255.0.0.0")
            _bring_up("eth0", address_of(rank), "255.255.0.0")
            with log.open("wb") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            os.write(self._told, b"1")
            os.close(self._told)
            os.read(go, 1)  # the end of the pipe: everybody at once
            code = work()
        except Exception:  # noqa: BLE001  shown here: the process ends below
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def wait_until_up(self) -> None:
        """Until the node has its network and waits for `go`; raises RuntimeError when it ended before."""
        if os.read(self._ready, 1) != b"1":
            raise RuntimeError(f"process {self.pid} could not set up its node")
        os.close(self._ready)

    def wait(self) -> int:
        """The exit code of the node's work."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
