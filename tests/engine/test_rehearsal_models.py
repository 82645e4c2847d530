"""The tiny models: what they are, that they are made once and whole, and that they suit every engine."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from verl_runs import GSM8K, ROOT

from launch.rehearsal import prepare as prepare_module
from launch.rehearsal.overlay import OverlayError, make_overlay
from launch.rehearsal.overlay import main as overlay_main
from launch.rehearsal.overrides import cpu_environment, cpu_overrides, ray_cpus
from launch.rehearsal.prepare import PrepareError, main, prepare
from launch.rehearsal.tiny_policy import FAMILIES
from launch.rehearsal.tiny_reward_model import CONSTANT, SCALE, digit_tokens
from launch.rehearsal.tokenizer import training_text


@pytest.fixture(scope="module")
def models(stack091):
    return stack091.models


def test_policy_suits_every_engine(models):
    config = AutoConfig.from_pretrained(models / "policy")
    tokenizer = AutoTokenizer.from_pretrained(models / "policy")
    assert config.vocab_size == len(tokenizer) == 1024
    assert config.num_hidden_layers % 2 == config.num_attention_heads % 2 == config.num_key_value_heads % 2 == 0
    assert config.head_dim == 32
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    model = AutoModelForCausalLM.from_pretrained(models / "policy", dtype="auto")
    assert model.dtype is torch.bfloat16
    tensors = list(model.state_dict().values())
    for index, tensor in enumerate(tensors):  # or a converter that swaps two would go unnoticed
        for other in tensors[:index]:
            assert tensor.shape != other.shape or not torch.equal(tensor, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family(family, tmp_path, capsys):
    prepare(tmp_path, verl="0.9.1", actor="fsdp2", rollout="hf", family=family)
    assert AutoConfig.from_pretrained(tmp_path / "policy").model_type == family
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert not (tmp_path / "policy_mcore").exists()


def test_gsm8k_prompts_fit_in_256_tokens(models):
    tokenizer = AutoTokenizer.from_pretrained(models / "policy")
    rows = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    lengths = [
        len(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": row["question"]}], add_generation_prompt=True, return_dict=False
            )
        )
        for row in rows
    ]
    long = sum(length > 256 for length in lengths)
    print(f"{long} of {len(rows)} questions are longer than 256 tokens, the longest has {max(lengths)}")
    assert long <= 0.01 * len(rows)


def test_tokenizer_keeps_text(models):
    tokenizer = AutoTokenizer.from_pretrained(models / "policy")
    text = "Ada has 3 ½-litre jars & 12 µm films.\n#### 42 漢字"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_corpus_must_hold_objects(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "q"}\n\n["no object"]\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl:3: expected a JSON object, found list"):
        list(training_text([tmp_path / "rows.jsonl"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reward_rises_with_the_share_of_digits(models, dtype):
    tokenizer = AutoTokenizer.from_pretrained(models / "reward_model")
    model = AutoModelForSequenceClassification.from_pretrained(models / "reward_model", dtype=dtype).eval()
    assert model.config.num_labels == 1
    digit, word = digit_tokens(tokenizer)[0], tokenizer.encode("the")[0]
    texts = [[digit] * count + [word] * (20 - count) for count in range(0, 21, 2)]
    with torch.no_grad():
        scores = model(torch.tensor(texts)).logits[:, 0].float().tolist()
    shares = [count / 20 for count in range(0, 21, 2)]
    expected = [SCALE * share / (1 + share**2 / (1 + CONSTANT**2)) ** 0.5 for share in shares]
    assert scores == pytest.approx(expected, abs=1e-4 if dtype is torch.float32 else 0.1)
    assert scores == sorted(scores)
    assert len(set(scores)) == len(scores)


def test_reward_of_a_pair_is_the_same_in_a_padded_batch(models):
    tokenizer = AutoTokenizer.from_pretrained(models / "reward_model")
    model = AutoModelForSequenceClassification.from_pretrained(models / "reward_model").eval()
    pairs = [("What is 2 + 3?", "It is 5."), ("Count.", "1 2 3 4 5 6 7 8 9 10 11 12 13 14"), ("#### 7", "none")]
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}], tokenize=False
        )
        for prompt, response in pairs
    ]
    with torch.no_grad():
        together = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0]
        again = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0]
        alone = torch.stack([model(**tokenizer(text, return_tensors="pt")).logits[0, 0] for text in texts])
    assert torch.equal(together, again)
    assert together.tolist() == pytest.approx(alone.tolist(), abs=1e-5)
    assert together[1] > together[0] > together[2]


def test_made_once(stack091, capsys):
    out = stack091.models
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    command = ["--out", str(out), "--verl", "0.9.1", "--actor", "megatron"]
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert capsys.readouterr().out.count("there already") == 3


def test_another_recipe_is_refused(tmp_path, capsys):
    command = ["--out", str(tmp_path), "--verl", "0.9.1", "--actor", "fsdp2"]
    assert main([*command, "--family", "qwen2"]) == 0
    assert main([*command, "--family", "llama"]) == 1
    message = capsys.readouterr().err
    assert "made by another recipe" in message
    assert "choose another --out" in message


def test_a_failed_step_leaves_nothing(tmp_path, monkeypatch):
    def broken(policy, target, verl, rollout):
        target.mkdir()
        raise PrepareError("no room")

    monkeypatch.setattr(prepare_module, "_build_mcore", broken)
    with pytest.raises(PrepareError, match="no room"):
        prepare(tmp_path, verl="0.9.1", actor="megatron", rollout="hf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "reward_model"]


def test_overrides_need_the_standard_library_only():
    code = "import launch.rehearsal.overrides as o; print(o.cpu_overrides('0.9.1', 'megatron', 'hf'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "vanilla_mbridge=True" in done.stdout


@pytest.mark.parametrize(
    ("verl", "actor", "rollout", "message"),
    [
        ("0.7.1", "megatron", "hf", "verl=0.7.1: the rehearsal on CPU knows 0.6.1, 0.8.0, 0.9.1"),
        ("0.9.1", "fsdp", "hf", "actor=fsdp"),
        ("0.9.1", "megatron", "sglang", "rollout=sglang"),
        ("0.6.1", "megatron", "vllm", "rollout=vllm: with verl 0.6.1"),
        ("0.8.0", "megatron", "vllm", "rollout=vllm: with verl 0.8.0"),
    ],
)
def test_no_backend_for_that(verl, actor, rollout, message):
    for function in (cpu_overrides, cpu_environment):
        with pytest.raises(ValueError, match=message):
            function(verl, actor, rollout)


def test_colocated_weights_do_not_travel():
    assert not [line for line in cpu_overrides("0.9.1", "megatron", "hf", one_step_off=False) if "engine" in line]
    for verl in ("0.6.1", "0.8.0"):
        assert "VERL_PLATFORM" not in cpu_environment(verl, "megatron", "hf")


def test_the_critic_runs_as_the_actor_does():
    assert not [line for line in cpu_overrides("0.9.1", "megatron", "hf") if "critic" in line]
    assert "critic.megatron.vanilla_mbridge=True" in cpu_overrides("0.9.1", "megatron", "hf", critic=True)
    assert "critic.model.use_remove_padding=False" in cpu_overrides("0.6.1", "fsdp2", "hf", critic=True)


def test_an_overlay_has_another_verl_and_this_environments_packages(stack080):
    code = (
        "import importlib.metadata as m; print(m.version('verl'), m.version('torch'), m.version('megatron-core'))"
    )
    done = subprocess.run([stack080.python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.8.0", version("torch"), version("megatron-core")]
    python = Path(stack080.python)
    before = python.lstat().st_mtime_ns
    assert make_overlay("0.8.0", python.parents[1]) == python
    assert python.lstat().st_mtime_ns == before


def test_an_overlay_is_made_whole_or_not_at_all(tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    assert overlay_main(["--out", str(tmp_path / "taken")]) == 1
    assert "is no overlay with verl 0.8.0: remove it" in capsys.readouterr().err
    with pytest.raises(OverlayError, match=r"verl==0\.0\.0"):
        make_overlay("0.0.0", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_ray_has_a_cpu_for_every_claim():
    for gpus in range(1, 9):
        assert ray_cpus(gpus) >= 10 + 3 * gpus + 2  # task runner, bundles, reward and agent-loop workers
