"""The job model and how it is read."""

import time
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
        "container.binds=['a']", "container.stage_dir=tmp", "container.stage_dir=/a:b",
        "container.stage_dir='/a,b'", "reward.placement=tail", "reward.unresponsive_s=0",
        "checkpoint.before_end_s=-1", "recovery.max_restarts=0", "recovery.stalled_s=0",
        "algorithm.kl_loss_type=bogus", "reward.function_name='not an id'", "container.env={'A-B': x}",
    ],
)  # fmt: skip
def test_values_that_slurm_or_the_container_cannot_take(assignment: str):
    assert problems(assignment)


def test_numbers_are_yaml_1_2():
    job = load_job("grpo", None, ["actor.lr=1e-6", "name=no", "container.env.X='0777'"])
    assert (job.actor.lr, job.name, job.container.env) == (1e-6, "no", {"X": "0777"})


def test_a_job_may_be_silent_for_ever_and_keep_no_time_free():
    job = load_job("grpo", None, ["recovery.stalled_s=null", "checkpoint.before_end_s=0"])
    assert (job.recovery.stalled_s, job.checkpoint.before_end_s) == (None, 0)


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
        ("template: dapo", "--template says grpo"),
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


def at(job: Job, place: str) -> object:
    found: object = job
    for name in place.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(
    ("place", "text", "value"),
    [
        ("container.cuda", "12.10", "12.10"),
        ("cluster.account", "0042", "0042"),
        ("cluster.gpu", "4090", "4090"),
        ("cluster.partition", "7", "7"),
        ("logging.experiment", "1e-3", "1e-3"),
        ("name", "12", "12"),
        ("container.env", "{OMP_NUM_THREADS: 8, A: 1.50}", {"OMP_NUM_THREADS": "8", "A": "1.50"}),
        ("data.train", "data/train.parquet", ["data/train.parquet"]),
        ("data.val", "[1, b]", ["1", "b"]),
        ("cluster.modules", "singularitypro", ["singularitypro"]),
        ("cluster.extra_sbatch", "--exclusive", ["--exclusive"]),
        ("container.binds", "/data:/data", ["/data:/data"]),
        ("logging.loggers", "console", ["console"]),
        ("actor.offload", "optimizer", ["optimizer"]),
        ("checkpoint.contents", "model", ["model"]),
        ("overrides", "a=1", ["a=1"]),
    ],
)
def test_values_as_people_write_them(place: str, text: str, value: object):
    """A number is text where text is meant, with its own digits; one value is a list of one."""
    assert at(load_job("grpo", None, [f"{place}={text}"]), place) == value


@pytest.mark.parametrize("place", ["cluster.nodes", "rollout.n", "actor.lr", "reward.min_score"])
def test_true_is_no_number(place: str):
    (told,) = problems(f"{place}=true")
    assert told.startswith(f"{place}: must be a number (got true)")


@pytest.mark.parametrize("place", ["data.seed", "reward.max_length", "recovery.stalled_s"])
def test_where_null_is_a_number_that_is_said(place: str):
    (told,) = problems(f"{place}=true")
    assert told.startswith(f"{place}: must be a number, or null")


@pytest.mark.parametrize("place", ["name", "container.env.A", "cluster.account", "cluster.modules"])
def test_true_is_no_text(place: str):
    assert "must be" in problems(f"{place}=true")[0]


