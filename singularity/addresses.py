"""Addresses of images without the password that somebody may have put in them. Standard library only."""

import re

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?://)?", re.IGNORECASE)
_DIGEST = re.compile(r"@[a-z0-9]+:[0-9a-f]{32,}$")  # of an image: name:tag@sha256:...


def holds_secret(address: str) -> bool:
    """Whether something stands before an @ that is not that of a digest."""
    return "@" in _DIGEST.sub("", address)


def masked(address: str) -> str:
    """The address for a message: with ... for all between its scheme and the @ before its host."""
    if not holds_secret(address):
        return address
    digest = _DIGEST.search(address)
    scheme = _SCHEME.match(address)
    host = _DIGEST.sub("", address).rpartition("@")[2]
    return f"{scheme[0] if scheme else ''}...@{host}{digest[0] if digest else ''}"
