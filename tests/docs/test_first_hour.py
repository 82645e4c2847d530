"""The page of the first hour, from its first command to a merged model (its part on a cluster: tests/cluster)."""

import json
from pathlib import Path

import pytest
from doc_shell import DOCS, ROOT, code_block, run, sections

PAGE = DOCS / "first-hour.md"
HERE = [heading for heading in sections(PAGE) if heading[0] in "12"]
STANDS_IN = """
make() { [[ $* == setup && -x .venv/bin/python ]]; }
less() { cat -- "$@" >shown; }
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, for what the page makes in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in (".venv", "jobs", "launch", "reward", "data_prep", "converters", "singularity", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "first-hour").mkdir()
    (folder / "first-hour" / "job.yaml").write_text(code_block(PAGE, "yaml"))
    return folder


@pytest.mark.engine
def test_from_nothing_to_a_merged_model(checkout: Path):
    commands = "".join(sections(PAGE)[heading] for heading in HERE).replace("mkdir first-hour\n", "")
    said = run(commands, checkout, STANDS_IN)
    (verdict,) = (checkout / "first-hour").glob("outputs/first/run-local-*/verdict.json")
    told = json.loads(verdict.read_text())
    assert (told["state"], told["steps_done"]) == ("completed", 4)
    assert (Path(told["hf_model"]) / "model.safetensors").is_file()
    assert "state      completed" in said
