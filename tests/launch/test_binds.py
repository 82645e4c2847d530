"""What the container gets to see."""

from pathlib import Path

from launch.binds import bind_mounts
from launch.checks import check_job
from launch.config import load_job
from singularity.toolkit import TOOLKIT


def binds(project: Path, *assignments: str) -> list[str]:
    return bind_mounts(load_job("grpo", None, assignments), project, rehearse=False, sample_data=False)


def test_paths_in_the_project_need_no_bind_of_their_own(tmp_path: Path):
    assert binds(tmp_path) == [str(tmp_path), str(TOOLKIT)]


def test_paths_outside_are_bound_once(tmp_path: Path):
    found = binds(
        tmp_path, "model.path=/big/models/a", "reward.model=/big/models/b", "data.train=[/big/models/c.parquet]"
    )
    assert found == [str(tmp_path), str(TOOLKIT), "/big/models"]


def test_the_critic_is_bound_where_one_is_trained(tmp_path: Path):
    assert "/far/critic" not in binds(tmp_path, "critic.path=/far/critic")
    assert "/far/critic" in binds(tmp_path, "critic.path=/far/critic", "algorithm.estimator=gae")


def test_dots_lead_outside(tmp_path: Path):
    project = tmp_path / "project"
    project.mkdir()
    assert f"{tmp_path}/models/x" in binds(project, "model.path=../models/x")


def test_a_link_needs_its_target(tmp_path: Path):
    project, store = tmp_path / "project", tmp_path / "store"
    (store / "model").mkdir(parents=True)
    project.mkdir()
    (project / "model").symlink_to(store / "model")
    assert f"{store}/model" in binds(project, "model.path=model")


def test_the_users_binds_are_kept(tmp_path: Path):
    assert binds(tmp_path, "container.binds=['/scratch:/s:ro']")[-1] == "/scratch:/s:ro"


def test_what_cannot_be_bound_is_an_error(tmp_path: Path):
    for field in ("model.path", "reward.model", "checkpoint.dir"):
        job = load_job("grpo", None, [f"{field}='/a,b'"])
        found = check_job(job, tmp_path, rehearse=False, sample_data=False)
        assert "bind-path" in {finding.id for finding in found}, field
    project = tmp_path / "pro,ject"
    project.mkdir()
    found = check_job(load_job("grpo"), project, rehearse=False, sample_data=False)
    assert "bind-path" in {finding.id for finding in found}


def test_the_folder_of_the_staged_image_is_seen_inside(tmp_path: Path):
    """launch/node.py removes the copy from inside."""
    for stage, bound in (("true", ["/local disk"]), ("false", [])):
        job = load_job("grpo", None, [f"container={{stage: {stage}, stage_dir: /local disk}}"])
        binds = bind_mounts(job, tmp_path, rehearse=False, sample_data=False)
        assert [bind for bind in binds if bind.startswith("/local")] == bound
