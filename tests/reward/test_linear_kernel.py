from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertIntermediate

from reward.backends import linear_kernel
from reward.backends.linear_kernel import ReorderedLinear, Trial, exchange, measure, restore, round_rows

needs_onednn = pytest.mark.skipif(
    not linear_kernel.available(torch.float32), reason="this torch has no oneDNN operators"
)


@given(st.integers(1, 200_000))
def test_rows_are_rounded_up_by_little(rows: int) -> None:
    rounded = round_rows(rows)
    assert rows <= rounded < rows + max(16, rows / 8)
    assert round_rows(rounded) == rounded


def test_few_row_counts_are_computed() -> None:
    assert len({round_rows(rows) for rows in range(1, 4097)}) == 80
    assert len({round_rows(rows) for rows in range(4097, 8193)}) == 16


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (3, 64), (2, 7, 64), (1, 100, 64), (1, 160, 64)])
def test_same_numbers_as_the_plain_layer(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(64, 96, bias=bias)
    inputs = torch.randn(shape)
    with torch.inference_mode():
        got, expected = ReorderedLinear(plain)(inputs), plain(inputs)
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
def test_reordering_can_be_undone_to_the_bit(bias: bool) -> None:
    plain = nn.Linear(130, 70, bias=bias)
    restored = ReorderedLinear(plain).restored()
    assert torch.equal(restored.weight, plain.weight)
    assert (restored.bias is None) == (not bias)
    assert restored.bias is None or torch.equal(restored.bias, plain.bias)


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Sequential(nn.Linear(128, 64)), nn.Linear(64, 1))


def trial(*, gain: float, difference: float = 1e-7) -> Trial:
    return Trial(layers=1, rows=64, plain_s=gain, reordered_s=1.0, difference=difference)


@needs_onednn
def test_only_shapes_whose_trial_was_better_are_exchanged() -> None:
    network = small_network()
    inputs = torch.randn(5, 64)
    with torch.inference_mode():
        expected = network(inputs)
        trials = {(64, 128): trial(gain=2.0), (128, 64): trial(gain=0.9)}
        assert exchange(network, trials, torch.float32) == 1
        assert [type(layer) for layer in (network[0], network[2][0])] == [ReorderedLinear, nn.Linear]
        assert torch.allclose(network(inputs), expected, atol=1e-5)
        restore(network)
        assert type(network[0]) is nn.Linear
        assert torch.equal(network(inputs), expected)


@needs_onednn
@pytest.mark.parametrize(("activation", "fused"), [("gelu", True), ("gelu_new", False), ("relu", False)])
def test_a_gelu_is_computed_with_the_product_before_it(activation: str, fused: bool) -> None:
    torch.manual_seed(0)
    block = BertIntermediate(BertConfig(hidden_size=64, intermediate_size=128, hidden_act=activation))
    inputs = torch.randn(5, 64)
    with torch.inference_mode():
        expected = block(inputs)
        exchange(block, {(64, 128): trial(gain=2.0)}, torch.float32)
        assert isinstance(block.intermediate_act_fn, nn.Identity) is fused
        assert torch.allclose(block(inputs), expected, atol=1e-5)
        restore(block)
        assert not isinstance(block.intermediate_act_fn, nn.Identity)
        assert torch.equal(block(inputs), expected)


@pytest.mark.parametrize(
    ("tried", "better"),
    [
        (trial(gain=2.0), True),
        (trial(gain=1.01), False),
        (trial(gain=2.0, difference=1e-3), False),
        (trial(gain=2.0, difference=float("nan")), False),
    ],
)
def test_quicker_by_more_than_noise_and_the_same_numbers(tried: Trial, better: bool) -> None:
    assert tried.better(torch.float32) is better


@needs_onednn
def test_each_shape_is_measured_once_and_small_layers_never() -> None:
    trials = measure(small_network(), torch.float32)
    assert set(trials) == {(64, 128), (128, 64)}
    for tried in trials.values():
        assert tried.plain_s > 0
        assert tried.reordered_s > 0
        assert tried.difference < 1e-5


def test_no_dtype_without_a_known_tolerance() -> None:
    assert not linear_kernel.available(torch.float64)


@needs_onednn
def test_memory_is_bounded_over_batches_of_all_sizes() -> None:
    torch.manual_seed(0)
    layer = ReorderedLinear(nn.Linear(64, 256))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

    with torch.inference_mode():
        for rows in range(1, 1025, 8):
            layer(torch.zeros(1, rows, 64))
        before = resident()
        for rows in range(1, 1025, 4):
            layer(torch.zeros(1, rows, 64))
    assert resident() - before < 32 * 2**20
