"""The rendered script: recorded text, quoting through a real bash, shellcheck, and the command itself."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sif_files import write_sif
from slurm_stubs import Node, Outcome, host_environment, with_batch

from launch import render
from launch.config import load_job
from launch.rehearsal.shrink import rehearse
from launch.review import EngineCheck, review
from launch.script import RenderRequest, edited_by_hand, render_script
from launch.supervisor.verdict import read_failure

RECORDED = Path(__file__).parent / "recorded"
JOBS = sorted((Path(__file__).resolve().parents[2] / "jobs").glob("*.yaml"))
# What a default job leaves out of its script.
EVERY_OPTION = (
    "cluster={modules: [a/1.0, b], cpus_per_node: 64, mem: 900G, partition: gpu, account: me, qos: q, gpu: h200, "
    "network_interface: ib0, extra_sbatch: [--reservation=r]}",
    "recovery.requeue=true",
    "container={runtime: singularity, stage: true, stage_dir: /local, binds: ['/scratch:/s:ro'], "
    "env_file: '/home/me/my env', env: {A: 'it''s, \"b\"'}}",
    "reward={gpus: 2, input: chat, truncate: left, dtype: float32, batch_tokens: 4096, on_outage: 'wait:600', "
    "trust_remote_code: true}",
)
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


@pytest.fixture(autouse=True)
def outside_of_slurm(monkeypatch: pytest.MonkeyPatch):
    """The tests themselves may run in a job."""
    for name in [*filter(re.compile(r"(SLURM|SBATCH|APPTAINER|SINGULARITY)").match, os.environ)]:
        monkeypatch.delenv(name)
    for name in ("RUN_DIR", "LAUNCH_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def rendered(project: Path, *assignments: str, rehearsal: bool = True) -> str:
    job = load_job("grpo", None, assignments)
    shown = rehearse(job) if rehearsal else job
    return render_script(RenderRequest(shown, project, "run_grpo.sh", rehearsal, rehearsal, given=job))


def normal(text: str) -> str:
    """Without what differs from machine to machine."""
    root = str(Path(render.__file__).resolve().parents[1])
    lines = text.replace(sys.executable, "/venv/bin/python").replace(root, "/toolkit").splitlines()
    return "\n".join(line for line in lines if not line.startswith("# Rendered by")) + "\n"


def recorded(name: str, text: str) -> str:
    """The recorded text of a script. To record anew after a wanted change:
    RECORD=1 python -m pytest tests/launch/test_script.py
    """
    file = RECORDED / f"{name}.sh"
    if os.environ.get("RECORD"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.exists(), f"{file} is not recorded yet"
    return file.read_text()


@pytest.mark.parametrize(
    ("name", "assignments", "rehearsal"),
    [
        ("rehearsal-0.9.1-one-step-off", (), True),
        ("rehearsal-0.6.1-sync", ("engine.verl=0.6.1", "engine.mode=sync"), True),
        ("default-grpo", ("cluster.modules=[singularitypro]", "cluster.partition=gpu"), False),
        ("every-option", EVERY_OPTION, False),
    ],
)
def test_recorded_scripts(name: str, assignments: tuple[str, ...], rehearsal: bool):
    text = normal(rendered(Path("/project"), *assignments, rehearsal=rehearsal))
    assert text == recorded(name, text)


def ready_script(file: Path, rehearsal: bool) -> str:
    job = load_job(yaml.safe_load(file.read_text())["template"], file)
    shown = rehearse(job) if rehearsal else job
    name = f"run_{job.template}.sh"
    return render_script(RenderRequest(shown, Path("/project"), name, rehearsal, given=job))


@pytest.mark.parametrize("rehearsal", [False, True], ids=["job", "rehearsal"])
@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_recorded_scripts_of_the_ready_jobs(file: Path, rehearsal: bool):
    text = normal(ready_script(file, rehearsal))
    assert text == recorded(f"{file.stem}{'-rehearsal' if rehearsal else ''}", text)


def test_nothing_else_is_recorded():
    fixed = {"rehearsal-0.9.1-one-step-off", "rehearsal-0.6.1-sync", "default-grpo", "every-option"}
    names = fixed | {file.stem for file in JOBS} | {f"{file.stem}-rehearsal" for file in JOBS}
    assert {file.stem for file in RECORDED.glob("*.sh")} == names


def test_recorded_scripts_pass_shellcheck():
    """What a test above recorded is what users get."""
    shellcheck = shutil.which("shellcheck")
    assert shellcheck, "shellcheck is not installed; run: apt-get install shellcheck"
    files = sorted(RECORDED.glob("*.sh"))
    result = subprocess.run([shellcheck, *files], capture_output=True, text=True, check=False)
    assert result.stdout == ""


@pytest.mark.parametrize("rehearsal", [True, False])
@pytest.mark.parametrize("extra", [(), EVERY_OPTION])
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
        '#!/bin/bash\n[[ $1 != -sc ]] || exit 0\nprintf "%s\\0" "$@"\nprintf "env:%s\\0" "${AWKWARD-}"\n'
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
    assert result.returncode == 20
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
    assert result.returncode == 20
    assert f"{bare} has no ray and verl; set LAUNCH_PYTHON" in result.stderr


def test_a_job_without_slurm_says_so(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path, rehearsal=False))
    result = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert result.returncode == 20
    assert "this job needs Slurm; sbatch run_grpo.sh" in result.stderr


def test_a_missing_image_stops_before_srun(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path))
    result = subprocess.run(
        ["bash", script], env={**os.environ, "SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 20
    assert f"image {tmp_path}/images/verl-cpu.sif is not readable" in result.stderr
    assert "rehearsal.image" in result.stderr
    verdict = json.loads((tmp_path / "outputs/qwen3-4b-grpo/run-7/verdict.json").read_text())
    assert (verdict["component"], verdict["kind"], verdict["exit_code"]) == ("setup", "missing-path", 20)
    assert verdict["what_to_do"] == "correct rehearsal.image"


@pytest.fixture
def on_cluster(tmp_path: Path):
    """Render a rehearsal into a project with an image, and run it as a batch job on a stub node."""

    def run(*assignments: str, environ: dict[str, str] | None = None, programs=("srun", "apptainer")) -> Outcome:
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / "verl-cpu.sif").touch()
        script = tmp_path / "run.sh"
        script.write_text(rendered(tmp_path, *assignments))
        return Node(tmp_path / f"node{len(list(tmp_path.glob('node*')))}", programs).sbatch(script, environ)

    return run


def test_one_srun_starts_the_container(on_cluster, tmp_path: Path):
    """A18: one step holds the node, so no second one can wait for it. A32: one task on each node."""
    done = on_cluster()
    assert done.code == 0, done.err
    (step,), (container,) = done.sruns, done.containers
    assert step["options"] == [
        "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--cpus-per-task=2", "--kill-on-bad-exit=1", "--wait=0",
        "--export=ALL", "--mpi=none",
    ]  # fmt: skip
    assert container["options"][0] == ["--pwd", str(tmp_path)]
    assert container["image"] == f"{tmp_path}/images/verl-cpu.sif"
    assert container["command"][0] == "python3"
    assert container["command"][1].endswith("/launch/node.py")


@pytest.mark.parametrize(("cpus", "said"), [("12", ["--cpus-per-task=12"]), ("null", [])])
def test_a17_srun_says_its_cpus_and_nothing_contradicts(tmp_path: Path, cpus: str, said: list[str]):
    """A17: `srun -c N`, without another number in the environment; without N the step has all CPUs of the job."""
    image = tmp_path / "images" / "verl-0.9.1.sif"
    image.parent.mkdir()
    image.touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "data").mkdir()
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path, f"cluster.cpus_per_node={cpus}", rehearsal=False))
    stale = {"SRUN_CPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "cpu:1", "SLURM_CPUS_PER_TASK": "3"}
    done = Node(tmp_path / "node").sbatch(script, stale)
    assert done.code == 0, done.err
    (step,) = done.sruns
    assert [option for option in step["options"] if "cpus" in option] == said
    assert not set(stale) & set(step["env"])


def test_b01_b02_no_python_of_the_host_in_the_container(on_cluster):
    """B01: no ~/.local; B02: nothing of the host's Python or libraries, unless the job names it."""
    done = on_cluster("container.env={LD_LIBRARY_PATH: /mine}", environ=host_environment())
    assert done.code == 0, done.err
    (container,) = done.containers
    assert container["env"]["PYTHONNOUSERSITE"] == "1"
    assert {name for name, value in container["env"].items() if value == "/host"} == set()
    assert container["env"]["LD_LIBRARY_PATH"] == "/mine"


