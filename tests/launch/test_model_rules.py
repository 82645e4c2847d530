"""Rules that need the model's config.json: FIELD_CASES C04, C08, C26, C32, D04."""

import json
from pathlib import Path

import pytest
from model_folders import PATHS, QWEN3_4B, QWEN3_30B_A3B, QWEN3_REWARD, model_folder, project, safetensors

from launch.checks.model import check_model
from launch.checks.reward_model import check_reward_model
from launch.config import load_job
from launch.finding import Finding

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 3991000000\n"
ROTARY = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def findings(root: Path, *assignments: str) -> list[Finding]:
    job = load_job("grpo", None, [*PATHS, *assignments])
    return [*check_model(job, root), *check_reward_model(job, root)]


def ids(root: Path, *assignments: str) -> set[str]:
    return {f"{finding.severity}:{finding.id}" for finding in findings(root, *assignments)}


def test_a_whole_model_passes(tmp_path: Path):
    assert findings(project(tmp_path)) == []


def test_folders_that_are_not_there_are_left_to_check_files(tmp_path: Path):
    assert findings(tmp_path) == []
    assert [*check_model(load_job("grpo"), tmp_path)] == [*check_model(load_job("grpo"), tmp_path / "none")]


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        # 32 heads, 8 key-value heads, 36 layers, 9728 wide.
        (("actor.tensor_parallel=8", "actor.fp8=null"), set()),
        (("actor.tensor_parallel=16", "actor.fp8=null"), set()),
        (("actor.tensor_parallel=3", "actor.fp8=null"), {"error:model-heads", "error:model-width"}),
        (("actor.tensor_parallel=64", "actor.fp8=null"), {"error:model-heads"}),
        (("actor.pipeline_parallel=4",), set()),
        (("actor.pipeline_parallel=8",), {"error:model-layers"}),
        (
            (
                "actor.pipeline_parallel=8",
                "overrides=['+actor_rollout_ref.actor.megatron.override_transformer_config."
                "num_layers_in_first_pipeline_stage=1']",
            ),
            set(),
        ),
        (("actor.expert_parallel=2",), {"error:model-experts"}),
        (("actor.expert_tensor_parallel=2",), {"error:model-experts"}),
        (("actor.strategy=fsdp2", "actor.context_parallel=4", "actor.fp8=null"), set()),
        (("actor.strategy=fsdp2", "actor.context_parallel=3", "actor.fp8=null"), {"error:model-heads"}),
        # C04: the rollout's tensor parallel size is the user's, and it must divide the heads.
        (("rollout.tensor_parallel=2",), set()),
        (("rollout.tensor_parallel=7",), {"error:model-heads"}),
        # C26: 9728/8 = 1216 = 9.5 blocks of 128.
        (("actor.tensor_parallel=8",), {"warning:fp8-shape"}),
        (("rollout.fp8=true", "rollout.tensor_parallel=8"), {"warning:fp8-shape"}),
        (("rollout.fp8=true", "rollout.tensor_parallel=4"), set()),
    ],
)
def test_c04_c26_sizes_of_a_dense_model(tmp_path: Path, assignments, broken):
    assert ids(project(tmp_path), *assignments) == broken


@pytest.mark.parametrize(
    ("stages", "first", "last", "remedy"),
    [
        (8, 1, None, None),  # 35 = 7*5
        (8, 2, None, "set num_layers_in_first_pipeline_stage=1"),
        (8, 3, 3, None),  # 30 = 6*5
        (8, 4, 4, "set num_layers_in_first_pipeline_stage=3 and num_layers_in_last_pipeline_stage=3"),
        (4, 10, None, "set num_layers_in_first_pipeline_stage=9"),  # an even split that the override breaks
        (2, 18, 18, None),
        (2, 10, 10, "set num_layers_in_first_pipeline_stage="),
        (1, 3, 3, "lower actor.pipeline_parallel to one of 1, 2, 3"),
    ],
)
def test_layers_of_uneven_stages(tmp_path: Path, stages: int, first: int, last: int | None, remedy: str | None):
    section = "+actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in"
    texts = [f"{section}_first_pipeline_stage={first}"]
    texts += [f"{section}_last_pipeline_stage={last}"] if last else []
    found = findings(project(tmp_path), f"actor.pipeline_parallel={stages}", f"overrides={json.dumps(texts)}")
    assert [one.id for one in found] == (["model-layers"] if remedy else [])
    for one in found:
        assert one.remedy.startswith(remedy or "")
    other = json.dumps(["+actor_rollout_ref.actor.megatron.override_transformer_config="
                        "{num_layers_in_first_pipeline_stage: 2}"])  # fmt: skip
    assert ids(tmp_path, "actor.pipeline_parallel=8", f"overrides={other}") == set()


