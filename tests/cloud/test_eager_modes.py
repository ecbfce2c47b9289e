"""The eager modes: same results as strict and the CPU, few programs, honest errors."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cloud_backend import eager_modes, fused, fused_program, pending
from cloud_backend.events import Counters
from torch_tpu_unified.core.errors import InputError


@pytest.fixture
def fused_mode():
    with torch.tpu.eager_mode("fused"):
        yield


def _content(t):
    return pending.content_of(t.untyped_storage().buffer)


def _values(*shape):
    return torch.linspace(-2, 2, torch.Size(shape).numel()).reshape(shape)


def test_choosing_a_mode():
    assert torch.tpu.get_eager_mode() is torch.tpu.EagerMode.DEFER_NEVER
    with torch.tpu.eager_mode("fused"):
        assert torch.tpu.get_eager_mode() is torch.tpu.EagerMode.DEFER_AND_FUSE
        with torch.tpu.eager_mode(torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
            assert torch.tpu.get_eager_mode().value == "debug"
        assert torch.tpu.get_eager_mode().value == "fused"
    torch.tpu.set_eager_mode("DEFER_NEVER")
    assert torch.tpu.get_eager_mode().value == "strict"
    with pytest.raises(InputError, match="'lazy' is not one of 'strict', 'debug', 'fused'"):
        torch.tpu.set_eager_mode("lazy")


def _program(x):
    """Views, in-place writes, dtype views, out=, reductions, indices, lists of tensors."""
    y = x.clone()
    y[1:3] += 1
    row = y[0]
    y.mul_(2)
    row.add_(y[1, :4].sum())
    z = y.t()[::2] @ y[:, :4]
    out = torch.empty(0, device=x.device)
    torch.add(z, 1, out=out)
    bits = y.view(torch.int32) & 0xFFFF
    parts = torch._foreach_add([z, out], [out, z], alpha=0.5)
    y[torch.tensor([0, 2], device=x.device)] = row.clone()
    top = y.flatten().topk(3)
    wide = y.to(torch.float64).as_strided((2, 2), (1, 5)).contiguous()
    return y, row, z, out, bits, *parts, top.values, top.indices, wide, y.argmax(), y > 0, y[:0]


@pytest.mark.parametrize("mode", ["strict", "debug", "fused"])
def test_a_program_is_the_same_in_every_mode(mode):
    expected = _program(_values(4, 6))
    with torch.tpu.eager_mode(mode):
        actual = _program(_values(4, 6).to("tpu"))
        for a, e in zip(actual, expected, strict=True):
            assert a.stride() == e.stride()
            torch.testing.assert_close(a.cpu(), e)


def test_values_are_there_where_they_are_needed(fused_mode):
    x = torch.ones(3, device="tpu")
    assert (x + 1).sum().item() == 6
    assert (x * 3).tolist() == [3, 3, 3]
    assert "5." in str(x * 5)
    assert bool((x > 0).all())
    assert (x.nonzero() + 1).shape == (3, 1)
    y = x + 7
    torch.tpu.synchronize()
    assert _content(y).array is not None
    z = y * 2
    with torch.tpu.eager_mode("strict"):
        assert (z + 0).tolist() == [16, 16, 16]
    assert copy.deepcopy(z).tolist() == [16, 16, 16]


def test_only_what_lives_leaves_the_program(fused_mode, monkeypatch):
    made = []
    call = fused_program.Program.__call__

    def watch(self, *args):
        made.append(self)
        return call(self, *args)

    monkeypatch.setattr(fused_program.Program, "__call__", watch)
    torch.tpu.synchronize()
    a = torch.ones(8, device="tpu")
    torch.tpu.synchronize()
    made.clear()
    x = a
    for _ in range(10):
        x = torch.sin(x)
    torch.tpu.synchronize()
    assert [(len(p.steps), len(p.live)) for p in made] == [(10, 1)]
    torch.sin(x)  # nobody keeps the result
    torch.tpu.synchronize()
    assert len(made) == 1


def test_overwritten_arrays_give_their_memory(fused_mode):
    a = torch.zeros(1000, device="tpu")
    shared = a.clone()
    torch.tpu.synchronize()
    old = a.untyped_storage().buffer.array
    a.add_(1)
    torch.tpu.synchronize()
    assert not old.is_deleted()  # this test holds it, and so does `shared`
    old = a.untyped_storage().buffer.array
    pointer = old.unsafe_buffer_pointer()
    del old
    a.add_(1)
    torch.tpu.synchronize()
    assert a.untyped_storage().buffer.array.unsafe_buffer_pointer() == pointer
    kept = a.cpu().numpy()
    a.add_(1)
    assert a.sum().item() == 3000 and kept.sum() == 2000 and shared.sum().item() == 0


def _net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


def _train(mode, steps, make, scheduler=True):
    with torch.tpu.eager_mode(mode):
        net = _net().to("tpu")
        optimizer = make(net.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        x, y = _values(5, 2, 4, 4).to("tpu"), (torch.arange(5) % 3).to("tpu")
        counts, losses = [], []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            counts.append(torch.tpu.compile_count())
        return torch.stack(losses).cpu(), [p.detach().cpu() for p in net.parameters()], counts


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    ],
    ids=["adamw", "sgd"],
)
def test_training_equals_strict_and_stops_compiling(make):
    losses, parameters, counts = _train("fused", 12, make)
    expected, others, _ = _train("strict", 12, make)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(parameters, others)
    assert counts[3] == counts[-1], counts


def test_memory_is_that_of_strict():
    peaks = {}
    for mode in ("strict", "fused"):
        with torch.tpu.eager_mode(mode):
            x = torch.ones(1 << 16, device="tpu")
            torch.tpu.synchronize()
            torch.tpu.reset_peak_memory_stats()
            before = torch.tpu.memory_allocated()
            for _ in range(20):
                x = x * 1.5 - 0.5
            assert x.sum().item() == 1 << 16
            peaks[mode] = torch.tpu.max_memory_allocated() - before
            del x
    assert peaks["fused"] <= 1.2 * peaks["strict"], peaks


def test_random_numbers_are_those_of_strict():
    drawn = {}
    for mode in ("strict", "fused"):
        with torch.tpu.eager_mode(mode):
            torch.manual_seed(3)
            x = torch.randn(50, device="tpu")
            y = F.dropout(torch.ones(50, device="tpu"), 0.5)
            own = torch.Generator(device="tpu").manual_seed(5)
            z = torch.rand(50, device="tpu", generator=own)
            w = torch.empty(50, device="tpu").uniform_(-1, 1)
            drawn[mode] = [t.cpu() for t in (x, y, z, w)]
    for a, b in zip(drawn["fused"], drawn["strict"], strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(drawn["fused"][0], drawn["fused"][2])


def test_numbers_are_arguments(fused_mode):
    x = torch.ones(4, device="tpu")
    torch.tpu.synchronize()
    counts: list[int] = []
    for i in range(2, 8):
        y = torch.add(x * (i + 0.5), x, alpha=i)[i % 4]
        assert y.item() == 2 * i + 0.5
        counts.append(torch.tpu.compile_count())
    assert counts[1] == counts[-1]


def test_host_values_are_taken_when_recorded(fused_mode):
    x, scale = torch.ones(3, device="tpu"), torch.tensor(2.0)
    y = x * scale
    scale.fill_(5)
    index = torch.tensor([0, 1])
    z = y[index]
    index.fill_(2)
    y[2] = 9
    assert y.tolist() == [2, 2, 9] and z.tolist() == [2, 2]


def test_a_loop_without_an_end_settles_on_few_programs(fused_mode, monkeypatch):
    monkeypatch.setattr(fused, "SOFT", 11)
    monkeypatch.setattr(fused, "HARD", 40)
    x = torch.ones(4, device="tpu")
    for i in range(60):
        if i == 20:
            before = Counters.fused
        x = torch.cos(torch.sin(x * 0.5) + 1).abs()
    assert Counters.fused - before <= 1
    assert len(fused.RECORDER.now.steps) <= 40


def test_errors_keep_their_class(fused_mode):
    a, b = torch.ones(2, device="tpu"), torch.ones(3, device="tpu")
    with pytest.raises(RuntimeError, match="broadcast"):
        a + b
    with pytest.raises(IndexError):
        a.sum(4)
    with pytest.raises(RuntimeError, match="same device"):
        a + torch.ones(2)
    with pytest.raises(RuntimeError, match="single memory location"):
        a.expand(3, 2).add_(1)
    assert (a + a).tolist() == [2, 2]


def test_a_failed_program_is_told_at_every_reader(fused_mode, monkeypatch):
    torch.tpu.synchronize()
    x = torch.ones(4, device="tpu") * 2
    y = x + 1

    def fail(*args):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(fused_program.Program, "__call__", fail)
        with pytest.raises(MemoryError, match="no room"):
            torch.tpu.synchronize()
    with pytest.raises(RuntimeError, match="no room"):
        y.cpu()
    with pytest.raises(RuntimeError, match="no room"):
        x + 1
    assert torch.ones(2, device="tpu").add(1).tolist() == [2, 2]


def test_debug_names_the_line():
    a, b = torch.ones(2, device="tpu"), torch.ones(3, device="tpu")
    with torch.tpu.eager_mode("debug"), pytest.raises(RuntimeError) as caught:
        a + b  # the culprit
    assert "test_eager_modes.py" in str(caught.value)
    assert "the culprit" in str(caught.value)


def test_threads_record_together(fused_mode):
    x = torch.ones(16, device="tpu")
    results = {}

    def work(k):
        y = x * k
        for _ in range(20):
            y = y + k
        results[k] = y.sum().item()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {k: 16.0 * 21 * k for k in range(4)}


def test_the_environment_chooses(monkeypatch):
    monkeypatch.setattr(eager_modes.flags.EAGER_MODE, "value", "debug")
    eager_modes.start()
    try:
        assert torch.tpu.get_eager_mode().value == "debug"
    finally:
        torch.tpu.set_eager_mode("strict")
