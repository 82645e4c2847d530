"""The client's bearer token: one read in a process, outages of the file system (rotation: test_client_async)."""

from __future__ import annotations

from pathlib import Path

import pytest
from reward_servers import Stub, reply, scored, stub_server

from reward.client import RewardConfigError, RewardOutageError, RewardReplyError, compute_score
from reward.token_file import known_token, read_token


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER_URL", "LOG_PATH", "ON_OUTAGE", "DEADLINE", "SERVER_TOKEN_FILE"):
        monkeypatch.delenv(f"REWARD_{name}", raising=False)


def score(stub: Stub, token: Path, deadline: float = 60) -> dict[str, float]:
    return compute_score("d", "r", "g", server_url=stub.url, server_token_file=str(token), deadline=deadline)


def sent(stub: Stub) -> list[str]:
    return [headers["Authorization"] for headers in stub.headers]


def unreadable(path: Path) -> Path:
    """A file whose read fails with EIO, as that of a shared file system may."""
    path.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"):
        path.read_bytes()
    return path


def test_file_is_read_once_in_a_process(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with stub_server(scored(1.0)) as stub:
        score(stub, token)
        token.unlink()
        score(stub, token)
    assert sent(stub) == ["Bearer first"] * 2


def test_failing_read_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = unreadable(tmp_path / "token")
    good = tmp_path / "good"
    good.write_text("first")

    def read_then_repaired(path: Path) -> str:
        try:
            return known_token(path)
        except OSError:
            good.replace(token)
            raise

    monkeypatch.setattr("reward.verl_client.transport.known_token", read_then_repaired)
    with stub_server(scored(1.0)) as stub:
        result = score(stub, token)
    assert (result["score"], result["status"], result["attempts"]) == (1.0, 0, 2)
    assert sent(stub) == ["Bearer first"]


def test_read_that_fails_until_the_deadline_is_an_outage(tmp_path: Path) -> None:
    token = unreadable(tmp_path / "token")
    with stub_server(scored(1.0)) as stub:
        with pytest.raises(RewardOutageError, match=f"REWARD_SERVER_TOKEN_FILE {token}: .*Input/output error"):
            score(stub, token, deadline=1)
        assert stub.requests == []


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"\xff\xfe", "é".encode()])
def test_file_without_a_token(tmp_path: Path, content: bytes) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    with stub_server(scored(1.0)) as stub:
        with pytest.raises(RewardConfigError, match=f"REWARD_SERVER_TOKEN_FILE {token}: .*expected one token"):
            score(stub, token)
        assert stub.requests == []


def test_file_that_others_can_read_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_file, closed = tmp_path / "open", tmp_path / "closed"
    for file, mode in ((open_file, 0o640), (closed, 0o600)):
        file.write_text("s3cret")
        file.chmod(mode)
        for _ in range(3):
            assert read_token(file) == "s3cret"
    (told,) = caplog.messages
    assert told == f"token file {open_file}: other users can read it (mode 0640); chmod 600 it"


def test_refused_token_is_an_error(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    with stub_server(scored(1.0), reply(401)) as stub:
        score(stub, token)
        with pytest.raises(RewardReplyError, match=f"HTTP 401: .*REWARD_SERVER_TOKEN_FILE {token} holds another"):
            score(stub, token)
        token.write_text("second")  # refused, too: no endless reading
        with pytest.raises(RewardReplyError, match="HTTP 401"):
            score(stub, token)
    assert sent(stub) == [f"Bearer {word}" for word in ("first", "first", "first", "second")]
