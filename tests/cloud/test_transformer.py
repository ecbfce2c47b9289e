"""`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` in eval mode: PyTorch's fused path."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 16, 4


def masks() -> dict[str, dict[str, torch.Tensor]]:
    causal = torch.ones(LENGTH, LENGTH).triu(1).bool()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    return {
        "none": {},
        "causal": {"src_mask": causal},
        "float": {"src_mask": torch.zeros(LENGTH, LENGTH).masked_fill(causal, -torch.inf)},
        "padding": {"src_key_padding_mask": padding},
        "both": {"src_mask": causal, "src_key_padding_mask": padding},
    }


@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("first", [False, True], ids=["norm-last", "norm-first"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_encoder_layer(mask: str, first: bool, activation: str, compiled: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 32, batch_first=True, norm_first=first, activation=activation
    ).eval()
    x, given = torch.randn(BATCH, LENGTH, WIDTH), masks()[mask]
    moved = copy.deepcopy(layer).to("tpu")
    run = torch.compile(moved) if compiled else moved
    with torch.no_grad():
        expected = layer(x, **given)
        found = run(x.to("tpu"), **{k: m.to("tpu") for k, m in given.items()})
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_attention(need_weights: bool, average: bool) -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    options = {"need_weights": need_weights, "average_attn_weights": average}
    moved, y = copy.deepcopy(layer).to("tpu"), x.to("tpu")
    with torch.no_grad():
        expected, weights = layer(x, x, x, **options)
        found, ours = moved(y, y, y, **options)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    if weights is None:  # an undefined tensor of C++ is an empty one here
        assert ours is None or ours.numel() == 0
    else:
        torch.testing.assert_close(ours.cpu(), weights, rtol=1e-4, atol=1e-5)
