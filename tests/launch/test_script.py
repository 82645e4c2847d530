"""The rendered script: recorded text, quoting through a real bash, shellcheck, and the command itself."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch import render
from launch.config import load_job
from launch.rehearse import rehearse
from launch.script import RenderRequest, edited_by_hand, render_script

RECORDED = Path(__file__).parent / "recorded"
NAMES = [
    "plain",
    "a b",
    "it's",
    'q"q',
    "d$HOME",
    "b`id`",
    "c;d",
    "e{f}",
    "g=h",
    "日本",
    "-dash",
    "x&y",
    "#z",
    "!w",
    "p(1)",
]


def rendered(project: Path, *assignments: str, rehearsal: bool = True) -> str:
    job = load_job("grpo", None, assignments)
    job = rehearse(job) if rehearsal else job
    return render_script(RenderRequest(job, project, "run_grpo.sh", rehearsal, rehearsal))


def normal(text: str) -> str:
    """Without what differs from machine to machine."""
    root = str(Path(render.__file__).resolve().parents[1])
    lines = text.replace(sys.executable, "/venv/bin/python").replace(root, "/toolkit").splitlines()
    return "\n".join(line for line in lines if not line.startswith("# Rendered by")) + "\n"


@pytest.mark.parametrize(
    ("name", "assignments", "rehearsal"),
    [
        ("rehearsal-0.9.1-one-step-off", (), True),
        ("rehearsal-0.6.1-sync", ("engine.verl=0.6.1", "engine.mode=sync"), True),
        ("default-grpo", ("cluster.modules=[singularitypro]", "cluster.partition=gpu"), False),
    ],
)
def test_recorded_scripts(name: str, assignments: tuple[str, ...], rehearsal: bool):
    """To record anew after a wanted change: RECORD=1 python -m pytest tests/launch/test_script.py"""
    text = normal(rendered(Path("/project"), *assignments, rehearsal=rehearsal))
    file = RECORDED / f"{name}.sh"
    if os.environ.get("RECORD"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("rehearsal", [True, False])
@pytest.mark.parametrize("extra", [(), ("cluster.modules=[a/1.0]", "container.env.X='a b'", "cluster.gpu=h200")])
def test_shellcheck_is_clean(tmp_path: Path, rehearsal: bool, extra: tuple[str, ...]):
    shellcheck = shutil.which("shellcheck")
    assert shellcheck, "shellcheck is not installed; run: make test-tools, or apt-get install shellcheck"
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path, *extra, rehearsal=rehearsal))
    result = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert result.stdout == ""


def run_with_a_recorder(script: Path, environ: dict[str, str]) -> list[str]:
    """Run a script whose Python only prints its arguments, one a line, NUL-separated."""
    recorder = script.parent / "recorder"
    recorder.write_text(
        '#!/bin/bash\n[[ $1 != -c ]] || exit 0\nprintf "%s\\0" "$@"\nprintf "env:%s\\0" "${AWKWARD-}"\n'
    )
    recorder.chmod(0o755)
    result = subprocess.run(
        ["bash", script], env={"PATH": os.environ["PATH"], "LAUNCH_PYTHON": str(recorder), **environ},
        capture_output=True, text=True, check=True, cwd=script.parent,
    )  # fmt: skip
    return result.stdout.partition("\n")[2].split("\0")


@pytest.mark.parametrize("name", NAMES)
def test_any_project_folder_survives_bash(tmp_path: Path, name: str):
    project = tmp_path / name
    project.mkdir()
    script = tmp_path / "run.sh"
    script.write_text(rendered(project, f"container.env.AWKWARD={json.dumps(name)}"))
    words = run_with_a_recorder(script, {"RUN_DIR": str(project / "run")})
    assert words[words.index("--run-dir") + 1] == f"{project}/run"
    assert f"{project}/run/rehearsal/data" in words
    assert f"env:{name}" in words
    assert (project / "run" / "checkpoints").is_dir()


def test_the_default_run_directory_is_below_the_project(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path))
    words = run_with_a_recorder(script, {})
    run_dir = Path(words[words.index("--run-dir") + 1])
    assert run_dir.parent == tmp_path / "outputs" / "qwen3-4b-grpo"


@pytest.mark.parametrize("name", ['a"b.sh', "$(touch gone).sh", "a b.sh", "`id`.sh"])
def test_any_script_name_is_harmless(tmp_path: Path, name: str):
    job = load_job("grpo")
    script = tmp_path / "run.sh"
    script.write_text(render_script(RenderRequest(job, tmp_path, name)))
    result = subprocess.run(["bash", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"{name}: this job needs Slurm")
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]


def test_under_slurm_the_run_directory_is_the_jobs(tmp_path: Path):
    assert "RUN_DIR=$OUTPUT/run-$SLURM_JOB_ID" in rendered(tmp_path)


def test_a_relative_run_directory_becomes_absolute(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path))
    words = run_with_a_recorder(script, {"RUN_DIR": "a/../b c"})
    assert words[words.index("--run-dir") + 1] == f"{tmp_path}/b c"


def test_a_python_without_the_engine_is_named(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path))
    bare = tmp_path / "python"
    bare.write_text("#!/bin/bash\nexit 1\n")
    bare.chmod(0o755)
    environ = {**os.environ, "LAUNCH_PYTHON": str(bare)}
    result = subprocess.run(["bash", script], env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"{bare} has no ray and verl; set LAUNCH_PYTHON" in result.stderr


def test_a_job_without_slurm_says_so(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path, rehearsal=False))
    result = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "this job needs Slurm: sbatch run_grpo.sh" in result.stderr


def test_a_missing_image_stops_before_srun(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path))
    result = subprocess.run(
        ["bash", script], env={**os.environ, "SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert f"image {tmp_path}/images/verl-cpu.sif is not readable" in result.stderr
    assert "rehearsal.image" in result.stderr


STUBS = {"apptainer": "exit 99", "srun": 'printf "%s\\0" "$@"; env -0'}


def test_under_slurm_one_srun_starts_the_container(tmp_path: Path):
    """A stub srun: what it would start, and with which environment, is the question here."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name, body in STUBS.items():
        (stubs / name).write_text(f"#!/bin/bash\n{body}\n")
        (stubs / name).chmod(0o755)
    image = tmp_path / "images" / "verl-cpu.sif"
    image.parent.mkdir()
    image.touch()
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path, "container.env.AWKWARD='a,b \"c\"'"))
    host = {
        "PATH": f"{stubs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "PYTHONPATH": "/host",
        "LD_LIBRARY_PATH": "/host", "VIRTUAL_ENV": "/host", "CONDA_PREFIX": "/host", "PYTHONHOME": "/host",
    }  # fmt: skip
    result = subprocess.run(["bash", script], env=host, capture_output=True, text=True, check=True)
    words = result.stdout.partition("\n")[2].split("\0")
    assert words[:4] == ["--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--cpus-per-task=2"]
    assert "--kill-on-bad-exit=1" in words
    container = words.index(str(stubs / "apptainer"))
    assert words[container + 1 : container + 3] == ["exec", "--pwd"]
    assert words[words.index(str(image)) + 1] == "python3"
    assert words[words.index(str(image)) + 2].endswith("/launch/node.py")
    assert 'APPTAINERENV_AWKWARD=a,b "c"' in words
    assert not [word for word in words if word.endswith("=/host")]


