"""How vLLM's and SGLang's servers are asked for logits of token ids, and what their answers mean.

Pure: requests are made and answers read here, :mod:`reward.backends.upstream` sends and receives.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reward.backends.interface import Tokens
from reward.errors import UpstreamError


class Wire(Protocol):
    """The dialect of one kind of server."""

    @property
    def name(self) -> str:
        """As in ``--backend``."""

    @property
    def path(self) -> str:
        """Where pairs are POSTed to."""

    @property
    def refusals(self) -> frozenset[int]:
        """Statuses that tell of the request, not of the server: asking again changes nothing."""

    def body(self, batch: Sequence[Tokens]) -> dict[str, Any]:
        """The JSON of one request."""

    def read(self, answer: Any, batch: Sequence[Tokens]) -> list[Sequence[float]]:
        """The logits of each pair, one a label, from an answer with status 200; NaN where it has null.

        Raises:
            UpstreamError: the answer is not what this server sends, or the upstream saw other tokens.
        """


@dataclass(frozen=True)
class VllmWire:
    """``POST /pooling`` of a vLLM server of a classifier (vllm/entrypoints/pooling/, 0.32.0).

    ``/classify`` would do as well, but turns a NaN into a 500 without a reason: its JSON cannot hold one.
    Here each output is the base64 of float32 values, the bits as the model gave them.

    Attributes:
        model: the name under which the server serves its model.
        activation: ask for what vLLM makes of the logits by itself: a softmax, for one label a sigmoid.
    """

    model: str
    activation: bool = False
    name: str = "vllm"
    path: str = "/pooling"
    refusals: frozenset[int] = frozenset({400, 413, 422})

    def body(self, batch: Sequence[Tokens]) -> dict[str, Any]:
        """See :class:`Wire`. Lists of integers are token ids, to which vLLM adds nothing."""
        return {
            "model": self.model,
            "task": "classify",
            "input": [list(pair.input_ids) for pair in batch],
            "use_activation": self.activation,
            "encoding_format": "base64",
            "embed_dtype": "float32",
            "endianness": "little",
        }

    def read(self, answer: Any, batch: Sequence[Tokens]) -> list[Sequence[float]]:
        """See :class:`Wire`. vLLM counts the tokens of the request, not of each pair."""
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or len(rows) != len(batch):
            raise UpstreamError(f"{self.path}: expected data for {len(batch)} pairs, got {_shown(answer)}")
        usage = answer.get("usage")
        counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        sent = sum(len(pair) for pair in batch)
        if counted != sent:
            raise UpstreamError(f"{self.path}: sent {sent} tokens, vLLM scored {counted}")
        results: list[Sequence[float] | None] = [None] * len(batch)
        for row in rows:
            index = row.get("index") if isinstance(row, dict) else None
            if not isinstance(index, int) or not 0 <= index < len(batch) or results[index] is not None:
                raise UpstreamError(f"{self.path}: expected one row for each pair, got {_shown(row)}")
            results[index] = _floats(row.get("data"), self.path)
        return [result for result in results if result is not None]


def _floats(text: Any, path: str) -> Sequence[float]:
    try:
        raw = base64.b64decode(text, validate=True)
        return struct.unpack(f"<{len(raw) // 4}f", raw)
    except (TypeError, ValueError, binascii.Error, struct.error) as error:
        raise UpstreamError(f"{path}: expected base64 of float32 values, got {_shown(text)}") from error


@dataclass(frozen=True)
class SglangWire:
    """``POST /classify`` of an SGLang server with ``--is-embedding`` (srt/entrypoints/http_server.py, 0.5.23).

    Not ``/v1/classify``: that one answers with a softmax, which is 1.0 for every pair where there is one label
    (openai/serving_classify.py). A NaN is a 500 for the whole batch, "Internal Server Error", since JSON has none.
    """

    name: str = "sglang"
    path: str = "/classify"
    refusals: frozenset[int] = frozenset({400, 413, 422, 500})

    def body(self, batch: Sequence[Tokens]) -> dict[str, Any]:
        """See :class:`Wire`. A list of lists, also for one pair, is answered by a list."""
        return {"input_ids": [list(pair.input_ids) for pair in batch]}

    def read(self, answer: Any, batch: Sequence[Tokens]) -> list[Sequence[float]]:
        """See :class:`Wire`. Each output comes as ``{"embedding": [...], "meta_info": {"prompt_tokens": n}}``."""
        if not isinstance(answer, list) or len(answer) != len(batch):
            raise UpstreamError(f"{self.path}: expected a list of {len(batch)} outputs, got {_shown(answer)}")
        results: list[Sequence[float]] = []
        for pair, output in zip(batch, answer, strict=True):
            values = output.get("embedding") if isinstance(output, dict) else None
            meta = output.get("meta_info") if isinstance(output, dict) else None
            if not isinstance(values, list) or not isinstance(meta, dict):
                raise UpstreamError(f"{self.path}: expected embedding and meta_info, got {_shown(output)}")
            reason = meta.get("finish_reason")
            if isinstance(reason, dict) and reason.get("type") == "abort":
                raise UpstreamError(f"{self.path}: SGLang gave a pair up: {_shown(reason)}")
            # --allow-auto-truncate cuts without a word.
            if meta.get("prompt_tokens") != len(pair):
                raise UpstreamError(
                    f"{self.path}: sent {len(pair)} tokens, SGLang scored {meta.get('prompt_tokens')}"
                )
            results.append([_number(value, self.path) for value in values])
        return results


def _number(value: Any, path: str) -> float:
    if value is None:  # what orjson makes of NaN
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UpstreamError(f"{path}: expected a number, got {_shown(value)}")
    return float(value)


def _shown(value: Any, most: int = 200) -> str:
    """The beginning of a JSON value, for a message."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= most else f"{text[:most]}..."
