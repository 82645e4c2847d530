"""`python -m launch.render`: everything that is wrong at once, the plan, the engine's own configuration."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch import render
from launch.checks.names import name_problem
from singularity.toolkit import TOOLKIT


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    monkeypatch.chdir(folder)
    code = render.main(["--template", "grpo", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    return lambda *words: run(tmp_path, monkeypatch, capsys, *words)


def test_every_kind_of_mistake_comes_at_once(rendered, tmp_path: Path):
    """Arithmetic, capability, a file, an unknown key of verl and a wrong type: one run names them all."""
    code, _, told = rendered(
        "--set", "data.train_batch_size=100",
        "--set", "engine={verl: 0.9.1, mode: one_step_off}",
        "--set", "cluster.gpu=a100",
        "--set", "model.path=/no/such/model",
        "--set", 'overrides=["actor_rollout_ref.rollout.max_modl_len=9", "trainer.balance_batch=maybe", '
        '"trainer.nnodes=3"]',
    )  # fmt: skip
    assert code == 1
    for id_ in ("mini-batch", "fp8-gpu", "missing-file", "plan-override"):
        assert f"error: {id_}: " in told
    assert "max_modl_len" in told
    assert "max_model_len" in told  # the nearest valid key
    assert "trainer.balance_batch" in told
    assert not list(tmp_path.iterdir())


def test_the_plan_is_drawn(rendered):
    code, _, told = rendered()
    assert code == 0
    assert "node 0 | G G G G G G G R\nnode 1 | T T T T T T T T\n" in told
    assert told.endswith("wrote run_grpo.sh\n")


def test_the_report_for_programs(rendered):
    code, out, _ = rendered("--json", "--set", "cluster.nodes=1")
    report = json.loads(out)
    assert code == 0
    assert report["written"] == "run_grpo.sh"
    assert report["plan"]["nodes"] == [{"first": 0, "last": 0, "gpus": report["plan"]["nodes"][0]["gpus"]}]
    assert report["plan"]["training"]["gpus"] == 4
    assert {finding["severity"] for finding in report["findings"]} == {"warning"}


def test_a_raw_override_of_a_field_is_seen_by_the_rules(rendered, tmp_path: Path):
    code, _, told = rendered("--set", 'overrides=["data.train_batch_size=100"]')
    assert code == 1
    assert "error: mini-batch: data.train_batch_size=100" in told
    code, _, told = rendered("--set", 'overrides=["data.train_batch_size=384"]')
    assert code == 0
    assert "  data.train_batch_size=384\n" in (tmp_path / "run_grpo.sh").read_text()


def test_a_raw_override_has_the_last_word(rendered, tmp_path: Path):
    code, _, told = rendered("--set", 'overrides=["actor_rollout_ref.rollout.seed=7"]')
    assert code == 0, told
    assert (tmp_path / "run_grpo.sh").read_text().count("\n  actor_rollout_ref.rollout.seed=7\n") == 1


def test_without_network_and_cache_the_script_is_rendered_with_a_warning(
    rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LAUNCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    code, _, told = rendered("--set", "engine.verl=0.8.0")
    assert code == 0
    assert "warning: engine-unchecked: the overrides are not composed with verl 0.8.0" in told
    assert "before Ray starts" in told


def test_the_engine_check_can_be_left_out(rendered):
    code, _, told = rendered("--no-engine-check", "--set", 'overrides=["a.b.c=1"]')
    assert code == 0
    assert "warning: engine-unchecked" in told


def test_a_source_that_is_none_is_an_error(rendered, tmp_path: Path):
    code, _, told = rendered("--verl-source", str(tmp_path / "no"))
    assert code == 1
    assert "error: verl-source" in told


def test_a_secret_of_the_shell_never_gets_into_the_script(
    rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery-7")
    code, out, told = rendered("--set", "logging.project=correct-horse-battery-7")
    assert code == 1
    assert "MY_API_KEY" in told
    assert "correct-horse" not in out + told
    assert not (tmp_path / "run_grpo.sh").exists()


def test_the_schema_has_every_field_with_its_meaning(capsys: pytest.CaptureFixture[str]):
    assert render.main(["--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["template"]["enum"] == ["grpo", "ppo", "dapo"]
    field = schema["$defs"]["Rollout"]["properties"]["n"]
    assert (field["verl"], field["default"]) == ("actor_rollout_ref.rollout.n", 8)


@pytest.mark.parametrize("template", ["grpo", "ppo", "dapo"])
def test_a_render_loads_no_torch(template: str, tmp_path: Path):
    """A login node has none, and importing it takes longer than the whole render."""
    program = (
        "import sys; from launch import render; code = render.main(sys.argv[1:]); "
        "heavy = {'torch', 'ray', 'verl', 'transformers', 'pandas', 'pyarrow'} & set(sys.modules); "
        "print(sorted(heavy)); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "--template", template]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def report(out: str) -> list[dict[str, str]]:
    return json.loads(out)["findings"]


def test_a_broken_field_hides_no_rule(rendered):
    """A wrong type, an unknown key, a raw override that its field refuses, arithmetic, verl's types: one run."""
    code, out, _ = rendered(
        "--json",
        "--set", "cluster.nodes=true",
        "--set", "nam=x",
        "--set", "data.train_batch_size=100",
        "--set", 'overrides=["actor_rollout_ref.rollout.n=many", "a b", "trainer.balance_batch=maybe"]',
        "-o", "nodir/run.sh",
    )  # fmt: skip
    assert code == 1
    found = report(out)
    ids = [one["id"] for one in found]
    assert ids[:4] == ["field", "field", "output", "partly-checked"]
    assert {"mini-batch", "override", "value-type"} < set(ids[4:])
    assert ids.count("field") == 3
    assert ids.count("override") == 1
    assert all(one["id"] and one["remedy"] for one in found)
    assert json.loads(out)["plan"] is None  # it would be the plan of another job


