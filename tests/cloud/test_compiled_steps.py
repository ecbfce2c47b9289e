"""Compiled training steps: few programs, parameters that stay in place, numbers of the CPU."""

import contextlib

import pytest
import torch
import torch.utils.checkpoint
from torch import nn


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))


def array(t):
    return t.untyped_storage().buffer.array


def train(model, x, *, compiled=False, parts=1, checkpointed=False, cast=False, fullgraph=True):
    """Losses of 4 steps of AdamW with clipped gradients, which come from `parts` of the batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    low = torch.autocast(x.device.type, torch.bfloat16) if cast else contextlib.nullcontext()

    def gradients(x):
        total = 0.0
        for part in x.chunk(parts):
            with low:
                if checkpointed:
                    y = torch.utils.checkpoint.checkpoint(model, part, use_reentrant=False)
                else:
                    y = model(part)
                loss = y.float().square().mean()
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return total

    step = optimizer.step
    if compiled:
        gradients = torch.compile(gradients, fullgraph=fullgraph)
        step = torch.compile(step)
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        found.append(gradients(x).item())
        step()
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"parts": 3}, {"checkpointed": True}, {"cast": True}, {"cast": True, "parts": 2}],
    ids=lambda o: "+".join(o) or "plain",
)
def test_forward_and_backward_in_one_program_and_the_step_in_another(options):
    x = torch.randn(6, 4)
    expected = train(make(), x, **options)
    before = torch.tpu.compile_stats()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        found = train(make().to("tpu"), x.to("tpu"), compiled=True, **options)
    after = torch.tpu.compile_stats()
    rel = 2e-2 if "cast" in options else 1e-4
    assert found == pytest.approx(expected, rel=rel)
    assert after["graphs"] - before["graphs"] == 2
    assert after["recompiles"] == before["recompiles"]


def test_an_optimiser_step_updates_in_place():
    model = make().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step)
    for number in range(3):
        model(torch.ones(2, 4, device="tpu")).sum().backward()
        weight = model[0].weight
        kept, values = weight.detach().clone(), weight.tolist()
        with torch.tpu.error_on_recompile() if number else contextlib.nullcontext():
            step()
        optimizer.zero_grad()
    assert kept.tolist() == values and weight.tolist() != values
    assert all(s["step"].device.type == "tpu" for s in optimizer.state.values())


def test_what_is_written_takes_the_memory_of_what_was():
    def write(x, y):
        x.mul_(2).add_(y)

    f = torch.compile(write)
    x, y = torch.zeros(1000, device="tpu"), torch.ones(1000, device="tpu")
    f(x, y)
    for _ in range(3):
        place = array(x).unsafe_buffer_pointer()
        f(x, y)
        assert array(x).unsafe_buffer_pointer() == place
    held = array(x)
    f(x, y)
    assert not held.is_deleted() and held[0] == 15 and x[0].item() == 31
    part = torch.zeros(4, 3, device="tpu")
    f(part[1], torch.ones(3, device="tpu"))
    assert part.tolist() == [[0] * 3, [1] * 3, [0] * 3, [0] * 3]


def test_views_of_one_storage_take_their_own_values():
    whole = torch.arange(12.0, device="tpu").reshape(3, 4)
    f = torch.compile(lambda row: row * 2)
    for i in (0, 2, 1):
        assert f(whole[i]).tolist() == [2.0 * (4 * i + j) for j in range(4)]
    g = torch.compile(lambda t: t + 0)
    square = torch.arange(4.0, device="tpu").reshape(2, 2)
    for t in (square, square.t(), square):
        assert g(t).tolist() == t.tolist()


def test_running_statistics_in_training():
    model, there = nn.BatchNorm1d(3), nn.BatchNorm1d(3).to("tpu")
    f = torch.compile(there)
    for _ in range(3):
        x = torch.randn(8, 3)
        model(x).square().sum().backward()
        f(x.to("tpu")).square().sum().backward()
    torch.testing.assert_close(there.running_mean.cpu(), model.running_mean)
    torch.testing.assert_close(there.running_var.cpu(), model.running_var)
    assert there.num_batches_tracked.item() == 3


def test_numbers_that_values_decide():
    def f(x):
        n = x.sum().item()
        torch._check(n > 2, lambda: "too few")
        return x * n

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        g = torch.compile(f, fullgraph=True)
        assert g(torch.ones(3, device="tpu")).tolist() == [3, 3, 3]
        with pytest.raises(RuntimeError):
            g(torch.zeros(3, device="tpu"))


def test_a_size_that_values_decide_is_refused():
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        g = torch.compile(lambda x: torch.ones(x.sum().item(), device="tpu"), fullgraph=True)
        with pytest.raises(Exception, match="depends on values"):
            g(torch.ones(3, device="tpu", dtype=torch.int64))
