"""A running vLLM or SGLang server that computes the logits: we tokenise, batch and truncate, it does the rest."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter

from reward.backends.interface import Tokens
from reward.backends.options import ModelOptions, checked_upstream
from reward.backends.self_test import TOLERANCE, known_pairs, self_test
from reward.backends.upstream_wire import SglangWire, VllmWire, Wire
from reward.errors import ModelDirError, UpstreamError, UpstreamRefusedError
from reward.token_file import read_token

if TYPE_CHECKING:
    from reward.inputs import PairTokenizer

log = logging.getLogger("reward.backends.upstream")

# Both servers batch what they are sent by themselves; this keeps several of their own batches waiting there.
_LANES = 4
_BATCH_TOKENS = 8192
_CONNECT_S, _READ_S, _ASK_S = 5.0, 120.0, 20.0
_SHOWN_CHARS = 300
# SGLang's heads have a bias which stays random where the checkpoint has none (sglang issue 38768, 0.5.23).
_RANDOM_BIAS = frozenset({"Qwen2ForSequenceClassification", "Qwen3ForSequenceClassification"})


class UpstreamModel:
    """A :class:`reward.backends.interface.Backend` behind HTTP. One keep-alive connection a lane."""

    def __init__(
        self,
        url: str,
        wire: Wire,
        *,
        key: str | None = None,
        lanes: int = _LANES,
        batch_tokens: int = _BATCH_TOKENS,
    ) -> None:
        """Nothing is sent before the first ``forward``."""
        self.url = url
        self.wire = wire
        self.lanes = lanes
        self.batch_tokens = batch_tokens
        self.packs = True
        self.about: dict[str, Any] = {}
        self._sessions = [_session(key) for _ in range(lanes)]

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        """See :class:`reward.backends.interface.Backend`.

        Raises:
            UpstreamError: no answer, or one that cannot be understood; the server may come back.
            UpstreamRefusedError: the server does not take the only pair of this batch.
            RuntimeError: it does not take one of several, and did not say which.
        """
        try:
            rows = self.wire.read(self._post(batch, lane), batch)
        except UpstreamRefusedError as error:
            if len(batch) > 1:
                raise RuntimeError(str(error)) from error
            raise
        if any(len(row) != 1 for row in rows):
            raise UpstreamError(f"{self.url}{self.wire.path}: {len(rows[0])} values a pair, a reward model has 1")
        return [row[0] for row in rows]

    def _post(self, batch: Sequence[Tokens], lane: int) -> Any:
        target = f"{self.url}{self.wire.path}"
        body = json.dumps(self.wire.body(batch), separators=(",", ":")).encode()
        reply = _send(
            lambda: self._sessions[lane].post(
                target,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=(_CONNECT_S, _READ_S),
                allow_redirects=False,
            ),
            target,
        )
        if reply.status_code in self.wire.refusals:
            raise UpstreamRefusedError(f"{target}: HTTP {reply.status_code}: {_message(reply)}")
        if reply.status_code != 200:
            raise UpstreamError(f"{target}: HTTP {reply.status_code}: {_message(reply)}")
        try:
            return reply.json()
        except ValueError as error:
            raise UpstreamError(f"{target}: the answer is not JSON: {reply.text[:_SHOWN_CHARS]!r}") from error

    def info(self) -> Mapping[str, Any]:
        """See :class:`reward.backends.interface.Backend`."""
        return {"name": self.wire.name, "url": self.url, **self.about, "packing": self.packs}

    def close(self) -> None:
        """Close the connections."""
        for session in self._sessions:
            session.close()


def connect(options: ModelOptions, tokenizer: PairTokenizer) -> UpstreamModel:
    """Find the server of ``options.upstream`` and make sure that it gives raw logits of one label.

    Waits for nothing: the server must be up. It must hold the model of ``options.model``, whose tokenizer is
    used here; of that only the path can be compared, and another one is told in the log.

    Raises:
        ModelDirError: it is not there, refuses the key, serves no one-label classifier, takes shorter texts than
            the tokenizer may give, or answers with something else than logits.
    """
    url = checked_upstream(options.upstream or "")
    key = _key(options)
    _refuse_segments(options, tokenizer)
    find = {"vllm": _find_vllm, "sglang": _find_sglang}[options.backend]
    try:
        with _session(key) as session:
            wire, about = find(session, url, options)
        model = UpstreamModel(
            url,
            wire,
            key=key,
            lanes=options.replicas or _LANES,
            batch_tokens=options.batch_tokens or _BATCH_TOKENS,
        )
        model.about |= about
        _refuse_unfit(model, tokenizer)
    except UpstreamError as error:
        raise ModelDirError(
            f"--upstream: {error}. Start the server before this one, or correct the URL; see --upstream-key-file "
            "where it wants a key."
        ) from error
    log.info("upstream %s: %s", url, model.info())
    return model


def _key(options: ModelOptions) -> str | None:
    if options.upstream_key_file is None:
        return None
    try:
        return read_token(options.upstream_key_file)
    except (OSError, ValueError) as error:
        raise ModelDirError(f"--upstream-key-file {options.upstream_key_file}: {error}") from error


def _refuse_segments(options: ModelOptions, tokenizer: PairTokenizer) -> None:
    """Neither server takes token_type_ids beside token ids: the second text would count as the first."""
    if any(any(pair.token_type_ids) for pair in known_pairs(tokenizer)):
        raise ModelDirError(
            f"{options.model}: its tokenizer marks prompt and response by token_type_ids, which a "
            f"{options.backend} server does not take with token ids; serve this model with --backend transformers"
        )


def _find_vllm(session: requests.Session, url: str, options: ModelOptions) -> tuple[Wire, dict[str, Any]]:
    models = _get(session, f"{url}/v1/models")
    cards = models.get("data") if isinstance(models, dict) else None
    if not isinstance(cards, list) or not cards or not isinstance(cards[0], dict) or "id" not in cards[0]:
        raise ModelDirError(f"{url}/v1/models: expected vLLM's list of models; is that a vLLM server?")
    card = cards[0]  # LoRA adapters follow the model that the server was started with
    version = _get(session, f"{url}/version")
    _warn_of_another_model(options, card.get("root"))
    return VllmWire(str(card["id"])), {
        "model": card.get("root"),
        "version": version.get("version") if isinstance(version, dict) else None,
    }


def _find_sglang(session: requests.Session, url: str, options: ModelOptions) -> tuple[Wire, dict[str, Any]]:
    try:
        found = _get(session, f"{url}/model_info")
    except UpstreamError:
        found = _get(session, f"{url}/get_model_info")  # its name until 0.5.4
    if not isinstance(found, dict) or "is_generation" not in found:
        raise ModelDirError(f"{url}/model_info: expected SGLang's description; is that an SGLang server?")
    if found["is_generation"]:
        raise ModelDirError(f"{url} serves {found.get('model_path')} for generation; start it with --is-embedding")
    _warn_of_another_model(options, found.get("model_path"))
    architectures = found.get("architectures") or []
    if _RANDOM_BIAS.intersection(architectures):
        log.warning(
            "SGLang (0.5.23) gives the score of a %s a bias, which is random where the checkpoint has no "
            "score.bias, as those of transformers: all scores are shifted by one constant, another one after each "
            "start of SGLang (its issue 38768). Use vLLM or --backend transformers where that matters.",
            architectures[0],
        )
    return SglangWire(), {"model": found.get("model_path"), "architectures": architectures}


def _warn_of_another_model(options: ModelOptions, served: Any) -> None:
    if str(served).rstrip("/").rpartition("/")[2] != options.model.resolve().name:
        log.warning(
            "the upstream serves %s, the tokenizer is that of %s; make sure that they are the same model",
            served,
            options.model,
        )


def _refuse_unfit(model: UpstreamModel, tokenizer: PairTokenizer) -> None:
    """Try the server with what it will have to take.

    Raises:
        ModelDirError: it refuses, or its answers are no logits.
        UpstreamError: no answer.
    """
    pair = known_pairs(tokenizer)[0]
    try:
        rows = model.wire.read(model._post([pair], 0), [pair])
    except UpstreamRefusedError as error:
        raise ModelDirError(f"--upstream: {error}; is it started for a sequence classifier?") from error
    if len(rows[0]) != 1:
        raise ModelDirError(f"{model.url}: the classifier has {len(rows[0])} labels, a reward model has 1")
    try:
        ids = (list(pair.input_ids) * tokenizer.max_length)[: tokenizer.max_length]
        model.forward([Tokens(ids)], 0)
    except UpstreamRefusedError as error:
        raise ModelDirError(
            f"--upstream: {error}. Pairs may have {tokenizer.max_length} tokens: give --max-length as many as the "
            "server takes (of SGLang one less than its context length)"
        ) from error
    if isinstance(model.wire, VllmWire):
        _refuse_activation(model, model.wire, pair, rows[0][0])
    self_test(model, tokenizer, TOLERANCE["bfloat16"])  # the upstream's dtype is not ours to know


def _refuse_activation(model: UpstreamModel, wire: VllmWire, pair: Tokens, asked_raw: float) -> None:
    """A sigmoid cannot be told from a logit by its looks; that vLLM heeds use_activation can be.

    A server that does not know the parameter ignores it. One whose model has no activation (problem_type
    regression) answers alike to both requests too, by right: a logit outside of [0, 1] shows it.
    """
    probe = UpstreamModel(model.url, VllmWire(wire.model, activation=True), lanes=1)
    probe._sessions = model._sessions
    (activated,) = probe.forward([pair], 0)
    if activated != asked_raw or not 0 <= asked_raw <= 1:
        return
    raise ModelDirError(
        f"{model.url}: the score of a probe is {asked_raw:.6g} with use_activation and without: that may be a "
        "sigmoid, not a logit. Use vLLM 0.12 or later"
    )


def _get(session: requests.Session, target: str) -> Any:
    reply = _send(lambda: session.get(target, timeout=(_CONNECT_S, _ASK_S), allow_redirects=False), target)
    if reply.status_code != 200:
        raise UpstreamError(f"{target}: HTTP {reply.status_code}: {_message(reply)}")
    try:
        return reply.json()
    except ValueError as error:
        raise UpstreamError(f"{target}: the answer is not JSON: {reply.text[:_SHOWN_CHARS]!r}") from error


def _send(send: Callable[[], requests.Response], target: str) -> requests.Response:
    """The reply; a connection that broke is tried once more, as the server may have closed an idle one.

    Raises:
        UpstreamError: there is none.
    """
    started = time.monotonic()
    for last in (False, True):
        try:
            return send()
        except requests.Timeout as error:
            waited = time.monotonic() - started
            raise UpstreamError(f"{target}: no answer within {waited:.0f} s") from error
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            if last:
                raise UpstreamError(f"{target}: {_root(error)}") from error
        except requests.RequestException as error:
            raise UpstreamError(f"{target}: {_root(error)}") from error
    raise AssertionError("unreachable")


def _root(error: BaseException) -> str:
    """The innermost cause, without the wrappings of requests and urllib3."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"


def _session(key: str | None) -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # a proxy of the cluster must not see, or break, these requests
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=1, max_retries=0)
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    if key is not None:
        session.headers["Authorization"] = f"Bearer {key}"
    return session


def _message(reply: requests.Response) -> str:
    """What an error reply says, in the forms of both servers."""
    try:
        body = reply.json()
    except ValueError:
        return repr(reply.text[:_SHOWN_CHARS])
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text)[:_SHOWN_CHARS]