def test_numbers_of_a_job_are_plain():
    job = load_job("grpo", None, ["cluster.nodes=3", "actor.lr=1e-6", "rollout.top_p=1"])
    assert [type(one) for one in (job.cluster.nodes, job.actor.lr, job.rollout.top_p)] == [int, float, float]


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("name=true", "name: must be text (got true); put it in quotes if it is text: 'true'"),
        ("container.env.A=true", "container.env.A: must be text; put it in quotes if it is text: 'true'"),
        ("container.env.A=", "container.env.A: must be text; write '' for an empty value"),
        ("model=models/x", "model: this is a section, not a value (got 'models/x'); write model.path=models/x"),
        ("engine=1", "engine: this is a section, not a value (got 1); write its fields: engine.verl, engine.mode"),
        ("cluster=[1]", "cluster: this is a section, not a value (got a list); write its fields: cluster.nodes,"),
        ("actor.fp8=none", "actor.fp8: must be one of blockwise, or null for bf16 (got 'none'); it is: FP8"),
        ("engine.verl=0.9", "engine.verl: must be one of 0.6.1, 0.8.0, 0.9.1 (got 0.9); did you mean 0.9.1?"),
        ("actor.offload=[opt]", "actor.offload.0: must be one of param, optimizer (got 'opt'); it is: what"),
        ("cluster.gpu='h 1'", "cluster.gpu: must be letters, digits and _ . : , + @ / - without spaces or quotes"),
        ("container.cuda=12", "container.cuda: must be two numbers with a dot, as 12.9 (got '12')"),
        ("name='a b'", "name: must be letters, digits, dots, dashes and underscores"),
        ("rollout.n=many", "rollout.n: must be a whole number (got 'many'); it is: responses for each prompt"),
        ("rollout.n=0", "rollout.n: must be greater than or equal to 1 (got 0); it is: responses"),
        ("rollout.top_p=x", "rollout.top_p: must be a number (got 'x'); it is: nucleus sampling"),
        ("actor.dynamic_batch=oops", "actor.dynamic_batch: must be true or false (got 'oops')"),
        ("data.val=[]", "data.val: must not be empty (got a list)"),
        (
            "reward.batch_tokens=auto",
            "reward.batch_tokens: must be a whole number, or null for what is measured at the start (got 'auto')",
        ),
        ("cluster.time=12h", "cluster.time: '12h' is not a Slurm time; write minutes, H:MM:SS"),
    ],
)
def test_an_error_says_place_value_rule_and_remedy(assignment: str, told: str):
    (found,) = problems(assignment)
    assert found.startswith(told)


def test_long_values_are_cut():
    assert (
        max(map(len, problems(f"name={'a' * 5000}", f"rollout.n={'9' * 5000}", f"data.seed={'b' * 5000}"))) < 300
    )


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("cluster.gpus=4", "did you mean cluster.gpus_per_node?"),
        ("actor.learning_rate=1", "did you mean actor.lr?"),
        ("rollout.tensor_model_parallel_size=2", "did you mean rollout.tensor_parallel?"),
        ("batch=1", "known here: actor, algorithm"),
        ("extra_sbatch=--x", "did you mean cluster.extra_sbatch?"),
        ("train_batch_size=1", "did you mean data.train_batch_size or rehearsal.train_batch_size?"),
        ("nam=x", "did you mean name?"),
        ("trainer.n_gpus_per_node=8", "it is a key of verl; use the field actor.gpus_per_node"),
        ("trainer.balance_batch=true", "put it into overrides: [trainer.balance_batch=...]"),
        ("actor_rollout_ref.rollout.n=8", "it is a key of verl; use the field rollout.n"),
        (
            "actor_rollout_ref={model: {path: x}}",
            "actor_rollout_ref.model.path: no such field; it is a key of verl",
        ),
        ("data.train_files=x", "data.train_files: no such field; it is a key of verl; use the field data.train"),
        ("algorithm.adv_estimator=gae", "it is a key of verl; use the field algorithm.estimator"),
        ("algorithm.kl_ctrl.kl_coef=1", "algorithm.kl_ctrl.kl_coef: no such field; it is a key of verl"),
    ],
)
def test_an_unknown_field_is_answered_with_the_one_that_is_meant(assignment: str, told: str):
    (found,) = problems(assignment)
    assert told in found


def test_the_keys_of_a_whole_section_of_verl():
    found = problems("trainer={nnodes: 2, n_gpus_per_node: 8, foo: {bar: 1}}")
    assert [line.partition(":")[0] for line in found] == [
        "trainer.nnodes",
        "trainer.n_gpus_per_node",
        "trainer.foo.bar",
    ]


def test_merge_keys_and_aliases(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "actor: &a {offload: &list [param], lr: 1e-6}\n"
        "critic: {<<: *a, lr: 1e-5}\n"
        "data: {train: &files [a, b], val: *files}\n"
    )
    job = load_job("grpo", file, ["data.train=c"])
    assert (job.actor.lr, job.critic.lr, job.critic.offload) == (1e-6, 1e-5, ["param"])
    assert (job.data.train, job.data.val) == (["c"], ["a", "b"])
    file.write_text("cluster: &c {nodes: 2}\ncontainer: *c\n")
    with pytest.raises(JobError, match=r"container\.nodes: no such field") as caught:
        load_job("grpo", file, ["cluster.nodes=4"])
    assert caught.value.rest is not None
    assert caught.value.rest.cluster.nodes == 4


