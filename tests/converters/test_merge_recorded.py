"""A run folder of verl 0.6.1 with megatron-core 0.13.1: merged whole, and damaged in every way."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from merge_helpers import assert_same_tensors, edit_json, load, snapshot
from merge_jobs import Recorded

from converters.checkpoint import torch_dist
from converters.errors import ConvertError
from converters.merge import merge
from converters.storage.stored import StoredTensor


def _refused(actor: Path, tmp_path: Path, match: str, base: Path | None = None) -> None:
    """It fails with `match`, and neither a target nor a part of one is left."""
    with pytest.raises(ConvertError, match=match):
        merge(actor, tmp_path / "out", base_model=base)
    assert not list(tmp_path.glob("out*"))


def test_exact_and_the_checkpoint_is_not_touched(unpacked: Recorded, tmp_path: Path) -> None:
    before = snapshot(unpacked.run)
    result = merge(unpacked.run, tmp_path / "out")
    assert_same_tensors(unpacked.hf, tmp_path / "out")
    assert snapshot(unpacked.run) == before
    assert (result.found.step, result.found.layout) == (3, "v1")
    manifest = json.loads((tmp_path / "out" / "merge_manifest.json").read_text())
    assert (manifest["step"], manifest["tensors"], manifest["dtypes"]) == (3, 25, ["BF16"])
    hf = unpacked.actor / "huggingface"
    for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (hf / name).read_bytes()
    # transformers 4.56 writes only `dtype`, which 4.55 does not read.
    config = json.loads((hf / "config.json").read_text())
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written == {**config, "torch_dtype": config["dtype"]}


def test_needs_neither_torch_nor_megatron(unpacked: Recorded, tmp_path: Path) -> None:
    code = (
        "import sys; from converters.merge import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'megatron', 'verl', 'ray', 'transformers'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    arguments = ["--local-dir", str(unpacked.run), "--target-dir", str(tmp_path / "out")]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_truncated_shard(recorded: Recorded, tmp_path: Path) -> None:
    shard = recorded.actor / "dist_ckpt" / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    _refused(recorded.run, tmp_path, r"__1_0\.distcp.*truncated")


def test_empty_shard(recorded: Recorded, tmp_path: Path) -> None:
    (recorded.actor / "dist_ckpt" / "__0_1.distcp").write_bytes(b"")
    _refused(recorded.run, tmp_path, r"__0_1\.distcp.*truncated")


def test_missing_shard(recorded: Recorded, tmp_path: Path) -> None:
    (recorded.actor / "dist_ckpt" / "__0_0.distcp").unlink()
    _refused(recorded.run, tmp_path, r"__0_0\.distcp: missing")


def test_interrupted_save_has_no_metadata(recorded: Recorded, tmp_path: Path) -> None:
    (recorded.actor / "dist_ckpt" / ".metadata").unlink()
    _refused(recorded.run, tmp_path, r"\.metadata: missing.*interrupted")


def test_other_backend(recorded: Recorded, tmp_path: Path) -> None:
    edit_json(recorded.actor / "dist_ckpt" / "metadata.json", sharded_backend="zarr")
    _refused(recorded.run, tmp_path, "'zarr'")


def test_shard_of_another_checkpoint(recorded: Recorded, tmp_path: Path) -> None:
    folder = recorded.actor / "dist_ckpt"
    shutil.copy(folder / "__0_0.distcp", folder / "__1_0.distcp")
    _refused(recorded.run, tmp_path, "damaged|not a whole|does not fit|holds")


def test_flipped_bytes_of_the_weights_are_found(recorded: Recorded, tmp_path: Path) -> None:
    """CRC-32 covers every tensor: the first, the last and a byte between, of one of each shard."""
    tensors = torch_dist.read_index(recorded.actor / "dist_ckpt").values()
    stored = [part for tensor in tensors for part in (chunk.open() for chunk in tensor.chunks)]
    storages = {part.storage.path: part.storage for part in stored if isinstance(part, StoredTensor)}
    assert len(storages) >= 2
    for shard, storage in storages.items():
        for at in (0, storage.nbytes // 2, storage.nbytes - 1):
            _flip(shard, storage.start + at)
            _refused(recorded.run, tmp_path, "CRC-32")
            _flip(shard, storage.start + at)
    merge(recorded.run, tmp_path / "out")
    assert_same_tensors(recorded.hf, tmp_path / "out")


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << at % 8]))


@pytest.mark.parametrize("block", range(3))
def test_flipped_bytes_of_the_metadata_are_found_or_harmless(
    recorded: Recorded, tmp_path: Path, block: int
) -> None:
    path = recorded.actor / "dist_ckpt" / ".metadata"
    size, found = path.stat().st_size, 0
    for seed in range(block * 20, block * 20 + 20):
        at = random.Random(seed).randrange(size)
        _flip(path, at)
        found += _error_or_exact(recorded, tmp_path / f"out{seed}")
        _flip(path, at)
    assert found


def _error_or_exact(recorded: Recorded, out: Path) -> bool:
    """Whether the merge failed with our error; if not, the result is right."""
    try:
        merge(recorded.run, out)
    except ConvertError:
        assert not out.exists()
        return True
    assert_same_tensors(recorded.hf, out)
    shutil.rmtree(out)
    return False


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_attention_heads": 2, "num_key_value_heads": 3}, "not a multiple"),
        ({"num_attention_heads": 2, "num_key_value_heads": 1}, "num_attention_heads was 4 in training"),
        # The same rows of qkv, q and kv: 4 heads of 8 in 2 groups, 2 heads of 16 in 1 group.
        ({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}, "kv_channels was 8"),
        ({"head_dim": 4}, "kv_channels was 8 in training, config.json says 4"),
        ({"num_hidden_layers": 3}, "num_layers was 2 in training"),
        ({"hidden_size": 32}, "hidden_size was 16"),
        ({"intermediate_size": 48}, "ffn_hidden_size was 24"),
        ({"rms_norm_eps": 1e-5}, "layernorm_epsilon"),
        ({"vocab_size": 321}, r"embedding.word_embeddings.weight is \[320, 16\].*\[321, 16\]"),
        ({"vocab_size": 8}, r"is \[320, 16\], .* makes it \[8, 16\]: 312 rows more are no padding"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"tie_word_embeddings": True}, "trained untied"),
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "linear_qkv.bias"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "q_layernorm.weight.*has no place"),
        ({"model_type": "llama"}, "model_type is 'llama' and architectures Qwen3ForCausalLM"),
        ({"hidden_act": "gelu"}, "the activation was silu in training, config.json says hidden_act 'gelu'"),
        ({"architectures": ["Qwen2VLForConditionalGeneration"]}, "no table for the architecture"),
        ({"architectures": []}, "architectures is"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_wrong_config_is_refused(
    recorded: Recorded, tmp_path: Path, changes: dict[str, object], match: str
) -> None:
    edit_json(recorded.actor / "huggingface" / "config.json", **changes)
    _refused(recorded.run, tmp_path, f"(?s){match}")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_hidden_layers": 3}, "2 layers, config.json says num_hidden_layers 3"),
        ({"num_hidden_layers": 1}, "2 layers, config.json says num_hidden_layers 1"),
        ({"head_dim": 4}, r"linear_qkv.weight of layer 0 is \[64, 16\], config.json makes it \[32, 16\]"),
        ({"intermediate_size": 48}, r"linear_fc1.weight of layer 1 is \[48, 16\]"),
        ({"num_key_value_heads": 4}, "linear_qkv.weight of layer 0"),
    ],
)
def test_wrong_config_is_refused_by_shapes_alone(
    recorded: Recorded, tmp_path: Path, changes: dict[str, object], match: str
) -> None:
    (recorded.actor / "transformer_config.json").unlink()
    edit_json(recorded.actor / "huggingface" / "config.json", **changes)
    _refused(recorded.run, tmp_path, f"(?s){match}")


def test_padded_vocabulary_is_cut(recorded: Recorded, tmp_path: Path) -> None:
    edit_json(recorded.actor / "huggingface" / "config.json", vocab_size=301)
    result = merge(recorded.run, tmp_path / "out")
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        assert f"rows 301 to 319 of {name} are padding and left out (vocab_size is 301)" in result.notes
    expected, found = load(recorded.hf), load(tmp_path / "out")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert found[name].shape == (301, 16)
        assert found[name].equal(expected[name][:301])


def test_padding_with_tokens_in_it_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    edit_json(recorded.actor / "huggingface" / "config.json", vocab_size=270)
    _refused(recorded.run, tmp_path, "vocab_size is 270, the tokenizer has tokens up to 276, and embedding")


def test_file_modes_follow_umask(unpacked: Recorded, tmp_path: Path) -> None:
    merge(unpacked.run, tmp_path / "out")
    plain = tmp_path / "plain"
    plain.touch()
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "out").iterdir()}
    assert modes == {plain.stat().st_mode & 0o777}
