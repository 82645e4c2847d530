"""The keys of the reward server: what they refuse, what the checks tell, what the script then says."""

import json
import shlex
from pathlib import Path

import pytest
from model_folders import PATHS, QWEN3_REWARD, project

from launch.binds import bind_mounts
from launch.checks import check_job
from launch.checks.reward_model import check_reward_model
from launch.checks.reward_server import check_reward_server
from launch.config import Job, JobError, load_job
from launch.finding import Finding
from launch.rehearsal.shrink import rehearse
from launch.script import RenderRequest, render_script
from launch.sizing.layout import plan_layout
from launch.sizing.plan_table import plan_table

UPSTREAM = ("reward.backend=vllm", "reward.upstream=http://models:8000", "reward.gpus=0")


def job(*assignments: str) -> Job:
    return load_job("grpo", None, assignments)


def told(*assignments: str) -> list[Finding]:
    return [*check_reward_server(job(*assignments))]


def of_model(root: Path, *assignments: str) -> list[Finding]:
    return [*check_reward_model(job(*PATHS, *assignments), root)]


# ---- values


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("reward.backend=infinity", "reward.backend: must be one of transformers, vllm, sglang (got 'infinity')"),
        (
            "reward.on_outage=zero",
            "reward.on_outage: must be raise, penalty, or wait:SECONDS (from 1 on) (got 'zero'",
        ),
        ("reward.on_outage=wait", "reward.on_outage: must be raise, penalty, or wait:SECONDS"),
        ("reward.on_outage=wait:0", "reward.on_outage: must be raise, penalty, or wait:SECONDS"),
        ("reward.on_outage=wait:-5", "reward.on_outage: must be raise, penalty, or wait:SECONDS"),
        ("reward.on_outage=wait:1e3", "reward.on_outage: must be raise, penalty, or wait:SECONDS"),
        ("reward.input=messages", "reward.input: must be one of pair, chat (got 'messages')"),
        ("reward.truncate=middle", "reward.truncate: must be one of error, left, right (got 'middle')"),
        ("reward.dtype=fp8", "reward.dtype: must be one of auto, float32, bfloat16, float16 (got 'fp8')"),
        ("reward.batch_tokens=0", "reward.batch_tokens: must be greater than or equal to 1 (got 0)"),
        ("reward.trust_remote_code=perhaps", "reward.trust_remote_code: must be true or false (got 'perhaps')"),
    ],
)
def test_a_wrong_value_is_told(assignment: str, message: str):
    with pytest.raises(JobError) as error:
        job(assignment)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("assignments", "seconds"),
    [
        ((), 120),
        (("reward.deadline_s=9",), 9),
        (("reward.on_outage=penalty",), 120),
        (("reward.on_outage=wait:900",), 900),
        (("reward.on_outage=wait:1.5", "reward.deadline_s=9"), 1.5),
    ],
)
def test_seconds_until_an_outage(assignments: tuple[str, ...], seconds: float):
    assert job(*assignments).reward.outage_s == seconds


# ---- what the job alone tells


@pytest.mark.parametrize(
    ("assignment", "messages"),
    [
        (
            "reward.backend=vllm",
            [
                "reward.backend=vllm needs the URL of a running vllm server",
                "reward.backend=vllm computes elsewhere, and reward.gpus=1 would idle",
            ],
        ),
        (
            "reward={backend: sglang, upstream: 'm:1'}",
            [
                "reward.backend=sglang computes elsewhere, and reward.gpus=1 would idle",
                "reward.upstream: it does not start with http:// or https://",
            ],
        ),
        (
            "reward.upstream=m:1",
            [
                "reward.upstream is the server behind reward.backend=vllm or sglang; transformers asks none",
                "reward.upstream: it does not start with http:// or https://",
            ],
        ),
        (
            "reward.upstream_key_file=key",
            ["reward.upstream_key_file=key is the key of reward.upstream, which is not set"],
        ),
        (
            "reward={backend: vllm, gpus: 0, upstream_key_file: key}",
            ["reward.backend=vllm needs the URL of a running vllm server"],
        ),
        (
            "reward={min_score: 10, max_score: 1, deadline_s: 3600}",
            [
                "reward.min_score=10 is not below reward.max_score=1: every reward would be the same",
                "reward.deadline_s=3600.0 is not less than recovery.stalled_s=3600: the trainer prints nothing "
                "while it waits, and the job ends as hung before",
            ],
        ),
        (
            "reward.min_score=30",
            ["reward.min_score=30 is not below reward.max_score=30: every reward would be the same"],
        ),
    ],
)
def test_all_that_does_not_go_together_is_told_at_once(assignment: str, messages: list[str]):
    found = told(assignment)
    assert [one.message for one in found] == messages
    assert all(one.severity == "error" and one.remedy for one in found)
    # A job without a server reads none of it.
    assert told(assignment, "reward.kind=function", "reward.function=f.py") == []