def test_a_size_that_is_proposed_fits_heads_and_widths(tmp_path: Path):
    root = project(tmp_path, {**QWEN3_4B, "intermediate_size": 4 * 19 * 128})
    found = findings(root, "actor.tensor_parallel=3", "actor.fp8=null")
    assert {one.id: one.remedy.rpartition("one of ")[2] for one in found} == {
        "model-heads": "1, 2, 4, 8, 16, 32",
        "model-width": "1, 2, 4, 8, 16, 32",
    }
    root = project(tmp_path, {**QWEN3_4B, "intermediate_size": 9724})
    (found,) = findings(root, "actor.tensor_parallel=8", "actor.fp8=null")
    assert found.remedy == "set it to one of 1, 2, 4"


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        # 128 experts 768 wide, 32 heads, 4 key-value heads, 48 layers, no dense layer: 2*8 training GPUs.
        (("actor.expert_parallel=8", "actor.pipeline_parallel=1"), set()),
        (("actor.expert_parallel=16", "actor.pipeline_parallel=1"), set()),
        (("actor.expert_parallel=3", "actor.pipeline_parallel=1"), {"error:model-experts"}),
        (
            (
                "actor.expert_parallel=8",
                "actor.tensor_parallel=4",
                "actor.expert_tensor_parallel=1",
                "actor.pipeline_parallel=1",
            ),
            set(),
        ),
        (("actor.expert_tensor_parallel=5", "actor.fp8=null"), {"error:model-experts"}),
        (("actor.tensor_parallel=2", "actor.sequence_parallel=false"), {"error:model-experts"}),
        (("actor.tensor_parallel=4",), {"warning:fp8-shape"}),  # C26: 768/4 = 192
        (("rollout.tensor_parallel=4", "rollout.fp8=true"), {"warning:fp8-shape"}),
        (("rollout.tensor_parallel=32",), set()),
    ],
)
def test_c26_sizes_of_a_model_with_experts(tmp_path: Path, assignments, broken):
    root = project(tmp_path, QWEN3_30B_A3B)
    sixteen = ("cluster.nodes=3", "rollout.nodes=1", "actor.gpus_per_node=8")
    assert ids(root, *sixteen, *assignments) == broken


def test_the_vocabulary_is_not_padded_by_verl_0_6_1(tmp_path: Path):
    root = project(tmp_path, {**QWEN3_4B, "vocab_size": 151937})
    split = ("actor.tensor_parallel=2", "actor.fp8=null", "engine.mode=sync")
    assert ids(root, *split, "engine.verl=0.6.1") == {"error:model-width"}
    assert ids(root, *split, "engine.verl=0.9.1") == set()


def test_messages_carry_the_numbers_and_the_way_out(tmp_path: Path):
    (found,) = findings(project(tmp_path), "actor.pipeline_parallel=8")
    assert found.message == (
        f"actor.pipeline_parallel=8 does not divide the 36 layers of model.path {tmp_path}/models/policy"
    )
    assert found.remedy.startswith("set it to one of 1, 2, 3, 4, 6, 9, 12, 18, 36, or")
    (found,) = findings(project(tmp_path), "rollout.tensor_parallel=7")
    assert found.remedy == "set rollout.tensor_parallel to one of 1, 2, 4, 8, 16, 32"


@pytest.mark.parametrize(
    ("assignments", "broken"),
    [
        (("data.max_prompt_length=200000", "data.max_response_length=100000"), {"error:model-length"}),
        (("rollout.max_model_len=300000",), {"error:model-length"}),
        (("rollout.max_model_len=262144",), set()),
        (("rollout.max_model_len=6143",), {"error:rollout-length"}),
        # C08: a prompt and response of 9216 with verl's budget of 8192.
        (("rollout.engine=vllm", "rollout.chunked_prefill=false", "data.max_response_length=4096"), set()),
        (
            ("rollout.engine=vllm", "rollout.chunked_prefill=false", "data.max_response_length=7168"),
            {"error:rollout-budget"},
        ),
        (
            (
                "rollout.engine=vllm",
                "rollout.chunked_prefill=false",
                "data.max_response_length=7168",
                "rollout.max_batched_tokens=9216",
            ),
            set(),
        ),
        (("rollout.engine=vllm", "rollout.max_batched_tokens=2048"), set()),
        (
            ("rollout.engine=vllm", "rollout.chunked_prefill=false", "rollout.max_model_len=131072"),
            {"error:rollout-budget"},
        ),
        (("rollout.engine=sglang", "rollout.max_batched_tokens=2048"), {"warning:rollout-budget"}),
        (("reward.max_length=2048",), {"warning:reward-length"}),
        (("reward.max_length=100000",), {"warning:reward-length"}),
    ],
)
def test_c08_lengths(tmp_path: Path, assignments, broken):
    # The reward model's length is a matter of its own where the data gets longer.
    found = ids(project(tmp_path), *assignments)
    longer = any(text.startswith("data.") for text in assignments)
    assert found - ({"warning:reward-length"} if longer else set()) == broken


