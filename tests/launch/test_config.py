"""The job model and how it is read."""

from pathlib import Path

import pytest

from launch.config import Job, JobError, load_job
from launch.config.verl_keys import marked_fields


def problems(*assignments: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        load_job("grpo", None, assignments)
    assert all(problem.id and problem.remedy for problem in caught.value.problems)
    return [f"{problem.message}; {problem.remedy}" for problem in caught.value.problems]


def test_defaults_make_a_job():
    job = load_job("grpo")
    assert (job.cluster.nodes, job.rollout.n, job.reward.gpus) == (2, 8, 1)


def test_every_mistake_is_reported_at_once():
    found = problems("cluster.nodez=3", "actr.lr=1", "actor.lr=-1", "rollout.temperature=hot")
    assert len(found) == 4
    assert "cluster.nodez: no such field; did you mean cluster.nodes?" in found
    assert "actr: no such field; did you mean actor?" in found


@pytest.mark.parametrize(
    ("text", "value"), [("12:00:00", "12:00:00"), ("30", "30"), ("1-12:30", "1-12:30"), ("'90'", "90")]
)
def test_slurm_times_survive_yaml(text: str, value: str):
    assert load_job("grpo", None, [f"cluster.time={text}"]).cluster.time == value


@pytest.mark.parametrize("field", ["cluster.time", "rehearsal.time"])
@pytest.mark.parametrize(
    "text", ["12h", "1:2:3:4", "'12:00:00;rm -rf x'", "-5", "1.5", "true", '"00:30:00\\ntouch x"', '"1\\n"', "٣"]
)
def test_other_times_are_refused(field: str, text: str):
    assert problems(f"{field}={text}")[0].startswith(f"{field}: ")


@pytest.mark.parametrize(("text", "value"), [("900", "900"), ("900G", "900G"), ("0", "0")])
def test_memory_sizes(text: str, value: str):
    assert load_job("grpo", None, [f"cluster.mem={text}"]).cluster.mem == value


@pytest.mark.parametrize(
    "assignment",
    [
        "cluster.mem=lots", "cluster.mem=1.5G", "cluster.partition='a b'", "cluster.account='x#y'",
        "cluster.qos=\"a'b\"", "cluster.gpu='h 200'", "cluster.partition='a\\n'", "rehearsal.time=banana",
        "container.binds=['/a:b']", "container.binds=['/a:/b:zz']", "container.binds=['/a,/b']",
        "container.binds=['a']",
        "algorithm.kl_loss_type=bogus", "reward.function_name='not an id'", "container.env={'A-B': x}",
    ],
)  # fmt: skip
def test_values_that_slurm_or_the_container_cannot_take(assignment: str):
    assert problems(assignment)


def test_numbers_are_yaml_1_2():
    job = load_job("grpo", None, ["actor.lr=1e-6", "name=no", "container.env.X='0777'"])
    assert (job.actor.lr, job.name, job.container.env) == (1e-6, "no", {"X": "0777"})


@pytest.mark.parametrize("path", ["a\nb", "a\tb", "a\x1bb", ""])
def test_control_characters_in_paths_are_refused(path: str):
    with pytest.raises(JobError, match=r"model\.path"):
        load_job("grpo", None, [f'model.path="{path.encode("unicode_escape").decode()}"'])


@pytest.mark.parametrize(
    "option", ["--reservation=x", "--exclusive", "--signal=USR1@60", "--nice", "-x", "--mail-type=END"]
)
def test_other_sbatch_options_pass(option: str):
    assert load_job("grpo", None, [f'cluster.extra_sbatch=["{option}"]']).cluster.extra_sbatch == [option]


@pytest.mark.parametrize(
    "option",
    [
        "--ntasks=8", "-n8", "--nodes=3", "-N 2", "--ntasks-per-node=2", "gpu", "--ntask=8", "--node=9",
        "--array=0-3",
        "--wrap=ls", "--job-name=x", "--time=1", "--cpus-per-task=5", "-c3", "-t1", "-", "--", "--comment=a b",
        "--comment='x", "--gpus-per-task=1", "--tasks-per-node=8", "--comment=a;b", "--comment=$(id)`x`'",
    ],
)  # fmt: skip
def test_sbatch_options_that_break_the_layout_are_refused(option: str):
    assert "extra_sbatch" in problems(f'cluster.extra_sbatch=["{option}"]')[0]


@pytest.mark.parametrize("text", ["infinity", ".inf", ".nan"])
def test_numbers_are_finite(text: str):
    assert problems(f"actor.lr={text}")


def test_a_job_file_and_set_in_this_order(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("name: from-file\ncluster: {nodes: 4, partition: gpu}\n")
    job = load_job("grpo", file, ["cluster.nodes=8"])
    assert (job.name, job.cluster.nodes, job.cluster.partition) == ("from-file", 8, "gpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cluster: {nodes: 2, nodes: 3}", "given twice"),
        ("- a", "not a list"),
        ("a: [", "not valid YAML"),
        ("template: dapo", "make them agree"),
        ("cluster: 3", "this is a section, not a value"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_broken_job_files(tmp_path: Path, text: str, message: str):
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(JobError, match=message):
        load_job("grpo", file)


def test_a_missing_job_file_is_named(tmp_path: Path):
    with pytest.raises(JobError, match=r"nowhere\.yaml: cannot be read"):
        load_job("grpo", tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    "text", ["08", "1" * 5000, '!!int "abc"', '!!bool "abc"', '!!timestamp "abc"', "[" * 3000, "{a: b", "&x *y"]
)
def test_odd_scalars_are_errors_not_tracebacks(text: str):
    try:
        job = load_job("grpo", None, [f"cluster.nodes={text}"])
    except JobError:
        return
    assert job.cluster.nodes == 8  # YAML 1.2 reads 08 as eight


def test_a_leading_zero_is_decimal():
    assert load_job("grpo", None, ["cluster.nodes=010"]).cluster.nodes == 10


def test_an_empty_section_is_a_section(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("cluster:\nmodel:\n")
    assert load_job("grpo", file, ["cluster.nodes=3"]).cluster.nodes == 3


def test_mistakes_of_all_kinds_come_together(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("template: ppo\nnam: x\ncluster: {nodes: 0}\n")
    with pytest.raises(JobError) as caught:
        load_job("grpo", file, ["foo"])
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("assignment", ["cluster.nodes", "=3", "name.x=1", "cluster.nodes.x=1"])
def test_assignments_that_are_none(assignment: str):
    assert problems("name=ok", "cluster.nodes=2", assignment)


def test_the_hash_sees_every_value():
    assert load_job("grpo").hash() != load_job("grpo", None, ["container.env.A='1'"]).hash()


def test_every_field_is_documented():
    def undocumented(schema: dict) -> list[str]:
        fields = schema.get("properties", {}).items()  # a section is documented where it is defined
        return [name for name, field in fields if not field.get("description") and "$ref" not in field]

    schema = Job.model_json_schema()
    sections = {name: undocumented(section) for name, section in schema["$defs"].items()}
    assert all(section.get("description") for section in schema["$defs"].values())
    assert {name: fields for name, fields in sections.items() if fields} == {}


@pytest.mark.parametrize(
    ("template", "place", "value", "other"),
    [
        ("ppo", "algorithm.estimator", "gae", "rloo"),
        ("ppo", "rollout.n", 1, "4"),
        ("dapo", "algorithm.clip_ratio_high", 0.28, "0.3"),
        ("dapo", "algorithm.overlong_buffer.enable", True, "false"),
        ("dapo", "algorithm.use_kl_loss", False, "true"),
        ("grpo", "algorithm.use_kl_loss", True, "false"),
    ],
)
def test_a_template_sets_the_defaults_of_its_algorithm(
    tmp_path: Path, template: str, place: str, value: object, other: str
):
    def at(job: Job) -> object:
        found: object = job
        for name in place.split("."):
            found = getattr(found, name)
        return found

    assert at(load_job(template)) == value
    file = tmp_path / "job.yaml"
    file.write_text("algorithm: {gamma: 0.9}\nrollout:\n")
    assert at(load_job(template, file)) == value  # a section that the job names keeps its other defaults
    assert str(at(load_job(template, file, [f"{place}={other}"]))).lower() == other


def test_fields_name_the_key_that_they_become():
    pairs = dict(marked_fields())
    assert pairs["rollout.n"] == "actor_rollout_ref.rollout.n"
    assert len(set(pairs.values())) == len(pairs)
    schema = Job.model_json_schema()
    assert schema["$defs"]["Data"]["properties"]["train_batch_size"]["verl"] == "data.train_batch_size"


@pytest.mark.parametrize(
    "field", ["cluster.time", "cluster.nodes", "engine.verl", "cluster.mem", "container.binds"]
)
def test_a_token_in_a_wrong_place_is_not_shown(field: str):
    token = "hf_" + "a1B2c3D4" * 4
    told = problems(f"{field}={token}")
    assert len(told) == 1
    assert field in told[0]
    assert token not in told[0]
