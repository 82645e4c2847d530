"""What the head makes of a signal, of a file system with a hiccup and of what nodes tell."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.supervisor import watch as watch_module
from launch.supervisor import worker
from launch.supervisor.control import Hub, Link
from launch.supervisor.parts import Parts
from launch.supervisor.ports import port_plan
from launch.supervisor.ray_head import RayHead
from launch.supervisor.settings import Settings, read_settings
from launch.supervisor.stalls import StallWatch
from launch.supervisor.verdict import Failure, JobFailed, note_failure
from launch.supervisor.watch import Watch
from launch.supervisor.worker import _another_failed, _serve, _shows

TOKEN = "t" * 64


def made(run_dir: Path, nodes: int = 1, *words: str) -> Settings:
    options = [
        "--run-dir", str(run_dir), "--checkpoint-dir", str(run_dir / "c"), "--nodes", str(nodes),
        "--ray-gpus-head", "1", "--ray-gpus-other", "1", "--ray-cpus", "2", *words, "::trainer", "true",
    ]  # fmt: skip
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": str(nodes), "SLURMD_NODENAME": "n1"}
    return read_settings(options, slurm)


@pytest.fixture
def hub():
    one = Hub("127.0.0.1", 0, TOKEN)
    yield one
    one.close()


def watching(settings: Settings, hub: Hub, signalled: int | None = None) -> Watch:
    parts = Parts(settings)
    return Watch(settings, hub, parts, RayHead(settings, port_plan(77), parts), lambda: signalled)


def failure_of_turn(watch: Watch) -> Failure:
    with pytest.raises(JobFailed) as caught:
        watch.turn()
    return caught.value.failure


# ---- signals


@pytest.mark.parametrize(
    ("number", "left_s", "kind"),
    [
        (signal.SIGUSR1, 300, "wall-time"),  # sbatch --signal=USR1@300
        (signal.SIGUSR1, 3600, "cancelled"),
        (signal.SIGTERM, 300, "cancelled"),  # scancel
        (signal.SIGTERM, 20, "wall-time"),
    ],
)
def test_a_signal_of_the_last_minutes_is_the_time_limits(
    tmp_path: Path, hub: Hub, number: signal.Signals, left_s: int, kind: str
):
    settings = made(tmp_path, 1, "--ends-at", str(time.time() + left_s), "--end-margin", "300")
    assert failure_of_turn(watching(settings, hub, number)).kind == kind


def test_a_signal_is_named(tmp_path: Path, hub: Hub):
    assert failure_of_turn(watching(made(tmp_path), hub, signal.SIGINT)).cause == "cancelled: SIGINT"


def test_a_note_that_shows_after_the_signal_is_the_cause(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    """srun signals all nodes when one fails, and a shared file system shows its note a little later."""
    monkeypatch.setattr(watch_module, "SEEN_S", 60.0)
    noted = Failure("setup", "n2", "no interface", 20)
    threading.Timer(0.4, lambda: note_failure(tmp_path, noted)).start()
    assert failure_of_turn(watching(made(tmp_path, 2), hub, signal.SIGTERM)) == noted


# ---- a shared file system


def test_a_hiccup_of_the_file_system_is_no_failure(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch):
    settings = made(tmp_path)
    settings.reward_log.mkdir()
    settings.logs.mkdir()
    log = settings.log("ray watch")
    log.touch()
    watch, stalls = watching(settings, hub), StallWatch(log, 0.0)

    def stale(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *words: Any, **options: Any) -> Any:
            if str(path).startswith(str(tmp_path)):
                raise OSError(errno.ESTALE, "Stale file handle", str(path))
            return real(path, *words, **options)

        return call

    with monkeypatch.context() as broken:
        for owner, name in ((os, "scandir"), (os, "listdir"), (os, "stat"), (Path, "open"), (Path, "stat")):
            broken.setattr(owner, name, stale(getattr(owner, name)))
        watch.turn()
        assert stalls.silent_s() is None
        assert not _shows(settings, log)
        assert not _another_failed(settings)
    watch.turn()


@pytest.mark.parametrize(
    ("text", "node", "told"),
    [
        ('{"node": "n2", "error": "no server"}', "n2", "no server"),
        ('{"node": "n2", "err', "n1", '{"node": "n2", "err'),
        ("[]", "n1", "[]"),
        ("", "n1", "the note of the reward client is empty"),
    ],
)
def test_a_note_of_the_reward_client_is_an_outage_also_when_damaged(
    tmp_path: Path, hub: Hub, text: str, node: str, told: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch_module, "SIGNAL_S", 0.0)
    settings = made(tmp_path)
    settings.reward_log.mkdir()
    (settings.reward_log / "failure-n2-1.json").write_text(text)
    failure = failure_of_turn(watching(settings, hub))
    assert failure.evidence is not None
    assert (failure.kind, failure.node, failure.evidence.text) == ("reward-outage", node, told)


# ---- what nodes tell


def test_kills_and_new_ports_of_a_node_are_kept(tmp_path: Path, hub: Hub):
    watch = watching(made(tmp_path, 2), hub)
    hello = {"rank": 1, "node": "n2", "address": "10.0.0.2", "token": TOKEN, "ports": {"gcs": 1}}
    link = Link("127.0.0.1", hub._listener.getsockname()[1], hello, 60.0, lambda: None)
    for kills in (1, 3):
        link.tell({"type": "oom", "kills": kills})
    link.tell({"type": "ports", "ports": {"gcs": 2}})
    until = time.monotonic() + 60
    while hub.nodes.get(1, {}).get("ports") != {"gcs": 2} and time.monotonic() < until:
        watch.turn()
    assert hub.nodes[1]["ports"] == {"gcs": 2}
    assert watch.oom_kills == {1: 3}
    link.close()


def test_a_node_tells_what_its_kernel_killed_and_its_new_ports(monkeypatch: pytest.MonkeyPatch):
    """Each count once, without those of before the job; a failure that follows comes after it."""
    kills = iter([2, 2, 3, 3, 5, 5])
    monkeypatch.setattr(worker, "oom_kills", lambda: next(kills))
    monkeypatch.setattr(worker, "_KILLS_S", -1.0)
    told: list[dict] = []
    node: Any = SimpleNamespace(ports=port_plan(77), failure=lambda: None, cut_log=lambda: None)
    turns = iter([[], [], [], [], [], [{"type": "end"}]])

    def turn(_: list[dict]) -> None:
        if len(told) == 1:
            node.ports = port_plan(78)

    node.turn = turn
    link: Any = SimpleNamespace(poll=lambda _: next(turns), tell=told.append)
    assert _serve(link, node, lambda: None) == 0
    ports = {"type": "ports", "ports": port_plan(78).services}
    assert told == [{"type": "oom", "kills": 1}, ports, {"type": "oom", "kills": 3}]