def test_the_limit_is_the_one_that_the_version_takes(tmp_path: Path):
    """verl 0.8.0 and later read max_position_embeddings; the engines of 0.6.1 count rope scaling in."""
    root = project(tmp_path, {**QWEN3_4B, "max_position_embeddings": 4096, "rope_scaling": ROTARY})
    (found,) = findings(root)
    assert found.id == "model-length"
    assert "set max_position_embeddings=16384 in config.json" in found.remedy
    assert ids(root, "engine.verl=0.6.1", "engine.mode=sync") == set()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("model-00002-of-00002.safetensors", None, "does not exist"),
        ("model-00002-of-00002.safetensors", "", "is empty"),
        ("model-00002-of-00002.safetensors", POINTER, "a Git LFS pointer"),
        ("model-00002-of-00002.safetensors", "<html>404</html>" * 9, "is no safetensors file"),
        ("model-00002-of-00002.safetensors", "\2\0\0\0\0\0\0\0[]", "header cannot be read"),
        ("model.safetensors.index.json", "{", "not JSON"),
        ("model.safetensors.index.json", "{}", "no weight_map"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../../x"}}', "which is no file name"),
        ("tokenizer.json", "", "is empty"),
        ("tokenizer.json", POINTER, "a Git LFS pointer"),
        ("tokenizer_config.json", "[]", "expected a JSON object"),
    ],
)
def test_d04_a_broken_download_is_found(tmp_path: Path, name: str, text: str | None, told: str):
    file = project(tmp_path) / "models/policy" / name
    file.unlink()
    if text is not None:
        file.write_text(text)
    found = [finding for finding in findings(tmp_path) if finding.id != "chat-template"]
    assert [finding.severity for finding in found] == ["error"]
    assert told in found[0].message
    assert str(file.parent) in found[0].message


def test_d04_a_shard_that_is_cut_off_or_lacks_a_tensor(tmp_path: Path):
    shard = project(tmp_path) / "models/policy/model-00001-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-3])
    (found,) = findings(tmp_path)
    assert f"holds {len(whole) - 3} of {len(whole)} bytes; the download was cut off" in found.message
    safetensors(shard, "a.0")
    (found,) = findings(tmp_path)
    assert "lacks b.0, which model.safetensors.index.json expects there" in found.message


def test_one_file_of_weights_and_none(tmp_path: Path):
    folder = project(tmp_path) / "models/policy"
    for file in folder.glob("model*"):
        file.unlink()
    assert ids(tmp_path) == {"error:model-weights"}
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    assert ids(tmp_path) == {"warning:model-weights"}  # the bridge to Megatron reads safetensors
    assert ids(tmp_path, "actor.strategy=fsdp2", "actor.fp8=null") == set()
    safetensors(folder / "model.safetensors", "a")
    assert ids(tmp_path) == set()