def test_what_aliases_stand_for_is_bounded(tmp_path: Path):
    """Nine lines that stand for a billion values."""
    lines = ["a: &a [" + ", ".join(["x"] * 10) + "]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [" + ", ".join([f"*{before}"] * 10) + "]")
    file = tmp_path / "job.yaml"
    file.write_text("\n".join(lines))
    started = time.process_time()
    with pytest.raises(JobError, match="stand for more than 100000 values"):
        load_job("grpo", file)
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("&a [*a]", "an alias inside of what it repeats"),
        ("[" * 60 + "]" * 60, "nested deeper"),
        ("{a: " * 60 + "1" + "}" * 60, "nested deeper"),
        ("{<<: 3}", "expected a mapping"),
        ("{a: &x {b: 1}, <<: *x, <<: *x}", "write <<: "),
    ],
)
def test_structures_that_no_job_has(text: str, told: str):
    assert told in problems(f"container.env={text}")[0]


def test_the_template_of_the_job(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("template: ppo\n")
    assert load_job(None, file).algorithm.estimator == "gae"
    assert load_job(None, None, ["template=dapo"]).rollout.n == 16
    assert load_job("ppo", file).template == "ppo"
    assert "--template says grpo" in problems("template=ppo")[0]
    file.write_text("name: x\n")
    with pytest.raises(JobError, match="add --template") as caught:
        load_job(None, file)
    assert [problem.id for problem in caught.value.problems] == ["template"]


@pytest.mark.parametrize("text", ["{a: %s", "[%s", "%s: 1: 2", "!!int %s", "!!float '%s'", "'%s", "*%s", "@%s"])
def test_a_message_about_yaml_does_not_show_the_text(tmp_path: Path, text: str):
    token = "hf_" + "a1B2c3D4" * 4
    file = tmp_path / "job.yaml"
    file.write_text("name: x\nmodel: " + text % token)
    with pytest.raises(JobError) as caught:
        load_job("grpo", file)
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    "assignment", ["container.env=se-cret", "container.env.X=[se-cret]", "container.env={X: {Y: se-cret}}"]
)
def test_values_of_variables_are_not_shown(assignment: str):
    (told,) = problems(assignment)
    assert told.startswith("container.env")
    assert "se-cret" not in told


def test_what_is_left_of_a_broken_job_comes_with_its_errors():
    with pytest.raises(JobError) as caught:
        load_job(
            "ppo",
            None,
            [
                "template=ppo", "rollout={n: true, tensor_parallel: 4}", "nam=x", "data.train=[a, {}]", "foo",
                "reward={min_score: ninety, gpus: 0}", "cluster.nodes=3", "container.env={A: a, B: [b]}",
            ],
        )  # fmt: skip
    rest = caught.value.rest
    assert len(caught.value.problems) == 6
    assert rest is not None
    assert (rest.rollout.n, rest.rollout.tensor_parallel, rest.cluster.nodes) == (1, 4, 3)
    assert rest.container.env == {"A": "a"}
    assert rest.data.train == ["data/train.parquet"]
    assert rest.algorithm.estimator == "gae"
    assert (rest.reward.min_score, rest.reward.gpus) == (-40, 0)  # one bad value leaves its neighbours


@pytest.mark.parametrize("keys", ["{null: 1}", "{true: x}", "{1: x}", "{1.5: x}"])
@pytest.mark.parametrize("section", ["data", "model", "container.env", "algorithm.overlong_buffer"])
def test_keys_that_are_no_text_leave_the_rest(section: str, keys: str):
    with pytest.raises(JobError) as caught:
        load_job("grpo", None, [f"{section}={keys}", "rollout.n=4"])
    assert caught.value.rest is not None
    assert caught.value.rest.rollout.n == 4


def test_a_number_of_sixty_digits_is_refused():
    assert (
        "actor.tensor_parallel: must be a number below 10^12" in problems(f"actor.tensor_parallel={'9' * 60}")[0]
    )
