"""`precheck`, `convert(to="edgetpu")` and the checker of files."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_tpu_unified as ttu
from litert_export import reader
from torch_tpu_unified import edgetpu
from torch_tpu_unified.core.errors import OptionError, VerificationError


def test_precheck_of_a_module() -> None:
    net = nn.Sequential(*[nn.Conv2d(128, 128, 1) for _ in range(8)]).eval()
    found = ttu.precheck(net, (torch.rand(1, 128, 56, 56),))
    assert found.percent == 100 and not found.unmapped
    weights, activation = 8 * 128 * 128, 128 * 56 * 56
    assert weights <= found.parameter_bytes <= weights + 8 * 128 * 16
    assert found.largest_activation == activation and found.peak_activation == 2 * activation
    assert 0 < found.cached_bytes <= found.parameter_bytes


def test_what_has_no_integer_form_is_named() -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu().prod(3)

    found = ttu.precheck(Product(), (torch.rand(1, 3, 4, 4),))
    assert "REDUCE_PROD" in [v["op"] for v in found.unmapped]
    with pytest.raises(VerificationError, match="90 % are asked for"):
        ttu.precheck(Product(), (torch.rand(1, 3, 4, 4),), require_mapped=90)


def test_large_resizes_are_noted() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Upsample(scale_factor=4, mode="bilinear"))
    text = str(ttu.precheck(net.eval(), (torch.rand(1, 3, 256, 256),)))
    assert "RESIZE_BILINEAR" in text and "may not be mapped" in text


def test_convert_for_the_edge_tpu() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.Flatten(), nn.Linear(8 * 36, 4))
    args = (torch.rand(1, 3, 8, 8),)
    samples = [(torch.rand(1, 3, 8, 8),) for _ in range(4)]
    made = ttu.convert(net.eval(), args, to="edgetpu", calibration=samples)
    assert made.report.edgetpu is not None and made.report.edgetpu.percent == 100
    assert "on the Edge TPU (100.0 %)" in str(made.report)
    assert "PRELU" not in made.report.operators
    (graph,) = reader.read(made.model).values()
    assert all(op.version for op in graph.ops)
    assert edgetpu.check_file(made.model).percent == 100


def test_refusals() -> None:
    net, args = nn.Conv2d(3, 4, 3), (torch.rand(2, 3, 8, 8),)
    with pytest.raises(OptionError, match="static shapes"):
        ttu.convert(
            net, args, to="edgetpu", calibration=[args],
            dynamic_shapes=({0: torch.export.Dim("b", min=1, max=8)},),
        )  # fmt: skip
    with pytest.raises(OptionError, match="computes in int8"):
        ttu.convert(net, args, to="edgetpu", quantize="int16x8", calibration=[args])
    with pytest.raises(OptionError, match="needs calibration"):
        ttu.convert(net, args, to="edgetpu")
    with pytest.raises(OptionError, match="is unknown"):
        ttu.precheck(net, args, target="gpu")
