"""What the end of a build's output means, and what to do about it. Pure.

The texts are those of Apptainer, SingularityCE, pip, apt-get and mksquashfs. Of several causes the first one of
the table is told, in the words of its last match.
"""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Places(NamedTuple):
    """The folders and the base of a build, for the words about it; `room` tells the free space of a folder.

    `cache` is None where it is not known.
    """

    output: Path
    temporary: Path
    cache: Path | None
    base: str
    runtime: str
    login: str  # the program's command for a registry
    user: str
    room: Callable[[Path], str]


class _Cause(NamedTuple):
    """`remedy` is a format string of Places, of `said` (what the pattern found) and `part` (its group)."""

    pattern: str
    remedy: str


_OWN_WORD = r"launcher: build: {but}([^\n\r]+)"  # of the definition
_ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU)  # with which a machine or a person ends a program
# pip warns of each attempt that it repeats; only the last one may be why it fails.
_REPEATED = re.compile(r"^[^\n]*Retrying \(Retry\(total=[1-9][^\n]*\n?", re.MULTILINE)

_CAUSES = (
    _Cause(
        r"failed to create (?:container process|\w+ namespace): no space left[^\n]{0,80}",
        "{said}: not a full disk: the kernel allows no more namespaces here (sysctl user.max_user_namespaces and"
        " its like). The site can raise it, or build elsewhere and copy the image",
    ),
    _Cause(
        r'^Error for command "[^"\n]+": ([^\n]+)',
        "{runtime} takes another command line: {part}; name another program with --runtime, or leave that option"
        " out",
    ),
    _Cause(
        r"disk quota exceeded|EDQUOT|Errno 122\b",
        "{said}: your quota is used up in one of: {folders}. See quota -s (lfs quota on Lustre), and choose"
        " folders with room: -o, --tmp-dir, --cache-dir",
    ),
    _Cause(
        r"no space left on device|ENOSPC|Errno 28\b",
        "{said}: a file system is full, one of: {folders}. Choose folders with room: -o, --tmp-dir, --cache-dir",
    ),
    _Cause(
        r"toomanyrequests|reached your (?:unauthenticated )?pull rate limit|429 Too Many Requests",
        "{said}: the registry of {base} gives this address no more for now. Wait six hours, or log in ({login}"
        " docker://docker.io), or take a mirror: --from docker://MIRROR/...",
    ),
    _Cause(
        r"manifest unknown|manifest for \S+ not found|reading manifest \S+ in \S+: [^\n]*not found",
        "{said}: there is no {base} (any more); name where it is: --from docker://..., or a file: --from"
        " docker-archive://FILE.tar",
    ),
    _Cause(
        r"407 Proxy[^\n'\"]{0,80}|Proxy Authentication Required",
        "{said}: the proxy wants a user and a password: http_proxy=http://USER:PASSWORD@HOST:PORT, and https_proxy"
        " alike",
    ),
    _Cause(
        r"unauthorized: [^\n]{0,120}|requested access to the resource is denied|authentication required",
        "{said}: the registry of {base} wants a login: {login} docker://HOST",
    ),
    _Cause(
        r"signal: killed|^killed[ \t]*$|^[^\n]{0,120}: +\d+ killed\b[^\n]{0,80}|exit (?:status|code) 137\b"
        r"|oom[-_ ]kill|out of memory: kill|fatal error: *out of memory|fork[^\n]{0,120}cannot allocate memory"
        r"|^MemoryError\b",
        "{said}: the machine ended the build, for want of memory as it seems; many login nodes limit it: build in"
        " a job (srun --mem=32G ...)",
    ),
    _Cause(
        r"failed to create new OS thread[^\n]{0,80}|^[^\n]{0,60}newosproc|failed to create thread\b[^\n]{0,80}"
        r"|(?:pthread_create failed|cannot fork|\bfork(?:/exec)?\b)[^\n]{0,120}resource temporarily unavailable"
        r"|failed to create container process: resource temporarily[^\n]{0,40}",
        "{said}: this machine limits the processes and threads of {user} (ulimit -u), as many login nodes do:"
        " build in a job (srun --mem=32G ...), or end other programs first",
    ),
    _Cause(_OWN_WORD.format(but="(?![^\n]*see (?:pip|apt-get) above)"), "{part}"),
    _Cause(
        r"x509: certificate signed by unknown authority|\[SSL: CERTIFICATE_VERIFY_FAILED\][^\n()]{0,120}",
        "{said}: the certificate of the server, or of the site's proxy, is of an authority unknown here. Name a"
        " file that has it and the usual ones: SSL_CERT_FILE (pip takes it, too; PIP_CERT is for pip alone)",
    ),
    _Cause(
        r"no such host|network is unreachable|dial tcp[^\n]{0,120}|i/o timeout|TLS handshake timeout"
        r"|temporary failure (?:in name resolution|resolving)|could not resolve host|proxyconnect tcp[^\n]{0,80}"
        r"|Failed to establish a new connection|connection broken by '(?!ReadTimeout|ProtocolError)[^\n]{0,160}",
        "{said}: no way from this machine to {base} or to a package index. Build where there is one (often the"
        " login node), set http_proxy and https_proxy, or bring files: --from docker-archive://FILE.tar, --wheels"
        " DIR",
    ),
    _Cause(
        r"context deadline exceeded[^\n]{0,80}|unexpected EOF(?! while looking)|read timed out"
        r"|connection broken by '(?:ReadTimeout|ProtocolError)[^\n]{0,160}|IncompleteRead\b"
        r"|\b503 +(?:Service Unavailable|Server Error)|(?:status|response code|HTTP error)[^\n\d]{0,20}503\b",
        "{said}: the way to {base} or to a package index broke off or is slow: run it again. If it stays so,"
        " bring files: --from docker-archive://FILE.tar (a whole one), --wheels DIR",
    ),
    _Cause(
        r"the repository located at (\S+) is not a trusted or secure host",
        "{said}: pip takes no plain http from it; name it so: PIP_TRUSTED_HOST={part}, or its https address",
    ),
    _Cause(
        r"no matching distribution found for [^\n\r]+",
        "{said}: the package index or the folder of wheels has none for this Python, or cannot be reached; see"
        " PIP_INDEX_URL and --wheels",
    ),
    _Cause(_OWN_WORD.format(but=""), "{part}"),
    _Cause(
        r"'noexec' mount option set on ([^\s,]+)",
        "{temporary} is on {part}, mounted noexec: nothing can run there; choose another folder: --tmp-dir",
    ),
    _Cause(
        r"(?:error unpacking rootfs|unpack entry): [^\n]{0,300}: (?:no such file or directory|permission denied)",
        "{said}: the base could not be unpacked in {temporary}. A network file system (NFS, Lustre), or a folder"
        " that others may not enter, often fails the made-up root of a build: choose one on a local disk with"
        " --tmp-dir",
    ),
    _Cause(
        r"could not write info to setgroups: permission denied|\w+ namespace requires privileges",
        "{said}: {user} gets no working user namespace here; on Ubuntu from 23.10 on AppArmor forbids it. The site"
        " can allow it (the AppArmor profile of {runtime}'s own package, or sysctl"
        " kernel.apparmor_restrict_unprivileged_userns=0), or build elsewhere and copy the image",
    ),
    _Cause(
        r"could not use fakeroot: [^\n]{0,160}|no mapping entry found|newuidmap[^\n]{0,120}"
        r"|--fakeroot, or the proot command are required|requires either a suid installation or unprivileged user"
        r"|no user namespace available|user namespaces? (?:is|are) (?:disabled|not)[^\n]{0,80}"
        r"|failed to create (?:\w+ )?namespace[^\n]{0,80}|error while waiting event for user namespace[^\n]{0,80}"
        r"|failed to create container process: operation not permitted",
        "{said}: {runtime} cannot build for {user} without root here. The site can allow it (user namespaces, and"
        " /etc/subuid: singularity config fakeroot --add {user}), or build elsewhere and copy the image",
    ),
    _Cause(
        r"mksquashfs[^\n]{0,60}(?:not found|no such file)[^\n]{0,40}|while searching for mksquashfs[^\n]{0,120}",
        "{said}: mksquashfs is missing; install squashfs-tools, or ask the site",
    ),
    _Cause(
        r"failed to execute %test[^\n]*|while running %test[^\n]*",
        "{said}: the image was built and fails its own test; see above",
    ),
)


def explain(output: str, code: int, places: Places) -> str:
    """One sentence about a build that failed: value, place, remedy. A negative code is that of a signal."""
    output = _REPEATED.sub("", output)
    folders = {"output": places.output, "temporary files": places.temporary}
    folders |= {"cache": places.cache} if places.cache else {}
    for cause in _CAUSES:
        matches = list(re.finditer(cause.pattern, output, re.IGNORECASE | re.MULTILINE))
        if matches:
            found = matches[-1]
            return cause.remedy.format(
                said=found[0].strip(),
                part=found[1] if found.re.groups else "",
                folders=", ".join(f"{what} {folder} ({places.room(folder)})" for what, folder in folders.items()),
                **places._asdict(),
            )
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it said nothing")[-300:]
    if code == 0:
        return f"{places.runtime} ended with 0 and made no image; the last it said: {last}"
    number = -code if code < 0 else code - 128
    if number in _ENDING:
        return (
            f"{places.runtime} was ended by {signal.Signals(number).name}, its last words: {last}. Many login"
            " nodes limit memory and time: build in a job (srun --mem=32G ...)"
        )
    return f"{places.runtime} ended with {code}: {last}"
