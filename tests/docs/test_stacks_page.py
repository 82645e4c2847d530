"""docs/stacks.md is what the stacks say."""

import re

import pytest
from stacks_page import _GPUS, PAGE, all_stacks, page

from launch.image_stack import JobStack
from launch.sizing.gpus import find_gpu
from singularity.stack import load_stack


def test_the_page_is_that_of_the_stacks():
    # Not assert a == b: pytest would show hundreds of lines.
    same = PAGE.read_text(encoding="utf-8") == page(all_stacks())
    assert same, "docs/stacks.md is old; write it anew: .venv/bin/python tests/docs/stacks_page.py"


@pytest.mark.parametrize("stack", all_stacks(), ids=lambda stack: stack.name)
def test_the_page_shows_every_fact_of_a_stack_with_its_source(stack):
    own = page([stack])
    facts = [stack.base, *stack.packages.values(), *stack.adds.values()]
    for text in [stack.verl, *stack.notes, *(part for fact in facts for part in (fact.value, fact.source))]:
        assert " ".join(text.split()) in own
    cannot = [ability for _, ability in stack.can if not ability.able]
    assert own.count("| no |") == 2 * len(cannot)


def test_what_is_added_over_a_base_is_marked():
    stack = next(stack for stack in all_stacks() if stack.name == "verl-0.9.1")
    row = re.search(r"^\| `transferqueue` \|(.*)\|$", page([stack]), re.MULTILINE)
    assert row
    assert row[1].strip() == "0.1.10 (added)"


def test_the_table_stays_a_table_with_a_bar_in_a_value():
    stack = all_stacks()[0]
    barred = stack.model_copy(update={"base": stack.base.model_copy(update={"source": "a | b\nc"})})
    assert "| a \\| b c |" in page([barred])


@pytest.mark.parametrize(("capability", "names"), _GPUS.items())
def test_the_gpus_of_a_capability_have_it(capability: str, names: str):
    for name in names.split(", "):
        gpu = find_gpu(name.lower().replace(" ", "_"))
        assert gpu
        assert gpu.capability_text == capability


def test_no_gpu_with_an_arm_cpu_is_offered_for_images_of_x86_64():
    """Upstream's images are x86_64 alone."""
    shown = [find_gpu(name) for names in _GPUS.values() for name in names.split(", ")]
    assert [gpu.name for gpu in shown if gpu and gpu.host not in (None, "amd64")] == []


def test_what_the_page_says_of_newer_minor_numbers_is_what_render_finds():
    b300, a40 = find_gpu("b300"), find_gpu("a40")
    assert b300
    assert a40
    said = JobStack(load_stack("verl-0.6.1"), "a test", known=True)
    assert (said.runs_on(a40), said.runs_on(b300)) == (True, False)
    assert "Below 9.0 a GPU of a newer minor number runs older code" in PAGE.read_text(encoding="utf-8")
