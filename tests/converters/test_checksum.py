"""CRC-32 of whatever library is there, and of joined bytes."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from pathlib import Path

from converters.storage import checksum

ROOT = Path(__file__).resolve().parents[2]


def test_it_is_the_crc_of_zip_files() -> None:
    data = random.Random(1).randbytes(100_003)
    assert checksum.crc32(data) == zlib.crc32(data)
    assert checksum.crc32(data[7:], checksum.crc32(data[:7])) == zlib.crc32(data)
    parts = data[:40_000], data[40_000:]
    assert checksum.combine(*map(zlib.crc32, parts), len(parts[1])) == zlib.crc32(data)


def test_zlib_does_where_isal_is_not_installed() -> None:
    code = (
        "import sys; sys.modules['isal'] = None; from converters.storage import checksum; "
        "print(checksum.crc32.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "zlib\n"
