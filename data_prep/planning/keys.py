"""What tells two rows apart: 16 bytes for the prompt, 16 for it without white space and case, 8 for the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Little-endian numbers, so that the same rows give the same keys on any machine.
KEY = np.dtype([("exact", "<u8", 2), ("normal", "<u8", 2), ("truth", "<u8")])
_SIZE = 16


def prompt_key(prompt: Iterable[Mapping[str, Any]], ground_truth: str) -> bytes:
    """The bytes of one :data:`KEY` (40): of the prompt's roles and contents, and of the ground truth.

    ``normal`` is of the prompt with runs of white space as one space and case folded.
    """
    exact = normal = ""
    for message in prompt:
        role, text = message["role"], message["content"]
        folded = " ".join(text.split()).casefold()
        # With their lengths before them, two lists of texts are the same only if each text is.
        exact += f"{len(role)},{len(text)}:{role}{text}"
        normal += f"{len(role)},{len(folded)}:{role}{folded}"
    return (
        blake2b(exact.encode(), digest_size=_SIZE).digest()
        + blake2b(normal.encode(), digest_size=_SIZE).digest()
        + blake2b(ground_truth.encode(), digest_size=8).digest()
    )


def keys_from(parts: Iterable[bytes]) -> NDArray[np.void]:
    """Keys of consecutive rows as an array of :data:`KEY`."""
    return np.frombuffer(b"".join(parts), dtype=KEY)