def test_what_does_not_go_together_hides_nothing_else(tmp_path: Path):
    """The rules of the folder see the model that the job names, not a default."""
    root = project(tmp_path)
    (root / "models/reward/tokenizer_config.json").write_text("{}")
    bad = job(*PATHS, "reward.min_score=10", "reward.max_score=1", "reward.backend=vllm", "reward.input=chat")
    found = check_job(bad, root, rehearse=False, sample_data=False)
    of_rewards = [one.id for one in found if one.id.startswith("reward-")]
    assert sorted(of_rewards) == ["reward-backend", "reward-backend", "reward-model-template", "reward-scores"]
    assert not any(one.message.startswith("reward.model: no ") for one in found)


def test_a_function_without_a_file(tmp_path: Path):
    found = check_job(job("reward.kind=function"), tmp_path, rehearse=False, sample_data=False)
    (missing,) = [one for one in found if "reward.function" in one.message]
    assert (missing.severity, missing.id) == ("error", "reward-function")
    assert missing.remedy == "set reward.function to the path of a Python file"


def test_a_short_deadline_names_its_two_ways_out():
    (found,) = told("reward.deadline_s=20")
    assert found.remedy == "set reward.timeout_s=5, a quarter of that, or raise reward.deadline_s"
    assert told("reward.deadline_s=20", "reward.timeout_s=5") == []
    (found,) = told("reward.on_outage=wait:20")
    assert found.remedy == "set reward.timeout_s=5, a quarter of that, or raise reward.on_outage"


def test_the_defaults_are_right():
    assert told() == []
    assert told(*UPSTREAM) == []


def test_penalty_is_never_silent():
    (found,) = told("reward.on_outage=penalty", "reward.min_score=-9")
    assert (found.severity, found.id) == ("warning", "reward-outage")
    assert "a response that nobody could score gets -9" in found.message


@pytest.mark.parametrize(
    ("assignments", "severity", "message"),
    [
        (("reward.deadline_s=20",), "warning", "reward.deadline_s=20.0 is shorter than reward.timeout_s=30"),
        (("reward.on_outage=wait:20",), "warning", "reward.on_outage=wait:20 is shorter than reward.timeout_s=30"),
        (
            ("reward.deadline_s=3600",),
            "error",
            "reward.deadline_s=3600.0 is not less than recovery.stalled_s=3600",
        ),
        (
            ("reward.on_outage=wait:7200",),
            "error",
            "reward.on_outage=wait:7200 is not less than recovery.stalled_s",
        ),
        (("reward.on_outage=wait:90", "recovery.stalled_s=60"), "error", "is not less than recovery.stalled_s=60"),
    ],
)
def test_times_fit_together(assignments: tuple[str, ...], severity: str, message: str):
    (found,) = told(*assignments)
    assert (found.severity, found.id) == (severity, "reward-deadline")
    assert message in found.message
    assert told(*assignments, "reward.kind=function", "reward.function=f.py") == []


