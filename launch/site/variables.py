"""Variables of this shell that matter to a job: proxies, without their passwords, and folders of caches."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
CACHES = ("APPTAINER_CACHEDIR", "SINGULARITY_CACHEDIR", "APPTAINER_TMPDIR", "SINGULARITY_TMPDIR", "HF_HOME")
FOLDERS = ("SCRATCH", "WORK", "PROJECT", "DATA", "TMPDIR", "TMP")


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Proxies by their variable in lower case; a user name and password are ***."""
    found = {name: environment.get(name) or environment.get(name.upper()) or "" for name in _PROXIES}
    return {name: without_password(value) for name, value in found.items() if value}


def without_password(url: str) -> str:
    """Scheme, host and port: everything before the last @ is taken for a secret, since a password may hold a / or
    an @ itself, and so is what follows the first ? or #, whichever part of the URL that is."""
    scheme, rest = "", url
    if found := re.match(r"\s*[A-Za-z][A-Za-z0-9+.-]*://", url):
        scheme, rest = found[0], url[found.end() :]
    told, _, after = rest.replace("#", "?").partition("?")
    if "@" in after:  # of a password with a ? in it, or of a query: the host is not known
        return f"{scheme}***"
    return scheme + re.sub(r".*@", "***@", told, flags=re.DOTALL)


def folders(environment: Mapping[str, str]) -> dict[str, str]:
    """Caches and working folders that the shell names."""
    return {name: environment[name] for name in (*CACHES, *FOLDERS) if environment.get(name)}
