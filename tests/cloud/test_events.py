"""Counters of `torch.tpu`, recompiles refused or told, ranges in the profiler's trace."""

from __future__ import annotations

import pytest
import torch

from cloud_backend import foreign
from torch_tpu_unified.core import flags
from torch_tpu_unified.core.errors import LoweringError, RecompileError


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_counters() -> None:
    before, copies = torch.tpu.compile_stats(), torch.tpu.transfer_stats()
    syncs, programs = torch.tpu.host_sync_count(), torch.tpu.compile_count()
    x = torch.ones(7, 11).to("tpu")
    y = x.cos() * x.sin()
    y.cpu(), y.sum().item()
    after, copied = torch.tpu.compile_stats(), torch.tpu.transfer_stats()
    assert after["eager"] - before["eager"] == torch.tpu.compile_count() - programs > 0
    assert copied["to_device_bytes"] - copies["to_device_bytes"] == 7 * 11 * 4
    assert copied["to_host_bytes"] - copies["to_host_bytes"] == 7 * 11 * 4
    assert torch.tpu.host_sync_count() - syncs == 2


def test_a_recompile_by_a_guard_is_refused() -> None:
    f = torch.compile(lambda x: x.cos() - 2)
    f(torch.ones(5, device="tpu"))
    with torch.tpu.error_on_recompile():
        f(torch.ones(5, device="tpu"))
        with pytest.raises(torch._dynamo.exc.RecompileError, match="rank mismatch"):
            f(torch.ones(2, 3, device="tpu"))
    f(torch.ones(2, 3, device="tpu"))


def test_new_sizes_of_a_dynamic_graph_are_refused_and_told(capsys) -> None:
    f = torch.compile(lambda x: x.sin() + 1, dynamic=True)
    f(torch.ones(5, device="tpu"))
    before = torch.tpu.compile_stats()
    with torch.tpu.error_on_recompile():
        f(torch.ones(5, device="tpu"))
        with pytest.raises(RecompileError, match=r"new sizes \[6\], after \[5\]"):
            f(torch.ones(6, device="tpu"))
    assert torch.tpu.compile_stats()["graphs"] == before["graphs"]
    with flags.LOG_RECOMPILES(True):
        f(torch.ones(6, device="tpu"))
    assert "recompiling" in capsys.readouterr().err
    after = torch.tpu.compile_stats()
    assert after["graphs"] == before["graphs"] + 1
    assert after["recompiles"] == before["recompiles"] + 1


def test_first_compiles_are_no_recompiles() -> None:
    with torch.tpu.error_on_recompile():
        f = torch.compile(lambda x: x.exp().sum())
        x = torch.ones(4, device="tpu", requires_grad=True)
        f(x).backward()
    assert x.grad is not None


def test_the_profiler_sees_operators_and_programs() -> None:
    f = torch.compile(lambda x: x.tan() + 3)
    with torch.profiler.profile() as trace:
        x = torch.ones(13, 3, device="tpu").atan()
        f(x).cpu(), x.sum().item()
    seen = {event.key for event in trace.key_averages()}
    assert {"aten::atan", "aten::sum", "tpu::compiled_graph", "tpu::make_program"} <= seen
    assert {"tpu::copy_to_host", "tpu::wait_for_value"} <= seen


@pytest.mark.parametrize("name", foreign.READ_MEMORY)
def test_operators_that_read_memory_refuse_instead_of_crashing(name: str) -> None:
    packet = getattr(torch.ops.aten, name)
    op = getattr(packet, packet.overloads()[0])
    x = torch.ones(2, 3, device="tpu")
    number = {"int": 1, "float": 1.0, "number": 1, "Optional[int]": None}
    args = [x if str(a.type) == "Tensor" else number.get(str(a.type)) for a in op._schema.arguments]
    with pytest.raises(LoweringError, match="reads the host's memory"):
        op(*args)


def test_a_shape_may_be_a_tensor() -> None:
    shape = torch.tensor([3, 2], device="tpu")
    assert torch._reshape_from_tensor(torch.ones(2, 3, device="tpu"), shape).shape == (3, 2)
