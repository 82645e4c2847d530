"""Match a checkpoint's tensors with the model that config.json describes: steps, or a list of what is wrong.

Nothing is written before the plan is whole: a tensor that is unknown, left over, missing or of another shape
is an error that lists every such tensor.
"""

from __future__ import annotations

from converters import families
from converters.errors import ConvertError, listing
from converters.families import Family
from converters.hf.hf_config import ModelConfig
from converters.hf.names import EMBED, HEAD
from converters.planning.mcore_layout import HEAD as MCORE_HEAD
from converters.planning.mcore_layout import Match
from converters.planning.steps import Output, Step, whole
from converters.storage.row_reader import Reader
from converters.storage.tensors import GlobalTensor

_REMEDY = (
    "config.json and the checkpoint must be of one model: give --base_model the model that the training "
    "started from, or take another checkpoint."
)


def from_mcore(tensors: dict[str, GlobalTensor], family: Family, config: ModelConfig) -> list[Step]:
    """Steps for tensors with Megatron's names.

    The head is that of the weights (`families.fitted`): for a critic under a language model's config.json the
    outputs are those of its ...ForTokenClassification.

    Raises:
        ConvertError: the checkpoint and config.json do not describe the same model.
    """
    family, config = _fitted(tensors, family, config)
    _check_flags(family, config)
    _check_head(tensors, config, MCORE_HEAD)
    problems: list[str] = []
    match = Match(tensors, config, problems)
    steps = [step for place in families.in_order(family.rules, config) for step in match.steps(place)]
    problems += _no_place({name: tensors[name].shape for name in tensors if name not in match.taken}, config)
    if problems:
        raise listing(f"{config.path} does not fit the checkpoint", problems, _REMEDY)
    return steps


def from_hf_names(tensors: dict[str, GlobalTensor], family: Family, config: ModelConfig) -> list[Step]:
    """Steps for tensors that have Hugging Face's names already (FSDP).

    What transformers 5 keeps fused in memory is taken apart to the names on disk. A tied model's state dict may
    hold `lm_head.weight` too: it is left out if it is the embedding, bit for bit. Layers of multi-token
    prediction (`num_nextn_predict_layers`) are taken over as they are.

    Raises:
        ConvertError: the checkpoint and config.json do not describe the same model.
    """
    family, config = _fitted(tensors, family, config)
    _check_flags(family, config)
    tensors = dict(tensors)
    if config.tied and HEAD in tensors and EMBED in tensors:
        if not Reader().same_bits(tensors[HEAD], tensors[EMBED]):
            raise ConvertError(
                f"{config.path} says tie_word_embeddings=true, and {HEAD} differs from {EMBED}: the model was "
                "trained untied. Correct config.json, or give the right --base_model."
            )
        del tensors[HEAD]
    _check_head(tensors, config, HEAD)
    steps: list[Step] = []
    expected: dict[str, tuple[int, ...]] = {}
    for rule, layer, expert in families.in_order(family.rules, config):
        shapes = rule.hf_shapes(config, layer, expert)
        live = rule.live.format(layer=layer)
        if rule.live and not any(name in tensors for name in shapes):
            leading = (config.size("E"),) if expert is not None else ()
            expected[live] = (*leading, *rule.mcore_shape(config))
            if live in tensors:
                source = tensors[live]
                outputs = tuple(Output(n, s, source.dtype) for n, s in shapes.items())
                place = (expert,) if expert is not None else ()
                steps.append(Step(source, place, outputs, families.runs(rule, config)))
            continue
        expected.update(shapes)
        steps += [whole(tensors[name]) for name in shapes if name in tensors]
    for name in _predicting_layers(tensors, config):
        expected[name] = tensors[name].shape
        steps.append(whole(tensors[name]))
    problems = compare({name: tensor.shape for name, tensor in tensors.items()}, expected, config)
    if problems:
        raise listing(f"{config.path} does not fit the checkpoint", problems, _REMEDY)
    return steps


def compare(
    found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]], config: ModelConfig
) -> list[str]:
    """What differs between tensors by name and shape, a line each."""
    problems = [f"{name} {list(shape)} is missing" for name, shape in expected.items() if name not in found]
    for name, shape in found.items():
        if name not in expected:
            problems.append(f"{name} {list(shape)} has no place in {config.architecture}")
        elif shape != expected[name]:
            problems.append(f"{name} is {list(shape)}, config.json makes it {list(expected[name])}")
    return problems


def _fitted(tensors: dict[str, GlobalTensor], family: Family, config: ModelConfig) -> tuple[Family, ModelConfig]:
    fitted = families.fitted({name: tensor.shape for name, tensor in tensors.items()}, config)
    return (
        family
        if fitted.architecture == config.architecture
        else families.family(fitted.architecture, config.path),
        fitted,
    )


def _check_flags(family: Family, config: ModelConfig) -> None:
    for flag, why in family.refused.items():
        if config.flag(flag):
            raise ConvertError(f"{config.path}: {flag} is true: {why}")


def _check_head(tensors: dict[str, GlobalTensor], config: ModelConfig, head: str) -> None:
    """Tied or not is a fact of the weights; config.json must say the same."""
    if not config.architecture.endswith(families.LANGUAGE):
        return
    if config.tied and head in tensors:
        raise ConvertError(
            f"{config.path} says tie_word_embeddings=true, and the checkpoint has a {head} of its own: "
            "the model was trained untied. Correct config.json, or give the right --base_model."
        )
    if not config.tied and head not in tensors:
        raise ConvertError(
            f"{config.path} says tie_word_embeddings=false, and the checkpoint has no {head}: the model was "
            "trained tied, or the checkpoint is not whole. Correct config.json, or give the right --base_model."
        )


def _no_place(left: dict[str, tuple[int, ...]], config: ModelConfig) -> list[str]:
    """A line for each tensor that no rule names; one for all of multi-token prediction."""
    predicting = [name for name in left if name.startswith("mtp.")]
    lines = [
        f"{name} {list(shape)} has no place in {config.architecture}"
        for name, shape in left.items()
        if not name.startswith("mtp.")
    ]
    if predicting:
        lines.append(
            f"{predicting[0]} and {len(predicting) - 1} more: layers of multi-token prediction are not converted. "
            "Train with num_nextn_predict_layers 0, or save in Hugging Face form"
        )
    return lines


def _predicting_layers(tensors: dict[str, GlobalTensor], config: ModelConfig) -> list[str]:
    """Names of the layers that stand behind the model's own, `num_nextn_predict_layers` of them."""
    more = config.raw.get("num_nextn_predict_layers") or 0
    starts = tuple(f"model.layers.{layer}." for layer in range(config.layers, config.layers + more))
    return [name for name in tensors if starts and name.startswith(starts)]