def test_no_tokenizer_and_no_chat_template(tmp_path: Path):
    folder = project(tmp_path) / "models/policy"
    (folder / "tokenizer.json").unlink()
    assert ids(tmp_path) == {"error:model-tokenizer"}
    (folder / "vocab.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    assert ids(tmp_path) == {"error:chat-template"}
    assert ids(tmp_path, "overrides=['actor_rollout_ref.model.custom_chat_template=x']") == set()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert ids(tmp_path) == set()


@pytest.mark.parametrize(
    ("config", "broken"),
    [
        ({"model_type": "qwen3"}, {"error:model-config"}),
        ({**QWEN3_4B, "model_type": "gpt_oss"}, {"warning:model-unknown"}),
        ({**QWEN3_4B, "quantization_config": {"quant_method": "awq"}}, {"warning:model-quantized"}),
    ],
)
def test_configs_of_a_policy(tmp_path: Path, config, broken):
    assert ids(project(tmp_path, config)) == broken


@pytest.mark.parametrize(
    ("config", "broken"),
    [
        ({**QWEN3_REWARD, "id2label": {"0": "bad", "1": "good"}}, {"error:reward-model-kind"}),
        ({**QWEN3_REWARD, "id2label": None}, {"error:reward-model-kind"}),
        ({**QWEN3_REWARD, "id2label": None, "num_labels": 1}, set()),
        (QWEN3_4B, {"error:reward-model-kind"}),
        ({**QWEN3_REWARD, "architectures": None}, {"error:reward-model-kind"}),
        ({**QWEN3_REWARD, "auto_map": {"AutoModel": "x.py"}}, {"error:reward-model-code"}),
        ({**QWEN3_REWARD, "max_position_embeddings": 512}, {"warning:reward-length"}),
        ({**QWEN3_REWARD, "model_type": "deberta-v2"}, set()),  # any classifier of transformers will do
        ({**QWEN3_REWARD, "model_type": "deberta-v2", "max_position_embeddings": 512}, {"warning:reward-length"}),
    ],
)
def test_configs_of_a_reward_model(tmp_path: Path, config, broken):
    project(tmp_path)
    (tmp_path / "models/reward/config.json").write_text(json.dumps(config))
    assert ids(tmp_path) == broken
    assert ids(tmp_path, "reward.kind=function", "reward.function=r.py") == set()


def test_the_reward_models_weights(tmp_path: Path):
    (project(tmp_path) / "models/reward/model-00001-of-00002.safetensors").write_text("")
    assert ids(tmp_path) == {"error:reward-model-weights"}


def test_the_critics_model(tmp_path: Path):
    project(tmp_path)
    model_folder(tmp_path / "models/value", {**QWEN3_4B, "num_hidden_layers": 35})
    assert ids(tmp_path, "critic.path=models/value") == set()  # no critic is trained
    found = findings(tmp_path, "critic.path=models/value", "algorithm.estimator=gae")
    assert [(finding.id, "critic.path" in finding.message) for finding in found] == [("model-layers", True)]


@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer", "RobertaTokenizerFast"])
def test_half_of_a_byte_level_bpe(tmp_path: Path, name: str):
    """transformers 4.56 and 5.10 refuse vocab.json without merges.txt, where there is no tokenizer.json."""
    folder = project(tmp_path) / "models/policy"
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "chat_template": "x"}))
    assert ids(tmp_path) == set()  # tokenizer.json holds both
    (folder / "vocab.json").write_text("{}")
    assert ids(tmp_path) == set()
    (folder / "tokenizer.json").unlink()
    (found,) = findings(tmp_path)
    assert found.id == "model-tokenizer"
    assert f"{folder / 'merges.txt'}: missing; {name} needs it beside vocab.json" in found.message
    (folder / "merges.txt").write_text("")
    (found,) = findings(tmp_path)
    assert "merges.txt: is empty" in found.message
    (folder / "merges.txt").write_text("#version: 0.2")
    assert ids(tmp_path) == set()
    (folder / "vocab.json").unlink()
    (found,) = findings(tmp_path)
    assert "no tokenizer (tokenizer.json" in found.message


@pytest.mark.parametrize("name", ["Wav2Vec2CTCTokenizer", "BertTokenizer", "MyQwen2Tokenizer", None, 3])
def test_another_tokenizer_has_no_merges(tmp_path: Path, name: object):
    folder = project(tmp_path) / "models/policy"
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "chat_template": "x"}))
    (folder / "tokenizer.json").rename(folder / "vocab.json")
    assert ids(tmp_path) == set()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Qwen/Qwen3-4B", {"error:hub-name"}),
        ("deepseek-ai/DeepSeek-V3.1", {"error:hub-name"}),
        ("models/Qwen3-4B", set()),  # a folder that is missing: check_files
        ("/data/Qwen3-4B", set()),
        ("a/b/c", set()),
        ("here/x", set()),
    ],
)
def test_c32_a_name_on_the_hub_is_no_folder(tmp_path: Path, name, told):
    (project(tmp_path) / "here").mkdir()
    found = findings(tmp_path, f"model.path={name}")
    assert {f"{finding.severity}:{finding.id}" for finding in found} == told
    if told:
        assert found[0].remedy.startswith(f"hf download {name} --local-dir models/")
