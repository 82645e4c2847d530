import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from singularity.agreement import Difference, differences
from singularity.stack import load_stack
from singularity.versions import agrees


@pytest.mark.parametrize(
    ("wanted", "found", "result"),
    [
        ("2.8.0", "2.8.0", True),
        ("2.8.0", "2.8.0+cu128", True),
        ("2.8.0+cu128", "2.8.0+cu128", True),
        ("2.8.0+cu128", "2.8.0+CU128", True),
        ("2.8.0+cu128", "2.8.0", False),
        ("2.8.0+cu128", "2.8.0+cpu", False),
        ("2.3", "2.3.0", True),
        ("2.3.0.0", "v2.3", True),
        ("2.3", "2.3.1", False),
        ("2.10", "2.1", False),
        ("1.0rc1", "1.0.rc-1", True),
        ("1.0rc1", "1.0", False),
        ("1.0", "1.0.post1", False),
        ("1.0-1", "1.0.post1", True),
        ("1.0.dev3", "1.0dev3", True),
        ("1!1.0", "1.0", False),
        ("0.5.12.post1", "0.5.12.post1", True),
        ("2.2.1+c12345", "2.2.1+C12345", True),
        ("25.03", "25.3", True),
        ("main-abc", "main-abc", True),
        ("main-abc", "main-abd", False),
        ("1.0", "", False),
        ("1.0", "1" * 5000, False),
        ("1.0", "1.0+" + "1" * 5000, False),
        ("1" * 5000, "1" * 5000, True),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_pin_agrees_as_pep_440_says(wanted: str, found: str, result: bool) -> None:
    assert agrees(wanted, found) is result


PARTS = st.tuples(
    st.sampled_from(["", "v", "1!"]),
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers))),
    st.sampled_from(["", "a", "alpha1", ".b2", "-rc_1", "c1", "pre1", "_preview"]),
    st.sampled_from(["", ".post1", "-1", "-r1", ".rev", "post"]),
    st.sampled_from(["", ".dev0", "dev", "-dev1"]),
)


@given(PARTS.map("".join), PARTS.map("".join))
def test_equality_is_that_of_packaging(one: str, other: str) -> None:
    assert agrees(one, other) == (Version(one) == Version(other))


def test_missing_and_other_packages_are_told_by_name() -> None:
    stack = load_stack("cpu")
    packages = {**stack.pins, "not-pinned": "1"}
    assert differences(stack, packages) == []
    packages["Verl"] = packages.pop("verl")
    assert differences(stack, packages) == []
    del packages["ray"]
    packages["Verl"] = "0.0.1"
    assert differences(stack, packages) == [
        Difference("ray", stack.pins["ray"], None),
        Difference("verl", stack.pins["verl"], "0.0.1"),
    ]
    assert str(Difference("ray", "2.0", "1" * 5000)) == f"ray {'1' * 80}..., the stack has 2.0"
    assert str(differences(stack, packages)[0]) == f"ray is missing, the stack has {stack.pins['ray']}"
