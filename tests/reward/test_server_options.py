from __future__ import annotations

from pathlib import Path

import pytest

from reward import server
from reward.backends.options import ModelOptions, checked_upstream
from reward.errors import ModelDirError
from reward.serving.options import ServerOptions, from_args, parse


@pytest.fixture(autouse=True)
def no_defaults_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_PATH", "DEVICE", "SERVER_PORT"):
        monkeypatch.delenv(f"CONFIG_REWARD_{name}", raising=False)


def options(*argv: str) -> ServerOptions:
    return from_args(parse(argv), None)


def test_the_defaults_are_those_of_the_dataclasses() -> None:
    assert options("--model", "m") == ServerOptions(ModelOptions(Path("m")))


def test_every_option_arrives() -> None:
    given = options(
        *("--model", "m", "--backend", "vllm", "--upstream", "http://h:1", "--upstream-key-file", "k"),
        *("--host", "0.0.0.0", "--port", "9", "--device", "cpu", "--dtype", "float16", "--attention", "eager"),
        *(
            "--replicas",
            "2",
            "--threads",
            "3",
            "--batch-tokens",
            "4",
            "--packing",
            "off",
            "--calibrate-seconds",
            "0.5",
        ),
        *(
            "--input",
            "chat",
            "--truncate",
            "left",
            "--max-length",
            "5",
            "--queue",
            "6",
            "--max-request-bytes",
            "7",
        ),
        *("--read-timeout", "8", "--log-texts", "--trust-remote-code"),
    )
    model = ModelOptions(
        Path("m"), "vllm", "http://h:1", Path("k"), "cpu", "float16", "eager", 3, 2, 4, "off", 0.5, True
    )
    assert given == ServerOptions(model, "0.0.0.0", 9, "chat", "left", 5, None, 6, 7, 8.0, True)


def test_a_token_file_that_is_not_there_is_named_with_its_option(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--token-file .*/none: No such file.*holds one token"):
        server.token_of(tmp_path / "none")


def test_auto_batch_tokens_are_measured() -> None:
    assert options("--model", "m", "--batch-tokens", "auto").model.batch_tokens is None


def test_variables_of_the_environment_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFIG_REWARD_MODEL_PATH", "from/env")
    monkeypatch.setenv("CONFIG_REWARD_DEVICE", "cpu")
    monkeypatch.setenv("CONFIG_REWARD_SERVER_PORT", "1234")
    assert options() == ServerOptions(ModelOptions(Path("from/env"), device="cpu"), port=1234)
    assert options("--model", "m", "--device", "auto", "--port", "5") == ServerOptions(
        ModelOptions(Path("m")), port=5
    )


@pytest.mark.parametrize(
    ("argv", "variables", "message"),
    [
        ((), {}, "--model"),
        (("--model", "m"), {"DEVICE": "gpu"}, "CONFIG_REWARD_DEVICE='gpu': expected one of auto, cpu, cuda"),
        (("--model", "m"), {"SERVER_PORT": "http"}, "expected a port from 0 to 65535, got 'http'"),
        (("--model", "m", "--port", "65536"), {}, "expected a port"),
        (("--model", "m", "--queue", "0"), {}, "expected a whole number from 1, got '0'"),
        (("--model", "m", "--threads", "1025"), {}, "--threads: expected at most 1024, got '1025'"),
        (("--model", "m", "--replicas", "99999"), {}, "--replicas: expected at most 1024, got '99999'"),
        (("--model", "m", "--batch-tokens", "some"), {}, "expected a whole number from 1, got 'some'"),
        (("--model", "m", "--read-timeout", "nan"), {}, "expected seconds from 0, got 'nan'"),
        (("--model", "m", "--read-timeout", "0"), {}, "--read-timeout 0"),
        (("--model", "m", "--truncate", "middle"), {}, "invalid choice: 'middle'"),
        (("--model", "m", "--backend", "vllm"), {}, "--backend vllm needs --upstream URL"),
        (("--model", "m", "--upstream", "http://h"), {}, "--backend transformers takes no --upstream URL"),
        (("--model", "m", "--upstream-key-file", "k"), {}, "--upstream-key-file is the key of --upstream"),
    ],
)
def test_usage(
    argv: tuple[str, ...],
    variables: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"CONFIG_REWARD_{name}", value)
    with pytest.raises(SystemExit) as end:
        parse(argv)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://host/",
        "http://",
        "http://host?a=b",
        "http://[::1",
        "http://h:99999",
        "http://h:x",
    ],
)
def test_an_upstream_that_is_no_url(url: str) -> None:
    with pytest.raises(ModelDirError, match="expected the URL of a running server"):
        options("--model", "m", "--backend", "vllm", "--upstream", url)


def test_a_key_in_the_url_is_refused_and_not_told() -> None:
    with pytest.raises(ModelDirError, match="--upstream-key-file") as caught:
        checked_upstream("http://user:secret@host:1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["", "no host", "a" * 64, "host.invalid"])
def test_a_host_that_is_none(
    host: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # which main sets
    assert server.main(["--model", str(model_dir), "--host", host, "--port", "0"]) == 1
    assert capsys.readouterr().err.startswith(f"error: cannot listen on {host}:0: ")
