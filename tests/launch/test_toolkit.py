"""What a job sees of the Python that rendered it: the toolkit, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.toolkit import place_toolkit, toolkit_folder
from singularity.toolkit import TOOLKIT

PLACED = """
import sys
from pathlib import Path
from launch.binds import bind_mounts
from launch.config import load_job
from launch.script import RenderRequest, render_script
from launch.toolkit import place_toolkit
from singularity.toolkit import TOOLKIT
project = Path(sys.argv[1])
assert TOOLKIT.name == "site-packages", TOOLKIT
print(place_toolkit(project))
job = load_job("grpo")
print(*bind_mounts(job, project, rehearse=False, sample_data=False), sep="|")
print(render_script(RenderRequest(job, project, "run.sh")))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toolkit by `pip install` without --editable, beside a package of the host."""
    folder = tmp_path_factory.mktemp("host") / "site-packages"
    source = tmp_path_factory.mktemp("source") / "toolkit"
    source.mkdir()
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "launch",
        "reward",
        "data_prep",
        "converters",
        "singularity",
    ):
        (source / name).symlink_to(TOOLKIT / name)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        folder,
    ]
    done = subprocess.run([*pip, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "pydantic_of_the_host.py").touch()
    return folder


def test_b01_an_installed_toolkit_is_copied_without_its_neighbours(installed: Path, tmp_path: Path):
    """B01: no module of the host reaches the image's Python through the toolkit's own folder."""
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", PLACED, str(tmp_path)]
    runs = [
        subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    copy, binds, script = runs[0].split("\n", 2)
    assert Path(copy).parent == tmp_path / ".launch-toolkit"
    assert [path.name for path in (tmp_path / ".launch-toolkit").iterdir()] == [Path(copy).name]
    assert {path.name for path in Path(copy).iterdir()} == {
        "launch", "reward", "data_prep", "converters", "singularity"
    }  # fmt: skip
    assert (Path(copy) / "launch" / "templates" / "job.sh.j2").is_file()
    assert f"TOOLKIT={copy}\n" in script
    assert binds.split("|") == [str(tmp_path)]
    # What a node runs works from the copy, with nothing else beside it.
    node = [sys.executable, "-IS", str(Path(copy) / "launch" / "node.py"), "--help", "::trainer", "t"]
    assert "Supervise one node" in subprocess.run(node, capture_output=True, text=True, check=True).stdout


def test_another_content_is_another_copy(tmp_path: Path):
    copies = []
    for number in range(2):
        toolkit = tmp_path / str(number) / "site-packages"
        (toolkit / "launch" / "__pycache__").mkdir(parents=True)
        (toolkit / "launch" / "x.py").write_text(f"{number}")
        (toolkit / "launch" / "__pycache__" / "x.pyc").touch()
        assert toolkit_folder(tmp_path, toolkit) == toolkit  # until there is a copy
        copies.append(place_toolkit(tmp_path, toolkit))
        assert toolkit_folder(tmp_path, toolkit) == copies[-1]
        assert [path.name for path in copies[-1].rglob("*")] == ["launch", "x.py"]
    assert copies[0] != copies[1]


def test_a_checkout_is_used_where_it_is(tmp_path: Path):
    assert place_toolkit(tmp_path) == TOOLKIT
    assert list(tmp_path.iterdir()) == []
