"""Higher-order operators and recurrent layers in compiled graphs: loops of XLA."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def compiled(function, *args):
    """The compiled function on tpu tensors with the same values, and those tensors."""
    there = [a.detach().to("tpu").requires_grad_(a.requires_grad) for a in args]
    before = torch.tpu.compile_stats()["graphs"]
    result = torch.compile(function, fullgraph=True)(*there)
    assert torch.tpu.compile_stats()["graphs"] == before + 1
    return result, there


def check(function, expected, *args):
    """Compiled values and gradients beside those of plain PyTorch code, `expected`."""
    result, there = compiled(function, *args)
    reference = expected(*args)
    torch.testing.assert_close(result.cpu(), reference, rtol=1e-5, atol=1e-5)
    if reference.requires_grad:
        weight = torch.randn(reference.shape, generator=torch.Generator().manual_seed(2))
        (reference * weight).sum().backward()
        (result * weight.to("tpu")).sum().backward()
        for ours, theirs in zip(there, args, strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign):
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))

    x = (torch.rand(4, 3) * sign).requires_grad_()
    check(program, torch.sin if sign > 0 else lambda x: x * 2, x)


def test_while_loop():
    def program(x):
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, y: y.sum() < 100, lambda i, y: (i + 1, y * 2), (zero, x))[1]

    def plain(x):
        while x.sum() < 100:
            x = x * 2
        return x

    check(program, plain, torch.rand(4, 3))


def test_the_gradient_of_while_loop_is_refused():
    def program(x):
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (zero, x))[1]

    with pytest.raises(Exception, match="use scan"):
        compiled(program, torch.rand(3, requires_grad=True))


def test_scan():
    def program(x, w):
        start = torch.zeros(3, device=x.device)
        return scan(lambda c, x: (torch.tanh(c @ w + x), c * x), start, x)[1]

    def plain(x, w):
        c, ys = torch.zeros(3), []
        for row in x:
            c, y = torch.tanh(c @ w + row), c * row
            ys.append(y)
        return torch.stack(ys)

    check(
        program, plain, torch.randn(5, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    )


def test_a_loop_is_one_loop_in_the_program():
    def program(x):
        return scan(lambda c, x: (c + x, c * x), torch.zeros(3, device=x.device), x)[1]

    from cloud_backend import stablehlo

    class Module(nn.Module):
        def forward(self, x):
            return program(x)

    sizes = []
    for length in (5, 50):
        exported = torch.export.export(Module(), (torch.randn(length, 3),))
        sizes.append(len(stablehlo.text(stablehlo.PureProgram(exported))))
    assert sizes[1] < sizes[0] * 1.1


def test_map():
    def program(x, y):
        return map_over(lambda row, y: row.sin() @ y, x, y)

    args = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    check(program, lambda x, y: x.sin() @ y, *args)


@pytest.mark.parametrize("mode", ["generic", "pointwise"])
def test_associative_scan(mode):
    def program(x):
        return associative_scan(lambda a, b: a * b, x, 0, combine_mode=mode)

    x = torch.rand(6, 3) + 0.5
    if mode == "pointwise":
        with pytest.raises(Exception, match="pointwise"):  # PyTorch: CUDA only
            compiled(program, x)
    else:
        check(program, lambda x: x.cumprod(0), x.requires_grad_())


def test_random_numbers_in_a_loop_differ_from_step_to_step():
    def program(x):
        return map_over(lambda row: nn.functional.dropout(row, 0.5), x)

    result, _ = compiled(program, torch.ones(8, 64))
    assert len({tuple(row.tolist()) for row in result.cpu()}) == 8


def test_unknown_operators_are_named():
    from cloud_backend import control_flow

    class Target:
        _name = "triton_kernel_wrapper_functional"

    class Node:
        target, name = Target(), "kernel"

    with pytest.raises(Exception, match="Pallas"):
        control_flow.lower(Node(), (), {}, None, None)
    Target._name = "strict_mode"
    with pytest.raises(Exception, match="while_loop"):
        control_flow.lower(Node(), (), {}, None, None)


@pytest.mark.parametrize("masked", [False, True])
def test_flex_attention(masked):
    def causal(b, h, m, n):
        return m >= n

    def program(q, k, v, slope):
        def bias(score, b, h, m, n):
            return score + slope[h] * (m - n)

        mask = create_block_mask(causal, None, None, 24, 24, device=q.device) if masked else None
        return flex_attention(q, k, v, score_mod=bias, block_mask=mask, enable_gqa=True)

    def plain(q, k, v, slope):
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        distance = (torch.arange(24)[:, None] - torch.arange(24)).float()
        scores = q @ k.mT / q.shape[-1] ** 0.5 + slope[:, None, None] * distance
        if masked:
            scores = scores.masked_fill(distance < 0, -torch.inf)
        return torch.softmax(scores, -1) @ v

    sizes = (2, 4, 24, 16), (2, 2, 24, 16), (2, 2, 24, 16), (4,)
    check(program, plain, *[torch.randn(s, requires_grad=True) for s in sizes])


def test_assertions_on_values_are_checked():
    def program(x):
        torch._assert_async((x > 0).all(), "all must be positive")
        return x.log()

    result, _ = compiled(program, torch.ones(3))
    assert result.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(RuntimeError, match="all must be positive"):
        torch.compile(program, fullgraph=True)(torch.tensor([1.0, -1.0, 2.0], device="tpu"))


LAYERS = {
    "lstm": lambda: nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True),
    "lstm with projection": lambda: nn.LSTM(5, 4, proj_size=3, bias=False),
    "gru": lambda: nn.GRU(5, 4, num_layers=2),
    "relu": lambda: nn.RNN(5, 4, nonlinearity="relu", bidirectional=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_compile_without_a_break(name):
    torch.manual_seed(3)
    plain = LAYERS[name]()
    there = LAYERS[name]()
    there.load_state_dict(plain.state_dict())
    there.to("tpu")
    x = torch.randn(7, 3, 5)
    ours = torch.compile(there, fullgraph=True)(x.to("tpu"))
    theirs = plain(x)
    for a, b in zip(torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs),
                    strict=True):  # fmt: skip
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)
    ours[0].square().sum().backward()
    theirs[0].square().sum().backward()
    for a, b in zip(there.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)


def test_layers_of_the_cpu_keep_pytorchs_rule():
    broken = torch.compile(nn.LSTM(5, 4), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="RNN, GRU, or LSTM"):
        broken(torch.randn(2, 1, 5))
