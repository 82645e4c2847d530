"""Hash the image and the data files of a job beside its training, gently, into RUN_DIR/hashes.json.

    python3 hash_files.py RUN_DIR FILE...

A process of its own, started by path with the lowest priority. It is the only writer of hashes.json, and the head
the only one of manifest.json, so that no update of either is lost; `manifest.read_manifest` joins them.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

HASHES = "hashes.json"
_CHUNK = 4 << 20
# The trainer reads from the same shared file system.
_BYTES_PER_S = 250e6


def hash_file(path: Path, bytes_per_s: float = _BYTES_PER_S) -> Dict[str, Any]:
    """{size, mtime, sha256} of a file, or {error} when it cannot be read to its end or changes meanwhile."""
    digest = hashlib.sha256()
    started, done = time.monotonic(), 0
    try:
        with path.open("rb") as stream:
            before = os.fstat(stream.fileno())
            while True:
                chunk = stream.read(_CHUNK)
                if not chunk:
                    break
                digest.update(chunk)
                done += len(chunk)
                if hasattr(os, "posix_fadvise"):  # the page cache is the job's memory
                    os.posix_fadvise(stream.fileno(), done - len(chunk), len(chunk), os.POSIX_FADV_DONTNEED)
                time.sleep(max(0.0, done / bytes_per_s - (time.monotonic() - started)))
            after = os.fstat(stream.fileno())
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or done != after.st_size:
        return {"error": "changed while it was read"}
    return {"size": done, "mtime": after.st_mtime, "sha256": digest.hexdigest()}


def _write(path: Path, data: Dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def main(words: List[str]) -> int:
    """Hash every file; what is known so far is in the file after each."""
    os.nice(19)
    target = Path(words[0]) / HASHES
    hashes: Dict[str, Any] = {}
    for name in words[1:]:
        hashes[name] = hash_file(Path(name))
        _write(target, hashes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
