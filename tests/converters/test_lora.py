"""LoRA adapters of the real peft: merged they are what peft merges, kept they are what was trained."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers

from converters.checkpoint import fsdp, value_head
from converters.errors import ConvertError
from converters.lora import adapters, lora_config, lora_folder
from converters.planning.steps import whole
from converters.storage.row_reader import Reader
from converters.storage.tensors import GlobalTensor
from converters.writing import stream

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": LINEAR},
    "some_layers": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1]},
    "patterns": {
        "target_modules": LINEAR,
        "rank_pattern": {"down_proj": 2, "layers.0.self_attn.q_proj": 5},
        "alpha_pattern": {"q_proj": 7, ".*mlp.*": 3},
    },
    "rslora": {"target_modules": LINEAR, "use_rslora": True},
    "embedding_and_head": {"target_modules": ["embed_tokens", "lm_head", "v_proj"]},
    "head_trained_whole": {"target_modules": LINEAR, "modules_to_save": ["lm_head"]},
    "bias": {"target_modules": ["q_proj", "v_proj"], "bias": "all"},
    "pissa": {"target_modules": LINEAR, "init_lora_weights": "pissa"},
}


def trained(dtype: torch.dtype = torch.float32, tied: bool = False, **settings: Any) -> Any:
    """A tiny Qwen2 (its attention has biases) under peft, with no weight where it began."""
    config = transformers.Qwen2Config(
        vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(3)
    base = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for weight in base.parameters():
            weight.copy_(0.1 * torch.randn(weight.shape))
    model = peft.get_peft_model(
        base, peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", **settings})
    ).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn(weight.shape) + (0.0 if "lora_" in name else 0.01))
    return model


def save(model: Any, actor: Path, keys: Callable[[str], bool] = lambda _: True, config: bool = True) -> Path:
    """The folder of an actor of one rank, as verl 0.6.1 leaves it: shards, and the adapter's settings beside."""
    actor.mkdir(parents=True)
    state = {name: tensor for name, tensor in model.state_dict().items() if keys(name)}
    torch.save(state, actor / "model_world_size_1_rank_0.pt")
    if config:
        model.peft_config["default"].save_pretrained(actor / "lora_adapter")
    return actor


def merged(base: dict[str, GlobalTensor], adapter: adapters.Adapter | None, tied: bool = False) -> dict[str, Any]:
    """Output name -> words."""
    assert adapter is not None
    steps = [whole(tensor) for tensor in adapters.with_replaced(base, adapter).values()]
    found: dict[str, list[Any]] = {}
    for step in adapters.added(adapter, steps, tied):
        for block in stream.blocks(step):
            found.setdefault(block.output.name, []).append(block.words.copy())
    return {name: np.concatenate(parts) for name, parts in found.items()}


def bits(tensor: torch.Tensor) -> Any:
    return tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()]).numpy()


def same(one: dict[str, Any], other: dict[str, torch.Tensor]) -> None:
    assert set(one) == set(other)
    for name, tensor in other.items():
        assert np.array_equal(one[name].view(bits(tensor).dtype), bits(tensor)), name


@pytest.mark.parametrize("name", SETTINGS)
def test_merged_float32_is_what_peft_merges_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = trained(**SETTINGS[name])
    actor = save(model, tmp_path / "actor")
    found = merged(*adapters.separate(fsdp.read_index(actor), actor))
    same(found, model.merge_and_unload().state_dict())


@pytest.mark.parametrize("name", SETTINGS)
def test_kept_adapter_gives_the_logits_of_the_training(name: str, tmp_path: Path) -> None:
    model = trained(**SETTINGS[name]).eval()
    actor = save(model, tmp_path / "actor")
    base, adapter = adapters.separate(fsdp.read_index(actor), actor)
    assert adapter is not None
    lora_folder.write_adapter(adapter, tmp_path / "lora_adapter", base)
    lora_folder.check_written(adapter, tmp_path / "lora_adapter", base)
    tokens = torch.arange(1, 13).reshape(2, 6)
    with torch.no_grad():
        expected = model(tokens).logits
        clean = transformers.AutoModelForCausalLM.from_config(model.get_base_model().config).eval()
        clean.load_state_dict({k: torch.from_numpy(Reader().whole(t).view(np.float32)) for k, t in base.items()})
        without = clean(tokens).logits
        loaded = peft.PeftModel.from_pretrained(clean, tmp_path / "lora_adapter").eval()
        assert torch.equal(loaded(tokens).logits, expected)
    assert not torch.equal(without, expected)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("pissa", "bias")])
