"""Look at parquet files through `python -m data_prep.sample`, in a process of its own.

A login node may lack pyarrow, and pyarrow takes longer to import than a job takes to render; a broken file can end
only that process.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from singularity.toolkit import TOOLKIT

_ROWS = 512
_TIMEOUT_S = 60.0


class SampleError(Exception):
    """The files could not be looked at; the message says why."""


def sample_files(paths: Sequence[Path], *, max_prompt_length: int, tokenizer: Path) -> list[dict[str, Any]]:
    """One report for each file, as `data_prep.sample.Report` describes it.

    Raises:
        SampleError: there is no pyarrow, or the command failed or took longer than a minute.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise SampleError("there is no pyarrow in this Python")
    command = [sys.executable, "-m", "data_prep.sample", "--json", "--rows", str(_ROWS)]
    command += ["--max-prompt-length", str(max_prompt_length), "--tokenizer", str(tokenizer), "--"]
    # The toolkit's own data_prep, wherever the user stands.
    environment = {**os.environ, "PYTHONPATH": str(TOOLKIT), "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("PYTHONSAFEPATH", None)
    try:
        done = subprocess.run(
            [*command, *map(str, paths)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SampleError(f"reading them took longer than {_TIMEOUT_S:g} s") from error
    try:
        reports = json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise SampleError(f"data_prep.sample failed: {last[0][:300]}") from error
    if not isinstance(reports, list) or len(reports) != len(paths):
        raise SampleError(f"data_prep.sample told of {len(reports)} files instead of {len(paths)}")
    return reports
