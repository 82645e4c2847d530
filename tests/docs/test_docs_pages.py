"""What the pages of docs/ say is so: links, the kinds of failures, the overrides of a hand-written script."""

import re
from pathlib import Path

import pytest
import yaml
from verl_sources import source

from launch.config import load_job
from launch.script import RenderRequest
from launch.supervisor.causes import CAUSES
from launch.supervisor.symptoms import raised_kind, said_kind
from reward.verl_client.thinking import split_thinking

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


SEED = ROOT / "jobs" / "seed-qwen3-4b.yaml"


@pytest.fixture(scope="module")
def seed() -> RenderRequest:
    return RenderRequest(load_job(None, SEED), Path("/home/me/project"), "run.sh")


@pytest.fixture(scope="module")
def script_page() -> str:
    return (ROOT / "docs" / "from-a-script.md").read_text(encoding="utf-8")


def test_the_overrides_of_a_hand_written_script_are_those_of_the_ready_job(seed: RenderRequest, script_page: str):
    table = script_page.partition("## The overrides of verl")[2].partition("\n## ")[0]
    cells = [
        line.split(" | ")[1].strip("` ") for line in table.splitlines() if line.startswith("| ") and " | " in line
    ]
    keys = [cell for cell in cells if "=" in cell]
    assert len(keys) > 25
    assert [cell for cell in keys if cell not in seed.trainer.overrides] == []


def test_what_the_ready_job_sets_against_verl_is_on_the_page(seed: RenderRequest, script_page: str):
    """Else the page would promise a training that is another one."""
    composed = source("0.6.1").root / "verl" / "trainer" / "config" / "_generated_ppo_megatron_trainer.yaml"
    default = yaml.safe_load(composed.read_text(encoding="utf-8"))
    untold = []
    for text in seed.trainer.overrides:
        key, value = text.lstrip("+").split("=", 1)
        found = default
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        told = key in script_page or f"...{key.rpartition('.')[2]}" in script_page
        if yaml.safe_load(value) != found and not told:
            untold.append(text)
    assert untold == []


def test_the_page_counts_the_lines_of_the_ready_job(script_page: str):
    lines = [line for line in SEED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert f"in {len(lines)} lines" in script_page


@pytest.mark.parametrize("page", ["README.md", "docs/from-a-script.md"])
def test_what_is_told_of_a_response_without_a_think_tag_is_so(page: str):
    """The first half of it stands in the prompt: a response that is cut off has no tag."""
    told = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert re.search(r"without any( think)? tag is scored as a whole", told)
    assert split_thinking("still at it, and cut off") == ("still at it, and cut off", False)
    assert split_thinking("<think>still at it, and cut off").stray


def test_the_tests_that_were_run_are_there():
    page = (ROOT / "docs" / "what-was-run.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", page)
    assert len(named) > 20
    for path, function in named:
        assert (ROOT / path).exists(), path
        assert not function or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), function