@pytest.mark.parametrize(
    ("override", "id_"),
    [
        ("trainer.v1.trainer_mode=sync", "plan-override"),
        ("reward_model.enable=true", "plan-override"),
        ("trainer.save_freq=1,2", "override"),
        ("trainer", "override"),
        ("actor_rollout_ref.rollout.name=trtllm", "field"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload=true", "plan-override"),
    ],
)
def test_a_raw_override_is_told_once(rendered, override: str, id_: str):
    _, out, _ = rendered("--json", "--set", f"overrides={json.dumps([override])}")
    key = override.partition("=")[0]
    assert [one["id"] for one in report(out) if key in one["message"]] == [id_]


def test_a_version_without_the_mode_is_told_once(rendered):
    _, out, _ = rendered("--json", "--set", "engine.verl=0.6.1")
    assert [one["id"] for one in report(out) if one["severity"] == "error"] == ["engine-mode"]


def test_raw_overrides_are_checked_with_the_fields_that_other_ones_set(rendered):
    lengths = ["data.max_response_length=1024", "actor_rollout_ref.rollout.response_length=1024"]
    code, _, told = rendered("--no-engine-check", "--set", f"overrides={json.dumps(lengths)}")
    assert code == 0, told


def test_no_message_holds_a_token(rendered, tmp_path: Path):
    token = "hf_" + "a1B2c3D4" * 4
    overrides = [f"+a.b={token}", f"actor_rollout_ref.rollout.n={token}", f"trainer.nnodes={token}", f"x {token}"]
    file = tmp_path / "job.yaml"
    for words in (
        ["--set", token],
        ["--set", f"name={token}: {token}: 1"],
        ["--set", f"{token}=1"],
        ["--set", f"cluster.{token}.x=1"],
        ["--set", f"overrides={json.dumps(overrides)}"],
        ["--set", f"model.path=/{token}", "-o", f"{token}/x.sh"],
        ["--job", str(file)],
    ):
        file.write_text(f"model: {token}: 1")
        for form in ([], ["--json"]):
            code, out, told = rendered("--no-engine-check", *words, *form)
            assert code == 1
            assert token not in out + told, words


def test_the_template_may_stand_in_the_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("template: ppo\n")
    assert render.main(["--job", "job.yaml", "--no-engine-check"]) == 0
    assert capsys.readouterr().err.endswith("wrote run_ppo.sh\n")
    with pytest.raises(SystemExit) as usage:
        render.main(["--no-engine-check"])
    assert usage.value.code == 2


@pytest.mark.parametrize(
    ("output", "told"),
    [("nodir/x.sh", "no folder nodir"), (".", "is a folder"), ("a\nb", "no control characters")],
)
def test_places_that_take_no_script(rendered, output: str, told: str):
    code, _, err = rendered("--no-engine-check", "-o", output)
    assert code == 1
    assert told in err


@pytest.mark.parametrize("form", [[], ["--rehearse"]])
def test_a_folder_whose_name_is_not_utf8(tmp_path: Path, form: list[str]):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    words = ["--template", "grpo", "--json", *form, "--no-engine-check"]
    done = subprocess.run(
        [sys.executable, "-m", "launch.render", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(TOOLKIT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "name-encoding" in {finding["id"] for finding in json.loads(done.stdout)["findings"]}
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: name-encoding: the project folder: ")
    assert line.endswith("caf\\udce9': the name is not UTF-8, and a script is; rename it")
    assert not list(folder.iterdir())


def test_a_script_whose_name_is_not_utf8(rendered, tmp_path: Path):
    code, _, told = rendered("-o", os.fsdecode(b"s\xe9.sh"), "--no-engine-check")
    assert code == 1
    assert "error: name-encoding: -o: 's\\udce9.sh': the name is not UTF-8" in told
    assert not list(tmp_path.iterdir())


def test_a_name_that_only_the_locale_has_no_characters_for():
    (finding,) = name_problem("-o", "\udcc3\udca9.sh")  # é, as of the locale C
    assert "has no characters for it" in finding.message
    assert finding.remedy == "use a UTF-8 locale: export LC_ALL=C.UTF-8"


@pytest.mark.parametrize("option", ["--job", "--site", "-o", "--verl-source"])
def test_an_empty_name_is_usage(rendered, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str):
    with pytest.raises(SystemExit, match=r"^2$"):
        rendered(option, "")
    assert "empty; is a variable of the shell not set?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
@pytest.mark.parametrize("name", ["pipe", "link"])
def test_what_is_no_file_is_never_replaced(rendered, tmp_path: Path, name: str, force: list[str]):
    """A pipe stands for devices, too: as root a render would have taken /dev/null from everybody."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    code, _, err = rendered("--no-engine-check", *force, "-o", name)
    assert code == 1
    assert f"-o {name}: is no regular file" in err
    assert (tmp_path / "pipe").is_fifo()


def test_links_in_a_circle_are_told(rendered, tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    code, _, err = rendered("--no-engine-check", "-o", "a")
    assert code == 1
    assert "error: output: -o a: Too many levels" in err


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["", "json"])
def test_a_terminal_gets_no_control_characters_of_a_user(rendered, form: list[str]):
    red = "\x1b[31m\nerror: all is lost"
    code, _, told = rendered("--no-engine-check", *form, "--set", f"{red}=1", "-o", f"{red}/x.sh")
    assert code == 1
    assert "\x1b" not in told
    assert "\\x1b[31m\\nerror: all is lost" in told
    assert not [line for line in told.splitlines() if line.startswith("error: all")]


def test_a_link_stays_a_link(rendered, tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.sh").symlink_to("real/x.sh")
    for _ in range(2):
        code, _, _ = rendered("--no-engine-check", "-o", "link.sh")
        assert code == 0
    assert (tmp_path / "link.sh").is_symlink()
    assert [file.name for file in (tmp_path / "real").iterdir()] == ["x.sh"]


def test_a_closed_pipe_is_no_traceback(tmp_path: Path):
    program = f"{sys.executable} -m launch.render --template grpo --json --no-engine-check | true"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_an_installed_toolkit_is_copied_once_a_script_is_written(tmp_path: Path):
    """From site-packages a job would see the host's packages, too."""
    folder, project = tmp_path / "site-packages", tmp_path / "project"
    project.mkdir()
    for package in ("launch", "reward", "data_prep", "converters", "singularity"):
        shutil.copytree(TOOLKIT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "launch.render", "--template", "grpo", "--no-engine-check"]

    def run_in_project(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        return subprocess.run(
            [*command, *words], cwd=project, env=environment, capture_output=True, text=True, check=False
        )

    assert run_in_project("--set", "rollout.n=0").returncode == 1
    assert run_in_project("--check-only").returncode == 0
    assert [*project.iterdir()] == []
    done = run_in_project()
    assert done.returncode == 0, done.stderr
    (copy,) = (project / ".launch-toolkit").iterdir()
    text = (project / "run_grpo.sh").read_text()
    assert f"reward.custom_reward_function.path={copy}/reward/client.py" in text


def test_what_a_rehearsal_lacks_is_told_once(rendered):
    code, _, told = rendered("--rehearse", "--set", "data.train=no.parquet", "--set", "data.val=none.parquet")
    assert code == 1
    assert (told.count("no.parquet"), told.count("none.parquet")) == (1, 1), told
