"""The definition of every stack as text, and what its scripts do where that can run without the base."""

import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import tomllib

from singularity.definition import TOOLKIT_REQUIREMENTS, DefinitionError, definition, split_base
from singularity.stack import load_stack, stack_names
from singularity.toolkit import PACKAGES, TOOLKIT

_ROOT = Path(__file__).parents[2]
_GPU = [name for name in stack_names() if load_stack(name).device == "cuda"]


def _sections(text: str) -> dict[str, str]:
    """The text of each section by name, as the programs split it: at lines that begin with %."""
    parts = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    return {"header": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.parametrize("name", stack_names())
def test_a_definition_has_what_every_program_takes(name: str) -> None:
    text = definition(load_stack(name))
    assert "{{" not in text  # build arguments: SingularityCE has them from 4.0 on, Apptainer from 1.2 on
    sections = _sections(text)
    assert list(sections) == ["header", "files", "post", "environment", "test"]
    header = dict(re.findall(r"^(\w+): (.*)$", sections["header"], re.MULTILINE))
    assert header == {"Bootstrap": "docker", "From": load_stack(name).base.value.removeprefix("docker://")}
    files = [line.split() for line in sections["files"].splitlines() if line]
    assert files == [[package, f"/opt/toolkit.new/{package}"] for package in PACKAGES]
    assert text == definition(load_stack(name)), "the same stack gives the same text"


@pytest.mark.parametrize("name", stack_names())
def test_the_scripts_are_clean(name: str, tmp_path: Path) -> None:
    """All that can be known of a GPU stack's %post here: its base is in no registry that tests reach."""
    sections = _sections(definition(load_stack(name)))
    check = ["shellcheck"] if shutil.which("shellcheck") else ["sh", "-n"]
    for section in ("post", "environment", "test"):
        script = tmp_path / f"{section}.sh"
        script.write_text("#!/bin/sh\n" + sections[section], encoding="utf-8")
        done = subprocess.run([*check, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_toolkits_requirements_are_those_of_the_project() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {*project["dependencies"], *extras["data"], *extras["reward"], *extras["convert"]}
    assert set(TOOLKIT_REQUIREMENTS) == wanted


@pytest.mark.parametrize("name", _GPU)
def test_a_gpu_stack_installs_verl_over_a_frozen_base(name: str) -> None:
    stack = load_stack(name)
    post = _sections(definition(stack))["post"]
    frozen, extras, own, unchanged, agrees = (
        post.index(text)
        for text in (
            "base_packages freeze --but '", "'hydra-core>=", f"'verl=={stack.verl}'", "base_packages unchanged",
            f"inside agrees --stack {name} ",
        )
    )  # fmt: skip
    assert (
        frozen < post.index("export PIP_CONSTRAINT=") < extras < post.index("\n    unset PIP_CONSTRAINT\n") < own
    )
    assert own < unchanged < agrees < post.index("inside labels")
    line = next(line for line in post.splitlines() if f"'verl=={stack.verl}'" in line)
    assert "pip install --no-deps " in line
    # What the stack names may change in the base; nothing else.
    (but,) = re.findall(r"freeze --but '([^']*)'", post)
    assert but.split() == sorted({"verl", *stack.adds})


def test_the_cpu_stack_installs_torch_first_and_alone() -> None:
    post = _sections(definition(load_stack("cpu")))["post"]
    pips = re.findall(r'"\$python" -m pip install (.*?) \|\|', post)
    assert [re.sub(r"==.*", "==", pip) for pip in pips] == [
        "'torch==",
        "-r /opt/toolkit/singularity/stacks/cpu/requirements.txt",
        "--no-deps -r /opt/toolkit/singularity/stacks/cpu/requirements-nodeps.txt",
    ]


@pytest.mark.parametrize(
    ("base", "split"),
    [
        ("docker://mirror.example:5000/verlai/verl:tag", ("docker", "mirror.example:5000/verlai/verl:tag")),
        ("docker://verl@sha256:" + "0" * 64, ("docker", "verl@sha256:" + "0" * 64)),
        ("docker-archive:///data/a b.tar", ("docker-archive", "/data/a b.tar")),
        ("localimage://x.sif", ("localimage", f"{Path.cwd()}/x.sif")),
    ],
)
def test_a_base_of_ones_own(base: str, split: tuple[str, str]) -> None:
    assert split_base(base) == split
    header = _sections(definition(load_stack("cpu"), base))["header"]
    assert f"\nBootstrap: {split[0]}\nFrom: {split[1]}\n" in header


@pytest.mark.parametrize(
    "base", ["verl.sif", "debootstrap://x", "docker://", "docker://x\n%post", "docker://{{ x }}", "docker://a#b"]
)
def test_a_base_that_is_none(base: str) -> None:
    with pytest.raises(DefinitionError, match=r"^--from "):
        split_base(base)


def test_a_password_in_a_base_is_refused_and_not_told() -> None:
    with pytest.raises(DefinitionError, match=r"APPTAINER_DOCKER_PASSWORD.* registry login") as refused:
        split_base("docker://robot:s3cr3t@registry.example/verl:tag")
    assert "s3cr3t" not in str(refused.value)


def _wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """A wheel with no file in it but its metadata."""
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    head = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(f"{info}/WHEEL", head)
        wheel.writestr(f"{info}/RECORD", "")


def test_the_post_of_a_gpu_stack_for_real_over_a_stub_of_a_base(tmp_path: Path) -> None:
    """%post of verl 0.6.1 by a real sh and pip, over a base of tiny wheels: no registry of images is reached here.

    Left out: the toolkit's own requirements (one tiny wheel stands for them), compiling, and what needs them.
    """
    wheels, root = tmp_path / "wheels", tmp_path / "root"
    wheels.mkdir()
    for name, version in (("basething", "1.0"), ("basething", "2.0"), ("verl", "0.6.1"), ("fits", "1.0")):
        _wheel(wheels, name, version)
    _wheel(wheels, "conflicts", "1.0", requires="basething>=2")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    # Neither imported nor looked for: setuptools would then leave distutils alone for others in this process, too.
    (site / "pip").symlink_to(str(metadata.distribution("pip").locate_file("pip")))
    python = root / "venv" / "bin" / "python3"
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environ = {"PATH": f"{python.parent}:/usr/bin:/bin", **settings}

    def post(extra: str) -> "subprocess.CompletedProcess[str]":
        text = _sections(definition(load_stack("verl-0.6.1")))["post"]
        text = re.sub(r"pip install 'argcomplete>=.*\|\|", f"pip install {extra} ||", text)
        text = re.sub(r" *inside agrees .*\n| *inside labels .*\n.*\n|.*-m compileall .*\n", "", text)
        assert text.count(f"install {extra} ") == 1
        text = re.sub(r"command -v (ip|ps)\b", "true", text.replace("/opt/", f"{root}/"))
        shutil.copytree(TOOLKIT / "singularity", root / "toolkit.new" / "singularity")
        return subprocess.run(["sh", "-ec", text], env=environ, capture_output=True, text=True, check=False)

    with zipfile.ZipFile(wheels / "basething-1.0-py3-none-any.whl") as base:
        base.extractall(site)
    done = post("conflicts")
    assert done.returncode == 1
    assert "build: what the toolkit needs cannot be installed over this base without changing" in done.stderr
    done = post("fits")
    assert done.returncode == 0, done.stderr
    there = {path.name.removesuffix(".dist-info") for path in site.glob("*.dist-info")}
    assert there >= {"basething-1.0", "fits-1.0", "verl-0.6.1"}
    assert "conflicts-1.0" not in there


@pytest.mark.parametrize(
    "base",
    [
        "docker://SECRETTOKEN@reg.example/x",
        "docker://u:p/w@host/x:1",
        "oras://bob:pw@host/x",
        "docker://u:pw@host/x@sha256:" + "a" * 64,
    ],
)
def test_no_password_or_token_of_a_base_is_kept(base: str) -> None:
    with pytest.raises(DefinitionError, match="would be kept in the image") as refused:
        split_base(base)
    assert not [word for word in ("SECRETTOKEN", "p/w", "pw@") if word in str(refused.value)]


@pytest.mark.parametrize(
    "base",
    [
        "docker://bob:p#w55@reg.example/x:tag",
        "docker://bob:pw55{{@reg.example/x:tag",
        "docker://bob:p w55@reg.example/x:tag",
        "http://bob:pw55@reg.example/x:tag",
        "docker:bob:pw55@reg.example/x:tag",
        "docker://bob:p@w55@reg.example/x\n%post",
    ],
)
def test_no_message_about_a_base_tells_its_password(base: str) -> None:
    with pytest.raises(DefinitionError, match=r"^--from .*\.\.\.@reg\.example/x") as refused:
        split_base(base)
    assert "bob" not in str(refused.value)
    assert "w55" not in str(refused.value)


def test_a_file_may_have_an_at_in_its_path() -> None:
    assert split_base("localimage:///data/me@home/x.sif") == ("localimage", "/data/me@home/x.sif")
    with pytest.raises(DefinitionError, match="/data/me@home/a#b"):
        split_base("localimage:///data/me@home/a#b")


@pytest.mark.parametrize("name", ["python:3.12", "h:5000/verl:1"])
def test_a_digest_is_no_password(name: str) -> None:
    reference = f"{name}@sha256:{'0' * 64}"
    assert split_base(f"docker://{reference}") == ("docker", reference)


def test_the_home_folder_of_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert split_base("localimage://~/x.sif") == ("localimage", "/home/me/x.sif")


def test_a_home_folder_that_is_not_known() -> None:
    with pytest.raises(
        DefinitionError, match=r"'localimage://~nobody-of-this-name/x\.sif': the home folder that ~"
    ):
        split_base("localimage://~nobody-of-this-name/x.sif")
