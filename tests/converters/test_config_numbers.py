"""How many rows may be padding."""

from __future__ import annotations

import pytest

from converters.planning.padding import may_be_padding


@pytest.mark.parametrize(
    ("rows", "vocabulary", "expected"),
    [
        (1008, 1003, True),
        (151936, 151643, True),
        (40192, 32000, False),
        (40191, 32767, True),
        (512, 8, False),
        (512, 410, True),
        (512, 409, False),
        (512, 512, False),
        (512, 513, False),
    ],
)
def test_padding_is_bounded(rows: int, vocabulary: int, expected: bool) -> None:
    assert may_be_padding(rows, vocabulary) is expected
