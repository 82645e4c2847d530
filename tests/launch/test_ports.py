"""The port plan of a job: a block of its own, off the kernel's and SGLang's ranges, tested on the node."""

import random
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.supervisor import ports
from launch.supervisor.ports import Ephemeral

USUAL = Ephemeral(32768, 60999)
DGX = Ephemeral(9000, 65000)
SERVICES = (
    "control", "reward", "gcs", "node_manager", "object_manager", "ray_client", "dashboard",
    "dashboard_agent_listen", "dashboard_agent_grpc", "metrics_export", "runtime_env_agent", "merge",
)  # fmt: skip


def first(job: int, ephemeral: Ephemeral | None = None) -> ports.PortPlan:
    """The plan of a job on a node where nothing is taken."""
    block = ports.blocks_of(job, ephemeral)[0]
    return ports.port_plan(block)


def test_a04_a_thousand_pairs_of_near_jobs_share_no_port():
    """A04: all ports of both, also of the workers; on a usual node, whatever the ids."""
    draw = random.Random(4)
    for _ in range(1000):
        job = draw.randrange(2**31)
        other = job + draw.choice([-1, 1]) * draw.randrange(1, 100)
        mine, theirs = ports.port_plan(job), ports.port_plan(abs(other))
        assert job == abs(other) or not set(mine.ports) & set(theirs.ports)


@given(st.integers(0, 2**33))
def test_a04_a05_c25_each_has_a_range_of_its_own(job: int):
    """A04, A05, C25: no service among the workers' ports, and nothing in the kernel's or SGLang's (30000+)."""
    plan = ports.port_plan(job)
    assert tuple(plan.services) == SERVICES
    services, workers = set(plan.services.values()), set(range(plan.worker_min, plan.worker_max + 1))
    assert len(services) == len(SERVICES)
    assert not services & workers
    assert services | workers == set(plan.ports)
    assert len(workers) > 150
    assert min(services) >= 1024
    assert max(workers) < 30000
    assert ports.ephemeral_warning(plan, USUAL) is None


@settings(max_examples=50)
@given(st.integers(0, 2**31), st.integers(1024, 65535), st.integers(0, 65535))
def test_a05_blocks_in_the_ephemeral_range_come_last(job: int, low: int, length: int):
    ephemeral = Ephemeral(low, min(low + length, 65535))
    order = ports.blocks_of(job, ephemeral)
    assert sorted(order) == list(range(ports.BLOCKS))
    plans = [ports.port_plan(block) for block in range(ports.BLOCKS)]
    kernel = set(range(ephemeral.low, ephemeral.high + 1))
    inside = [not kernel.isdisjoint(plans[block].ports) for block in order]
    assert inside == sorted(inside)
    # The warning says so of the same blocks.
    told = [ports.ephemeral_warning(plans[block], ephemeral) is not None for block in order]
    assert told == inside


@given(st.integers(0, 2**31), st.integers(10000, 29800), st.integers(1, 99))
def test_a04_holds_in_what_the_kernel_leaves(job: int, low: int, distance: int):
    """Fewer blocks: ids that differ by less than their number are still apart."""
    ephemeral = Ephemeral(low, 65000)
    left = sum(not ephemeral.overlaps(block) for block in range(ports.BLOCKS))
    if 0 < distance < left:
        assert not set(first(job, ephemeral).ports) & set(first(job + distance, ephemeral).ports)


def test_a05_a_dgx_node_is_warned_and_near_jobs_are_still_apart():
    """A05: 9000 65000 leaves no block; the text names the range and what the site can do."""
    plans = [first(job, DGX) for job in range(1000, 1100)]
    assert len({plan.gcs for plan in plans}) == 100
    told = ports.ephemeral_warning(plans[0], DGX)
    assert told is not None
    assert "9000 65000" in told
    assert "10000-29999" in told


def test_reserved_ports_are_not_ephemeral(tmp_path: Path):
    (tmp_path / "ip_local_port_range").write_text("9000\t65000\n")
    (tmp_path / "ip_local_reserved_ports").write_text("8080,12000-12199,12205\n")
    found = ports.ephemeral_ports(tmp_path)
    assert found is not None
    assert (found.low, found.high) == (9000, 65000)
    assert [block for block in range(ports.BLOCKS) if not found.overlaps(block)] == [10]
    assert first(77, found).control == 12000
    (tmp_path / "ip_local_reserved_ports").write_text("\n")
    assert ports.ephemeral_ports(tmp_path) == DGX


def test_a_kernel_that_does_not_say(tmp_path: Path):
    assert ports.ephemeral_ports(tmp_path) is None
    assert ports.ephemeral_ports() is not None


def test_a_taken_service_moves_the_block(monkeypatch: pytest.MonkeyPatch):
    plan, taken = ports.port_plan(31), ports.taken
    # What else listens on this machine is left out.
    monkeypatch.setattr(ports, "taken", lambda port: taken(port) if port == plan.metrics_export else None)
    with socket.create_server(("127.0.0.1", plan.metrics_export)):
        assert ports.taken(plan.metrics_export) == "EADDRINUSE"
        assert ports.free_plan(31, USUAL) == ports.port_plan(31, 1)
    assert ports.free_plan(31, USUAL) == plan


@pytest.mark.parametrize(("share", "moved"), [(0.3, False), (0.7, True)])
def test_a_block_whose_workers_ports_are_mostly_taken_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, share: float, moved: bool
):
    plan = ports.port_plan(79)
    workers = range(plan.worker_min, plan.worker_max + 1)
    chosen = random.Random(5).sample(workers, int(share * len(workers)))
    monkeypatch.setattr(ports, "taken", lambda port: "EADDRINUSE" if port in chosen else None)
    assert ports.free_plan(79, USUAL) == ports.port_plan(79, int(moved))


def test_no_block_is_free(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ports, "taken", lambda _: "EADDRINUSE")
    with pytest.raises(ports.PortError, match=r"none of the 100 port blocks .*'control': 17000"):
        ports.free_plan(35, USUAL)
