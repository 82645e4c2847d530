"""Files, folders and images of a job, looked at on the login node."""

import os
from pathlib import Path

import pytest

from launch.binds import bind_mounts
from launch.checks import files
from launch.checks.files import check_binds, check_files
from launch.checks.reward_function import check_reward_function
from launch.config import load_job
from launch.finding import Finding
from singularity.toolkit import TOOLKIT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with everything that a default job names."""
    for folder in ("models/Qwen3-4B-Thinking-2507", "models/Unsafe-Reward-Qwen3-1.7B", "data", "images"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("data/train.parquet", "data/test.parquet"):
        (tmp_path / file).touch()
    (tmp_path / "images" / "verl-0.9.1.sif").touch()
    return tmp_path


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder of the test and the checkout stand for a shared file system with space, wherever they are."""
    above = set(map(str, tmp_path.parents)) & set(files._LOCAL)
    real = files.local_root

    def local_root(path: Path) -> str | None:
        if path == TOOLKIT:
            return None
        with pytest.MonkeyPatch.context() as patch:
            if path.is_relative_to(tmp_path):
                patch.setattr(files, "_LOCAL", tuple(root for root in files._LOCAL if root not in above))
            return real(path)

    monkeypatch.setattr(files, "local_root", local_root)
    monkeypatch.setattr(files, "_LITTLE_SPACE", 0)
    for name in files._LOCAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def found(project: Path, *assignments: str, rehearse: bool = False, sample_data: bool = False) -> list[Finding]:
    job = load_job("grpo", None, assignments)
    options = {"rehearse": rehearse, "sample_data": sample_data}
    return [*check_binds(job, project, **options), *check_files(job, project, **options)]


def only(project: Path, *assignments: str) -> Finding:
    (finding,) = found(project, *assignments)
    return finding


def test_a_complete_project_has_nothing_to_say(project: Path):
    assert found(project) == []


# ---- paths as they are written


@pytest.mark.parametrize(
    "field", ["model.path", "data.train", "container.image", "reward.model", "checkpoint.dir"]
)
@pytest.mark.parametrize(
    ("written", "meant"), [("~/x", "{home}/x"), ("$HOME/x", "{home}/x"), ("${WORK}/x", "/work/x")]
)
def test_nobody_expands_a_path(
    project: Path, monkeypatch: pytest.MonkeyPatch, field: str, written: str, meant: str
):
    monkeypatch.setenv("WORK", "/work")
    meant = meant.format(home=Path.home())
    finding = only(project, f"{field}={[written] if field == 'data.train' else written}")
    assert (finding.id, finding.severity) == ("unexpanded-path", "error")
    assert f"{field}={written} is taken as it stands" in finding.message
    assert finding.remedy == f"write {field}={meant}"


@pytest.mark.parametrize("written", ["~odd", "a~b", "$NO_SUCH_VARIABLE/x", "${oc.env:HOME}", "x$"])
def test_odd_names_of_files_are_names(project: Path, written: str):
    (project / written).mkdir(parents=True)
    assert found(project, f"model.path='{written}'") == []


def test_a_path_has_a_longest_length(project: Path):
    long = "/".join(["d" * 250] * 16)
    finding = only(project, f"checkpoint.dir={long}")
    assert finding.id == "path-length"
    assert "Linux takes 4096" in finding.message


# ---- inputs


@pytest.mark.parametrize("field", ["data.train", "data.val"])
def test_data_is_a_file(project: Path, field: str):
    assert only(project, f"{field}=[data]").message == f"{field}: {project}/data is not a file"


@pytest.mark.parametrize("field", ["model.path", "reward.model"])
def test_a_model_is_a_directory(project: Path, field: str):
    assert "is not a directory" in only(project, f"{field}=data/train.parquet").message


def test_what_the_user_cannot_read_is_an_error(project: Path, monkeypatch: pytest.MonkeyPatch):
    real, closed = os.access, project / "data" / "train.parquet"
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and real(path, mode))
    finding = only(project)
    assert (finding.id, finding.message) == ("unreadable-file", f"data.train: {closed} cannot be read by you")


def test_the_reward_function_must_be_a_file(project: Path):
    finding = only(project, "reward={kind: function, function: data}")
    assert finding.message == f"reward.function: {project}/data is not a file"


def test_a_critic_of_its_own_is_looked_at(project: Path):
    train = ("algorithm.estimator=gae", "engine.mode=sync", "critic.path=models/critic")
    finding = only(project, *train)
    assert (finding.id, finding.severity) == ("missing-file", "error")
    assert finding.message == f"critic.path: no {project}/models/critic"
    (project / "models" / "critic").touch()
    assert "is not a directory" in only(project, *train).message
    (project / "models" / "critic").unlink()
    (project / "models" / "critic").mkdir()
    assert found(project, *train) == []
    assert "critic.path or below it" in only(project, *train, "checkpoint.dir=models/critic/x").message
    assert found(project, "critic.path=models/none") == []  # grpo trains no critic


