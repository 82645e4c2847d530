"""What the command line says about the model and where it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from reward.errors import ModelDirError

BackendName = Literal["transformers", "vllm", "sglang"]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2"]
Packing = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class ModelOptions:
    """The model and how it is computed; None and "auto" are decided at the start.

    Attributes:
        model: directory that :func:`reward.model_dir.check_model_dir` accepts.
        backend: the model in this process (transformers), or a running server of vLLM or SGLang.
        upstream: URL of that server.
        upstream_key_file: file with its API key.
        device: auto is cuda where there is one.
        dtype: auto is bfloat16 on cuda (float16 where the GPU lacks it), float32 on cpu.
        attention: implementation of transformers; auto is its own choice for the model.
        threads: CPU threads in all, None: as many as torch takes by itself.
        replicas: CUDA: copies of the model, one a GPU, None: one a visible GPU. CPU: batches computed side by
            side with the threads shared among them, None: measured.
        batch_tokens: tokens of a batch, None: measured.
        packing: pairs one after the other in one row, without padding; auto: where the scores stay the same.
        calibrate_s: most seconds that measuring may take; 0 does not measure.
        trust_remote_code: run code that lies in the model's directory.
    """

    model: Path
    backend: BackendName = "transformers"
    upstream: str | None = None
    upstream_key_file: Path | None = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    attention: Attention = "auto"
    threads: int | None = None
    replicas: int | None = None
    batch_tokens: int | None = None
    packing: Packing = "auto"
    calibrate_s: float = 10.0
    trust_remote_code: bool = False


def checked_upstream(text: str) -> str:
    """The URL of a server of vLLM or SGLang, without a slash at its end.

    Raises:
        ModelDirError: it is none, or holds a user name.
    """
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises where it is no port
        valid = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
    except ValueError:
        valid = False
    if not valid:
        raise ModelDirError(f"--upstream is {text!r}; expected the URL of a running server, as http://HOST:PORT")
    if parts.username is not None:
        raise ModelDirError("--upstream holds a user name; put the key into a file for --upstream-key-file")
    return text.rstrip("/")
