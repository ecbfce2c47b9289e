"""JAX and Pallas functions as torch operators: eager, compiled, exported, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_tpu_unified as ttu
from torch_tpu_unified.core.errors import InputError, LoweringError


@pytest.fixture(autouse=True)
def _fresh() -> None:
    # Callables that are no functions share one limit of recompiles in Dynamo, over all tests.
    torch._dynamo.reset()


@torch.tpu.pallas.jax_op
def wave(
    x: jax.Array, shift: jax.Array | None = None, times: int = 1, scale: float = 1.0
) -> jax.Array:
    y = jnp.sin(x) * scale
    return y if shift is None else y + shift * times


@ttu.jax_op(name="test_norm_and_sum")
def norm_and_sum(xs: list[jax.Array], power: int = 2) -> tuple[jax.Array, jax.Array]:
    stacked = jnp.stack(xs)
    return (stacked**power).sum(0), jnp.asarray(len(xs), jnp.int32)


def given_backward(inputs, outputs, gradients):
    (x,), (y,), (g,) = inputs, outputs, gradients
    return (7 * g * y + 0 * x,)  # wrong on purpose: it shows which one is used


exponential = ttu.jax_op(
    lambda x: jnp.exp(x), name="test_exponential", schema="(Tensor x) -> Tensor",
    backward=given_backward,
)  # fmt: skip


def test_the_schema_comes_from_the_signature():
    text = str(wave.op._schema).partition("(")[2]
    assert text == "Tensor x, Tensor? shift=None, int times=1, float scale=1.) -> Tensor"
    assert str(norm_and_sum.op._schema) == (
        "jax_op::test_norm_and_sum(Tensor[] xs, int power=2) -> (Tensor, Tensor)"
    )


@pytest.mark.parametrize("device", ["tpu", "cpu"])
def test_values_and_gradients(device):
    x = torch.randn(3, 4, device=device, requires_grad=True)
    shift = torch.randn(4, device=device, requires_grad=True)
    y = wave(x, shift, times=3, scale=0.5)
    torch.testing.assert_close(y, x.sin() * 0.5 + shift * 3)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * 0.5)
    assert shift.grad.tolist() == [9.0] * 4
    total, count = norm_and_sum([x, x * 2])
    assert count.item() == 2 and count.dtype == torch.int32
    torch.testing.assert_close(torch.autograd.grad(total.sum(), x)[0], 10 * x.detach())


def test_gradients_of_gradients():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: norm_and_sum([x, x * 2])[0], x)
    assert torch.autograd.gradgradcheck(lambda x: wave(x, times=2), x)


def test_a_given_backward_is_used():
    x = torch.zeros(2, device="tpu", requires_grad=True)
    exponential(x).sum().backward()
    assert x.grad.tolist() == [7.0, 7.0]


def test_inside_a_compiled_program():
    def program(x, shift):
        return checkpoint(lambda x: wave(x * 2, shift, 3).square(), x, use_reentrant=False).sum()

    a, b = torch.randn(5, requires_grad=True), torch.randn(5)
    ours = a.detach().to("tpu").requires_grad_()
    before = torch.tpu.compile_stats()["graphs"]
    torch.compile(program, fullgraph=True)(ours, b.to("tpu")).backward()
    assert torch.tpu.compile_stats()["graphs"] - before == 2  # forward and backward
    ((a * 2).sin() + b * 3).square().sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), a.grad, rtol=1e-5, atol=1e-5)


class Waves(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) + 1


def test_in_an_exported_program():
    exported = torch.export.export(Waves(wave), (torch.randn(2, 3),))
    assert wave.op in [n.target for n in exported.graph.nodes]
    x = torch.randn(2, 3)
    torch.testing.assert_close(exported.module()(x), x.sin() + 1)
    with pytest.raises(LoweringError, match=r"jax_op\."):
        ttu.convert(exported)


def test_a_torch_form_serves_litert_and_the_cpu():
    sine = ttu.jax_op(
        lambda x: jnp.sin(x), name="test_sine", schema="(Tensor x) -> Tensor", torch_form=torch.sin
    )
    x = torch.randn(2, 3)
    converted = ttu.convert(Waves(sine), (x,))
    assert converted.report.operators["SIN"] == 1 and converted.report.ok
    torch.testing.assert_close(sine(x.to("tpu")).cpu(), x.sin())


def test_what_cannot_be_an_operator_is_refused():
    with pytest.raises(InputError, match="no array"):
        ttu.jax_op(lambda n=1: n)
    with pytest.raises(InputError, match="named parameters"):
        ttu.jax_op(lambda *xs: xs[0])
    with pytest.raises(InputError, match="no identifier"):
        ttu.jax_op(lambda x: x, name="a b")
    with pytest.raises(InputError, match="optional"):

        @ttu.jax_op
        def many(xs: list[jax.Array | None]) -> jax.Array:
            return xs[0]

    two = ttu.jax_op(lambda x: (x, x), name="test_two")
    with pytest.raises(LoweringError, match="2 arrays, its schema says 1"):
        two(torch.ones(2, device="tpu"))


def test_the_same_name_again_replaces_the_operator():
    for factor in (2, 3):
        op = ttu.jax_op(lambda x, factor=factor: x * factor, name="test_again")
        assert op(torch.ones(1, device="tpu")).item() == factor


def attend(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


@pytest.mark.parametrize(
    ("heads", "shared", "rows", "keys", "causal"), [(2, 1, 130, 130, True), (1, 1, 5, 140, False)]
)
def test_flash_attention(heads, shared, rows, keys, causal):
    sizes = ((1, heads, rows, 16), (1, shared, keys, 16), (1, shared, keys, 16))
    wide = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in sizes]
    gradient = torch.randn(sizes[0], dtype=torch.float64)
    expected = attend(*wide, causal)
    expected.backward(gradient)
    ours = [x.detach().float().to("tpu").requires_grad_() for x in wide]
    found = torch.compile(torch.tpu.pallas.flash_attention, fullgraph=True)(*ours, causal)
    found.backward(gradient.float().to("tpu"))
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    for x, reference in zip(ours, wide, strict=True):
        torch.testing.assert_close(x.grad.cpu().double(), reference.grad, rtol=1e-4, atol=1e-5)


def test_flash_attention_refuses_what_does_not_fit():
    q = torch.randn(1, 3, 4, 8, device="tpu")
    with pytest.raises(LoweringError, match="multiple of those of the key"):
        torch.tpu.pallas.flash_attention(q, q[:, :2], q[:, :2])


@pytest.mark.parametrize("sizes", [(100, 0, 130, 20), (0, 0)])
def test_ragged_matmul(sizes):
    rows, depth, columns = 260, 20, 130
    left = torch.randn(rows, depth, dtype=torch.float64, requires_grad=True)
    right = torch.randn(len(sizes), depth, columns, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(rows, columns, dtype=torch.float64)
    parts = [a @ b for a, b in zip(left[: sum(sizes)].split(sizes), right, strict=True)]
    expected = F.pad(torch.cat(parts), (0, 0, 0, rows - sum(sizes)))
    expected.backward(gradient)
    ours = [x.detach().float().to("tpu").requires_grad_() for x in (left, right)]
    found = torch.tpu.pallas.ragged_matmul(*ours, torch.tensor(sizes, device="tpu"))
    found.backward(gradient.float().to("tpu"))
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-4, atol=1e-4)
    for x, reference in zip(ours, (left, right), strict=True):
        torch.testing.assert_close(x.grad.cpu().double(), reference.grad, rtol=1e-4, atol=1e-4)