# ---- C29: where checkpoints go


@pytest.mark.parametrize("folder", ["/var/tmp/x", "/dev/shm/x", "/local/x", "/scratch/local/me/x"])
@pytest.mark.parametrize(("nodes", "severity"), [(2, "error"), (1, "warning")])
def test_c29_checkpoints_on_a_nodes_own_disk(project: Path, folder: str, nodes: int, severity: str):
    """C29: with several nodes the shards are spread over them, with one they are lost with the job."""
    one = ("cluster.nodes=1", "rollout.gpus_per_node=3") if nodes == 1 else ()
    finding = only(project, f"checkpoint.dir={folder}", *one)
    assert (finding.id, finding.severity) == ("checkpoint-dir", severity)
    assert f"{folder} is below " in finding.message


@pytest.mark.parametrize("name", ["TMPDIR", "SLURM_TMPDIR"])
def test_c29_a_variable_names_a_nodes_own_disk(project: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv(name, f"{project}/fast")
    assert "each of the 2 nodes has for itself" in only(project, f"checkpoint.dir={project}/fast/x").message


def test_c29_a_link_to_a_nodes_own_disk_is_one(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    disk = tmp_path_factory.mktemp("disk")
    monkeypatch.setattr(files, "_LOCAL", (str(disk),))
    (project / "link").symlink_to(disk)
    assert f"is below {disk}" in only(project, f"checkpoint.dir={project}/link/x").message


@pytest.mark.parametrize("name", ["out/x", "../fast/x"])
def test_c29_a_relative_folder_may_lead_to_a_nodes_own_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setattr(files, "_LOCAL", (f"{tmp_path}/fast",))
    (tmp_path / "fast").mkdir()
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path / "fast")
    told = [finding for finding in found(folder, f"checkpoint.dir={name}") if finding.id == "checkpoint-dir"]
    assert [finding.severity for finding in told] == ["error"]
    assert f"is below {tmp_path}/fast, which each of the 2 nodes has for itself" in told[0].message


def test_c29_a_rehearsal_may_stay_anywhere(project: Path):
    ids = {finding.id for finding in found(project, "checkpoint.dir=/dev/shm/x", rehearse=True, sample_data=True)}
    assert ids == {"missing-image"}


def test_the_image_of_a_rehearsal_can_be_built(project: Path):
    (one,) = found(project, "rehearsal.image=a b.sif", rehearse=True, sample_data=True)
    assert f"python3 -m singularity.build --stack cpu -o '{project}/a b.sif'" in one.remedy


def test_a_project_on_a_nodes_own_disk_is_a_warning(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "_LOCAL", (str(project),))
    findings = found(project)
    assert [(finding.id, finding.severity) for finding in findings] == [("local-folder", "warning")]
    assert f"the project folder, {project}" in findings[0].message


def test_checkpoints_cannot_go_where_a_file_is(project: Path):
    assert "train.parquet is a file" in only(project, "checkpoint.dir=data/train.parquet/x").message


def test_checkpoints_need_a_folder_that_can_be_written(project: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and real(path, mode))
    assert only(project).message == f"checkpoint.dir: {project} cannot be written by you"


def test_a_full_disk_is_a_warning(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "_LITTLE_SPACE", 2**80)
    finding = only(project)
    assert (finding.id, finding.severity) == ("disk-space", "warning")
    assert "GiB free" in finding.message


@pytest.mark.parametrize("folder", ["models/Qwen3-4B-Thinking-2507", "models/Unsafe-Reward-Qwen3-1.7B/out"])
def test_checkpoints_do_not_go_into_a_model(project: Path, folder: str):
    assert "the job would write into that model" in only(project, f"checkpoint.dir={folder}").message


def test_going_on_from_checkpoints_is_said(project: Path):
    checkpoints = project / "outputs" / "qwen3-4b-grpo" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("75\n")
    finding = only(project)
    assert (finding.id, finding.severity) == ("resume", "warning")
    assert "up to step 75, and the job goes on from there" in finding.message


# ---- what the container sees


def test_a_bind_source_that_is_not_here_is_a_warning(project: Path):
    """B05: it may be on the compute nodes, where the script looks again."""
    finding = only(project, "container.binds=['/nope:/x']")
    assert (finding.id, finding.severity) == ("bind-source", "warning")
    assert "no /nope on this machine" in finding.message


@pytest.mark.parametrize("field", ["model.path", "reward.model", "checkpoint.dir"])
def test_a_folder_that_cannot_be_bound_is_named_by_its_field(project: Path, field: str):
    findings = [finding for finding in found(project, f"{field}='/a:b/c'") if finding.id == "bind-path"]
    assert [finding.message.partition(":")[0] for finding in findings] == [field]


def test_a_project_that_cannot_be_bound_is_named(tmp_path: Path):
    folder = tmp_path / "a,b"
    folder.mkdir()
    (finding,) = (finding for finding in found(folder) if finding.id == "bind-path")
    assert finding.message.startswith("the project folder: ")


def test_every_path_of_the_job_lies_in_a_bind(tmp_path: Path):
    """Nothing that the job names can be out of sight of the container."""
    project, far = tmp_path / "project", tmp_path / "far"
    project.mkdir()
    (far / "real").mkdir(parents=True)
    (far / "link").symlink_to(far / "real")
    names = {
        "model.path": f"{far}/m/model", "reward.model": "../far/r/reward", "checkpoint.dir": f"{far}/out",
        "container.env_file": f"{far}/secret/env",
    }  # fmt: skip
    words = [*(f"{field}={name}" for field, name in names.items()), f"data.train=[{far}/link/t.parquet]"]
    job = load_job("grpo", None, words)
    binds = [Path(bind) for bind in bind_mounts(job, project, rehearse=False, sample_data=False)]
    paths = [Path(os.path.normpath(project / name)) for name in [*names.values(), *job.data.train, *job.data.val]]
    for path in [*paths, far / "real" / "t.parquet", TOOLKIT]:
        assert any(path.is_relative_to(bind) for bind in binds), path


def test_b09_a_missing_image_is_an_error_before_sbatch(project: Path):
    finding = only(project, "container.image=images/none.sif")
    assert (finding.id, finding.severity) == ("missing-file", "error")


# ---- C10: the reward function is called by keyword, with four names

FOUR = "data_source, solution_str, ground_truth, extra_info=None"


def of_function(folder: Path, text: str, *assignments: str) -> list[str]:
    (folder / "mine.py").write_text(text)
    words = ["reward={kind: function, function: mine.py}", *assignments]
    return [finding.message for finding in check_reward_function(load_job("grpo", None, words), folder)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"def compute_score({FOUR}, *, tokenizer): ...", "needs tokenizer, which verl does not give"),
        (f"def compute_score(model, {FOUR}): ...", "needs model, which verl does not give"),
        (f"def compute_score({FOUR.replace('=None', '')}, a, b=1): ...", "needs a, which verl does not give"),
        ("def compute_score(data_source, /, solution_str, **kw): ...", "takes data_source by position only"),
        ("if True:\n    def compute_score(a, b): ...", "takes no data_source"),
    ],
)
def test_c10_a_function_that_needs_more_or_otherwise(tmp_path: Path, text: str, says: str):
    told = of_function(tmp_path, text)
    assert any(says in message for message in told), told


