"""Scaled dot-product attention runs as one operator with its own backward, or says it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

FUSED = "ScaledDotProductFusedAttentionOverrideableBackward0"
HEADS = (2, 4, 6, 8)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def tensors(*shapes: tuple[int, ...], device: str = "tpu") -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(device).requires_grad_() for shape in shapes]


def both(call: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> str:
    """Compare values and gradients with the CPU's; the name of the tpu result's backward."""
    here, there = tensors(*shapes, device="cpu"), tensors(*shapes)
    wanted, got = call(*here), call(*there)
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-5, atol=1e-5)
    wanted.square().sum().backward()
    got.square().sum().backward()
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)
    return got.grad_fn.name()


KEEP = torch.tensor([[True, False, True, True, False, True]] * 5 + [[False] * 6])


@pytest.mark.parametrize(
    ("options", "key_heads"),
    [
        ({}, 4),
        ({"is_causal": True}, 4),
        ({"scale": 0.3}, 4),
        ({"mask": KEEP}, 4),
        ({"mask": KEEP, "is_causal": True}, 4),
        ({"mask": torch.where(KEEP, 0.5, float("-inf"))}, 4),
        ({"enable_gqa": True}, 2),
        ({"enable_gqa": True, "is_causal": True}, 1),
    ],
    ids=str,
)
def test_fused(options: dict[str, Any], key_heads: int) -> None:
    options = dict(options)
    mask = options.pop("mask", None)

    def call(q: Any, k: Any, v: Any) -> torch.Tensor:
        given = None if mask is None else mask.to(q.device)
        return F.scaled_dot_product_attention(q, k, v, given, **options)

    keys = (2, key_heads, 6, 8)
    assert both(call, HEADS, keys, keys) == FUSED


def test_rows_of_the_lowest_float() -> None:
    lowest = torch.where(KEEP, 0.0, torch.finfo(torch.float32).min)

    def call(*given: torch.Tensor) -> torch.Tensor:
        # The CPU's fused backward takes a weight of 1 for each key here; its composition is right.
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.OVERRIDEABLE]):
            return F.scaled_dot_product_attention(*given, lowest.to(given[0].device))

    assert both(call, HEADS, HEADS, HEADS) == FUSED


def test_a_mask_that_is_learnt() -> None:
    assert both(F.scaled_dot_product_attention, HEADS, HEADS, HEADS, (4, 6, 6)) == FUSED


def test_one_operator_is_called() -> None:
    q, k, v = tensors(HEADS, HEADS, HEADS)
    with torch.profiler.profile() as profile, torch.no_grad():
        F.scaled_dot_product_attention(q, k, v)
    names = {event.key for event in profile.key_averages()}
    assert "aten::_scaled_dot_product_fused_attention_overrideable" in names
    assert "aten::bmm" not in names


def test_composed_where_the_user_says_so() -> None:
    def call(*given: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(*given)

    assert both(call, HEADS, HEADS, HEADS) != FUSED


@pytest.mark.parametrize(
    "shapes",
    [[HEADS[1:]] * 3, [HEADS, (1, *HEADS[1:]), (1, *HEADS[1:])], [(2, 4, 0, 8)] + [HEADS] * 2],
    ids=["rank 3", "broadcast", "no queries"],
)
def test_composed_for_other_shapes(shapes: list[tuple[int, ...]]) -> None:
    assert both(F.scaled_dot_product_attention, *shapes) != FUSED


def test_what_it_would_take_is_answered() -> None:
    q, k, v = tensors(HEADS, HEADS, HEADS)
    assert torch._fused_sdp_choice(q, k, v) == SDPBackend.OVERRIDEABLE.value
    assert torch._fused_sdp_choice(q[0], k[0], v[0]) == SDPBackend.MATH.value


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_wrong_arguments(device: str) -> None:
    q, k, v = tensors(HEADS, HEADS, HEADS, device=device)
    with pytest.raises(RuntimeError, match=r"same dtype|dtype"):
        F.scaled_dot_product_attention(q.double(), k, v)


def _loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    # The CPU's own fused operator has neither a batching rule nor a forward-mode derivative.
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.OVERRIDEABLE]):
        return F.scaled_dot_product_attention(q[None], k[None], v[None]).square().sum()


def test_transforms() -> None:
    results = []
    for device in ("cpu", "tpu"):
        given = [t.detach() for t in tensors(HEADS, HEADS, HEADS, device=device)]
        per_sample = torch.func.vmap(torch.func.grad(_loss))(*given)
        first = tuple(t[0] for t in given)
        tangent = torch.func.jvp(_loss, first, first)
        results.append((per_sample.cpu(), tangent[1].cpu()))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_forward_mode() -> None:
    from torch.autograd import forward_ad

    results = []
    for device in ("cpu", "tpu"):
        q, k, v = (t.detach() for t in tensors(HEADS, HEADS, HEADS, device=device))
        with forward_ad.dual_level(), sdpa_kernel([SDPBackend.MATH, SDPBackend.OVERRIDEABLE]):
            dual = forward_ad.make_dual(q, k)
            out = F.scaled_dot_product_attention(dual, k, v)
            results.append(forward_ad.unpack_dual(out).tangent.cpu())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_dropout_is_the_same_mask_in_its_backward() -> None:
    q, k, v = tensors(HEADS, HEADS, HEADS)
    ones = torch.eye(6, device="tpu").expand(2, 4, 6, 6)
    seen = F.scaled_dot_product_attention(q, k, ones.requires_grad_(False), dropout_p=0.5)
    dropped = seen == 0
    assert 0.2 < dropped.float().mean().item() < 0.8
    v = ones.clone().requires_grad_()
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    out.sum().backward()
    # With the identity as values the output is the dropped weights, and the gradient their sums.
    wanted = out.detach().sum(-2)[..., None].expand(2, 4, 6, 6)
    torch.testing.assert_close(v.grad, wanted, rtol=1e-4, atol=1e-5)


def test_autocast() -> None:
    q, k, v = tensors(HEADS, HEADS, HEADS)
    with torch.autocast("tpu", torch.bfloat16):
        out = F.scaled_dot_product_attention(q, k, v)
    assert out.dtype == torch.bfloat16
    assert FUSED in str(out.grad_fn)


def test_compiled_is_the_eager_operator() -> None:
    given = tensors(HEADS, HEADS, HEADS)
    eager = F.scaled_dot_product_attention(*given, is_causal=True)
    compiled = torch.compile(F.scaled_dot_product_attention, fullgraph=True)(*given, is_causal=True)
    torch.testing.assert_close(compiled, eager)
    grads = torch.autograd.grad(eager.sum(), given)
    torch.testing.assert_close(torch.autograd.grad(compiled.sum(), given), grads)