def test_b02_ld_preload_stays_outside(on_cluster):
    done = on_cluster(environ={"LD_PRELOAD": "/nonexistent.so"})
    assert "LD_PRELOAD" not in done.containers[0]["env"]


@pytest.mark.parametrize(
    ("programs", "runtime", "prefix"),
    [
        (("srun", "apptainer", "singularity"), "auto", "APPTAINERENV_"),
        (("srun", "singularity"), "auto", "SINGULARITYENV_"),
        (("srun", "apptainer", "singularity"), "singularity", "SINGULARITYENV_"),
        (("srun", "apptainer", "singularity"), "apptainer", "APPTAINERENV_"),
    ],
)
def test_b16_one_prefix_and_never_both_with_different_values(on_cluster, programs, runtime: str, prefix: str):
    """B16: the program's own prefix; a value under the other one, left by the host, would win in Apptainer."""
    stale = {"APPTAINERENV_MINE": "old", "SINGULARITYENV_MINE": "old", "APPTAINERENV_OTHER": "kept"}
    done = on_cluster(f"container={{runtime: {runtime}, env: {{MINE: new}}}}", environ=stale, programs=programs)
    assert done.code == 0, done.err
    outer = done.containers[0]["outer"]
    assert {name: value for name, value in outer.items() if name.endswith("ENV_MINE")} == {f"{prefix}MINE": "new"}
    assert outer["APPTAINERENV_OTHER"] == "kept"


