"""Before the queue: a job must have time for its last checkpoint, and one to go on from."""

from pathlib import Path

import pytest

from launch.checks import check_job, files, recovery
from launch.config import load_job
from launch.finding import Finding
from launch.rehearsal.shrink import rehearse

REQUEUE = "recovery.requeue=true"
IDS = ("before-end", "requeue-resume", "requeue-checkpoint", "stalled", "stage-dir", "sbatch-options")


def found(*assignments: str, project: Path = Path("/nonexistent"), small: bool = False) -> list[Finding]:
    given = load_job("grpo", None, assignments)
    told = check_job(rehearse(given) if small else given, project, rehearse=small, sample_data=small)
    return [one for one in told if one.id in IDS]


def named(*assignments: str, project: Path = Path("/nonexistent"), small: bool = False) -> list[tuple[str, str]]:
    return [(one.id, one.severity) for one in found(*assignments, project=project, small=small)]


@pytest.mark.parametrize("template", ["grpo", "ppo", "dapo"])
def test_the_defaults_have_nothing_to_say(template: str):
    given = load_job(template, None, [REQUEUE])
    told = check_job(given, Path("/nonexistent"), rehearse=False, sample_data=False)
    assert [one for one in told if one.id in IDS] == []


# ---- time for the last checkpoint


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (("cluster.time=01:00:00", "checkpoint.before_end_s=3600"), [("before-end", "error")]),
        (("cluster.time=60", "checkpoint.before_end_s=3599"), [("before-end", "warning")]),
        (("cluster.time=01:00:00", "checkpoint.before_end_s=1201"), [("before-end", "warning")]),
        (("cluster.time=01:00:00", "checkpoint.before_end_s=1200"), []),
        (("cluster.time=1-00", "checkpoint.before_end_s=3600"), []),
        (("cluster.time=01:00:00", "checkpoint.before_end_s=0"), []),
        (("cluster.time=00:04:00",), [("before-end", "error")]),
    ],
)
def test_before_the_end(assignments: tuple[str, ...], told: list[tuple[str, str]]):
    assert named(*assignments) == told


def test_before_the_end_in_numbers():
    (one,) = found("cluster.time=00:05:00")
    assert one.message.startswith("checkpoint.before_end_s=300 of cluster.time=00:05:00 (300 s) leaves no time")
    assert one.remedy.startswith(
        "set a longer cluster.time, or checkpoint.before_end_s (default: 300) to what one "
    )
    assert named("cluster.time=00:05:00", "checkpoint.before_end_s=30") == []


def test_no_limit_is_no_end():
    assert named("cluster.time=0") == []


def test_a_short_rehearsal_keeps_less_free_unless_it_says_how_much():
    assert rehearse(load_job("grpo", None, [])).checkpoint.before_end_s == 300
    assert rehearse(load_job("grpo", None, ["rehearsal.time=00:02:00"])).checkpoint.before_end_s == 12
    own = ("rehearsal.time=00:02:00", "checkpoint.before_end_s=45")
    assert rehearse(load_job("grpo", None, own)).checkpoint.before_end_s == 45
    assert named(*own, small=True) == []
    # What is valid in the job's own limit is no mistake of its rehearsal.
    assert named("rehearsal.time=00:02:00", "checkpoint.before_end_s=120", small=True) == []


