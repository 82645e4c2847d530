"""Stacks: every value with its source, and packages that agree with what verl's wheels ask for."""

import re
import shutil
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from launch.config.training import Engine
from singularity import stack as stacks
from singularity.stack import Fact, Stack, StackError, load_stack, stack_names, stack_of_verl
from singularity.versions import normalised

GPU_STACKS = [name for name in stack_names() if load_stack(name).device == "cuda"]
RECORDED = Path(__file__).parent / "recorded" / "requires_dist.txt"
# verl 0.9.1 refuses the 5.6.0 that SGLang pins, and upstream's image of 0.8.0 puts 5.3.0 over it.
KNOWN_CONFLICTS = {("sglang", "transformers==5.6.0")}


def requires_dist() -> dict[tuple[str, str], list[Requirement]]:
    """What each recorded wheel asks for, by its name and version."""
    asked: dict[tuple[str, str], list[Requirement]] = {}
    for line in RECORDED.read_text().splitlines():
        if section := re.fullmatch(r"\[(\S+) (\S+)\]", line):
            wheel = (section[1], section[2])
            asked[wheel] = []
        elif line and not line.startswith("#"):
            asked[wheel].append(Requirement(line))
    return asked


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stacks in a folder of their own."""
    folder = tmp_path / "stacks"
    shutil.copytree(stacks.STACKS, folder)
    monkeypatch.setattr(stacks, "STACKS", folder)
    load_stack.cache_clear()
    yield folder
    load_stack.cache_clear()


def facts(stack: Stack) -> dict[str, Fact]:
    alone = {name: getattr(stack, name) for name in ("base", "python_version", "cuda", "driver", "gpus")}
    return {name: fact for name, fact in alone.items() if fact} | stack.packages | stack.adds


@pytest.mark.parametrize("name", stack_names())
def test_a_stack_says_where_each_of_its_values_was_found(name: str):
    stack = load_stack(name)
    sources = {key: fact.source for key, fact in facts(stack).items()}
    sources |= {key: getattr(stack.can, key).source for key in type(stack.can).model_fields}
    # A file, a wheel's metadata or a titled page; or plainly that there is none, and what is nearest.
    place = re.compile(r'[\w.]+/[\w./-]+|\bwheels?\b|"[A-Z]|\.yml|\.txt|not documented|the name of the base')
    assert [key for key, source in sources.items() if not place.search(source)] == []


@pytest.mark.parametrize("name", stack_names())
def test_a_stack_that_cannot_do_something_says_why_and_what_to_set(name: str):
    can = load_stack(name).can
    for key in type(can).model_fields:
        ability = getattr(can, key)
        assert ability.able is not bool(ability.why), key
        assert ability.able is not bool(re.search(r"\b[a-z]+\.\w+=", ability.instead)), key


def test_each_version_of_verl_has_one_stack_for_gpus():
    versions = typing.get_args(Engine.model_fields["verl"].annotation)
    assert sorted(load_stack(name).verl for name in GPU_STACKS) == sorted(versions)
    for version in versions:
        stack = stack_of_verl(version)
        assert stack is not None
        assert (stack.verl, stack.device) == (version, "cuda")
    assert stack_of_verl("0.7.1") is None


@pytest.mark.parametrize("name", stack_names())
def test_an_image_starts_from_an_exact_tag(name: str):
    base = load_stack(name).base.value
    tagged = re.fullmatch(r"docker://(?:[\w.-]+\.[a-z]+/)?[\w/-]+:([\w.-]+)", base)
    assert tagged, base
    assert "latest" not in tagged[1]


@pytest.mark.parametrize("name", GPU_STACKS)
def test_packages_over_an_image_fulfil_what_the_wheels_ask_for(name: str):
    """`adds` come without their dependencies, so pip does not look."""
    stack, asked = load_stack(name), requires_dist()
    wheels = [("verl", stack.verl), ("sglang", stack.packages["sglang"].value)]
    wheels += [(normalised(added), fact.value) for added, fact in stack.adds.items()]
    assert [wheel for wheel in wheels if wheel not in asked] == [], f"record what they ask for in {RECORDED}"
    wrong = [
        f"{wheel} wants {requirement}, the stack has {stack.pins[normalised(requirement.name)]}"
        for wheel, version in wheels
        for requirement in asked[wheel, version]
        if normalised(requirement.name) in stack.pins
        and not requirement.specifier.contains(stack.pins[normalised(requirement.name)], prereleases=True)
        and (wheel, str(requirement).partition(";")[0]) not in KNOWN_CONFLICTS
    ]
    assert wrong == []


def test_what_verl_0_9_1_needs_beyond_any_image_of_upstream_is_added():
    """The image has TransferQueue 0.1.8, numpy<2, transformers 5.3.0, and no cupy or modelopt."""
    adds = load_stack("verl-0.9.1").adds
    beyond = {"transferqueue", "numpy", "transformers", "cupy-cuda13x", "nvidia-modelopt"}
    assert beyond <= set(adds)
    asked = {
        normalised(requirement.name): requirement
        for requirement in requires_dist()["verl", "0.9.1"]
        if requirement.specifier
    }
    assert beyond <= set(asked)
    for image_has in ("transferqueue 0.1.8", "numpy 1.26.4", "transformers 5.3.0"):
        package, version = image_has.split()
        assert not asked[package].specifier.contains(version)


@pytest.mark.parametrize("name", [name for name in GPU_STACKS if load_stack(name).can.one_step_off.able])
def test_a_stack_with_one_step_off_has_cupy_for_the_cuda_of_its_image(name: str):
    """verl's nccl checkpoint engine, which that mode sets, imports cupy and is silently absent without it."""
    stack = load_stack(name)
    assert stack.cuda
    assert f"cupy-cuda{stack.cuda.value.partition('.')[0]}x" in stack.adds


