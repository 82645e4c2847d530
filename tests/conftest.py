"""Order of the tests: quick ones first, then those that train, then the cluster."""

import pytest

_LAST = ("engine", "cluster")


def _rank(item: pytest.Item) -> int:
    return max((position for position, name in enumerate(_LAST, 1) if item.get_closest_marker(name)), default=0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)  # stable: the order within each kind stays