# ---- requeue


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (('overrides=["trainer.resume_mode=disable"]',), [("requeue-resume", "error")]),
        (("overrides=[\"+trainer.resume_mode='disable'\"]",), [("requeue-resume", "error")]),
        (('overrides=["trainer.resume_mode=resume_path"]',), [("requeue-resume", "error")]),
        (('overrides=["trainer.resume_mode=disable", "trainer.resume_mode=auto"]',), []),
        (("checkpoint.contents=[hf_model]",), [("requeue-resume", "error")]),
        (("checkpoint.contents=[model, extra]",), [("requeue-resume", "error")]),
        (("checkpoint.contents=[model, optimizer, extra, hf_model]",), []),
        (("checkpoint.dir=/tmp/x", "cluster.nodes=1"), [("requeue-checkpoint", "error")]),
        (("checkpoint.dir=/dev/shm/x", "cluster.nodes=1"), [("requeue-checkpoint", "error")]),
        (("checkpoint.dir=/shared/x",), []),
        (("cluster.extra_sbatch=[--no-requeue]",), [("sbatch-options", "error")]),
        (("cluster.extra_sbatch=[--no-req]",), [("sbatch-options", "error")]),
        (("cluster.extra_sbatch=[--requeue]",), []),
        (("cluster.extra_sbatch=[--open-mode=truncate]",), [("sbatch-options", "warning")]),
        (("cluster.extra_sbatch=[--open-mode=append]",), []),
    ],
)
def test_a_job_that_is_started_again_goes_on(assignments: tuple[str, ...], told: list[tuple[str, str]]):
    assert named(REQUEUE, *assignments) == told
    # Without requeue none of it is wrong.
    without = [] if assignments != ("cluster.extra_sbatch=[--requeue]",) else [("sbatch-options", "warning")]
    assert named(*assignments) == without


def test_slurms_own_requeue_is_noted_with_the_better_way():
    (one,) = found("cluster.extra_sbatch=[--requeue]")
    assert "recovery.requeue=true" in one.remedy


def test_a_rehearsal_keeps_its_checkpoints_in_its_run_directory():
    assert named(REQUEUE, "checkpoint.dir=/tmp/x", small=True) == []
    assert named(REQUEUE, 'overrides=["trainer.resume_mode=disable"]', small=True) == [("requeue-resume", "error")]


def test_a_rehearsal_saves_when_the_job_says_so():
    every = ("rehearsal.steps=12", "checkpoint.every=4")
    assert rehearse(load_job("grpo", None, [REQUEUE, *every])).checkpoint.every == 4
    assert rehearse(load_job("grpo", None, every)).checkpoint.every == 4
    assert rehearse(load_job("grpo", None, every[:1])).checkpoint.every == 12
    assert rehearse(load_job("grpo", None, ["rehearsal.steps=3", *every[1:]])).checkpoint.every == 3


# ---- hung jobs, and the copy of the image


@pytest.mark.parametrize(("seconds", "told"), [("299", True), ("300", False), ("null", False)])
def test_a_step_takes_some_time(seconds: str, told: bool):
    assert named(f"recovery.stalled_s={seconds}") == ([("stalled", "warning")] if told else [])
    assert named(f"recovery.stalled_s={seconds}", small=True) == []


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/nvme0 /home/local\\040disk xfs rw 0 0
fs@tcp:/scratch /scratch lustre rw 0 0
none /tmp tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("/tmp", None),
        ("/localdisk/x", None),
        ("/scratch/me", "on lustre"),
        ("/scratchy", None),
        ("/home/me/images", "on nfs4"),
        ("/home/local disk/me", None),
        ("/project/images", "in the project folder, /project"),
        ("/out/x", "in checkpoint.dir, /out"),
        ("/u/me/images", "in your home, /u/me"),
    ],
)
def test_a_copy_for_each_node_is_not_on_what_all_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, why: str | None
):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    monkeypatch.setattr(recovery, "_MOUNTS", mounts)
    monkeypatch.setenv("HOME", "/u/me")
    monkeypatch.setattr(files, "_LOCAL", ())
    words = (f"container.stage_dir='{folder}'", "checkpoint.dir=/out")
    told = found("container.stage=true", *words, project=Path("/project"))
    assert [one.severity for one in told] == ([] if why is None else ["warning"])
    assert why is None or why in told[0].message
    assert found(*words, project=Path("/project")) == []


def test_fields_that_do_nothing_are_told():
    words = ("recovery.max_restarts=5", "container.stage_dir=/local")
    told = check_job(load_job("grpo", None, words), Path("/nonexistent"), rehearse=False, sample_data=False)
    assert {one.message.partition(" has")[0] for one in told if one.id == "ignored-field"} == {
        "recovery.max_restarts", "container.stage_dir",
    }  # fmt: skip