@pytest.mark.parametrize("name", [name for name in stack_names() if load_stack(name).requirements])
def test_the_pins_of_a_stack_are_those_of_its_requirements(name: str):
    stack = load_stack(name)
    assert [file.name for file in stack.requirement_files] == ["requirements.txt", "requirements-nodeps.txt"]
    pinned: dict[str, str] = {}
    for file in stack.requirement_files:
        for line in file.read_text().splitlines():
            if line and not line.startswith("#"):
                requirement = Requirement(line)
                if not requirement.marker or requirement.marker.evaluate({"python_version": "3.11"}):
                    pinned[normalised(requirement.name)] = str(requirement.specifier).removeprefix("==")
    assert stack.pins == pinned
    assert pinned["verl"] == stack.verl
    assert stack.python_version
    assert stack.python_version.value == "3.11"


def test_the_pins_of_a_stack_for_gpus_are_its_packages_and_what_is_added():
    stack = load_stack("verl-0.8.0")
    assert stack.pins["sglang"] == "0.5.12"
    assert stack.pins["cupy-cuda13x"] == "13.6.0"
    assert len(stack.pins) == len(stack.packages) + len(stack.adds) + 1


Change = Callable[[dict[str, typing.Any]], object]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(lambda data: data.update(cudda="13.0"), "cudda", id="unknown-key"),
        pytest.param(lambda data: data["can"].update(flying={}), "can.flying", id="unknown-ability"),
        pytest.param(lambda data: data["can"].pop("sglang"), "can.sglang", id="no-ability"),
        pytest.param(lambda data: data.pop("cuda"), "names cuda, too", id="no-cuda"),
        pytest.param(lambda data: data["cuda"].pop("source"), "cuda.source", id="no-source"),
        pytest.param(lambda data: data["cuda"].update(value=13.0), "cuda.value", id="number"),
        pytest.param(lambda data: data["cuda"].update(value="13"), "cuda: value '13'", id="no-minor"),
        pytest.param(lambda data: data["gpus"].update(value="Hopper"), "gpus: value 'Hopper'", id="gpus"),
        pytest.param(
            lambda data: data["packages"].update(CuPy_cuda13x=data["adds"]["cupy-cuda13x"]),
            "cupy-cuda13x",
            id="twice",
        ),
        pytest.param(lambda data: data.update(requirements="nowhere"), "stacks/nowhere/", id="requirements"),
        pytest.param(lambda data: data.update(name="verl-0.8.1"), "'verl-0.8.1'", id="other-name"),
    ],
)
def test_a_stack_that_does_not_hold_together_is_refused_with_its_file_and_key(
    copied: Path, change: Change, told: str
):
    file = copied / "verl-0.8.0.yaml"
    data = yaml.safe_load(file.read_text())
    change(data)
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(StackError) as refused:
        load_stack("verl-0.8.0")
    assert "singularity/stacks/verl-0.8.0.yaml" in str(refused.value)
    assert told in str(refused.value)


def test_a_file_that_is_no_yaml_is_refused(copied: Path):
    (copied / "cpu.yaml").write_text("name: [cpu\n")
    with pytest.raises(StackError, match=r"singularity/stacks/cpu\.yaml.*\n.*line 1"):
        load_stack("cpu")


def test_a_name_without_a_stack_is_told_with_those_there_are():
    with pytest.raises(StackError, match=r"no stack 'verl-0\.7\.1'; one of: cpu, .*verl-0\.9\.1"):
        load_stack("verl-0.7.1")


def test_the_content_changes_with_the_file_and_with_its_requirements(copied: Path):
    stack = load_stack("cpu")
    seen = [stack.content]
    for name in ("cpu.yaml", "cpu/requirements.txt", "cpu/requirements-nodeps.txt"):
        with (copied / name).open("a") as file:
            file.write("# another line\n")
        seen.append(stack.content)
    assert len(set(seen)) == 4
    assert all(re.fullmatch("[0-9a-f]{12}", content) for content in seen)
