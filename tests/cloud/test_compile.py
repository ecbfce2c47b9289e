"""`torch.compile` on tpu tensors: same numbers as eager CPU, forward and backward, no surprises."""

import pytest
import torch
from torch import nn

from torch_tpu_unified.core.errors import InputError


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def both(function, *args, **options):
    """The function on the CPU and compiled on tpu, from the same values; gradients too."""
    there = [a.detach().to("tpu").requires_grad_(a.requires_grad) for a in args]
    expected = function(*args)
    result = torch.compile(function, **options)(*there)
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)
    if expected.requires_grad:
        expected.sum().backward()
        result.sum().backward()
        for ours, theirs in zip(there, args, strict=True):
            if theirs.grad is not None:
                torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-5, atol=1e-5)


def test_forward_and_backward():
    a = torch.randn(3, 4, requires_grad=True)
    b = torch.randn(4, 5, requires_grad=True)
    both(lambda a, b: torch.softmax(a @ b, -1).square(), a, b)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "tpu"},
        {"fullgraph": True},
        {"dynamic": False},
        {"dynamic": None},
        {"mode": "max-autotune"},
        {"backend": "tpu", "mode": "reduce-overhead", "fullgraph": True},
    ],
    ids=str,
)
def test_options_are_accepted(options):
    both(lambda a: torch.tanh(a) * 2, torch.randn(3), **options)


def test_unknown_options_are_refused():
    f = torch.compile(lambda a: a + 1, backend="tpu", options={"no_such": 1})
    with pytest.raises(Exception, match="no_such") as raised:
        f(torch.ones(2, device="tpu"))
    assert isinstance(raised.value.__cause__, InputError) or "InputError" in str(raised.value)


def test_changing_sizes_stop_compiling_anew():
    f = torch.compile(lambda a: (a * a.shape[0]).sum())
    for n in (3, 4, 5, 6):
        assert f(torch.ones(n, device="tpu")).item() == n * n


def test_buffers_and_inputs_that_are_written():
    model = nn.BatchNorm1d(3)
    there = nn.BatchNorm1d(3).to("tpu")
    x = torch.randn(8, 3)
    compiled = torch.compile(there)
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), model(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(there.running_var.cpu(), model.running_var)
    assert there.num_batches_tracked.item() == 2

    def write(x):
        x.add_(1)
        return x * 2

    t = torch.zeros(3, device="tpu")
    assert torch.compile(write)(t).tolist() == [2, 2, 2]
    assert t.tolist() == [1, 1, 1]


def test_views_leave_the_graph_as_views():
    t = torch.ones(3, 2, device="tpu")
    row = torch.compile(lambda x: x[1])(t)
    row.fill_(5)
    assert t[1].tolist() == [5, 5]


def test_random_numbers_are_fresh_and_repeatable():
    f = torch.compile(lambda a: nn.functional.dropout(a, 0.5))
    x = torch.ones(64, device="tpu")
    torch.manual_seed(0)
    first, second = f(x), f(x)
    torch.manual_seed(0)
    assert torch.equal(f(x), first) and not torch.equal(first, second)


def test_the_same_mask_in_backward():
    x = torch.ones(1000, device="tpu", requires_grad=True)
    y = torch.compile(lambda a: nn.functional.dropout(a, 0.5))(x)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad)


def test_graph_breaks():
    def program(x):
        if x.sum().item() > 0:
            return x + 1
        return x - 1

    f = torch.compile(program)
    assert f(torch.ones(2, device="tpu")).tolist() == [2, 2]
    assert f(-torch.ones(2, device="tpu")).tolist() == [-2, -2]
    with pytest.raises(Exception, match="item"):
        torch.compile(lambda x: x + int(x.sum().item() > 0), fullgraph=True)(
            torch.ones(2, device="tpu")
        )


def test_autocast():
    def program(a, b):
        with torch.autocast("tpu", torch.bfloat16):
            return a @ b

    a = torch.randn(4, 4, device="tpu")
    result = torch.compile(program)(a, a)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float().cpu(), a.cpu() @ a.cpu(), rtol=0.05, atol=0.05)


def test_a_whole_training_step():
    def train(model, x, compiled):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step():
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step = torch.compile(step) if compiled else step
        return [step().item() for _ in range(3)]

    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))

    x = torch.randn(6, 4)
    expected = train(make(), x, False)
    assert train(make().to("tpu"), x.to("tpu"), True) == pytest.approx(expected, rel=1e-4)


def test_what_cannot_be_lowered_is_named():
    library = torch.library.Library("ttu_compile_test", "FRAGMENT")
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda x: torch.empty_like(x), "Meta")
    try:
        f = torch.compile(lambda x: torch.ops.ttu_compile_test.thrice(x) + 1, fullgraph=True)
        with pytest.raises(Exception, match=r"ttu_compile_test\.thrice"):
            f(torch.ones(2, device="tpu"))
    finally:
        library._destroy()


def test_cpu_programs_keep_their_backend():
    called = []

    def spy(gm, inputs):
        called.append(len(inputs))
        return gm.forward

    assert torch.compile(lambda a: a + 1, backend=spy)(torch.ones(2)).tolist() == [2, 2]
    assert called
    assert torch._TorchCompileInductorWrapper.compiler_name == "inductor"


def test_programs_are_counted():
    before = torch.tpu.compile_count()
    f = torch.compile(lambda a: a.sin() + 3)
    f(torch.ones(11, device="tpu"))
    between = torch.tpu.compile_count()
    assert between > before
    f(torch.zeros(11, device="tpu"))
    assert torch.tpu.compile_count() - between <= 1


def test_programs_are_shown_on_request(capsys):
    from torch_tpu_unified.core import flags

    t = torch.ones(7, 13, device="tpu")
    with flags.DEBUG(1):
        torch.atan2(t, t)
        torch.compile(lambda a: torch.atan2(a, a) * 2)(t)
    shown = capsys.readouterr().err
    assert "tpu: program for atan2(self: f32[7, 13], other: f32[7, 13])" in shown
    assert "tpu: program for a graph of 2 operators" in shown