def test_b05_a_path_that_one_node_lacks_is_named_with_the_node(on_cluster, tmp_path: Path):
    """B05: before the container starts, on every node, with a note from which the head makes its verdict."""
    done = on_cluster('container.binds=["/no pe:/x"]')
    assert done.code == 20
    assert "n1: no /no pe on this node" in done.err
    assert done.containers == []
    (note,) = (tmp_path / "outputs").rglob("failed-n1.json")
    failure = read_failure(json.loads(note.read_text()))
    assert (failure.component, failure.node, failure.exit_code) == ("setup", "n1", 20)
    assert failure.cause.startswith("no /no pe on this node")


def test_b05_the_note_is_json_whatever_the_path(on_cluster, tmp_path: Path):
    on_cluster("""container.binds=['/no"p\\e:/x']""")
    (note,) = (tmp_path / "outputs").rglob("failed-n1.json")
    assert json.loads(note.read_text())["cause"] == 'no /no"p\\e on this node'


def test_b13_the_gpus_of_the_step_reach_the_container(on_cluster):
    """B13: read in the task, not when the script was rendered or in the batch step."""
    done = on_cluster(environ={"CUDA_VISIBLE_DEVICES": "2,3"})
    assert done.containers[0]["env"]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in done.out


MODULE_INIT = 'module() { [[ $2 != broken ]] && echo "module $*" >> "$STUB_LOG/../modules"; }\n'


