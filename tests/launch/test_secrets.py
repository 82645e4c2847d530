"""C31: no secret in a script, and none in a message about one."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.checks.secrets import check_env_file, check_secrets, check_wandb, secrets_in
from launch.config import Job, load_job
from launch.script import RenderRequest, render_script

VALUE = "s3cr3t-Value_99"


def script(*assignments: str) -> str:
    return render_script(RenderRequest(load_job("grpo", None, assignments), Path("/project"), "run.sh"))


def job(*assignments: str) -> Job:
    return load_job("grpo", None, assignments)


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "MY_SECRET", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "sshkey", "Credentials"],
)
@pytest.mark.parametrize(
    "place",
    [
        "logging.project='x {}'", "container.env.HARMLESS='{}'", "overrides=['+a.b={}']", "model.path='m/{}'",
        "cluster.extra_sbatch=['--comment={}']",
    ],
)  # fmt: skip
def test_c31_the_value_of_a_secret_variable_is_found_wherever_it_stands(name: str, place: str):
    (finding,) = secrets_in(script(place.format(VALUE)), {name: VALUE, "PATH": "/bin"})
    assert (finding.id, finding.severity) == ("secret", "error")
    assert f"variable {name} " in finding.message
    assert VALUE not in finding.line()


@settings(max_examples=25)
@given(st.text(alphabet="ab'\"\\$`{} ,;=09Z", max_size=12))
def test_c31_quoting_hides_no_value(middle: str):
    value = f"Q{middle}{VALUE}"
    text = script(f"logging.project={json.dumps(value)}")
    assert [finding.id for finding in secrets_in(text, {"A_KEY": value})] == ["secret"]


def test_c31_a_key_of_several_lines_is_found_by_a_line():
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG\nabc\n-----END PRIVATE KEY-----\n"
    assert secrets_in(script("container.env.A=MIIEvQIBADANBgkqhkiG"), {"DEPLOY_KEY": key})
    assert secrets_in(script("container.env.A=xyz"), {"DEPLOY_KEY": key}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MY_SECRET", "/k3yT0+base64/abc="), ("A_TOKEN", "/tmp_is_a_folder/x"), ("DB_PASSWORD", "90210777"),
        ("DB_PASS", VALUE), ("GITHUB_PAT", VALUE), ("HTTP_AUTH", VALUE), ("REDIS_PWD", VALUE), ("pass", VALUE),
    ],
)  # fmt: skip
def test_c31_more_that_is_secret(name: str, value: str):
    (finding,) = secrets_in(script(f"logging.project='{value}'"), {name: value})
    assert f"variable {name} " in finding.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PWD", VALUE), ("OLDPWD", VALUE), ("COMPASS", VALUE), ("SPAT", VALUE), ("PASSAGE", VALUE),
        ("A_TOKEN", "12345678"), ("A_TOKEN", "/tmp/x"), ("A_SECRET_FILE", "/nowhere/x"), ("PATH", VALUE),
        ("TOKENIZERS_PARALLELISM", VALUE), ("HF_TOKEN", "short"), ("KEY_FILE", "/project/x"),
        ("SSH_KEY", "~/.ssh/id"), ("KEY_SIZE", "12345678"), ("KEYMAP", "megatron"), ("A_TOKEN", "one_step_off"),
        ("A_KEY", "actor_rollout_ref"), ("MY_KEY", ""), ("MY_KEY", "        "), ("K_TOKEN", "not-in-the-script"),
    ],
)  # fmt: skip
def test_what_is_no_secret(name: str, value: str):
    text = script(f"logging.project='{VALUE} short /project/x ~/.ssh/id 12345678 /tmp/x /nowhere/x'")
    assert secrets_in(text, {name: value}) == []


def test_every_variable_is_named_at_once():
    told = secrets_in(
        script(f"logging.project='{VALUE} other-{VALUE}'"), {"A_KEY": VALUE, "B_TOKEN": f"other-{VALUE}"}
    )
    assert len(told) == 2


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "aB3dE" * 6, "hf_abc123def456", "0123456789abcdef" * 2 + "01234567", "ghp_" + "a1B2" * 9,
        "github_pat_" + "11A" * 9, "sk-" + "proj-a1B2c3D4e5F6", "glpat-" + "x" * 20, "AKIA" + "ABCDEFGH12345678",
        "xoxb-1234567890-abc", "https://me:pass1word@host/x", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["overrides[0]", "logging.project", "container.env.HARMLESS"])
def test_c31_what_looks_like_a_token_is_refused_without_showing_it(field: str, token: str):
    value = f"['+a.b={token}']" if field == "overrides[0]" else f"'{token}'"
    (finding,) = check_secrets(job(f"{field.partition('[')[0]}={value}"))
    assert (finding.id, finding.severity) == ("secret", "error")
    assert finding.message.startswith(f"{field} holds what looks like ")
    assert token not in finding.line()


@pytest.mark.parametrize(
    "assignment",
    [
        f"model.path=/cache/models--Qwen/snapshots/{'0a' * 20}",
        f"overrides=['+a.revision={'0a' * 20}']",
        f"container.env.MODEL_COMMIT={'0a' * 20}",
        "model.path=models/hf_checkpoint",
        "logging.project=risk-assessment-of-2024-models",
        "container.env.SEED='1234567890123456789012345678901234567890123'",
        "container.env.URL='https://host:8080/x@y'",
        "container.env.HF_TOKEN_PATH=/home/me/token",
        "container.env.TOKENIZERS_PARALLELISM='false'",
    ],
)
def test_what_only_resembles_a_token(assignment: str):
    assert list(check_secrets(job(assignment))) == []


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "my_api_key", "WANDB_API_KEY", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "DB_PASS"]
)
def test_c31_a_secret_name_in_the_jobs_environment_is_refused(name: str):
    (finding,) = check_secrets(job(f"container.env.{name}=x"))
    assert finding.message.startswith(f"container.env.{name} ")
    assert "container.env_file" in finding.remedy


# ---- names that are the launcher's


RESERVED = [
    ("CUDA_VISIBLE_DEVICES", "error"), ("ROCR_VISIBLE_DEVICES", "error"), ("HIP_VISIBLE_DEVICES", "error"),
    ("RAY_ADDRESS", "warning"), ("RUN_DIR", "warning"), ("CHECKPOINT_DIR", "warning"), ("TMPDIR", "warning"),
    ("PYTHONNOUSERSITE", "warning"), ("REWARD_SERVER_URL", "warning"), ("GLOO_SOCKET_IFNAME", "warning"),
    ("NCCL_SOCKET_IFNAME", None), ("REWARD_TIMEOUT", None), ("NCCL_DEBUG", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "severity"), RESERVED)
@pytest.mark.parametrize("field", ["container.env", "container.env_file"])
def test_names_that_the_launcher_sets(tmp_path: Path, field: str, name: str, severity: str | None):
    (tmp_path / "my.env").touch(mode=0o600)
    (tmp_path / "my.env").write_text(f"{name}=x1\n")
    given = job(f"container.env.{name}=x1" if field == "container.env" else "container.env_file=my.env")
    found = list(check_env_file(given, tmp_path))
    assert [(finding.id, finding.severity) for finding in found] == (
        [("reserved-variable", severity)] if severity else []
    )
    for finding in found:
        assert finding.message.startswith(f"{field}: {name}")


# ---- the environment file


def test_the_environment_file_is_checked_before_the_queue(tmp_path: Path):
    file = tmp_path / "my.env"
    given = job("container.env_file=my.env")
    assert [finding.severity for finding in check_env_file(given, tmp_path)] == ["error"]
    file.write_text(f"A={VALUE}\nexport B={VALUE}\n")
    file.chmod(0o644)
    (open_to_all,) = check_env_file(given, tmp_path)
    assert "mode 0644" in open_to_all.message
    file.chmod(0o600)
    (line,) = check_env_file(given, tmp_path)
    assert "line 2" in line.message
    file.write_text(f"A={VALUE}\nB='{VALUE}'\nC={VALUE} \n")
    quoted, spaced = check_env_file(given, tmp_path)
    assert quoted.severity == spaced.severity == "warning"
    assert "value of B in" in quoted.message
    assert "value of C in" in spaced.message
    assert VALUE not in "".join(finding.line() for finding in (open_to_all, line, quoted, spaced))
    assert list(check_env_file(job(), tmp_path)) == []


def test_c31_the_script_holds_the_files_path_alone(tmp_path: Path):
    (tmp_path / "my.env").touch(mode=0o600)
    (tmp_path / "my.env").write_text(f"A={VALUE}\n")
    text = render_script(RenderRequest(job("container.env_file=my.env"), tmp_path, "run.sh"))
    assert f"ENV_FILE={tmp_path}/my.env" in text
    assert VALUE not in text


# ---- W&B


@pytest.mark.parametrize(
    ("assignments", "environ", "netrc", "told"),
    [
        ((), {}, False, True),
        ((), {"WANDB_API_KEY": "x"}, False, False),
        ((), {"WANDB_MODE": "offline"}, False, False),
        ((), {"WANDB_MODE": "online"}, False, True),
        (("container.env.WANDB_MODE=offline",), {}, False, False),
        (("container.env_file=x",), {}, False, False),
        ((), {}, True, False),
    ],
)
def test_wandb_without_a_key_is_a_warning(
    tmp_path: Path, assignments, environ: dict[str, str], netrc: bool, told: bool
):
    if netrc:
        (tmp_path / ".netrc").touch()
    given = job("logging.loggers=[console,wandb]", *assignments)
    findings = list(check_wandb(given, tmp_path, {"HOME": str(tmp_path), **environ}))
    assert [(finding.id, finding.severity) for finding in findings] == (
        [("wandb-login", "warning")] if told else []
    )


def test_no_wandb_no_warning(tmp_path: Path):
    assert list(check_wandb(job(), tmp_path, {})) == []
