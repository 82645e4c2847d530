"""Stubs of the servers that a reward server may stand before, exact in what they take and answer.

Sources: vLLM 0.32.0 (vllm/entrypoints/pooling/pooling/{protocol,serving}.py, openai/models/serving.py,
serve/instrumentator/basic.py, serve/middleware/authenticate.py) and SGLang 0.5.23
(sglang/srt/entrypoints/http_server.py, managers/tokenizer_manager.py, utils/auth.py). The answers have the keys of
answers that both servers gave on a CPU; SGLang by hand, with stand-ins for the GPU kernels that it imports.
"""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAN_TOKEN = 511
Answer = tuple[int, Any]


def logit(ids: Sequence[int]) -> float:
    """What the stubs "compute": exact in float32, different for the same tokens in another order."""
    if NAN_TOKEN in ids:
        return math.nan
    return sum((place % 7 + 1) * token for place, token in enumerate(ids)) / 64 - 100.0


@dataclass
class Upstream:
    """A stub's settings, and what it was asked.

    Attributes:
        key: API key that requests need.
        max_tokens: longest input that it takes.
        labels: outputs of its classifier.
        generation: it serves a generative model.
        damaged: its outputs are NaN.
        replies: answers that take the place of the next ones, in order; a number: a pause of so many seconds.
        crowd: no POST is answered before that many have been there at once.
        bodies: JSON of the POSTs so far.
        peak: most POSTs at a time so far.
        keep_open: False closes each connection after one answer without a word of it.
    """

    kind: str
    model: str = "/models/reward"
    key: str | None = None
    max_tokens: int = 10**9
    labels: int = 1
    generation: bool = False
    damaged: bool = False
    architecture: str = "LlamaForSequenceClassification"
    old_names: bool = False
    heeds_activation: bool = True
    truncates: bool = False
    replies: list[Answer | float] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keep_open: bool = True
    url: str = ""
    peak: int = 0
    in_flight: int = 0
    crowd: int = 0
    crowded: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, path: str) -> Answer:
        """The answer to a GET."""
        if self.kind == "vllm" and path == "/v1/models":
            card = {"id": "served-name", "object": "model", "root": self.model, "max_model_len": self.max_tokens}
            return 200, {"object": "list", "data": [card]}
        if self.kind == "vllm" and path == "/version":
            return 200, {"version": "0.32.0"}
        if self.kind == "sglang" and path == ("/get_model_info" if self.old_names else "/model_info"):
            info: dict[str, Any] = {"model_path": self.model, "is_generation": self.generation}
            return 200, info if self.old_names else {**info, "architectures": [self.architecture]}
        return 404, {"detail": "Not Found"}

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """The answer to a POST."""
        if self.kind == "vllm" and path == "/pooling":
            return self._pooling(body)
        if self.kind == "sglang" and path == "/classify":
            return self._classify(body)
        return 404, {"detail": "Not Found"}

    def _pooling(self, body: dict[str, Any]) -> Answer:
        if self.generation:
            return 400, _vllm_error("Unsupported task: 'classify' Supported tasks: ('generate',)")
        if body["model"] != "served-name":
            return 404, _vllm_error(f"The model `{body['model']}` does not exist.")
        assert body["task"] == "classify"
        assert (body["encoding_format"], body["embed_dtype"], body["endianness"]) == (
            "base64",
            "float32",
            "little",
        )
        rows = []
        for index, ids in enumerate(body["input"]):
            if len(ids) > self.max_tokens:
                return 400, _vllm_error(f"This model's maximum context length is {self.max_tokens} tokens.")
            value = math.nan if self.damaged else logit(ids)
            if body["use_activation"] or not self.heeds_activation:
                value = 1 / (1 + math.exp(-value))
            data = struct.pack(f"<{self.labels}f", *[value] * self.labels)
            rows.append({"index": index, "object": "pooling", "data": base64.b64encode(data).decode()})
        total = sum(len(ids) for ids in body["input"])
        usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0}
        return 200, {"id": "pooling-1", "object": "list", "model": "served-name", "data": rows, "usage": usage}

    def _classify(self, body: dict[str, Any]) -> Answer:
        if self.generation:
            return 400, {"error": {"message": "This model does not appear to be an embedding model by default."}}
        outputs = []
        for ids in body["input_ids"]:
            if len(ids) >= self.max_tokens:
                if not self.truncates:
                    message = f"The input ({len(ids)} tokens) is longer than the model's context length"
                    return 400, {"error": {"message": f"{message} ({self.max_tokens} tokens)."}}
                ids = ids[: self.max_tokens]
            value = logit(ids)
            if math.isnan(value):
                return 500, "Internal Server Error"
            meta = {"id": "1", "finish_reason": {"type": "length", "length": 0}, "prompt_tokens": len(ids)}
            outputs.append(
                {"embedding": [value] * self.labels, "meta_info": {**meta, "weight_version": "default"}}
            )
        return 200, outputs


def _vllm_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # one packet for head and body: two would wait for each other (delayed ACK)
    upstream: Upstream

    def do_GET(self) -> None:
        self._answer(self.upstream.get(self.path) if self._allowed() else (401, {"error": "Unauthorized"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            self._answer((401, {"error": "Unauthorized"}))
            return
        with self.upstream.lock:
            self.upstream.bodies.append(body)
            self.upstream.in_flight += 1
            self.upstream.peak = max(self.upstream.peak, self.upstream.in_flight)
            if self.upstream.in_flight >= self.upstream.crowd > 0:
                self.upstream.crowded.set()
            scripted = self.upstream.replies.pop(0) if self.upstream.replies else None
        if self.upstream.crowd:
            self.upstream.crowded.wait(60)
        if isinstance(scripted, float):
            self.server.stopping.wait(scripted)  # type: ignore[attr-defined]
            scripted = None
        with self.upstream.lock:
            self.upstream.in_flight -= 1
        self._answer(scripted or self.upstream.post(self.path, body))

    def _allowed(self) -> bool:
        return self.upstream.key is None or self.headers.get("Authorization") == f"Bearer {self.upstream.key}"

    def _answer(self, answer: Answer) -> None:
        status, body = answer
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # the other side gave up
            self.wfile.write(content)
            self.wfile.flush()
        self.close_connection |= not self.upstream.keep_open

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        super().__init__(address, handler)
        self.stopping = threading.Event()
        self.connections: list[socket.socket] = []

    def finish_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().finish_request(request, client_address)

    def drop_connections(self) -> None:
        """As the kernel does it for a process that ended."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def upstream_server(kind: str, port: int = 0, **settings: Any) -> Iterator[Upstream]:
    """A stub of a running vLLM or SGLang server."""
    upstream = Upstream(kind, **settings)
    server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"upstream": upstream}))
    upstream.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield upstream
    finally:
        server.stopping.set()
        upstream.crowded.set()
        server.shutdown()
        server.server_close()
        server.drop_connections()
        thread.join()
