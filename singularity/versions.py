"""Whether a version meets a pin. Standard library only and Python 3.9+: it runs inside images, too."""

import re

# PEP 440, appendix B, in our own words.
_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_n>\d*))?"
    r"(?P<post>-(?P<post_a>\d+)|[-_.]?(?:post|rev|r)[-_.]?(?P<post_b>\d*))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_n>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?"
)
# int() refuses thousands of digits, and no version has them: a longer one is what PEP 440 does not know.
_MOST_CHARACTERS = 200
_PRE = {"alpha": "a", "beta": "b", "preview": "rc", "pre": "rc", "c": "rc"}


def agrees(wanted: str, found: str) -> bool:
    """Whether a version meets the pin `==wanted` (PEP 440): 2.3 is 2.3.0, and 2.8.0+cu128 meets 2.8.0 but not the
    other way round. What PEP 440 does not know agrees with itself only."""
    public, local = _parsed(wanted)
    found_public, found_local = _parsed(found)
    return public == found_public and local in ("", found_local)


def _parsed(version: str) -> tuple[object, str]:
    """What two equal versions have in common, and the local label."""
    text = version.strip().lower()
    match = _VERSION.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    if not match:
        return text, ""
    release = [int(part) for part in match["release"].split(".")]
    while release and not release[-1]:
        release.pop()
    pre = (_PRE.get(match["pre"], match["pre"]), int(match["pre_n"] or 0)) if match["pre"] else None
    post = int(match["post_a"] or match["post_b"] or 0) if match["post"] else None
    dev = int(match["dev_n"] or 0) if match["dev"] else None
    parts = re.split(r"[-_.]", match["local"] or "")
    local = ".".join(str(int(part)) if part.isdigit() else part for part in parts)
    return (int(match["epoch"] or 0), tuple(release), pre, post, dev), local


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
