"""Order of the tests: quick ones first, then those that train, then the cluster; and the parts of `make test`."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Seconds, for generating an example or for a test of it, tell of the machine and of what else it does.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell lets what it starts in the background ignore Ctrl-C, and the processes that tests stop by it would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PARTS = ("quick", "engine", "cluster")  # the number of a part is the rank of its tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=_PARTS,
        help="quick: tests without a marker; engine: those that train; cluster: on it, but slow ones",
    )


def _rank(item: pytest.Item) -> int:
    return max((rank for rank, name in enumerate(_PARTS) if item.get_closest_marker(name)), default=0)


def _in_part(item: pytest.Item, part: str) -> bool:
    return _PARTS[_rank(item)] == part and item.get_closest_marker("slow") is None


# After the conftest.py of the folders: the one of the cluster sets its marker there.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    if part is not None:
        config.hook.pytest_deselected(items=[item for item in items if not _in_part(item, part)])
        items[:] = [item for item in items if _in_part(item, part)]
    items.sort(key=_rank)  # stable: the order within each kind stays


# Where one of its own processes breaks, pytest tells of no test: the file that this variable names has kept them.
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    told = os.environ.get("FAILED_TESTS")
    if report.failed and told and "PYTEST_XDIST_WORKER" not in os.environ:
        why = (report.longreprtext.splitlines() or [""])[-1]
        lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        with Path(told).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid} ({report.when}): {(lines or [why])[0][:300]}\n")
