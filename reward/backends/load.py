"""From options to a backend that is loaded, tested and tuned."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from reward.backends.interface import Backend, Tokens
from reward.backends.options import ModelOptions
from reward.backends.self_test import TOLERANCE, known_pairs, require_finite, self_test
from reward.errors import ModelDirError

if TYPE_CHECKING:
    from reward.backends.transformers_model import TransformersModel
    from reward.inputs import PairTokenizer

log = logging.getLogger("reward.backends.load")


def load_backend(options: ModelOptions, tokenizer: PairTokenizer) -> Backend:
    """Load the model (or find the server behind this one), test it and tune it.

    Raises:
        ModelDirError: it cannot be served; the message says why and what to do.
    """
    if options.backend != "transformers":
        from reward.backends.upstream import connect

        return connect(options, tokenizer)

    from reward.backends.transformers_model import TransformersModel

    started = time.monotonic()
    model = TransformersModel(options, tokenizer.pad_id, tokenizer.max_length)
    loaded = time.monotonic()
    pairs = known_pairs(tokenizer)
    pairs.append(_long_pair(model, pairs, tokenizer.max_length))
    alone = model.alone(pairs)
    require_finite(alone, "one pair")
    _pack(model, options, pairs, alone)
    model.tuning["linear"] = model.reorder(pairs, alone)
    self_test(model, tokenizer, TOLERANCE[model.dtype])
    _calibrate(model, options, pairs, tokenizer.max_length)
    log.info(
        "%s: loaded in %.1f s, tested and tuned in %.1f s; %s, batches of %d tokens, %d at a time; "
        "linear layers: %s",
        options.model,
        loaded - started,
        time.monotonic() - loaded,
        "packed" if model.packs else "padded",
        model.batch_tokens,
        model.lanes,
        model.tuning["linear"],
    )
    return model


def _long_pair(model: TransformersModel, pairs: list[Tokens], max_length: int) -> Tokens:
    """A pair longer than the model's sliding window, if pairs can be; else longer than the known ones."""
    longest = max(pairs, key=len)
    wanted = min(max_length, max((model.window or 0) + 8, len(longest) + 8))
    repeats = -(-wanted // len(longest))
    types = (list(longest.token_type_ids) * repeats)[:wanted]
    return Tokens((list(longest.input_ids) * repeats)[:wanted], types)


def _pack(model: TransformersModel, options: ModelOptions, pairs: list[Tokens], alone: list[float]) -> None:
    """Serve packed rows if the options and the model allow it.

    Raises:
        ModelDirError: ``packing`` is on, and the model does not allow it.
    """
    from reward.backends.packed_attention import CannotPackError

    if options.packing == "off" or (options.packing == "auto" and options.attention == "eager"):
        model.tuning["packing"] = f"off (--packing {options.packing}, --attention {options.attention})"
        return
    try:
        model.pack(pairs, alone, on_gpu_without_varlen=options.packing == "on")
    except CannotPackError as reason:
        if options.packing == "on":
            raise ModelDirError(f"--packing on: {reason}; use --packing auto.") from reason
        log.info("%s is served with padding: %s", options.model, reason)
        model.tuning["packing"] = f"no: {reason}"
    else:
        model.tuning["packing"] = "yes"


def _calibrate(model: TransformersModel, options: ModelOptions, pairs: list[Tokens], max_length: int) -> None:
    """Set lanes and batch_tokens by measuring, unless both are given."""
    from reward.backends import calibration

    on_cpu = model.device == "cpu"
    lanes = [model.lanes]
    if on_cpu and options.replicas is None:
        lanes = calibration.lane_counts(model.threads)
    elif not on_cpu:
        lanes = [1]  # one GPU is like the other
    budgets = [options.batch_tokens] if options.batch_tokens else None
    if budgets is None:
        budgets = list(calibration.CPU_BUDGETS if on_cpu else calibration.CUDA_BUDGETS)
    if options.calibrate_s <= 0 or (len(lanes) == 1 and len(budgets) == 1):
        return
    # Longer pairs than these are batches of their own, whatever the budget.
    longest = (calibration.CPU_BUDGETS if on_cpu else calibration.CUDA_BUDGETS)[-1] // 4
    mixed = calibration.mixed_pairs(max(pairs, key=len), min(max_length, longest))
    found = calibration.calibrate(model, mixed, lanes, budgets, options.calibrate_s)
    if found is None:
        log.warning(
            "%s: too slow to measure anything in %g s; batches of %d tokens, %d at a time, are a guess",
            options.model,
            options.calibrate_s,
            model.batch_tokens,
            model.lanes,
        )
        return
    model.batch_tokens = found.chosen.batch_tokens
    if on_cpu:
        model.lanes = found.chosen.lanes
    model.tuning["calibration"] = found.info()