def test_folder_of_peft_merges_into_the_base(name: str, tmp_path: Path) -> None:
    model = trained(**SETTINGS[name])
    model.save_pretrained(tmp_path / "adapter")
    before = trained(**SETTINGS[name]).unload()
    before.save_pretrained(tmp_path / "base")
    adapter = lora_folder.read_adapter(tmp_path / "adapter")
    found = merged(adapters.with_base(adapter, tmp_path / "base"), adapter)
    same(found, model.merge_and_unload().state_dict())


def test_bfloat16_is_rounded_once(tmp_path: Path) -> None:
    """peft rounds the product, then the sum: of the exact sum the nearest bfloat16 is what is written here."""
    model = trained(torch.bfloat16, target_modules=LINEAR)
    actor = save(model, tmp_path / "actor")
    found = merged(*adapters.separate(fsdp.read_index(actor), actor))
    other = 0
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, theirs in model.merge_and_unload().state_dict().items():
        full = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{full}.lora_A.default.weight" not in state:
            continue
        a, b = (state[f"{full}.lora_{letter}.default.weight"].double() for letter in "AB")
        exact = state[f"{full}.base_layer.weight"].double() + 1.5 * (b @ a)
        ours = torch.from_numpy(found[name].view(np.int16)).view(torch.bfloat16)
        assert torch.equal(ours, exact.float().to(torch.bfloat16)), name
        # One step of bfloat16 (8 bits) at the larger of weight and product.
        step = 2.0**-7 * torch.maximum(exact.abs(), (1.5 * (b @ a)).abs())
        assert ((ours.double() - theirs.double()).abs() <= step).all(), name
        other += int((ours != theirs).sum())
    assert other > 0


def test_adapter_saved_alone_takes_its_base_from_the_base_model(tmp_path: Path) -> None:
    model = trained(target_modules=LINEAR)
    actor = save(model, tmp_path / "actor", lambda name: "lora_" in name, config=False)
    (actor / "lora_train_meta.json").write_text('{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"}')
    base, adapter = adapters.separate(fsdp.read_index(actor), actor)
    assert base == {}
    assert adapter is not None
    trained(target_modules=LINEAR).unload().save_pretrained(tmp_path / "base")
    for folder in (None, actor):
        with pytest.raises(ConvertError, match="--base_model"):
            adapters.with_base(adapter, folder)
    same(merged(adapters.with_base(adapter, tmp_path / "base"), adapter), model.merge_and_unload().state_dict())
    assert "rank 4 on 14 modules, scale 1.5" in adapter.summary


@pytest.mark.parametrize(
    ("meta", "option", "scale"),
    [({"r": 4, "lora_alpha": 6}, None, 1.5), ({"r": 4, "lora_alpha": 6}, 6, 1.5), (None, 2, 0.5),
     ({"r": 4}, 2, 0.5), ({"r": 4, "lora_alpha": 0}, 2, 0.5)],
    ids=["meta", "both_agree", "option", "option_for_none", "option_for_zero"],
)  # fmt: skip
def test_alpha(meta: Any, option: float | None, scale: float, tmp_path: Path) -> None:
    actor = save(trained(target_modules=["q_proj"]), tmp_path / "actor", config=False)
    if meta is not None:
        (actor / "lora_train_meta.json").write_text(json.dumps(meta))
    _, adapter = adapters.separate(fsdp.read_index(actor), actor, option)
    assert adapter is not None
    assert {pair.scale for pair in adapter.pairs.values()} == {scale}


@pytest.mark.parametrize(
    ("meta", "option", "match"),
    [(None, None, r"lora_train_meta\.json: missing.*--lora-alpha"),
     ({"r": 4}, None, r"lora_train_meta\.json: lora_alpha is None.*--lora-alpha"),
     ({"r": 4, "lora_alpha": 0}, None, "lora_alpha is 0.*--lora-alpha"),
     ({"r": 4, "lora_alpha": 6}, 7, "lora_alpha is 6, --lora-alpha is 7"),
     ({"r": 8, "lora_alpha": 6}, None, r"r is 8, the matrices of .*q_proj have rank 4")],
    ids=["nothing", "none", "zero", "contradiction", "rank"],
)  # fmt: skip
def test_alpha_that_is_not_known_is_an_error(meta: Any, option: Any, match: str, tmp_path: Path) -> None:
    actor = save(trained(target_modules=["q_proj"]), tmp_path / "actor", config=False)
    if meta is not None:
        (actor / "lora_train_meta.json").write_text(json.dumps(meta))
    with pytest.raises(ConvertError, match=match):
        adapters.separate(fsdp.read_index(actor), actor, option)


