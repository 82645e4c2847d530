"""The toolkit itself: its version, its folders, and a hash of what is in them.

Standard library only and Python 3.9+: the supervisor of a node imports it inside whatever image the user has.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

VERSION = "0.1.0"
TOOLKIT = Path(__file__).resolve().parents[1]
PACKAGES = ("launch", "reward", "data_prep", "converters", "singularity")
# Where an image that singularity.build made has its own copy.
IN_IMAGE = "/opt/toolkit"


def package_files(toolkit: Path = TOOLKIT) -> Iterator[Path]:
    """Every file of the packages, relative to `toolkit`, in a fixed order."""
    for package in PACKAGES:
        for file in sorted((toolkit / package).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(toolkit)


@lru_cache
def content_hash(toolkit: Path = TOOLKIT) -> str:
    """Twelve hex digits that change when any file of the packages does."""
    digest = hashlib.sha256()
    for name in package_files(toolkit):
        content = (toolkit / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:12]
