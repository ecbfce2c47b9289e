"""Quantised files against float64 PyTorch, with and without the delegate and with slow kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from litert_export import export_module, reader, verify
from litert_export.graph import Graph
from litert_export.quantize import QuantConfig
from litert_export.quantize.calibrate import observe
from torch_tpu_unified.core.errors import ConversionError, InputError, OptionError

NAME = "serving_default"
FLOATS = {"float32", "float16", "float64", "bfloat16"}


class Apply(nn.Module):
    """A function of one tensor, with its layers."""

    def __init__(self, fn: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fn(self, x) if list(self.children()) else self.fn(x)


def draws(*shape: int, positive: bool = False, count: int = 12) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    found = [torch.randn(shape, generator=generator) for _ in range(count)]
    return [x.abs() + 0.5 for x in found] if positive else found


def quantized(module: nn.Module, xs: list[torch.Tensor], config: Any) -> Any:
    return export_module(
        module.eval(), (xs[0],), quantize=config, calibration={NAME: [[x.numpy()] for x in xs]}
    )


def outputs(module: nn.Module, x: torch.Tensor) -> list[np.ndarray]:
    with torch.no_grad():
        found = module(x)
    return [y.numpy() for y in (found if isinstance(found, tuple) else (found,))]


def wide(module: nn.Module, x: torch.Tensor) -> list[np.ndarray]:
    """The outputs in float64."""
    import copy

    return outputs(copy.deepcopy(module).double(), x.double())


def floats(graph: Graph) -> list[str]:
    return [v.name for v in graph.values if v.dtype in FLOATS]


def sqnr(found: np.ndarray, right: np.ndarray) -> float:
    noise = np.square(found.astype(np.float64) - right).sum()
    return 200.0 if not noise else float(10 * np.log10(np.square(right).sum() / noise))


IMAGE, ROWS = (1, 6, 8, 10), (2, 5, 8)
# name -> (module, shape, positive inputs, least SQNR in int8 in dB)
OPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool, float]] = {
    "conv": (lambda: nn.Conv2d(6, 7, 3, padding=1), IMAGE, False, 33),
    "grouped conv": (lambda: nn.Conv2d(6, 4, 3, groups=2), IMAGE, False, 33),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6), IMAGE, False, 33),
    "conv relu6": (lambda: nn.Sequential(nn.Conv2d(6, 7, 3), nn.ReLU6()), IMAGE, False, 33),
    "conv1d": (lambda: nn.Conv1d(5, 4, 3), ROWS, False, 33),
    "conv3d": (lambda: nn.Conv3d(2, 3, 3, stride=2, padding=1), (1, 2, 5, 6, 7), False, 30),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), IMAGE, False, 33),
    "linear": (lambda: nn.Linear(8, 7), ROWS, False, 33),
    "linear without bias": (lambda: nn.Linear(8, 7, bias=False), ROWS, False, 33),
    "lstm": (lambda: Apply(lambda m, x: m.l(x)[0], l=nn.LSTM(8, 6)), (12, 2, 8), False, 22),
    "gru": (lambda: Apply(lambda m, x: m.l(x)[0], l=nn.GRU(8, 6)), (5, 2, 8), False, 22),
    "layer norm": (lambda: nn.LayerNorm(8), ROWS, False, 25),
    "group norm": (lambda: nn.GroupNorm(2, 6), IMAGE, False, 25),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1), IMAGE, False, 35),
    "average pool": (lambda: nn.AvgPool2d(2), IMAGE, False, 32),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE, False, 33),
    "prelu": (lambda: nn.PReLU(6), IMAGE, False, 33),
    "attention": (
        lambda: Apply(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
        (1, 2, 5, 8),
        False,
        28,
    ),
    "softmax": (lambda: nn.Softmax(-1), ROWS, False, 28),
    "log softmax": (lambda: nn.LogSoftmax(-1), ROWS, False, 30),
    "masked": (
        lambda: Apply(lambda x: (x.masked_fill(torch.arange(8) > 5, -torch.inf)).softmax(-1)),
        ROWS,
        False,
        28,
    ),
    **{
        f"{f.__name__}": (lambda f=f: Apply(f), ROWS, False, 30)
        for f in (
            torch.sigmoid,
            torch.tanh,
            F.silu,
            F.gelu,
            F.hardswish,
            F.elu,
            F.relu,
            F.relu6,
            F.leaky_relu,
            F.hardsigmoid,
            torch.sin,
            torch.cos,
            torch.exp,
            torch.abs,
            torch.neg,
            torch.square,
            F.softplus,
            F.mish,
            F.logsigmoid,
            F.softsign,
            F.selu,
            F.celu,
            torch.sinh,
            torch.asinh,
            torch.erf,
        )
    },
    **{
        f"{f.__name__} of positive": (lambda f=f: Apply(f), ROWS, True, 30)
        for f in (torch.sqrt, torch.rsqrt, torch.log, torch.reciprocal)
    },
    "floor": (lambda: Apply(lambda x: torch.floor(x * 4)), ROWS, False, 25),
    "power": (lambda: Apply(lambda x: x**2.5), ROWS, True, 30),
    "quotient": (lambda: Apply(lambda x: x / (x.abs() + 1)), ROWS, False, 30),
    "cumsum": (lambda: Apply(lambda x: x.cumsum(1)), ROWS, False, 32),
    "clamp": (lambda: Apply(lambda x: (x * 3).clamp(-1, 0.5)), ROWS, False, 30),
    "sums": (lambda: Apply(lambda x: (x.sum(1), x.mean((0, 2)), x.amax(2))), ROWS, False, 28),
    "arithmetic": (
        lambda: Apply(lambda x: (x + x[:1] * 3, x - 0.3, x * x[:, :1])),
        ROWS,
        False,
        30,
    ),
    "joined": (
        lambda: Apply(lambda x: torch.cat([x, x.sigmoid(), x.tanh().flip(1)], 1)),
        ROWS,
        False,
        30,
    ),
    "chosen": (lambda: Apply(lambda x: torch.where(x > 0.2, x, -0.5)), ROWS, False, 18),
    "compared": (
        lambda: Apply(lambda x: torch.where(x.cumsum(1) > x.flip(1), x * 900, x.square() * 700)),
        ROWS,
        False,
        12,
    ),
    "compared with numbers far away": (
        lambda: Apply(lambda x: torch.where((x < 1e6) & (x * 500 != 3e9) & (x > -7), x, -x)),
        ROWS,
        False,
        30,
    ),
    "shapes": (
        lambda: Apply(lambda x: F.pad(x.permute(1, 0, 2)[1:, :, ::2], (1, 2)).repeat(2, 1, 1)),
        ROWS,
        False,
        35,
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_int8_of_each_kind_of_layer(name: str) -> None:
    make, shape, positive, floor = OPS[name]
    torch.manual_seed(3)
    module, xs = make().eval(), draws(*shape, positive=positive)
    made = quantized(module, xs, "int8")
    assert not floats(made.graphs[NAME])
    assert "QUANTIZE" not in made.report.ops or name in ("joined", "compared")
    (x,) = xs[:1]
    right = wide(module, x)
    for xnnpack in (True, False):
        found = verify.run(made.model, [x.numpy()], xnnpack=xnnpack, real=True)
        levels = [sqnr(a, b) for a, b in zip(found, right, strict=True)]
        assert min(levels) >= floor, (xnnpack, levels)


@pytest.mark.parametrize("name", ["compared", "chosen", "clamp", "mish", "erf", "gelu", "linear"])
def test_int16_activations(name: str) -> None:
    make, shape, positive, _ = OPS[name]
    torch.manual_seed(3)
    module, xs = make().eval(), draws(*shape, positive=positive)
    made = quantized(module, xs, "int16x8")
    assert not floats(made.graphs[NAME])
    (right,) = wide(module, xs[0])
    for xnnpack in (True, False):
        (found,) = verify.run(made.model, [xs[0].numpy()], xnnpack=xnnpack, real=True)
        assert sqnr(found, right) >= 35, (xnnpack, sqnr(found, right))


NET = {
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(6, 16, 3, bias=False), nn.BatchNorm2d(16), nn.SiLU(), nn.AvgPool2d(2),
            nn.Conv2d(16, 16, 3), nn.Hardswish(), nn.Flatten(), nn.Linear(32, 40),
        ),
        IMAGE,
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (1, 5, 16)),
}  # fmt: skip
# Least SQNR in dB; measured 31.6 to 143, less a margin.
MODES = {
    "int8": 22.0, "int16x8": 33.0, "int8-dynamic": 28.0, "int8-weight": 33.0, "int4-weight": 12.0,
    "float16": 60.0,
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("net", NET)
def test_modes(net: str, mode: str) -> None:
    make, shape = NET[net]
    torch.manual_seed(0)
    module, xs = make().eval(), draws(*shape)
    made = quantized(module, xs, mode)
    stored = {v.dtype for v in made.graphs[NAME].values if v.data is not None and v.size > 300}
    wanted = {"int4-weight": "int4", "float16": "float16"}.get(mode, "int8")
    assert wanted in stored and "float32" not in stored
    if mode in ("int8", "int16x8"):
        assert not floats(made.graphs[NAME])
    (right,) = wide(module, xs[1])
    for xnnpack in (True, False):
        (found,) = verify.run(made.model, [xs[1].numpy()], xnnpack=xnnpack, real=True)
        assert sqnr(found, right) >= MODES[mode], (xnnpack, sqnr(found, right))


def test_the_specification_holds() -> None:
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 4))
    made = quantized(module, draws(1, 3, 8, 8), "int8")
    graph = reader.read(made.model)[NAME]
    for op in graph.ops:
        if op.code not in ("CONV_2D", "FULLY_CONNECTED"):
            continue
        x, w, b = op.inputs
        assert x is not None and w is not None and b is not None
        assert w.quantization and x.quantization and b.quantization
        assert w.quantization.scale.size == w.shape[0] and not w.quantization.zero_point.any()
        assert w.data is not None and w.data.min() >= -127
        assert b.dtype == "int32"
        exact = (x.quantization.scale * w.quantization.scale).astype(np.float32)
        assert np.array_equal(b.quantization.scale, exact)
    assert [v.dtype for v in (*graph.inputs, *graph.outputs)] == ["int8", "int8"]


def test_a_bias_that_does_not_fit_raises_the_weights_scale() -> None:
    module = nn.Linear(8, 3)
    with torch.no_grad():
        module.weight[1] = 1e-9
        module.bias[1] = 5.0
    made = quantized(module, draws(2, 8), "int8")
    (found,) = verify.run(made.model, [draws(2, 8)[0].numpy()], real=True)
    assert np.allclose(found[:, 1], 5, atol=0.1)


@pytest.mark.parametrize("kinds", [("uint8", "uint8"), ("float32", "int8"), ("uint8", "float32")])
def test_types_of_inputs_and_outputs(kinds: tuple[str, str]) -> None:
    module, xs = nn.Sequential(nn.Conv2d(6, 4, 3), nn.ReLU()), draws(*IMAGE)
    plain = quantized(module, xs, "int8")
    made = quantized(module, xs, QuantConfig(input_type=kinds[0], output_type=kinds[1]))
    graph = reader.read(made.model)[NAME]
    assert (graph.inputs[0].dtype, graph.outputs[0].dtype) == kinds
    a, b = (verify.run(m.model, [xs[0].numpy()], real=True)[0] for m in (plain, made))
    assert np.allclose(a, b, atol=1e-5)


def test_what_has_no_integer_form_is_refused_by_name_or_kept_on_request() -> None:
    module = Apply(lambda x: (x.prod(1) * 2,))
    with pytest.raises(ConversionError, match="REDUCE_PROD makes prod"):
        quantized(module, draws(2, 3), "int8")
    made = quantized(module, draws(2, 3), QuantConfig(allow_float=True))
    assert made.report.quantized[NAME].float_ops == [("REDUCE_PROD", "prod")]
    assert made.report.ops["DEQUANTIZE"] == made.report.ops["QUANTIZE"] == 1
    x = draws(2, 3)[0]
    (found,) = verify.run(made.model, [x.numpy()], real=True)
    assert sqnr(found, wide(module, x)[0]) > 25


def test_layers_named_stay_in_float() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    made = quantized(module, draws(2, 8), QuantConfig(float_layers=("linear_1*",)))
    assert [code for code, _ in made.report.quantized[NAME].float_ops] == ["FULLY_CONNECTED"]


def test_a_range_too_wide_for_its_neighbour_is_told() -> None:
    module = Apply(lambda x: (torch.cat([x, x * 1000], 1), x * 2))
    made = quantized(module, draws(2, 8), "int8")
    (warning,) = made.report.quantized[NAME].warnings
    assert "CONCATENATION" in warning and "keeps its own scale" in warning
    graph = made.graphs[NAME]
    x, wide_one = graph.inputs[0].quantization, graph.outputs[0].quantization
    assert x and wide_one and float(wide_one.scale[0]) > 500 * float(x.scale[0])


@pytest.mark.parametrize("observer", ["minmax", "percentile", "mse"])
def test_observers(observer: str) -> None:
    """Outliers decide min-max only."""
    xs = draws(1, 4000)
    xs[3][0, 0] = 300.0
    graph = export_module(Apply(lambda x: x * 1), (xs[0],)).graphs[NAME]
    config = QuantConfig(observer=observer, percentile=0.999)
    found = observe(graph, [[x.numpy()] for x in xs], config).ranges[graph.outputs[0]]
    assert (found.high == 300) == (observer == "minmax")
    if observer == "percentile":
        assert 2 < found.high < 5 and -5 < found.low < -2


def test_refusals() -> None:
    module, xs = nn.Linear(8, 3), draws(2, 8)
    with pytest.raises(OptionError, match="needs calibration"):
        export_module(module, (xs[0],), quantize="int8")
    with pytest.raises(InputError, match="no samples"):
        quantized_with = {NAME: []}
        export_module(module, (xs[0],), quantize="int8", calibration=quantized_with)
    with pytest.raises(InputError, match=r"float32\[2, 7\] for the input"):
        export_module(
            module, (xs[0],), quantize="int8", calibration={NAME: [[np.zeros((2, 7), "float32")]]}
        )
    with pytest.raises(OptionError, match="none of int8"):
        QuantConfig(mode="int7")
    with pytest.raises(OptionError, match="unknown calibration"):
        QuantConfig.of({"calibration": 1})
    both = Apply(lambda x: x / x.roll(1, 0))
    with pytest.raises(ConversionError, match="both signs"):
        quantized(both, xs, "int8")