def test_ranks_of_many_kinds_need_the_whole_settings(tmp_path: Path) -> None:
    actor = save(trained(**SETTINGS["patterns"]), tmp_path / "actor", config=False)
    with pytest.raises(ConvertError, match=r"ranks 2, 4, 5.*adapter_config\.json"):
        adapters.separate(fsdp.read_index(actor), actor, 6)


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"use_dora": True}, "lora_magnitude_vector"), ({"lora_bias": True}, r"lora_B\.default\.bias"),
     ({"trainable_token_indices": {"embed_tokens": [1, 2]}}, "trainable_tokens")],
    ids=["dora", "lora_bias", "tokens"],
)  # fmt: skip
def test_other_adapters_are_refused_by_their_tensors(settings: Any, match: str, tmp_path: Path) -> None:
    actor = save(trained(target_modules=["q_proj"], **settings), tmp_path / "actor", config=False)
    with pytest.raises(ConvertError, match=match):
        adapters.separate(fsdp.read_index(actor), actor, 6)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"use_dora": True}, "DoRA"), ({"peft_type": "IA3"}, "not LORA"), ({"new_idea": 3}, "new_idea is 3"),
     ({"fan_in_fan_out": True}, "Conv1D"), ({"r": 0}, "r is 0"),
     ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern"), ({"alpha_pattern": {"(": 3}}, "no pattern"),
     ({"lora_alpha": None}, "--lora-alpha"),
     ({"lora_alpha": float("nan")}, "--lora-alpha"), ({"r": 5}, "have rank 4")],
    ids=["dora", "type", "unknown", "conv1d", "rank0", "pattern", "regex", "no_alpha", "nan", "rank"],
)  # fmt: skip
def test_other_adapters_are_refused_by_their_settings(changes: Any, match: str, tmp_path: Path) -> None:
    actor = save(trained(target_modules=["q_proj"]), tmp_path / "actor")
    path = actor / "lora_adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConvertError, match=match):
        adapters.separate(fsdp.read_index(actor), actor)


def test_two_adapters_are_refused(tmp_path: Path) -> None:
    model = trained(target_modules=["q_proj"])
    model.add_adapter("second", peft.LoraConfig(r=4, target_modules=["v_proj"]))
    actor = save(model, tmp_path / "actor")
    with pytest.raises(ConvertError, match="adapters default, second"):
        adapters.separate(fsdp.read_index(actor), actor)


@pytest.mark.parametrize("settings", [{"target_modules": ["embed_tokens"]}, {"modules_to_save": ["embed_tokens"]}])
def test_one_of_two_tied_weights_cannot_be_merged(settings: Any, tmp_path: Path) -> None:
    actor = save(trained(tied=True, **{"target_modules": ["q_proj"], **settings}), tmp_path / "actor")
    with pytest.raises(ConvertError, match=r"model\.embed_tokens trained, and the model ties"):
        merged(*adapters.separate(fsdp.read_index(actor), actor), tied=True)


def test_weights_that_save_lora_only_lost(tmp_path: Path) -> None:
    model = trained(target_modules=["q_proj"], modules_to_save=["lm_head"])
    actor = save(model, tmp_path / "actor", lambda name: "lora_" in name)
    with pytest.raises(ConvertError, match="they are lost"):
        adapters.separate(fsdp.read_index(actor), actor)


def test_start_that_changed_the_base_needs_that_base(tmp_path: Path) -> None:
    model = trained(**SETTINGS["pissa"])
    actor = save(model, tmp_path / "actor", lambda name: "lora_" in name)
    model.unload().save_pretrained(tmp_path / "base")
    _, adapter = adapters.separate(fsdp.read_index(actor), actor)
    assert adapter is not None
    with pytest.raises(ConvertError, match="init_lora_weights=pissa"):
        adapters.with_base(adapter, tmp_path / "base")


