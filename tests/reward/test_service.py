"""Loading, ready, failed and ending, without HTTP."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from pathlib import Path

import pytest
from scheduling_fakes import LengthBackend, LengthEncoder, no_failure

from reward.backends.options import ModelOptions
from reward.errors import ModelDirError, NotReadyError, TooLongError, TooManyPairsError
from reward.serving.options import ServerOptions
from reward.serving.service import Service, load

OPTIONS = ServerOptions(ModelOptions(Path("a/model")), queue=8)


class Encoder(LengthEncoder):
    max_length = 77


def options(model: Path, **more: object) -> ServerOptions:
    return ServerOptions(ModelOptions(model, device="cpu", threads=1, calibrate_s=0), **more)  # type: ignore[arg-type]


def test_load_gives_the_options_on(model_dir: Path) -> None:
    tokenizer, backend = load(options(model_dir, truncate="error", max_length=50))
    backend.close()
    assert tokenizer.max_length == 50
    with pytest.raises(TooLongError):
        tokenizer.encode("p", "12 34 " * 100)
    assert backend.info()["dtype"] == "float32"


def test_load_refuses_chat_without_a_template(model_dir: Path) -> None:
    with pytest.raises(ModelDirError, match="chat template"):
        load(options(model_dir, input="chat"))


def test_the_life_of_a_service() -> None:
    async def main() -> None:
        loaded, backend = threading.Event(), LengthBackend()
        backend.gate.set()

        def slowly() -> tuple[Encoder, LengthBackend]:
            loaded.wait(30)
            return Encoder(), backend

        service = Service(OPTIONS, slowly, no_failure)  # type: ignore[arg-type]
        service.start()
        assert (service.status, service.info().ready) == ("loading", False)
        assert service.info().limits.max_length is None
        with pytest.raises(NotReadyError, match="the model is not ready: loading"):
            await service.score([("", "a")])
        with pytest.raises(TooManyPairsError, match="9 pairs in one call, --queue is 8"):
            await service.score([("", "a")] * 9)
        loaded.set()
        while service.status != "ready":
            await asyncio.sleep(0.01)
        assert [result.score.value for result in await service.score([("", "abc")])] == [3.0]
        limits = service.info().limits
        assert (limits.queue, limits.max_length, limits.batch_tokens, limits.lanes) == (8, 77, 100, 1)
        await asyncio.to_thread(service.close)
        assert (service.status, service.info().ready, backend.closed) == ("shutting down", False, True)
        with pytest.raises(NotReadyError):
            await service.score([("", "a")])
        page = service.metrics.page().decode()
        assert 'reward_errors_total{reason="not_ready"} 2.0' in page
        assert 'reward_errors_total{reason="too_many_pairs"} 1.0' in page
        assert "reward_ready 0.0" in page

    asyncio.run(main())


@pytest.mark.parametrize("error", [ModelDirError("a/model: no weights"), RuntimeError("a fault")])
def test_a_failed_start_is_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    failures: queue.Queue[BaseException] = queue.Queue()

    def fail() -> tuple[Encoder, LengthBackend]:
        raise error

    service = Service(OPTIONS, fail, failures.put)  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR):
        service.start()
        assert failures.get(timeout=30) is error
    assert service.status == f"failed: {error}"
    # The message of the one says all; the other is a fault that needs its place.
    assert ("Traceback" in caplog.text) == isinstance(error, RuntimeError)
    service.close()
