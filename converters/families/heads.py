"""What stands on top of a model: the language model's head, a value head, a reward head.

verl trains a critic from a language model's folder and leaves `architectures` as it was: the weights tell. A
critic of Megatron (verl `LinearForLastLayer`, one output; with a bias in 0.6.1, without in 0.9.1) and of FSDP
(`AutoModelForTokenClassification`, verl `utils/model.py`: load_valuehead_model) is a ...ForTokenClassification
with one label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from converters.errors import ConvertError
from converters.families.rules import VOCAB, Rule
from converters.hf.hf_config import Change, ModelConfig
from converters.hf.names import HEAD

LANGUAGE, TOKENS, SEQUENCE = "ForCausalLM", "ForTokenClassification", "ForSequenceClassification"
_OUT_WEIGHT, _OUT_BIAS = "output_layer.weight", "output_layer.bias"
_SCORE = Rule((_OUT_WEIGHT,), {"score.weight": "labels H"})
_SCORE_BIAS = Rule((_OUT_BIAS,), {"score.bias": "labels"}, zeros=True)
HEADS: dict[str, tuple[Rule, ...]] = {
    LANGUAGE: (Rule((_OUT_WEIGHT,), {HEAD: "V H"}, VOCAB, when="untied"),),
    TOKENS: (_SCORE, _SCORE_BIAS),
    SEQUENCE: (_SCORE,),
}

_WHY = "as the weights are"
_PREDICTING = "num_nextn_predict_layers"

Shapes = Mapping[str, tuple[int, ...]]


def fitted(shapes: Shapes, config: ModelConfig, asked_for: str = "") -> ModelConfig:
    """`config` with the head that the weights have, and tied or not as they are where config.json is silent.

    Layers of multi-token prediction that config.json has and the weights have not are left out of it, too. What
    differs from config.json is in `changes` of the result: the output's config.json must say it.

    Args:
        shapes: of the checkpoint's tensors, with Megatron's or with Hugging Face's names.
        asked_for: why there must be a value head, and what to do if there is none: the end of a message.

    Raises:
        ConvertError: a value head is asked for, and there is none.
    """
    if config.raw.get(_PREDICTING) and not _predicts(shapes, config):
        config = replace(config, changes={**config.changes, _PREDICTING: Change(0, _WHY)})
    stem, head = split_name(config.architecture)
    rows, biased = _score_rows(shapes, config)
    if rows is not None and head is not None:
        of_megatron = _OUT_WEIGHT in shapes
        if head == LANGUAGE:
            head = TOKENS if of_megatron or biased else SEQUENCE
        elif biased:
            head = TOKENS
        return _with_head(config, stem + head, rows)
    if asked_for:
        raise ConvertError(
            f"{config.path.parent}: no value head: no {_OUT_WEIGHT} of one row and no score.weight, so these are "
            f"the weights of an actor. {asked_for}"
        )
    if head == LANGUAGE and not config.says("tie_word_embeddings"):
        tied = not (_OUT_WEIGHT in shapes or HEAD in shapes)
        return replace(config, tied=tied, changes={**config.changes, "tie_word_embeddings": Change(tied, _WHY)})
    return config


def _predicts(shapes: Shapes, config: ModelConfig) -> bool:
    return any(name.startswith(("mtp.", f"model.layers.{config.layers}.")) for name in shapes)


def split_name(architecture: str) -> tuple[str, str | None]:
    """ "Qwen3ForCausalLM" -> ("Qwen3", "ForCausalLM"); another end gives None."""
    for head in HEADS:
        if architecture.endswith(head):
            return architecture.removesuffix(head), head
    return architecture, None


def _score_rows(shapes: Shapes, config: ModelConfig) -> tuple[int | None, bool]:
    """Outputs of a value or reward head, None for a language model's; whether there is a bias."""
    if "score.weight" in shapes and HEAD not in shapes:
        return (shapes["score.weight"] or (0,))[0], "score.bias" in shapes
    weight = shapes.get(_OUT_WEIGHT)
    if weight and (weight[0] == 1 < config.V or split_name(config.architecture)[1] != LANGUAGE):
        return weight[0], _OUT_BIAS in shapes
    return None, False


def _with_head(config: ModelConfig, architecture: str, rows: int) -> ModelConfig:
    changes = dict(config.changes)
    if architecture != config.architecture:
        changes["architectures"] = Change([architecture], _WHY)
    labels = config.labels
    # A language model's config.json says nothing of labels, or what its base class would write.
    if labels != rows and (architecture != config.architecture or not config.says("id2label", "num_labels")):
        names = [f"LABEL_{n}" for n in range(rows)]
        changes["id2label"] = Change({str(n): name for n, name in enumerate(names)}, _WHY)
        changes["label2id"] = Change({name: n for n, name in enumerate(names)}, _WHY)
        changes["num_labels"] = Change(None, "id2label says it")
        labels = rows
    return replace(config, architecture=architecture, labels=labels, changes=changes)