def test_the_remedy_of_a_long_wait_is_one():
    (found,) = told("reward.on_outage=wait:7200")
    assert found.remedy.startswith("set recovery.stalled_s=9000")
    assert told("reward.on_outage=wait:7200", "recovery.stalled_s=9000") == []
    assert told("reward.on_outage=wait:7200", "recovery.stalled_s=null") == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("models:8000", "does not start with http"),
        ("ftp://models", "does not start with http"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http://a b:1", "names no host"),
        ("http://models:port", "cannot be read"),
        ("http://models:99999", "cannot be read"),
        ("http://models:0", "port 0"),
        ("http://[::1", "cannot be read"),
        ("http://me:pa55word@models:1", "user name or password"),
        ("http://models:1/v1?key=pa55word", "part from ? or # on"),
    ],
)
def test_an_upstream_that_is_no_url(url: str, message: str):
    (found,) = told(f"reward={{backend: vllm, upstream: '{url}', gpus: 0}}")
    assert (found.severity, found.id) == ("error", "reward-upstream")
    assert message in found.message
    assert "pa55word" not in found.message + found.remedy


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.1.2.3", "[::1]", "0.0.0.0"])
def test_an_upstream_on_the_node_itself(host: str):
    (found,) = told(f"reward={{backend: sglang, upstream: 'http://{host}:30000', gpus: 0}}")
    assert (found.severity, found.id) == ("warning", "reward-upstream")


@pytest.mark.parametrize("url", ["http://models:8000", "https://10.0.0.7/reward/", "http://[fe80::1]:80"])
def test_an_upstream_elsewhere(url: str):
    assert told(f"reward={{backend: sglang, upstream: '{url}', gpus: 0}}") == []


def test_the_rules_are_among_the_jobs(tmp_path: Path):
    found = check_job(job("reward.on_outage=wait:7200"), tmp_path, rehearse=False, sample_data=False)
    assert "reward-deadline" in {one.id for one in found}


# ---- what the model's folder tells


def test_chat_needs_a_template(tmp_path: Path):
    root = project(tmp_path)
    assert of_model(root, "reward.input=chat") == []
    (root / "models/reward/tokenizer_config.json").write_text("{}")
    assert of_model(root) == []
    (found,) = of_model(root, "reward.input=chat")
    assert (found.severity, found.id) == ("error", "reward-model-template")
    (root / "models/reward/chat_template.jinja").write_text("{{ messages }}")
    assert of_model(root, "reward.input=chat") == []


def test_code_of_the_models_own(tmp_path: Path):
    folder = project(tmp_path) / "models/reward"
    assert [one.id for one in of_model(tmp_path, "reward.trust_remote_code=true")] == ["ignored-field"]
    (folder / "config.json").write_text(json.dumps({**QWEN3_REWARD, "auto_map": {"AutoModel": "code.Model"}}))
    (found,) = of_model(tmp_path)
    assert (found.severity, found.id) == ("error", "reward-model-code")
    assert "reward.trust_remote_code=true" in found.remedy
    (found,) = of_model(tmp_path, "reward.trust_remote_code=true")
    assert found.id == "reward-model-code"
    assert str(folder / "code.py") in found.remedy
    (folder / "code.py").touch()
    assert of_model(tmp_path, "reward.trust_remote_code=true") == []
    (folder / "config.json").write_text(
        json.dumps({**QWEN3_REWARD, "auto_map": {"AutoModel": "me/it--code.Model"}})
    )
    assert [one.id for one in of_model(tmp_path, "reward.trust_remote_code=true")] == ["reward-model-code"]


def test_an_upstream_has_the_weights(tmp_path: Path):
    for file in (project(tmp_path) / "models/reward").glob("model*"):
        file.unlink()
    assert [one.id for one in of_model(tmp_path)] == ["reward-model-weights"]
    assert of_model(tmp_path, *UPSTREAM) == []