def test_matrix_that_is_missing_is_named(tmp_path: Path) -> None:
    model = trained(target_modules=["q_proj"])
    actor = save(
        model,
        tmp_path / "actor",
        lambda name: not name.endswith("layers.1.self_attn.q_proj.lora_B.default.weight"),
    )
    with pytest.raises(ConvertError, match=r"layers\.1\.self_attn\.q_proj: A \[4, 16\], B missing"):
        adapters.separate(fsdp.read_index(actor), actor)


def test_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    model = trained(target_modules=["q_proj", "down_proj"])
    actor = save(model, tmp_path / "actor", lambda name: "layers.1.mlp.down_proj.base_layer" not in name)
    with pytest.raises(ConvertError, match=r"without a weight in the base.*\n.*layers\.1\.mlp\.down_proj"):
        adapters.separate(fsdp.read_index(actor), actor)
    base, adapter = adapters.separate(fsdp.read_index(save(model, tmp_path / "whole")), tmp_path / "whole")
    query = "model.layers.0.self_attn.q_proj.weight"
    base[query] = dataclasses.replace(base["model.layers.0.mlp.down_proj.weight"], name=query)
    with pytest.raises(ConvertError, match="its adapter makes"):
        merged(base, adapter)


def test_kept_adapter_has_whole_settings_though_the_checkpoint_says_rank_and_alpha_only(tmp_path: Path) -> None:
    model = trained(target_modules=LINEAR)
    actor = save(model, tmp_path / "actor", config=False)
    (actor / "lora_train_meta.json").write_text('{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"}')
    base, adapter = adapters.separate(fsdp.read_index(actor), actor)
    assert adapter is not None
    lora_folder.write_adapter(adapter, tmp_path / "kept", base)
    written = peft.LoraConfig.from_pretrained(tmp_path / "kept")
    assert (written.r, written.lora_alpha, written.task_type) == (4, 6, "CAUSAL_LM")
    assert written.target_modules == set(LINEAR)
    loaded = peft.PeftModel.from_pretrained(trained(target_modules=LINEAR).unload(), tmp_path / "kept")
    same(
        {k: v.numpy().view(np.uint32) for k, v in loaded.merge_and_unload().state_dict().items()},
        model.merge_and_unload().state_dict(),
    )


@pytest.mark.parametrize("change", ["matrix", "alpha", "name", "dropout", "bias"])
def test_kept_adapter_that_was_damaged_is_told(change: str, tmp_path: Path) -> None:
    actor = save(trained(target_modules=["q_proj"]), tmp_path / "actor")
    base, adapter = adapters.separate(fsdp.read_index(actor), actor)
    assert adapter is not None
    lora_folder.write_adapter(adapter, tmp_path / "kept", base)
    weights, config = tmp_path / "kept" / "adapter_model.safetensors", tmp_path / "kept" / "adapter_config.json"
    data = weights.read_bytes()
    changes = {"alpha": {"lora_alpha": 7}, "dropout": {"lora_dropout": 0.5}, "bias": {"bias": "all"}}
    if change in changes:
        config.write_text(json.dumps({**json.loads(config.read_text()), **changes[change]}))
    else:
        weights.write_bytes(
            data[:-1] + bytes([data[-1] ^ 1]) if change == "matrix" else data.replace(b"_A.", b"_C.")
        )
    told = {
        "matrix": "differs",
        "alpha": "scale 1.75, 1.5",
        "name": "not in both",
        "dropout": "adapter_config.json: lora_dropout",
        "bias": "adapter_config.json: bias",
    }
    with pytest.raises(ConvertError, match=told[change]):
        lora_folder.check_written(adapter, tmp_path / "kept", base)


def test_settings_as_verl_061_writes_them(tmp_path: Path) -> None:
    """asdict of a LoraConfig, and a name of target_modules taken for a list of letters."""
    model = trained(target_modules="all-linear")
    actor = save(model, tmp_path / "actor", config=False)
    config = dataclasses.asdict(model.peft_config["default"])
    config |= {"task_type": "CAUSAL_LM", "peft_type": "LORA", "target_modules": list("all-linear")}
    (actor / "lora_adapter").mkdir()
    (actor / "lora_adapter" / "adapter_config.json").write_text(json.dumps(config))
    base, adapter = adapters.separate(fsdp.read_index(actor), actor)
    assert adapter is not None
    lora_folder.write_adapter(adapter, tmp_path / "kept", base)
    assert peft.LoraConfig.from_pretrained(tmp_path / "kept").target_modules == set(LINEAR)


