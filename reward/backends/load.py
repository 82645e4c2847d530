"""From options to a backend that is loaded, tested and tuned."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from reward.backends.interface import Backend
from reward.backends.options import ModelOptions
from reward.backends.self_test import self_test

if TYPE_CHECKING:
    from reward.inputs import PairTokenizer

log = logging.getLogger("reward.backends.load")

# bfloat16 has 8 bits of mantissa, float16 11: only float32 is held to the last digits.
_TOLERANCE = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.25}


def load_backend(options: ModelOptions, tokenizer: PairTokenizer) -> Backend:
    """Load the model (or find the server behind this one), test it and tune it.

    Raises:
        ModelDirError: it cannot be served; the message says why and what to do.
    """
    started = time.monotonic()
    if options.backend != "transformers":
        from reward.backends.upstream import connect

        return connect(options, tokenizer)

    from reward.backends.transformers_model import TransformersModel

    model = TransformersModel(options, tokenizer.pad_id)
    self_test(model, tokenizer, _TOLERANCE[str(model.info()["dtype"])])
    log.info("%s: ready after %.1f s", options.model, time.monotonic() - started)
    return model
