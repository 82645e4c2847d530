"""The generated pages of docs/ are those that the commands and the job model make now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import reference
from reference import ROOT, pages

REMEDY = "write them anew: python tests/docs/reference.py"


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return pages()


def test_each_page_is_as_its_source_says(made: dict[Path, str]) -> None:
    there = {page: ROOT / "docs" / page for page in made}
    assert [str(page) for page, file in there.items() if not file.is_file()] == [], REMEDY
    for page, file in there.items():
        assert file.read_text(encoding="utf-8") == made[page], f"{page}: {REMEDY}"


def test_pages_leave_the_environment_alone(made: dict[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFIG_REWARD_PORT", "1")
    monkeypatch.setattr(reference, "commands", lambda: ["reward.server"])
    page = Path("commands", "reward.server.md")
    assert pages()[page] == made[page]
    assert os.environ["CONFIG_REWARD_PORT"] == "1"


def test_no_page_is_left_of_a_command_that_went(made: dict[Path, str]) -> None:
    there = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs" / "commands").iterdir()}
    assert there - made.keys() == set(), REMEDY


def test_the_command_that_compares_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With pages of this test: to make all of them takes seconds."""
    docs = {Path("job.md"): "a job", Path("commands", "a.b.md"): "a command"}
    for page, text in docs.items():
        (tmp_path / "docs" / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / page).write_text(text)
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(reference, "pages", lambda: dict(docs))

    def compared() -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["reference.py", "--check"])
        return reference.main(), capsys.readouterr().out

    assert compared() == (0, "")
    docs[Path("job.md")] = "another job"
    left = tmp_path / "docs" / "commands" / "went.md"
    left.touch()
    assert compared() == (1, "docs/job.md\ndocs/commands/went.md\n")
    assert left.exists()
    monkeypatch.setattr("sys.argv", ["reference.py"])
    assert reference.main() == 0
    assert (left.exists(), compared()[0]) == (False, 0)
