"""What is refused before any lowering, all at once; and sizes that come from constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_tpu_unified
from torch_tpu_unified.core.errors import LoweringError


class Net(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x: torch.Tensor) -> Any:
        return self.fn(self, x)


def _convert(fn: Callable[..., Any]) -> Any:
    return torch_tpu_unified.convert(Net(fn).eval(), (torch.randn(3, 4),), verify=True).report


def _positions(net: Any, x: torch.Tensor) -> torch.Tensor:
    picked = x[:, net.mask.nonzero().squeeze(1)]
    return picked.reshape(picked.shape[0] * picked.shape[1]).relu()


@pytest.mark.parametrize(
    "fn",
    [
        lambda net, x: x[:, net.mask] * 2,
        _positions,
        lambda net, x: torch.masked_select(net.mask.float(), net.mask) + x[:, :3],
        lambda net, x: torch.nn.functional.pad(x[:, net.mask], (1, 0)).softmax(-1),
    ],
)
def test_a_constant_mask_gives_a_fixed_size(fn: Callable[..., Any]) -> None:
    assert _convert(fn).ok


@pytest.mark.parametrize(
    ("fn", "op"),
    [
        (lambda net, x: x[x > 0].sum() + 1, "aten.index.Tensor"),
        (lambda net, x: x.nonzero().float(), "aten.nonzero.default"),
        (lambda net, x: torch.masked_select(x, x > 0) * 2, "aten.masked_select.default"),
        (lambda net, x: x * x.sum().item(), "aten._local_scalar_dense.default"),
    ],
)
def test_a_size_from_data_is_refused_by_its_cause(fn: Callable[..., Any], op: str) -> None:
    with pytest.raises(LoweringError) as caught:
        _convert(fn)
    text = str(caught.value)
    assert f"{op}   from {__file__}" in text and "depends on the data" in text
    assert "sym_size" not in text and "without a lowering" not in text


def _under_modes(net: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = torch.special.i0e(x) + 1
    with torch.autocast("cpu", enabled=False):
        z = torch.special.i1e(x) + torch.special.i0e(x)
    return y, z, torch.special.erfcx(x), x.nonzero()


def test_everything_inside_blocks_is_reported_at_once() -> None:
    net = Net(_under_modes).eval().requires_grad_(True)
    program = torch.export.export(net, (torch.randn(3, 4),))
    names = {str(n.target) for n in program.graph.nodes}
    assert {"wrap_with_set_grad_enabled", "wrap_with_autocast"} <= names
    with pytest.raises(LoweringError) as caught:
        torch_tpu_unified.convert(program)
    text = str(caught.value)
    assert "aten.special_i0e.default x2" in text and "aten.special_i1e.default" in text
    assert "aten.special_erfcx.default" in text and "aten.nonzero.default" in text


def test_blocks_fold_their_constants() -> None:
    def fn(net: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            # No lowering knows i0e; on a constant none is needed.
            scale = torch.special.i0e(net.mask.float()) + net.mask[:3].sum()
        return x * scale

    program = torch.export.export(Net(fn).eval(), (torch.randn(3, 4),))
    report = torch_tpu_unified.convert(program, verify=True).report
    assert report.ok and report.operators == {"MUL": 1}
