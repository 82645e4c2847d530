"""Each command of the pages runs, in a project that has what they speak of; long ways have tests of their own."""

import re
import shlex
from pathlib import Path

import pytest
import tomllib
from doc_shell import DOCS, ROOT, run, sections
from ready_project import ready_project
from recorded_sites import SITES

# tests/docs/test_first_hour.py and tests/cluster/test_main_job.py run all of it.
PAGES = [page for page in sorted(DOCS.glob("*.md")) if sections(page) and page.name != "first-hour.md"]
# A build makes the definition here and no image: docker registries are out of reach; the test cluster builds the
# image of the cpu stack.
STANDS_IN = (
    f"""
export SITE={shlex.quote(str(SITES / "debian-24.11"))} PATH=$PWD/site:$PATH
"""
    """
python() {
  case "$*" in
  "-m singularity.build --stack "*" -o "*)
    command python "$@" --print-def >image.def
    [[ -r $6 ]]
    ;;
  *) command python "$@" ;;
  esac
}
sbatch() { bash -n "$1"; }
"""
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return ready_project(tmp_path)


README = (
    "On a cluster",
    "The image",
    "The parts",
)  # the others: tests/test_readme.py, and of data, rewards, models


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page: Path, project: Path):
    run("".join(sections(page).values()), project, STANDS_IN)


@pytest.mark.parametrize("heading", README)
def test_every_command_of_the_readme_runs(heading: str, project: Path):
    run(sections(ROOT / "README.md")[heading], project, STANDS_IN)


def test_the_demo_is_shown_without_an_environment(tmp_path: Path):
    """After `make demo` nothing is activated."""
    (command,) = re.findall(r"`(cd demo && [^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    (tmp_path / "demo").mkdir()
    (ready_project(tmp_path / "demo") / ".venv").rename(tmp_path / ".venv")
    said = run(command, tmp_path, "PATH=/usr/bin:/bin\nunset PYTHONPATH\n")
    assert "state      failed" in said


def test_every_extra_is_named():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [
        extra for extra in project["optional-dependencies"] if extra != "dev" and f"'.[{extra}]'" not in readme
    ] == []


def test_the_job_itself_of_the_first_hour_renders(project: Path):
    (commands,) = [text for heading, text in sections(DOCS / "first-hour.md").items() if heading.startswith("4.")]
    # Not in the checkout: the page says that it may be anywhere.
    below = project / "first-hour"
    below.mkdir()
    (below / "CHECKOUT").symlink_to(ROOT)
    (project / "jobs").unlink()
    for name in ("models", "data", "images", "site"):
        (below / name).symlink_to(project / name)
    said = run(commands, below, STANDS_IN)
    assert "error:" not in said
    assert "wrote run_grpo.sh" in said


def test_pages_with_commands_are_run_somewhere():
    named = {"README.md", "docs/first-hour.md", "jobs/README.md", *(f"docs/{page.name}" for page in PAGES)}
    files = [ROOT / "README.md", ROOT / "jobs" / "README.md", *DOCS.glob("*.md")]
    assert {str(page.relative_to(ROOT)) for page in files if sections(page)} <= named


@pytest.mark.parametrize("page", ["docs/first-hour.md", "jobs/README.md"])
def test_what_to_change_for_another_site_is_what_render_tells(page: str, project: Path):
    """Eight H200 a node are no error where a node has four A100: the page has to say what to change."""
    (project / "site.yaml").write_text("cluster: {gpus_per_node: 4, gpu: a100}\n")
    said = run("python -m launch.render --job jobs/grpo.yaml --site site.yaml --check-only || true", project)
    (differing,) = re.findall(r"the job file says otherwise: (.*)", said)
    fields = set(re.findall(r"(cluster\.\w+)=", differing))
    assert fields == {"cluster.gpus_per_node", "cluster.gpu"}
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    told = text.partition(" first, then what the check tells you")[0][-150:]
    assert fields - set(re.findall(r"`([\w.]+)`", told)) == set()
