"""launch.init: the modules and the programs that run containers, also where they cannot be asked."""

import pytest

from launch.site.modules import parse_modules

_HERE = "launch-init: modules here\n"


@pytest.mark.parametrize("tags", ["default", "default:stable", "stable:default", "L,D"])
def test_the_default_among_other_symbols(tags: str) -> None:
    found = parse_modules(f"{_HERE}apptainer/1.3.6({tags})\napptainer/1.4.1(testing)\n")
    assert found is not None
    assert [(one.name, one.default) for one in found] == [("apptainer/1.3.6", True), ("apptainer/1.4.1", False)]
