"""`linear` and `matmul` as whole operators: values, gradients, and all that is more than plain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.flop_counter import FlopCounterMode


def made(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def both(fn: Any, *args: torch.Tensor) -> None:
    """Result, strides and gradients are the CPU's."""
    found = []
    for device in ("cpu", "tpu"):
        given = [a.detach().to(device).requires_grad_() for a in args]
        out = fn(*given)
        weight = torch.linspace(0.5, 1.5, out.numel()).reshape(out.shape).to(out)
        found.append((out.detach(), *torch.autograd.grad(out, given, weight)))
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (2, 0, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    args = [made(*shape, dtype=dtype), made(4, 5, dtype=dtype, seed=1)]
    both(F.linear, *args, *([made(4, dtype=dtype, seed=2)] if bias else []))


MATRICES = [
    ((3, 5), (5, 4)),
    ((2, 3, 5), (5, 4)),
    ((3, 5), (2, 5, 4)),
    ((2, 3, 5), (2, 5, 4)),
    ((2, 6, 3, 5), (2, 6, 5, 4)),
    ((2, 1, 3, 5), (6, 5, 4)),
    ((5,), (5, 4)),
    ((3, 5), (5,)),
    ((2, 3, 5), (5,)),
    ((5,), (2, 5, 4)),
    ((5,), (5,)),
    ((0, 5), (5, 4)),
    ((3, 0), (0, 4)),
    ((2, 3, 0), (0, 4)),
]


@pytest.mark.parametrize("a,b", MATRICES)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    both(torch.matmul, made(*a), made(*b, seed=1))


def test_views_are_read_where_they_lie() -> None:
    both(lambda q, k: q.transpose(1, 2) @ k.transpose(1, 2).mT, made(2, 3, 4, 5), made(2, 3, 4, 5))
    both(lambda x, w: F.linear(x[:, 1:], w.t()), made(3, 6), made(5, 4))


@pytest.mark.parametrize("create", [False, True])
def test_one_operator_each_way(create: bool) -> None:
    x, layer = made(2, 3, 5).to("tpu").requires_grad_(), nn.Linear(5, 4).to("tpu")
    assert type(layer(x).grad_fn).__name__ == "LinearBackward0"
    assert type((x @ x.mT).grad_fn).__name__ == "MatmulBackward0"
    if create:
        out = (layer(x) @ made(2, 4, 3).to("tpu")).tanh().sum()
        (g,) = torch.autograd.grad(out, x, create_graph=True)
        assert g.requires_grad


def test_gradients_of_gradients() -> None:
    def double(*shape: int) -> torch.Tensor:
        return made(*shape, dtype=torch.float64).to("tpu").requires_grad_()

    assert torch.autograd.gradgradcheck(F.linear, (double(2, 3), double(2, 3), double(2)))
    for a, b in (((2, 3), (3, 2)), ((2, 2, 3), (3, 2)), ((2, 3), (2, 3, 2))):
        assert torch.autograd.gradgradcheck(torch.matmul, (double(*a), double(*b)))


@pytest.mark.parametrize("fn", [F.linear, lambda x, w: x @ w.mT])
def test_transforms_compose(fn: Any) -> None:
    x, w = made(3, 2, 5), made(4, 5, seed=1)
    calls = (
        lambda x, w: torch.func.vmap(fn, (0, None))(x, w),
        lambda x, w: torch.func.jvp(lambda v: fn(v, w), (x,), (x,))[1],
        lambda x, w: torch.func.jacrev(fn)(x, w),
        lambda x, w: torch.func.hessian(lambda v: fn(v, w).square().sum())(x[:1, :1]),
    )
    for call in calls:
        torch.testing.assert_close(call(x.to("tpu"), w.to("tpu")).cpu(), call(x, w))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.to("tpu"), x.to("tpu"))
        tangent = torch.autograd.forward_ad.unpack_dual(fn(dual, w.to("tpu"))).tangent
    torch.testing.assert_close(tangent.cpu(), fn(x, w))


def test_modes_see_what_they_know() -> None:
    counts = []
    for device in ("cpu", "tpu"):
        layer, x = nn.Linear(5, 4).to(device), made(2, 3, 5).to(device)
        with FlopCounterMode(display=False) as counter:
            (layer(x) @ made(2, 4, 3).to(device)).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_inference_mode_and_autocast() -> None:
    layer, x = nn.Linear(5, 4), made(2, 3, 5)
    expected = layer(x)
    layer = layer.to("tpu")
    with torch.inference_mode():
        torch.testing.assert_close(layer(x.to("tpu")).cpu(), expected)
        torch.testing.assert_close((x.to("tpu") @ x.to("tpu").mT).cpu(), x @ x.mT)
    with torch.autocast("tpu", torch.bfloat16):
        assert layer(x.to("tpu")).dtype is torch.bfloat16


def test_compiled_graphs_keep_their_operators() -> None:
    layer, x = nn.Linear(5, 4).to("tpu"), made(2, 3, 5).to("tpu")
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=aot_autograd(fw_compiler=backend))
    torch.testing.assert_close(compiled(x).cpu(), layer(x).cpu())
    assert "aten.addmm.default" in seen


@pytest.mark.parametrize(
    "call",
    [
        lambda d: F.linear(made(2, 3).to(d), made(4, 5).to(d)),
        lambda d: F.linear(made(2, 3).to(d), made(4, 3).to(d), made(5).to(d)),
        lambda d: F.linear(made(2, 3).to(d), made(4, 3, dtype=torch.float64).to(d)),
        lambda d: made(2, 3).to(d) @ made(4, 5).to(d),
        lambda d: made(2, 2, 3).to(d) @ made(3, 3, 4).to(d),
        lambda d: made(2, 3).to(d) @ made(3, 4, dtype=torch.float64).to(d),
        lambda d: made(2, 3).to(d).int() @ made(3, 4).to(d),
        lambda d: torch.matmul(torch.tensor(1.0, device=d), made(2).to(d)),
    ],
)
def test_refusals_are_the_cpus(call: Any) -> None:
    with pytest.raises(Exception) as theirs:
        call("cpu")
    with pytest.raises(theirs.type):
        call("tpu")


def test_operands_on_two_devices() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        F.linear(made(2, 3), made(4, 3).to("tpu"))
    with pytest.raises(RuntimeError, match="same device"):
        _ = made(2, 3).to("tpu") @ made(3, 4)
