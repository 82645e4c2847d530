"""What tests of the supervisor share."""

from __future__ import annotations

import os

import pytest

from launch.supervisor import processes


@pytest.fixture
def ends_its_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor in this process ends all below it; here without the servers that other tests have running."""
    real, others = processes.descendants, processes.descendants(os.getpid())
    monkeypatch.setattr(processes, "descendants", lambda root: real(root) - others)
