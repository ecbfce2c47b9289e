"""Rewrites for the Edge TPU: the same numbers in float, nothing but mapped operators in int8."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from litert_export import export_module, verify, writer
from litert_export.edgetpu import rewrite
from litert_export.edgetpu.check import check
from litert_export.quantize import QuantConfig, prepare
from tests.litert.test_quantize import NAME, Apply, draws, floats, quantized, sqnr, wide

IMAGE = (1, 8, 12, 10)


def prelu(*slopes: float) -> nn.Module:
    layer = nn.PReLU(len(slopes))
    layer.weight.data = torch.tensor(slopes)
    return layer


def conv(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), *layers)


# name -> (module, input shape, operators that must be gone, largest error in float, least SQNR)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str, float, float]] = {
    "leaky relu": (lambda: conv(nn.LeakyReLU(0.1)), IMAGE, "LEAKY_RELU", 1e-6, 30),
    "steep leaky relu": (lambda: conv(nn.LeakyReLU(1.7)), IMAGE, "LEAKY_RELU", 1e-6, 30),
    "falling leaky relu": (lambda: conv(nn.LeakyReLU(-0.4)), IMAGE, "LEAKY_RELU", 1e-6, 30),
    "prelu": (lambda: conv(nn.PReLU(8)), IMAGE, "PRELU", 1e-6, 30),
    "prelu by channel": (
        lambda: conv(prelu(0.1, 0.2, 0.3, 0, 1, 0.25, 0.7, 0.9)), IMAGE, "PRELU", 1e-6, 30,
    ),
    "prelu of any slopes": (
        lambda: conv(prelu(-1, 2, 0.3, 0, 1, 0.25, 1.5, 0.9)), IMAGE, "PRELU", 1e-6, 30,
    ),
    "hardswish": (lambda: conv(nn.Hardswish()), IMAGE, "HARD_SWISH", 1e-6, 30),
    "silu": (lambda: conv(nn.SiLU()), IMAGE, "", 1e-6, 30),
    "gelu": (lambda: conv(nn.GELU()), IMAGE, "GELU", 5e-4, 28),
    "gelu of tanh": (lambda: conv(nn.GELU("tanh")), IMAGE, "GELU", 1e-6, 28),
    "mean": (lambda: nn.AdaptiveAvgPool2d(1), (1, 8, 80, 90), "", 1e-6, 25),
    "mean without dims": (lambda: Apply(lambda x: x.mean((2, 3))), (1, 8, 90, 80), "", 1e-6, 25),
    "pixel shuffle": (lambda: conv(nn.PixelShuffle(2)), IMAGE, "DEPTH_TO_SPACE", 1e-6, 33),
    "pixel shuffle alone": (
        lambda: nn.Sequential(nn.ReLU(), nn.PixelShuffle(2)), IMAGE, "GATHER", 1e-6, 38,
    ),
    "transposed": (lambda: nn.ConvTranspose2d(8, 6, 2, 2), IMAGE, "", 1e-6, 33),
    "groups": (lambda: nn.Conv2d(8, 12, 3, groups=4), IMAGE, "", 1e-6, 33),
    "many groups": (
        lambda: nn.Conv2d(192, 192, 3, padding=1, groups=24), (1, 192, 5, 6), "", 1e-5, 33,
    ),
    "division": (lambda: Apply(lambda x: x / 3.7), IMAGE, "DIV", 1e-6, 33),
    "max pool": (lambda: conv(nn.MaxPool2d(3, 2, 1)), IMAGE, "PADV2", 1e-6, 33),
    "wide max pool": (lambda: conv(nn.MaxPool2d(5, 1, 2)), IMAGE, "PADV2", 1e-6, 33),
    "linear of rows": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU()), (1, 5, 8), "FULLY_CONNECTED", 1e-6, 33,
    ),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 6)), (1, 4, 6), "", 1e-6, 30),
    "parts": (
        lambda: Apply(lambda x: torch.cat([y * 2 for y in x.split([3, 5], 1)][::-1], 1)),
        IMAGE, "SPLIT_V", 1e-6, 30,
    ),
    "upsample": (
        lambda: conv(nn.Upsample(scale_factor=2, mode="bilinear")), IMAGE, "", 1e-6, 33,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rewritten_in_float_and_int8(name: str) -> None:
    make, shape, gone, error, floor = CASES[name]
    torch.manual_seed(1)
    module, xs = make().eval(), draws(*shape)
    (right,) = wide(module, xs[0])

    graph = export_module(module, (xs[0],)).graphs[NAME]
    prepare.run(graph, "int8")
    rewrite.run(graph)
    graph.verify()
    assert not set(gone.split()) & set(graph.histogram())
    (found,) = verify.run(writer.write({NAME: graph}), [xs[0].numpy()])
    assert np.abs(found - right).max() <= error + 1e-6 * np.abs(right).max()

    made = quantized(module, xs, QuantConfig(target="edgetpu"))
    whole = check(made.graphs[NAME])
    assert whole.percent == 100, [v for v in whole.verdicts if not v.mapped]
    assert not floats(made.graphs[NAME])
    for xnnpack in (True, False):
        (found,) = verify.run(made.model, [xs[0].numpy()], xnnpack=xnnpack, real=True)
        assert sqnr(found, right) >= floor, (xnnpack, sqnr(found, right))


def test_what_stays_on_the_cpu_is_known_to_the_compiler() -> None:
    """Float islands and old integer forms; never a version that refuses the whole file."""
    mixed = Apply(
        lambda m, x: torch.where(m.c(x).sin() > 0, F.mish(m.c(x)), F.elu(x)).argmax(1),
        c=nn.Conv2d(8, 8, 1),
    )
    made = quantized(mixed, draws(*IMAGE), QuantConfig(target="edgetpu"))
    found = check(made.graphs[NAME])
    assert not found.refusals
    left = {code for code, _ in made.report.quantized[NAME].float_ops}
    assert {"SIN", "EXP"} <= left and "CONV_2D" not in left
    assert found.first is not None and found.first.op == "SIN"
    right = mixed(draws(*IMAGE)[0]).numpy()
    (index,) = verify.run(made.model, [draws(*IMAGE)[0].numpy()], real=True)
    assert (index == right).mean() > 0.9


def test_large_means_are_taken_in_steps() -> None:
    module = nn.AdaptiveAvgPool2d(1)
    made = quantized(module, draws(1, 3, 256, 128, count=3), QuantConfig(target="edgetpu"))
    means = [op for op in made.graphs[NAME].ops if op.code == "MEAN"]
    assert [op.inputs[0].size // op.outputs[0].size for op in means] == [128, 256]  # type: ignore[union-attr]


def test_groups_are_joined_to_the_width_of_the_multiplier() -> None:
    xs = draws(1, 192, 5, 6, count=3)
    module = nn.Conv2d(192, 192, 3, groups=24)
    graph = quantized(module, xs, QuantConfig(target="edgetpu")).graphs[NAME]
    weights = [op.inputs[1].shape for op in graph.ops if op.code == "CONV_2D"]  # type: ignore[union-attr]
    assert weights == [(64, 3, 3, 64)] * 3


def test_linear_weights_have_one_scale() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(24, 6))
    graph = quantized(module, draws(1, 4, 6), QuantConfig(target="edgetpu")).graphs[NAME]
    (w,) = (op.inputs[1] for op in graph.ops if op.code == "FULLY_CONNECTED")
    assert w is not None and w.quantization is not None and w.quantization.scale.size == 1


def test_sigmoid_keeps_its_precision_beside_outliers() -> None:
    """Numbers at which the sigmoid is flat take no part in the scale."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Sigmoid()).eval()
    module[0].weight.data[2] *= 60
    xs = draws(*IMAGE)
    made = quantized(module, xs, "int8")
    (found,) = verify.run(made.model, [xs[0].numpy()], real=True)
    # The wide channel itself has the error of its input, times its weights.
    difference = np.abs(found - wide(module, xs[0])[0])
    assert np.delete(difference, 2, 1).max() < 0.02
