"""What a reply means, whatever is in it; and what becomes of any score."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.errors import RewardReplyError
from reward.verl_client.call import Call
from reward.verl_client.replies import ServerScore, read_reply, request_body
from reward.verl_client.retries import RETRIED_STATUSES, Failure

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["score", "tokens", "x"]), inner),
    max_leaves=6,
)
STATUS = st.just(200) | st.sampled_from(sorted(RETRIED_STATUSES)) | st.integers(100, 599)


@given(STATUS, st.text(max_size=20), st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_reply_is_a_finite_score_a_retry_or_an_error(status: int, retry_after: str, content: bytes) -> None:
    try:
        got: object = read_reply("http://h:1", status, retry_after, content, 3)
    except RewardReplyError as error:
        got = str(error)
    if isinstance(got, str):
        assert status not in RETRIED_STATUSES
        assert got.startswith("reward server http://h:1: ")
    elif status in RETRIED_STATUSES:
        assert isinstance(got, Failure)
        assert got.cause == f"HTTP {status}"
        assert got.retry_after >= 0
    else:
        assert status == 200
        assert isinstance(got, ServerScore)
        assert math.isfinite(got.raw_score)
        assert got.raw_score == json.loads(content)["score"]
        assert got.attempts == 3


@pytest.mark.parametrize(
    ("body", "tokens", "dropped", "truncated"),
    [
        ({"score": 1}, None, None, False),
        ({"score": 1, "tokens": 7, "dropped_tokens": 0, "truncated": False}, 7, 0, False),
        ({"score": 1, "tokens": 7, "dropped_tokens": 9, "truncated": True}, 7, 9, True),
        ({"score": 1, "tokens": "7", "dropped_tokens": True, "truncated": 1}, None, None, False),
    ],
)
def test_what_the_server_tells_beside_the_score(
    body: dict[str, object], tokens: int | None, dropped: int | None, truncated: bool
) -> None:
    got = read_reply("http://h:1", 200, "", json.dumps(body).encode(), 1)
    assert got == ServerScore(1.0, truncated, 1, tokens, dropped)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "(an empty reply)"),
        (b"<html>", "<html>"),
        (b'{"detail": "no", "reason": "x"}', "no"),
        (b'{"detail": [1]}', '{"detail": [1]}'),
        (b'"' + b"x" * 10_000, '"' + "x" * 299),
        (b'{"detail": "' + b"x" * 10_000 + b'"}', "x" * 300),
    ],
)
def test_what_a_refusal_says(content: bytes, said: str) -> None:
    with pytest.raises(RewardReplyError) as error:
        read_reply("http://h:1", 422, "", content, 1)
    assert str(error.value) == f"reward server http://h:1: HTTP 422: {said}"
    for token_file, remedy in (
        (None, "no token was sent: set REWARD_SERVER"),
        ("/t", "REWARD_SERVER_TOKEN_FILE /t holds"),
    ):
        with pytest.raises(RewardReplyError) as error:
            read_reply("http://h:1", 401, "", content, 1, token_file)
        assert f"HTTP 401: {said}; {remedy}" in str(error.value)


@given(st.text(), st.text())
def test_request_is_json_in_utf8(prompt: str, response: str) -> None:
    """Of texts without lone surrogates, which hypothesis leaves out as well."""
    assert json.loads(request_body(prompt, response).decode("utf-8")) == {"prompt": prompt, "response": response}


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_every_result_has_the_same_finite_keys(raw: float, low: float, width: float) -> None:
    limits = {"server_url": "http://h:1", "min_score": repr(low), "max_score": repr(low + width)}
    call = Call("d", limits)
    call.read("r", "g")
    result = call.scored(ServerScore(raw, False, 1))
    assert list(result) == ["score", "raw_score", "status", "clamped", "truncated", "attempts", "latency_s"]
    assert all(type(value) is float and math.isfinite(value) for value in result.values())
    assert low <= result["score"] <= low + width
    assert result["clamped"] == float(not low <= raw <= low + width)
    assert result.keys() == call.scored(None).keys()