@pytest.mark.parametrize(("module", "code"), [("singularitypro/4.1 beta", 0), ("broken", 20)])
def test_b15_modules_in_a_shell_that_is_no_login_shell(tmp_path: Path, module: str, code: int):
    """B15: `module` is a function of the site's profile, which a batch script has to read by itself."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "verl-cpu.sif").touch()
    init = tmp_path / "modules.sh"
    init.write_text(f"echo $UNSET_OF_LMOD\n{MODULE_INIT}")  # lmod reads variables that are not set
    text = rendered(tmp_path, f"cluster.modules=['{module}']")
    script = tmp_path / "run.sh"
    script.write_text(with_batch(text, "/etc/profile.d/modules.sh ", f"{init} "))
    done = Node(tmp_path / "node").sbatch(script)
    assert done.code == code
    if code:
        assert "run_grpo.sh: module load broken failed" in done.err
    else:
        assert (tmp_path / "node" / "modules").read_text() == f"module load {module}\n"


def test_b15_no_module_command_is_named(tmp_path: Path):
    text = rendered(tmp_path, "cluster.modules=[x]")
    script = tmp_path / "run.sh"
    script.write_text(with_batch(text, "/etc/profile.d/modules.sh ", "/nonexistent "))
    done = Node(tmp_path / "node").sbatch(script, {"MODULESHOME": str(tmp_path)})
    assert done.code == 20
    assert "no 'module' command" in done.err


@pytest.mark.parametrize("variable", ["MODULESHOME", "LMOD_PKG"])
def test_modules_where_the_submitting_shell_has_them(tmp_path: Path, variable: str):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "verl-cpu.sif").touch()
    init = tmp_path / "modules" / "init" / "bash"
    init.parent.mkdir(parents=True)
    init.write_text(MODULE_INIT)
    script = tmp_path / "run.sh"
    script.write_text(rendered(tmp_path, "cluster.modules=[x]"))
    done = Node(tmp_path / "node").sbatch(script, {variable: str(tmp_path / "modules")})
    assert done.code == 0, done.err
    assert (tmp_path / "node" / "modules").read_text() == "module load x\n"


def test_a25_a36_nothing_in_the_script_touches_another_job():
    """A25, A36: no `ray stop`, no removal of shared folders, no `run`; A13: no sleep as a barrier."""
    for file in RECORDED.glob("*.sh"):
        text = file.read_text()
        assert not re.search(r"ray stop|pkill|killall|/tmp/ray|\bsleep\b|\btee\b|printenv", text), file.name
        assert not re.search(r'"\$RUNTIME" run', text), file.name


def test_only_a_rehearsal_runs_without_slurm(tmp_path: Path):
    assert "#   bash run_grpo.sh " in rendered(tmp_path)
    job = rendered(tmp_path, rehearsal=False)
    assert not [line for line in ("bash run_grpo.sh", "run-local-", 'exec "${SUPERVISE[@]}"') if line in job]


@pytest.mark.parametrize(
    ("assignments", "cpus"),
    [
        (("cluster.nodes=3", "cluster.gpus_per_node=4"), 12),
        (("cluster.nodes=2", "engine.mode=sync", "reward.placement=separate"), 25),
        (("cluster.nodes=2", "engine.mode=sync", "reward.gpus=0"), 24),
    ],
)
def test_ray_has_the_cpus_that_verl_waits_for(tmp_path: Path, assignments: tuple[str, ...], cpus: int):
    """The driver of a job with one node in Ray is on that node, whatever serves rewards beside it."""
    options = re.search(r"--min-cpus (\d+)", rendered(tmp_path, *assignments, rehearsal=False))
    assert options is not None
    assert int(options[1]) == cpus


@pytest.mark.parametrize("rehearsal", [True, False])
def test_the_job_in_the_run_directory_is_rendered_to_the_same_script(tmp_path: Path, rehearsal: bool):
    """A default in it must not become a value that the user named: rules take that for his word."""

    def looked_at(*more: str) -> tuple[str, list[tuple[str, str]]]:
        job = load_job(None, tmp_path / "job.json") if not more else load_job("grpo", None, more)
        seen = review(job, tmp_path, "run.sh", rehearse=rehearsal, engine=EngineCheck(wanted=False))
        return str(seen.script), [(one.id, one.severity) for one in seen.findings]

    text, said = looked_at("cluster.nodes=2", "cluster.cpus_per_node=64")
    (tmp_path / "job.json").write_text("\n".join(re.findall(r"^#: (.*)$", text, re.MULTILINE)))
    assert looked_at() == (text, said)


def test_variables_are_set_for_the_parts_that_read_them(tmp_path: Path):
    function = "reward={kind: function, function: mine.py}"
    server, own = (rendered(tmp_path, *words, rehearsal=False) for words in ((), (function,)))
    names = {"REWARD_MIN_SCORE=", "REWARD_MAX_SCORE=", "REWARD_TIMEOUT=", "REWARD_DEADLINE="}
    assert {name for name in names if name in server} == names
    assert {name for name in names if name in own} == set()
    fp8 = "actor.fp8=blockwise"
    assert "NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1" in rendered(tmp_path, fp8, rehearsal=False)
    assert "NVTE_" not in rendered(tmp_path, fp8, "actor.strategy=fsdp2", rehearsal=False)


@pytest.mark.parametrize(
    ("assignments", "hooked"),
    [
        ((), False),
        (("engine.mode=sync",), False),
        (("engine.mode=sync", "overrides=[trainer.use_v1=True]"), True),
        (("engine={mode: sync, verl: 0.6.1}",), False),
        (
            (
                "engine.mode=sync",
                "algorithm.filter_groups.enable=true",
                "container.env={VERL_USE_EXTERNAL_MODULES: a}",
            ),
            True,
        ),
    ],
)
def test_the_v1_trainer_is_told_of_the_end(tmp_path: Path, assignments: tuple[str, ...], hooked: bool):
    for rehearsal in (False, True):
        text = rendered(tmp_path, *assignments, rehearsal=rehearsal)
        (line,) = re.findall(r"^  '?VERL_USE_EXTERNAL_MODULES=.*$", text, re.MULTILINE) or [""]
        assert line.rstrip("'").endswith("launch.hooks.save_before_end") is hooked
        own = [name for name in ("launch.rehearsal.backend", "=a,") if name in line]
        assert own == (["=a,"] if "=a," in line else ["launch.rehearsal.backend"] if rehearsal else [])


@pytest.mark.parametrize(
    ("override", "resumes"),
    [
        ("actor_rollout_ref.rollout.seed=7", True),
        ("trainer.resume_mode=auto", True),
        ("trainer.resume_mode='auto'", True),
        ("trainer.resume_mode=disable", False),
        ("++trainer.resume_mode=resume_path", False),
    ],
)
def test_a_job_that_chooses_its_checkpoint_is_left_alone(tmp_path: Path, override: str, resumes: bool):
    text = rendered(tmp_path, f"overrides={json.dumps([override])}")
    assert ("-m converters.resume" in text) is resumes


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
        "--template", "grpo", "--set", "rollout.gpus_per_node=8", "--set", "data.train=[/no]", "--json",
        cwd=tmp_path,
    )  # fmt: skip
    told = json.loads(both.stdout)
    assert told["written"] is None
    assert {"gpu-plan", "missing-file"} <= {finding["id"] for finding in told["findings"]}


@pytest.mark.parametrize("output", ["/dev/null/x.sh", ".", "a\nb.sh"])
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
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#: "))  # the job as it was given
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
    checked = command("--template", "grpo", "--rehearse", "--check-only", cwd=tmp_path)
    assert checked.returncode == 0
    assert "nothing wrong" not in checked.stderr  # there is no image
    assert list(tmp_path.iterdir()) == []
    write_sif(tmp_path / "images" / "verl-cpu.sif")
    checked = command("--template", "grpo", "--rehearse", "--check-only", cwd=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "nothing wrong\n")


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
