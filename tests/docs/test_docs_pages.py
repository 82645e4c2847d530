"""What the pages of docs/ say is so: links, the kinds of failures, the overrides of a hand-written script."""

import re
from pathlib import Path

import pytest

from launch.config import load_job
from launch.script import RenderRequest
from launch.supervisor.causes import CAUSES
from launch.supervisor.symptoms import raised_kind, said_kind

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "jobs" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRONG = (ROOT / "docs" / "what-went-wrong.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", WRONG, re.MULTILINE | re.DOTALL))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(_anchor, headings), target


def test_every_kind_of_failure_has_its_section():
    assert sorted(SECTIONS) == sorted(CAUSES)


@pytest.mark.parametrize("kind", [kind for kind, cause in CAUSES.items() if cause.code is not None])
def test_the_section_names_the_exit_code(kind: str):
    assert f"Exit code {CAUSES[kind].code}" in SECTIONS[kind]


@pytest.mark.parametrize("kind", [kind for kind, section in SECTIONS.items() if "```text" in section])
def test_the_line_of_the_log_is_recognised(kind: str):
    (block,) = re.findall(r"```text\n(.*?)```", SECTIONS[kind], re.DOTALL)
    for line in block.splitlines():
        assert kind in (raised_kind(line), said_kind(line)), line


def test_the_overrides_of_a_hand_written_script_are_those_of_the_ready_job():
    page = (ROOT / "docs" / "from-a-script.md").read_text(encoding="utf-8")
    table = page.partition("## The overrides of verl")[2].partition("\n## ")[0]
    cells = [
        line.split(" | ")[1].strip("` ") for line in table.splitlines() if line.startswith("| ") and " | " in line
    ]
    keys = [cell for cell in cells if "=" in cell]
    request = RenderRequest(
        load_job(None, ROOT / "jobs" / "seed-qwen3-4b.yaml"), Path("/home/me/project"), "run.sh"
    )
    assert len(keys) > 25
    assert [cell for cell in keys if cell not in request.trainer.overrides] == []


def test_the_tests_that_were_run_are_there():
    page = (ROOT / "docs" / "what-was-run.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", page)
    assert len(named) > 20
    for path, function in named:
        assert (ROOT / path).exists(), path
        assert not function or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), function