def test_hand_edits_are_seen(tmp_path: Path):
    text = rendered(tmp_path)
    assert not edited_by_hand(text)
    assert edited_by_hand(text.replace("train_batch_size=8", "train_batch_size=9"))
    assert edited_by_hand("#!/bin/bash\n")


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launch.render", *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_render_writes_and_protects(tmp_path: Path):
    first = command("--template", "grpo", "--rehearse", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    script = tmp_path / "run_grpo.sh"
    assert os.access(script, os.X_OK)
    assert command("--template", "grpo", "--rehearse", cwd=tmp_path).returncode == 0
    script.write_text(script.read_text() + "# mine\n")
    refused = command("--template", "grpo", "--rehearse", cwd=tmp_path)
    assert refused.returncode == 1
    assert "edited by hand" in refused.stderr
    assert script.read_text().endswith("# mine\n")
    assert command("--template", "grpo", "--rehearse", "--force", cwd=tmp_path).returncode == 0
    assert not script.read_text().endswith("# mine\n")


def test_a_broken_job_writes_nothing_and_says_all(tmp_path: Path):
    result = command("--template", "grpo", "--set", "cluster.nodes=1", "--set", "rollout.n=0", cwd=tmp_path)
    assert result.returncode == 1
    assert list(tmp_path.iterdir()) == []
    both = command(
        "--template", "grpo", "--set", "cluster.nodes=1", "--set", "data.train=[/no]", "--json", cwd=tmp_path
    )
    told = json.loads(both.stdout)
    assert told["written"] is None
    assert {"gpu-plan", "missing-file"} <= {finding["id"] for finding in told["findings"]}


@pytest.mark.parametrize("output", ["/nonexistent/x.sh", ".", "a\nb.sh"])
def test_an_output_that_cannot_be_is_an_error(tmp_path: Path, output: str):
    result = command("--template", "grpo", "--rehearse", "-o", output, "--json", cwd=tmp_path)
    assert result.returncode == 1
    assert json.loads(result.stdout)["written"] is None
    assert "Traceback" not in result.stderr


def test_a_rehearsal_tells_what_is_wrong_with_the_job(tmp_path: Path):
    result = command("--template", "grpo", "--rehearse", "--set", "model.path=/nope/typo", cwd=tmp_path)
    assert result.returncode == 0
    assert "warning: missing-file: without --rehearse: model.path: no /nope/typo" in result.stderr


def test_a_rehearsal_asks_for_little(tmp_path: Path):
    text = rendered(tmp_path, "cluster.mem=900G", "cluster.extra_sbatch=['--gres=gpu:8', '--nice']")
    assert "900G" not in text
    assert "--gres" not in text
    assert "#SBATCH --nice" in text


def test_the_jobs_environment_does_not_touch_the_script(tmp_path: Path):
    own = dict.fromkeys(("RUN_DIR", "TOOLKIT", "PROJECT", "UID", "PATH", "LD_PRELOAD", "IFS"), "/elsewhere")
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path, f"container.env={json.dumps(own)}"))
    words = run_with_a_recorder(script, {"RUN_DIR": str(tmp_path / "run")})
    assert words[0].endswith("/launch/node.py")
    assert words[words.index("--run-dir") + 1] == str(tmp_path / "run")


def test_usage_errors_exit_with_2(tmp_path: Path):
    assert command(cwd=tmp_path).returncode == 2
    assert command("--template", "ppo-typo", cwd=tmp_path).returncode == 2


def test_stdout_schema_and_check_only(tmp_path: Path):
    shown = command("--template", "grpo", "--rehearse", "-o", "-", cwd=tmp_path)
    assert shown.stdout.startswith("#!/bin/bash\n")
    schema = json.loads(command("--schema", cwd=tmp_path).stdout)
    assert schema["additionalProperties"] is False
    assert command("--template", "grpo", "--rehearse", "--check-only", cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_render_imports_no_torch(tmp_path: Path):
    code = (
        "import sys; from launch.render import main; "
        "main(['--template', 'grpo', '--rehearse', '-o', 'x.sh']); "
        "sys.exit(sorted({'torch', 'ray', 'verl', 'transformers', 'numpy'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