def test_folder_without_matrices_is_named(tmp_path: Path) -> None:
    trained(target_modules=LINEAR).save_pretrained(tmp_path)
    assert len(lora_folder.read_adapter(tmp_path).pairs) == 14
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ConvertError, match=r"adapter_model\.safetensors: missing"):
        lora_folder.read_adapter(tmp_path)


def test_pattern_of_names_is_that_of_peft() -> None:
    """The first pattern that the end of a module's name matches, as peft's own function finds it."""
    from peft.utils.other import get_pattern_key

    patterns = {"proj": 2, "q_proj": 3, r"layers\.[01]\.mlp\..*": 5, "model.layers.1.self_attn.k_proj": 9}
    attention, mlp = "model.layers.1.self_attn.", "model.layers.0.mlp.up_proj"
    for module in (f"{attention}q_proj", f"{attention}k_proj", mlp, mlp.replace(".0.", ".11."), "lm_head"):
        expected = patterns.get(get_pattern_key(patterns, module), 1)
        config = {"alpha_pattern": patterns, "lora_alpha": 1, "r": 1}
        assert lora_config.scale(config, module, 1, Path("x")) == expected, module


class TrlValueHead(torch.nn.Module):
    """trl 0.9.6 `models/modeling_value_head.py`: AutoModelForCausalLMWithValueHead, what is saved of it."""

    def __init__(self, pretrained_model: Any) -> None:
        super().__init__()
        self.pretrained_model = pretrained_model
        self.v_head = torch.nn.Module()
        self.v_head.summary = torch.nn.Linear(pretrained_model.config.hidden_size, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.pretrained_model(tokens, output_hidden_states=True).hidden_states[-1]
        return self.v_head.summary(hidden).squeeze(-1)


def test_critic_of_trl_is_a_token_classifier(tmp_path: Path) -> None:
    language = trained(target_modules=["q_proj"]).unload()
    critic = TrlValueHead(language).eval()
    (tmp_path / "critic").mkdir()
    torch.save(critic.state_dict(), tmp_path / "critic" / "model_world_size_1_rank_0.pt")
    found = value_head.renamed(fsdp.read_index(tmp_path / "critic"), tmp_path)
    language.config.num_labels = 1
    classifier = transformers.AutoModelForTokenClassification.from_config(language.config).eval()
    classifier.load_state_dict({k: torch.from_numpy(Reader().whole(t).view(np.float32)) for k, t in found.items()})
    tokens = torch.arange(1, 13).reshape(2, 6)
    with torch.no_grad():
        assert torch.equal(classifier(tokens).logits.squeeze(-1), critic(tokens))


def test_critic_of_trl_with_an_adapter(tmp_path: Path) -> None:
    """The prefix of PEFT stands before that of trl, and the output layer's matrices have no part in the values."""
    critic = TrlValueHead(trained(target_modules=["q_proj"]).unload())
    targets = ["q_proj", "summary", "lm_head"]
    model = peft.get_peft_model(critic, peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets))
    torch.nn.init.normal_(model.base_model.model.v_head.summary.lora_B.default.weight)
    actor = save(model, tmp_path / "critic")
    tensors = value_head.renamed(fsdp.read_index(actor), actor)
    found = merged(*adapters.separate(tensors, actor))
    expected = model.merge_and_unload().v_head.summary
    # Of one row, whose products are summed in another order by torch.
    score = found["score.weight"].view(np.float32)
    np.testing.assert_allclose(score, expected.weight.detach(), rtol=1e-5, atol=1e-7)
    assert np.array_equal(found["score.bias"], bits(expected.bias).view(np.uint32))
    assert "lm_head.weight" not in found


@pytest.mark.parametrize("change", ["two_values", "two_layers", "no_head"])
def test_other_value_heads_are_refused(change: str, tmp_path: Path) -> None:
    critic = TrlValueHead(trained(target_modules=["q_proj"]).unload())
    if change == "two_values":
        critic.v_head.summary = torch.nn.Linear(16, 2)
    if change == "two_layers":
        critic.v_head.first = torch.nn.Linear(16, 16)
    state = {k: v for k, v in critic.state_dict().items() if change != "no_head" or "v_head" not in k}
    torch.save(state, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(ConvertError, match="not one linear layer to one value"):
        value_head.renamed(fsdp.read_index(tmp_path), tmp_path)
