"""Ray's nodes as the watcher prints them, and its silence."""

import json
import time
from pathlib import Path

from launch.supervisor.log_follower import LogFollower
from launch.supervisor.ray_cluster import RayNodes


def write(log: Path, line: str) -> None:
    with log.open("a") as stream:
        stream.write(line + "\n")


def nodes_of(log: Path, **gpus: float) -> None:
    write(log, json.dumps({"nodes": [{"address": name, "alive": n > 0, "gpus": n} for name, n in gpus.items()]}))


def test_nodes_come_and_go(tmp_path: Path):
    log = tmp_path / "log"
    ray = RayNodes(LogFollower(log))
    assert ray.update() == []
    write(log, "a warning of Ray")
    nodes_of(log, a=4, b=4)
    assert (ray.update(), ray.alive, ray.gpus) == ([], 2, 8)
    nodes_of(log, a=4, b=0)
    assert (ray.update(), ray.alive, ray.gpus) == (["b"], 1, 4)


def test_silence_counts_from_the_first_nodes_and_ends_with_any_line(tmp_path: Path):
    log = tmp_path / "log"
    ray = RayNodes(LogFollower(log))
    for _ in range(3):
        ray.update()
        time.sleep(0.05)
    assert ray.silent_s == 0.0  # it has not begun
    nodes_of(log, a=4)
    ray.update()
    ray._looked -= 0.5
    ray.update()
    assert 0.5 <= ray.silent_s <= 1.0
    ray._looked -= 0.5
    ray.update()
    assert 1.0 <= ray.silent_s <= 2.0
    write(log, "{}")
    assert (ray.update(), ray.silent_s, ray.alive) == ([], 0.0, 1)


def test_a_suspended_job_is_not_silent(tmp_path: Path):
    log = tmp_path / "log"
    ray = RayNodes(LogFollower(log))
    nodes_of(log, a=4)
    ray.update()
    ray._looked -= 3600.0  # this process did not run for an hour
    ray.update()
    assert ray.silent_s <= 1.0