@pytest.mark.parametrize(
    ("config", "tokenizer", "limit"),
    [
        ({"max_position_embeddings": 512}, {}, 512),
        ({"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}, {}, 512),
        ({}, {"model_max_length": 1024}, 1024),
        ({"max_position_embeddings": 512}, {"model_max_length": 1024}, 512),
        ({"max_position_embeddings": None, "n_positions": 1024}, {}, 1024),
        ({"max_position_embeddings": 9999, "text_config": {"max_position_embeddings": 256}}, {}, 256),
        ({}, {"model_max_length": 10**30}, None),
        ({"max_position_embeddings": -1}, {"model_max_length": "many"}, None),
    ],
)
def test_the_lower_limit_counts(tmp_path: Path, config: dict, tokenizer: dict, limit: int | None):
    folder = project(tmp_path) / "models/reward"
    (folder / "config.json").write_text(json.dumps({**QWEN3_REWARD, **config}))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    found = of_model(tmp_path)
    assert [one.remedy for one in found] == ([f"set reward.max_length={limit}"] if limit else [])


LENGTHS = ("data.max_prompt_length=2048", "data.max_response_length=4096")


@pytest.mark.parametrize(
    ("positions", "max_length", "message", "remedy"),
    [
        (
            4096,
            "null",
            "data.max_prompt_length + max_response_length = 2048 + 4096 = 6144 is more than the 4096 positions of",
            "set reward.max_length=4096 if that is meant",
        ),
        (
            4096,
            "100000",
            "reward.max_length=100000 is more than the 4096 positions of",
            "set reward.max_length=4096",
        ),
        (4096, "6144", "reward.max_length=6144 is more than the 4096 positions of", "set reward.max_length=4096"),
        (4096, "1024", "reward.max_length=1024 is less than data.max_prompt_length", "set reward.max_length=4096"),
        (8192, "100000", "reward.max_length=100000 is more than the 8192 positions", "set reward.max_length=8192"),
        (8192, "4096", "reward.max_length=4096 is less than data.max_prompt_length", "set reward.max_length=6144"),
        (
            None,
            "4096",
            "reward.max_length=4096 is less than data.max_prompt_length + max_response_length = 2048 + 4096",
            "set reward.max_length=6144, if the reward model takes that many",
        ),
    ],
)
def test_a_length_is_told_once_and_its_remedy_ends_it(
    tmp_path: Path, positions: int | None, max_length: str, message: str, remedy: str
):
    folder = project(tmp_path) / "models/reward"
    (folder / "config.json").write_text(json.dumps({**QWEN3_REWARD, "max_position_embeddings": positions}))
    given = job(*PATHS, *LENGTHS, f"reward.max_length={max_length}")
    found = check_job(given, tmp_path, rehearse=False, sample_data=False)
    (length,) = [one for one in found if one.id == "reward-length"]
    assert length.severity == "warning"
    assert length.message.startswith(message)
    assert length.remedy == remedy
    followed = remedy.split()[1].rstrip(",")
    assert of_model(tmp_path, *LENGTHS, followed) == []


@pytest.mark.parametrize("max_length", ["null", "6144", "4096"])
def test_a_length_without_the_folder(tmp_path: Path, max_length: str):
    found = of_model(tmp_path, *LENGTHS, f"reward.max_length={max_length}")
    assert [one.id for one in found] == (["reward-length"] if max_length == "4096" else [])


@pytest.mark.parametrize(
    ("truncate", "message"),
    [
        ("right", "longer pairs lose the end of their longer text"),
        ("left", "longer pairs lose the beginning of the prompt, then of the response"),
        ("error", "the first longer pair ends the job"),
    ],
)
def test_what_becomes_of_longer_pairs(tmp_path: Path, truncate: str, message: str):
    folder = project(tmp_path) / "models/reward"
    (folder / "config.json").write_text(json.dumps({**QWEN3_REWARD, "max_position_embeddings": 512}))
    for max_length in ("null", "6144", "256"):
        (found,) = of_model(tmp_path, f"reward.truncate={truncate}", f"reward.max_length={max_length}")
        assert found.message.endswith(f"{message} (reward.truncate={truncate})")
    (found,) = of_model(tmp_path, "data.max_prompt_length=100", "data.max_response_length=100")
    assert found.message.endswith("the server lowers it to that")  # and no pair is that long


# ---- the script


def server_options(*assignments: str, rehearsal: bool = False) -> list[str]:
    """What the script gives to reward.server behind --model DIR."""
    given = job(*assignments)
    request = RenderRequest(rehearse(given) if rehearsal else given, Path("/project"), "run.sh", rehearsal)
    (line,) = [line for line in render_script(request).splitlines() if line.startswith("REWARD=(")]
    words = shlex.split(line.removeprefix("REWARD=(").removesuffix(")"))
    assert words[1:4] == ["-m", "reward.server", "--model"]
    return words[5:]


@pytest.mark.parametrize(
    ("assignments", "options"),
    [
        ((), "--device cuda --max-length 6144"),
        (("reward.gpus=0",), "--device cpu --max-length 6144"),
        (("reward.gpus=2",), "--device cuda --max-length 6144 --replicas 2"),
        (("reward={input: pair, truncate: right, dtype: auto}",), "--device cuda --max-length 6144"),
        (("reward.input=chat",), "--device cuda --max-length 6144 --input chat"),
        (("reward.truncate=left",), "--device cuda --max-length 6144 --truncate left"),
        (("reward.dtype=float32",), "--device cuda --max-length 6144 --dtype float32"),
        (("reward.batch_tokens=4096",), "--device cuda --max-length 6144 --batch-tokens 4096"),
        (("reward.trust_remote_code=true",), "--device cuda --max-length 6144 --trust-remote-code"),
        (UPSTREAM, "--device cpu --max-length 6144 --backend vllm --upstream http://models:8000"),
    ],
)
def test_the_server_is_told_what_differs(assignments: tuple[str, ...], options: str):
    lengths = ("data.max_prompt_length=2048", "data.max_response_length=4096")
    assert server_options(*assignments, *lengths) == options.split()


def test_the_key_file_is_seen_in_the_container(tmp_path: Path):
    keyed = (*UPSTREAM, "reward.upstream_key_file=/keys/my key")
    assert server_options(*keyed)[-2:] == ["--upstream-key-file", "/keys/my key"]
    assert "/keys/my key" in bind_mounts(job(*keyed), tmp_path, rehearse=False, sample_data=False)
    found = check_job(job(*keyed), tmp_path, rehearse=False, sample_data=False)
    assert any("reward.upstream_key_file: no /keys/my key" in one.message for one in found)


def test_the_plan_says_who_computes():
    given = job(*UPSTREAM)
    lines = plan_table(given, plan_layout(given)).splitlines()
    assert "reward:   CPUs of the head node, asking a vllm server elsewhere" in lines
    assert max(map(len, lines)) <= 80


def test_a_rehearsal_serves_its_own_model_the_same_way():
    options = server_options(
        "reward={backend: vllm, upstream: 'http://models:8000', upstream_key_file: k, gpus: 0, input: chat, "
        "truncate: left, dtype: float16, batch_tokens: 65536, trust_remote_code: true}",
        rehearsal=True,
    )
    assert options == ["--device", "cpu", "--max-length", options[3], "--input", "chat", "--truncate", "left"]


@pytest.mark.parametrize(
    ("assignments", "variable"),
    [
        ((), None),
        (("reward.on_outage=raise",), None),
        (("reward.on_outage=wait:600",), "wait:600"),
        (("reward.on_outage=penalty",), "penalty"),
        (("reward.on_outage=penalty", "reward.kind=function", "reward.function=f.py"), None),
    ],
)
def test_the_client_is_told_what_an_outage_is(assignments: tuple[str, ...], variable: str | None):
    lines = render_script(RenderRequest(job(*assignments), Path("/project"), "run.sh")).splitlines()
    told = [line.strip() for line in lines if line.strip().startswith("REWARD_ON_OUTAGE")]
    assert told == ([f"REWARD_ON_OUTAGE={variable}"] if variable else [])


def test_the_server_takes_the_options():
    """Whatever the script may give, the command knows."""
    from reward.server import main

    given = server_options(
        "reward={gpus: 2, input: chat, truncate: left, dtype: float16, batch_tokens: 512, trust_remote_code: true}"
    )
    upstream = server_options(*UPSTREAM, "reward.upstream_key_file=/k")
    for options in (given, upstream):
        assert main(["--model", "/nowhere", *options]) == 1  # no such directory; 2 is for unknown options
