"""Operators that write several tensors, where those are parts of one storage."""

from __future__ import annotations

import pytest
import torch

import torch_tpu_unified  # noqa: F401


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_foreach_writes_all_parts_of_a_storage(mode: str) -> None:
    def run(device: str) -> torch.Tensor:
        base = torch.zeros(3, 4, device=device)
        parts = [*base[:2].flatten().split([3, 5]), base[2, 1:3]]
        ones = [torch.full(p.shape, 2.0 + i, device=device) for i, p in enumerate(parts)]
        torch._foreach_copy_(parts, ones)
        torch._foreach_add_(parts, ones)
        torch._foreach_mul_([parts[0], parts[2], parts[1]], 3.0)
        return base.cpu()

    with torch.tpu.eager_mode(mode):
        assert torch.equal(run("tpu"), run("cpu"))


def test_out_lists_without_a_result() -> None:
    source = torch.arange(12.0).reshape(2, 6)
    outs = [torch.empty(2, 2, device="tpu"), torch.empty(2, 4, device="tpu")]
    assert torch.split_with_sizes_copy(source.to("tpu"), [2, 4], dim=1, out=outs) is None
    for ours, part in zip(outs, source.split([2, 4], 1), strict=True):
        assert torch.equal(ours.cpu(), part)
