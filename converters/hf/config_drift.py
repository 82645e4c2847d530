"""config.json of the output, and where it, generation_config.json, tokenizer and base model do not agree.

`adjusted` changes only what a reader would take for something else: the type of the weights, the tie flag, RoPE in
the form of both transformers 4 and 5. `drift` changes nothing: it tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.errors import ConvertError, listing
from converters.hf import rope
from converters.hf.folder_difference import normal, value_differences
from converters.hf.hf_files import CONFIG, GENERATION_CONFIG
from converters.hf.token_ids import Tokens, read_tokens, token_ids
from converters.json_file import read_json

# safetensors' type -> the name in config.json
_CONFIG_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
# Differ between a model and what was trained from it without a meaning: how it is stored or run.
_OF_THE_RUN = ("dtype", "use_cache", "architectures", "output_attentions", "output_hidden_states")


def adjusted(
    raw: Mapping[str, Any],
    dtype: str,
    *,
    tied: bool | None = None,
    where: Path | str = CONFIG,
) -> tuple[dict[str, Any], list[str]]:
    """config.json for the output, and a line for each change; without a line nothing was changed.

    - `torch_dtype` and `dtype` are the weights' own type: loaders convert to what they say. Before 4.56
      transformers knows only the former, and other readers (vLLM) ask for it too.
    - `tie_word_embeddings` is what the weights are: where it is not written, config classes take what they like.
    - RoPE is written at the top too, `rope_theta` and a scaling as `rope_scaling`: from `rope_parameters` alone
      transformers 4 silently takes a theta of 10000. `rope_parameters` by layer type stays as it is.

    Args:
        raw: of the checkpoint.
        dtype: safetensors' name of the weights' type.
        tied: whether the embeddings are tied; None: unknown.

    Raises:
        ConvertError: RoPE is written twice and not the same.
    """
    config, changes = dict(raw), []
    name = _CONFIG_DTYPES.get(dtype)
    if name:
        for key in ("dtype", "torch_dtype"):
            if key in config and not isinstance(config[key], dict) and config[key] != name:
                changes.append(f"{key}: {config[key]} -> {name}, as the weights are")
                config[key] = name
        if "torch_dtype" not in config and not isinstance(config.get("dtype"), dict):
            changes.append(f"torch_dtype: {name}, as the weights are")
            config["torch_dtype"] = name
    if tied is not None and config.get("tie_word_embeddings") is not tied:
        before = config.get("tie_word_embeddings")
        said = "not written" if before is None else str(before).lower()
        changes.append(f"tie_word_embeddings: {said} -> {str(tied).lower()}, as the weights are")
        config["tie_word_embeddings"] = tied
    changes += _rope_for_both(config, where)
    text = config.get("text_config")
    if isinstance(text, dict):
        config["text_config"] = dict(text)
        changes += [f"text_config.{change}" for change in _rope_for_both(config["text_config"], where)]
    return config, changes


def _rope_for_both(config: dict[str, Any], where: Path | str) -> list[str]:
    """Add to `config` what transformers 4 reads of RoPE; a line for each addition."""
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    if rope.per_layer_type(config):
        return []
    parameters = parameters if isinstance(parameters, dict) else {}
    scaling = scaling if isinstance(scaling, dict) else {}
    problems = _twice(config, parameters, scaling)
    if problems:
        raise listing(
            f"{where}: RoPE is written twice and not the same: transformers 4 and 5 would run two models",
            problems,
            "Correct the one that is not what was trained.",
        )
    changes = []
    for key in rope.TOP:
        value = scaling.get(key, parameters.get(key))
        if value is not None and config.get(key) is None:
            config[key] = value
            changes.append(f"{key}: {value} at the top too, for readers of transformers 4")
    more = {key: value for key, value in parameters.items() if key not in rope.TOP}
    if not scaling and more and more != {"rope_type": "default"}:
        config["rope_scaling"] = more
        changes.append("rope_scaling: from rope_parameters, for readers of transformers 4")
    return changes


def _twice(config: Mapping[str, Any], parameters: dict[str, Any], scaling: dict[str, Any]) -> list[str]:
    """What two of the places say differently."""
    top = {key: config[key] for key in rope.TOP if config.get(key) is not None}
    lengths = {key: value for key, value in config.items() if key.endswith("max_position_embeddings")}
    said = {
        "rope_parameters": rope.as_read_by_5({**lengths, "rope_parameters": parameters}),
        "rope_scaling": rope.as_read_by_5({**lengths, "rope_scaling": scaling}),
        "the top": top,
    }
    pairs = (("rope_parameters", "rope_scaling"), ("rope_parameters", "the top"), ("rope_scaling", "the top"))
    return [
        f"{key} is {said[one][key]} in {one} and {said[other][key]} "
        + ("at the top" if other == "the top" else f"in {other}")
        for one, other in pairs
        for key in said[one]
        if key in said[other] and said[one][key] != said[other][key]
    ]


def drift(config: Mapping[str, Any], files: Mapping[str, Path], base_model: Path | None = None) -> list[str]:
    """What does not agree, a line each. Which side is right cannot be known here: nothing is changed.

    Args:
        config: config.json of the checkpoint.
        files: name -> file, what goes beside the weights (`hf_files.companions`).
        base_model: the folder that the training started from, where it is not where `config` comes from.

    Raises:
        ConvertError: a JSON file is damaged.
    """
    notes = []
    if rope.per_layer_type(config) and config.get("rope_theta") is None:
        notes.append("config.json: rope_parameters by layer type is left as it is: transformers 4 cannot read it")
    generation = read_json(files[GENERATION_CONFIG]) if GENERATION_CONFIG in files else None
    notes += _ends(config, generation, read_tokens(files))
    if base_model is not None:
        notes += _from_base(config, generation, base_model)
    return notes


def _ends(config: Mapping[str, Any], generation: Mapping[str, Any] | None, tokens: Tokens | None) -> list[str]:
    """Where generation would not stop, or meet a token that the model has no row for."""
    notes = []
    vocabulary = config.get("vocab_size")
    in_config = token_ids(config.get("eos_token_id"))
    ends = token_ids(generation.get("eos_token_id")) if generation is not None else in_config
    source = GENERATION_CONFIG if generation is not None else CONFIG
    if generation is None:
        notes.append(f"no {GENERATION_CONFIG}: generation ends at eos_token_id {in_config or 'none'} of {CONFIG}")
    if not ends:
        notes.append(f"{source} has no eos_token_id: generation ends at the length limit only")
    missing = [end for end in in_config if end not in ends]
    if missing and ends:
        notes.append(f"eos_token_id {missing} of {CONFIG} is not among {ends} of {source}")
    if tokens is not None and tokens.eos is not None and ends and tokens.eos_id not in (None, *ends):
        notes.append(
            f"the tokenizer ends a text with {tokens.eos!r} ({tokens.eos_id}), which is not among eos_token_id "
            f"{ends} of {source}: generation may not stop there"
        )
    if isinstance(vocabulary, int):
        for where, values in ((CONFIG, config), (GENERATION_CONFIG, generation or {})):
            for key in ("eos_token_id", "pad_token_id", "bos_token_id"):
                beyond = [i for i in token_ids(values.get(key)) if not 0 <= i < vocabulary]
                if beyond:
                    notes.append(f"{key} {beyond} of {where} is not in the vocabulary of {vocabulary}")
        if tokens is not None and tokens.largest >= vocabulary:
            notes.append(
                f"the tokenizer has tokens up to {tokens.largest}, vocab_size is {vocabulary}: the model has no "
                "row for the last of them"
            )
    return notes


def _from_base(config: Mapping[str, Any], generation: Mapping[str, Any] | None, base_model: Path) -> list[str]:
    """What the checkpoint's files say otherwise than those of the model that it was trained from."""
    sides = ("in the checkpoint", "in --base_model")
    try:
        base = read_json(base_model / CONFIG)
    except ConvertError:
        return [f"{base_model / CONFIG}: missing or damaged: not compared with that of the checkpoint"]
    ours, theirs = normal(dict(config)), normal(base)
    # What only one of them writes may be the other's default; of RoPE it is not.
    common = [key for key in ours if (key in theirs or key == "rope") and key not in _OF_THE_RUN]
    common += [key for key in theirs if key == "rope" and key not in ours]
    lines = value_differences({k: ours.get(k) for k in common}, {k: theirs.get(k) for k in common}, sides)
    notes = [f"{CONFIG}: {line}" for line in lines]
    major = [str(c.get("transformers_version", "")).partition(".")[0] for c in (config, base)]
    if all(major) and major[0] != major[1]:
        versions = [c["transformers_version"] for c in (config, base)]
        notes.append(f"{CONFIG}: written by transformers {versions[0]} {sides[0]}, {versions[1]} {sides[1]}")
    path = base_model / GENERATION_CONFIG
    if generation is not None and path.is_file():
        ends, base_ends = (token_ids(g.get("eos_token_id")) for g in (generation, read_json(path)))
        if set(ends) != set(base_ends):
            notes.append(f"{GENERATION_CONFIG}: eos_token_id {ends} {sides[0]}, {base_ends} {sides[1]}")
    return notes