@pytest.mark.parametrize(
    "text",
    [
        f"def compute_score({FOUR}, *args, scale=1.0, **kwargs): ...",
        "def compute_score(x=None, /, **kwargs): ...",
        f"@with_tokenizer\ndef compute_score(tokenizer, {FOUR}): ...",
        f"try:\n    import fast\nexcept ImportError:\n    def compute_score({FOUR}): ...",
        "try:\n    from fast import compute_score\nexcept ImportError:\n    from slow import compute_score",
        "import scoring as compute_score",
        "compute_score: object = print",
        "compute_score, other = print, print",
        "with open('x') as f:\n    [compute_score] = [print]",
        "from scoring import *",
        "def compute_score(a): ...\ncompute_score = wrapped(compute_score)",
        "class compute_score: ...",
        "match 1:\n    case 1:\n        compute_score = print",
    ],
)
def test_c10_ways_to_give_a_function(tmp_path: Path, text: str):
    assert of_function(tmp_path, text) == []


@pytest.mark.parametrize(
    "text", ["import compute_score.x as y", "def f():\n    compute_score = 1", "x.compute_score = 1"]
)
def test_c10_what_binds_no_function(tmp_path: Path, text: str):
    (told,) = of_function(tmp_path, text)
    assert "has no function 'compute_score'" in told


def test_c10_a_raw_override_may_give_an_argument(tmp_path: Path):
    text = f"def compute_score({FOUR}, *, url): ..."
    override = "overrides=['+reward.custom_reward_function.reward_kwargs.url=http://x']"
    assert of_function(tmp_path, text, override) == []
    assert len(of_function(tmp_path, text)) == 1
