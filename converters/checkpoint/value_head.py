"""Critics: the names of trl's value head -> those of a ...ForTokenClassification of transformers.

verl trains a critic as ...ForTokenClassification with one label (`score.weight`, `score.bias`), and where that
class cannot be loaded as trl's AutoModelForCausalLMWithValueHead (verl 0.6.1 and 0.9.1 `utils/model.py`:
load_valuehead_model). Both are one linear layer over the last hidden state, after the final norm: trl's
`v_head.summary` is the other's `score`, and trl's `lm_head` has no part in the values. Dropout is off in both.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from converters.errors import ConvertError
from converters.storage.tensors import GlobalTensor

_PEFT = r"(?P<peft>base_model\.model\.)?"
_MODEL = re.compile(_PEFT + r"pretrained_model\.")
_SUMMARY = re.compile(_PEFT + r"v_head\.summary\.")
_HEAD = re.compile(_PEFT + r"lm_head\.")


def renamed(tensors: dict[str, GlobalTensor], where: Path) -> dict[str, GlobalTensor]:
    """`tensors` with the names of ...ForTokenClassification; as they are if there is no head of trl.

    Args:
        where: folder of the checkpoint, for messages.

    Raises:
        ConvertError: a head that is not one linear layer to one value, or trl's model without its head.
    """
    heads = [name for name in tensors if name.startswith(("v_head.", "base_model.model.v_head."))]
    wrapped = any(_MODEL.match(name) for name in tensors)
    if not heads and not wrapped:
        return tensors
    odd = sorted(name for name in heads if not _SUMMARY.match(name))
    weights = [name for name in heads if re.search(r"v_head\.summary\.(base_layer\.)?weight$", name)]
    if odd or len(weights) != 1 or tensors[weights[0]].shape[:-1] != (1,):
        found = {name: list(tensors[name].shape) for name in heads} or "none"
        raise ConvertError(
            f"{where}: a model of trl whose value head is not one linear layer to one value "
            f"(v_head.summary.weight [1, hidden]): {found}. No class of transformers is such a critic; load it "
            "with trl."
        )
    taken: dict[str, GlobalTensor] = {}
    for name, tensor in tensors.items():
        new = _MODEL.sub(lambda match: match["peft"] or "", name, count=1)
        if _HEAD.match(new):
            continue
        new = _SUMMARY.sub(lambda match: f"{match['peft'] or ''}score.", new, count=1)
        if new in taken:
            raise ConvertError(f"{where}: {new} is there twice, once as {name}. Copy the checkpoint again.")
        taken[new] = dataclasses.replace(tensor, name=new)
    return taken
