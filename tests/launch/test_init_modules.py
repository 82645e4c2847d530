"""launch.init: the modules and the programs that run containers, also where they cannot be asked."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.site.choose import choose
from launch.site.commands import LOGIN_SHELL, Answer
from launch.site.facts import Site, read_site
from launch.site.modules import LIST, parse_modules, perhaps_modules, was_asked

_HERE = "launch-init: modules here\n"


@pytest.mark.parametrize("tags", ["default", "default:stable", "stable:default", "L,D"])
def test_the_default_among_other_symbols(tags: str) -> None:
    found = parse_modules(f"{_HERE}apptainer/1.3.6({tags})\napptainer/1.4.1(testing)\n")
    assert found is not None
    assert [(one.name, one.default) for one in found] == [("apptainer/1.3.6", True), ("apptainer/1.4.1", False)]


def test_names_that_only_hold_that_of_a_program() -> None:
    names = "Apptainer-Tools/2024\napptainer-1.1.9-gcc-12.2.0-xyz\ntools/Singularity-4.1(default)\n"
    others = "/sw/apptainer:\n.apptainer-old\nUnable to find apptainer-x\ngcc/12\napptainer/1.3\n"
    assert perhaps_modules(_HERE + names + others) == [
        "Apptainer-Tools/2024",
        "apptainer-1.1.9-gcc-12.2.0-xyz",
        "tools/Singularity-4.1",
    ]
    site = _site(Path("/nowhere"), Answer(_HERE + names))
    assert "no container program by its own name; perhaps Apptainer-Tools/2024, apptainer-1.1.9" in _told(site)


def _site(tmp_path: Path, modules: Answer, program: Answer | None = None) -> Site:
    def ask(words: Sequence[str]) -> Answer:
        if words[0] == "sinfo":
            return Answer("gpu*|up|1:00:00|1|idle|64|512000|gpu:a100:8|(null)\n")
        if tuple(words[:2]) == LOGIN_SHELL:
            return modules
        if words[-1] == "--version":
            return program or Answer(problem=f"{words[0]} is not in PATH")
        return Answer()

    return read_site(ask, {}, tmp_path)


def _told(site: Site) -> str:
    chosen = choose(site)
    assert chosen.module is None
    return chosen.module_why


_LATE = "the login shell gave no answer in 20 s"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer("launch-init: modules none\n"), "there is no `module` on this node"),
        (Answer(_HERE), "`module avail` lists no container program"),
        (Answer("motd\n", problem=_LATE), f"which modules there are is not known ({_LATE})"),
        (Answer(_HERE, problem=_LATE), f"which modules there are is not known ({_LATE})"),
        (Answer("motd\n"), "is not known (the login shell ended before they could be asked for)"),
    ],
    ids=["none", "here", "late", "late-after-the-mark", "ended"],
)
def test_what_is_not_known_is_not_said_to_be_missing(answer: Answer, told: str, tmp_path: Path) -> None:
    site = _site(tmp_path, answer)
    assert told in _told(site)
    assert any("login shell" in note for note in site.notes) == ("login shell" in told)


def test_modules_that_were_listed_before_the_shell_failed_count(tmp_path: Path) -> None:
    site = _site(tmp_path, Answer(_HERE + "apptainer/1.3\n", problem="the login shell ended with 1"))
    assert choose(site).module == "apptainer/1.3"
    assert "the login shell ended with 1" in site.notes


def test_a_program_that_does_not_answer_is_noted(tmp_path: Path) -> None:
    site = _site(tmp_path, Answer("launch-init: modules none\n"), Answer(problem="it gave no answer in 20 s"))
    assert "apptainer and singularity in PATH did not tell a version" in _told(site)
    assert site.notes.count("it gave no answer in 20 s") == 2


@pytest.mark.parametrize(
    ("profile", "asked"),
    [
        ("set -e", True),
        ("set -u", True),
        ("set -x", True),
        ("exit 0", False),
        ("exec true", False),
        ("exec >&-", False),
    ],
)
def test_login_shells_that_end_early_or_stop_at_errors(profile: str, asked: bool, tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text(
        f"module() {{ echo apptainer/1.3; return 1; }}\nexport -f module\n{profile}\n"
    )
    done = subprocess.run(
        LIST, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert was_asked(done.stdout) == asked
    assert [one.name for one in parse_modules(done.stdout) or []] == ["apptainer/1.3"] * asked
