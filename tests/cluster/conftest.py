"""The `cluster` fixture: three Slurm nodes for the session, and nothing left on them after each test."""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import CHECKOUT, Cluster

_HERE = Path(__file__).resolve().parent


def _why_not() -> str | None:
    """Why this machine cannot hold the cluster, or None."""
    if os.geteuid() != 0:
        return f"the test cluster needs root for namespaces and mounts; this is uid {os.geteuid()}"
    if not Path("/etc/debian_version").exists() or platform.freedesktop_os_release()["ID"] != "debian":
        return "the test cluster is built from the packages of this machine's Debian mirror; this is no Debian"
    if shutil.which("mmdebstrap") is None:
        return "the test cluster is built with mmdebstrap, which is not installed; make test installs it"
    for wheel in (CHECKOUT / ".cache" / "wheels" / "cpu").glob("torch-*.whl"):
        if "-cp311-" not in wheel.name:
            return f"the test cluster's image has Python 3.11, and .venv's wheels are for another: {wheel.name}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why_not = _why_not()
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("cluster")
            if why_not is not None:
                item.add_marker(pytest.mark.skip(reason=why_not))


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    found_up = cluster.is_up()
    try:
        print(cluster.up())
        yield cluster
    finally:
        if not found_up:
            cluster.down()


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """The running cluster. Fails a test whose jobs left a process, a mount or a temporary file on a node."""
    _cluster.left.clear()
    _cluster.since = time.time()
    yield _cluster
    if _cluster.queue():  # of a test that failed
        _cluster.cancel_all()
    still = _cluster.left_after(10)
    if still:
        _cluster.clear()
    if left := still | _cluster.left:
        pytest.fail(f"left behind on the nodes: {left}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and report.failed:
        cluster = getattr(item, "funcargs", {}).get("cluster")
        if cluster is not None:
            report.sections.append(("cluster", cluster.report()))
    return report


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of this checkout, at the same path on all nodes."""
    return CHECKOUT
