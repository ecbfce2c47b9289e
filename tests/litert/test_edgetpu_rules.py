"""The Edge TPU's operator table, row by row: files of one operator, inside its limits and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litert_export import reader, writer
from litert_export.edgetpu import rules
from litert_export.edgetpu.check import check
from litert_export.graph import Graph, Op, Quantization, Value

ROW, MAP, WIDE = (1, 8), (1, 6, 6, 8), (2, 6, 6, 8)
VALID = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
DILATED = {"dilation_h_factor": 2, "dilation_w_factor": 2}
POOL = {**VALID, "filter_height": 2, "filter_width": 2}


class I(tuple):  # noqa: E742
    """A constant of int32."""


class W(tuple):
    """A constant weight of this shape, with a scale for each row."""


class One(W):
    """A constant weight with one scale."""


class Bias(W):
    """A bias of int32."""


def operand(g: Graph, name: str, given: Any, dtype: str) -> Value:
    one = Quantization(np.array([0.1], np.float32), np.array([0]))
    if isinstance(given, I):
        return Value(name, np.shape(given), "int32", np.array(given, np.int32))
    if isinstance(given, Bias):
        return Value(name, given, "int32", np.zeros(given, np.int32), quantization=one)
    if isinstance(given, W):
        n = 1 if isinstance(given, One) else given[0]
        q = Quantization(np.full(n, 0.1, np.float32), np.zeros(n, np.int64), 0)
        return Value(name, tuple(given), dtype, np.ones(given, dtype), quantization=q)
    value = g.input(name, given, dtype)
    value.quantization = one
    return value


def judged(code: str, inputs: list[Any], out: Any, dtype: str = "int8", **options: Any) -> Any:
    """The verdict on a file with the operator alone."""
    g = Graph()
    given = [operand(g, f"x{i}", x, dtype) for i, x in enumerate(inputs)]
    outs = out if isinstance(out, list) else [out]
    q = Quantization(np.array([0.1], np.float32), np.array([0]))
    made = [Value(f"y{i}", s, dtype, quantization=q) for i, s in enumerate(outs)]
    g.ops = [Op(code, list(given), made, options)]
    g.outputs, g.output_names = made, [v.name for v in made]
    (graph,) = reader.read(writer.write({"main": g})).values()
    (verdict,) = check(graph).verdicts
    return verdict


RELU = {"fused_activation_function": "RELU"}
NHWC, HALF = (1, 6, 6, 8), (1, 5, 5, 8)
BIAS = Bias((8,))
# (operator, inputs, output or outputs, options): the Edge TPU takes it.
INSIDE: list[tuple[str, list[Any], Any, dict[str, Any]]] = [
    ("ADD", [MAP, MAP], MAP, {}),
    ("ADD", [MAP, MAP], MAP, RELU),
    ("AVERAGE_POOL_2D", [MAP], HALF, POOL),
    ("CONCATENATION", [MAP, MAP], (1, 6, 6, 16), {"axis": 3}),
    ("CONV_2D", [MAP, W((8, 3, 3, 8)), BIAS], (1, 4, 4, 8), VALID),
    ("CONV_2D", [MAP, W((8, 3, 3, 8)), BIAS], (1, 2, 2, 8), {**VALID, **DILATED}),
    ("CONV_2D", [MAP, W((8, 3, 3, 8)), BIAS], (1, 4, 4, 8), {**VALID, **RELU}),
    ("DEPTHWISE_CONV_2D", [MAP, One((1, 3, 3, 8)), BIAS], (1, 4, 4, 8),
     {**VALID, "depth_multiplier": 1}),
    ("DEPTHWISE_CONV_2D", [MAP, One((1, 3, 3, 8)), BIAS], (1, 2, 2, 8),
     {**VALID, **DILATED, "depth_multiplier": 1}),
    ("EXPAND_DIMS", [ROW, I([1])], (1, 1, 8), {}),
    ("FULLY_CONNECTED", [ROW, One((4, 8)), Bias((4,))], (1, 4), {"weights_format": "DEFAULT"}),
    ("L2_NORMALIZATION", [ROW], ROW, {}),
    ("LOGISTIC", [MAP], MAP, {}),
    ("MAXIMUM", [MAP, MAP], MAP, {}),
    ("MAX_POOL_2D", [MAP], HALF, POOL),
    ("MEAN", [MAP, I([1, 2])], (1, 1, 1, 8), {"keep_dims": True}),
    ("MEAN", [MAP, I([3])], (1, 6, 6, 1), {"keep_dims": True}),
    ("MINIMUM", [MAP, MAP], MAP, {}),
    ("MUL", [MAP, MAP], MAP, {}),
    ("PACK", [ROW, ROW], (1, 2, 8), {"axis": 1, "values_count": 2}),
    ("PAD", [MAP, I([[0, 0], [1, 1], [1, 1], [0, 0]])], (1, 8, 8, 8), {}),
    ("PRELU", [MAP, One((1, 1, 8))], MAP, {}),
    ("QUANTIZE", [MAP], MAP, {}),
    ("REDUCE_MAX", [MAP, I([1, 2])], (1, 8), {}),
    ("REDUCE_MIN", [MAP, I([1, 2])], (1, 8), {}),
    ("RELU", [MAP], MAP, {}),
    ("RELU6", [MAP], MAP, {}),
    ("RELU_N1_TO_1", [MAP], MAP, {}),
    ("RESHAPE", [MAP, I([1, 288])], (1, 288), {}),
    ("RESIZE_BILINEAR", [MAP, I([12, 12])], (1, 12, 12, 8), {"half_pixel_centers": True}),
    ("RESIZE_NEAREST_NEIGHBOR", [MAP, I([12, 12])], (1, 12, 12, 8), {}),
    ("RSQRT", [MAP], MAP, {}),
    ("SLICE", [MAP, I([0, 1, 1, 0]), I([1, 2, 2, 8])], (1, 2, 2, 8), {}),
    ("SOFTMAX", [(1, 16_000)], (1, 16_000), {"beta": 1.0}),
    ("SPACE_TO_DEPTH", [MAP], (1, 3, 3, 32), {"block_size": 2}),
    ("SPLIT", [I([3]), MAP], [(1, 6, 6, 4), (1, 6, 6, 4)], {"num_splits": 2}),
    ("SQUARED_DIFFERENCE", [MAP, MAP], MAP, {}),
    ("SQUEEZE", [(1, 1, 8)], (1, 8), {"squeeze_dims": [1]}),
    ("STRIDED_SLICE", [MAP, I([0, 1, 1, 0]), I([1, 3, 3, 8]), I([1, 1, 1, 1])], (1, 2, 2, 8), {}),
    ("SUB", [MAP, MAP], MAP, {}),
    ("SUM", [MAP, I([1, 2])], (1, 8), {}),
    ("TANH", [MAP], MAP, {}),
    ("TRANSPOSE", [MAP, I([0, 3, 1, 2])], (1, 8, 6, 6), {}),
    ("TRANSPOSE_CONV", [I([1, 12, 12, 8]), W((8, 2, 2, 8)), MAP], (1, 12, 12, 8),
     {"padding": "VALID", "stride_h": 2, "stride_w": 2}),
    ("ADD", [(1, 1, 1, 6, 6, 8), (1, 1, 1, 6, 6, 8)], (1, 1, 1, 6, 6, 8), {}),
]  # fmt: skip
# The same with a word of the reason: it stays on the CPU.
OUTSIDE: list[tuple[str, list[Any], Any, dict[str, Any], str]] = [
    ("ADD", [WIDE, WIDE], WIDE, {}, "innermost"),
    ("LOGISTIC", [(2, 2, 3, 4, 8)], (2, 2, 3, 4, 8), {}, "innermost"),
    ("AVERAGE_POOL_2D", [MAP], HALF, {**POOL, **RELU}, "activation"),
    ("MAX_POOL_2D", [MAP], HALF, {**POOL, **RELU}, "activation"),
    ("CONCATENATION", [MAP, MAP], (1, 6, 6, 16), {"axis": 3, **RELU}, "activation"),
    ("CONCATENATION", [MAP, One(MAP)], (1, 6, 6, 16), {"axis": 3}, "not all zeros"),
    ("CONV_2D", [MAP, W((8, 3, 3, 8)), BIAS], (1, 2, 4, 8),
     {**VALID, "dilation_h_factor": 2, "dilation_w_factor": 1}, "dilation"),
    ("CONV_2D", [WIDE, W((8, 3, 3, 8)), BIAS], (2, 4, 4, 8), VALID, "innermost"),
    ("CONV_2D", [MAP, (8, 3, 3, 8), BIAS], (1, 4, 4, 8), VALID, "constant"),
    ("DEPTHWISE_CONV_2D", [MAP, One((1, 3, 3, 8)), BIAS], (1, 2, 4, 8),
     {**VALID, "dilation_h_factor": 2, "dilation_w_factor": 1, "depth_multiplier": 1}, "dilation"),
    ("FULLY_CONNECTED", [(3, 8), One((4, 8)), Bias((4,))], (3, 4), {}, "one row"),
    ("FULLY_CONNECTED", [ROW, W((4, 8)), Bias((4,))], (1, 4), {}, "each row"),
    ("FULLY_CONNECTED", [ROW, One((4, 8)), Bias((4,))], (1, 4),
     {"weights_format": 1}, "format"),
    ("FULLY_CONNECTED", [ROW, (4, 8), Bias((4,))], (1, 4), {}, "constant"),
    ("MEAN", [MAP, I([0])], (1, 6, 6, 8), {"keep_dims": True}, "batch"),
    ("MEAN", [(1, 6, 6, 7), I([3])], (1, 6, 6, 1), {"keep_dims": True}, "multiple of 4"),
    ("PACK", [(6, 6, 8)], (1, 6, 6, 8), {"axis": 0, "values_count": 1}, "batch"),
    ("PAD", [MAP, I([[0, 1], [0, 0], [0, 0], [0, 0]])], (2, 6, 6, 8), {}, "batch"),
    ("PAD", [MAP, (4, 2)], (1, 8, 8, 8), {}, "constant"),
    ("PRELU", [MAP, One((1, 6, 6, 8))], MAP, {}, "innermost"),
    ("REDUCE_MAX", [MAP, I([0])], (1, 6, 6, 8), {"keep_dims": True}, "batch"),
    ("REDUCE_MIN", [MAP, I([0])], (1, 6, 6, 8), {"keep_dims": True}, "batch"),
    ("SUM", [MAP, I([0])], (1, 6, 6, 8), {"keep_dims": True}, "batch"),
    ("RESIZE_BILINEAR", [WIDE, I([12, 12])], (2, 12, 12, 8), {}, "single image"),
    ("RESHAPE", [MAP, (2,)], (1, 288), {}, "constant"),
    ("SLICE", [MAP, (4,), I([1, 2, 2, 8])], (1, 2, 2, 8), {}, "constant"),
    ("SOFTMAX", [(1, 16_001)], (1, 16_001), {"beta": 1.0}, "at most"),
    ("SOFTMAX", [(4, 8)], (4, 8), {"beta": 1.0}, "one row"),
    ("SPLIT", [I([0]), MAP], [MAP], {"num_splits": 1}, "batch"),
    ("STRIDED_SLICE", [MAP, I([0, 0, 0, 0]), I([1, 6, 6, 8]), I([1, 2, 1, 1])], (1, 3, 6, 8), {},
     "strides"),
    ("STRIDED_SLICE", [MAP, I([0, 0, 0, 0]), I([1, 6, 6, 8]), I([1, 1, 1, 1])], MAP,
     {"ellipsis_mask": 1}, "ellipsis"),
    ("STRIDED_SLICE", [ROW, I([0, 0]), I([1, 8]), I([1, 1])], (1, 1, 8), {"new_axis_mask": 1},
     "new axis"),
    ("TRANSPOSE", [MAP, (4,)], (1, 8, 6, 6), {}, "constant"),
    *(
        (code, [MAP], MAP, {}, "not supported")
        for code in ("HARD_SWISH", "LEAKY_RELU", "ELU", "EXP", "ABS", "LOG", "LOG_SOFTMAX")
    ),
    ("DIV", [MAP, MAP], MAP, {}, "not supported"),
    ("BATCH_MATMUL", [(1, 4, 8), (1, 8, 4)], (1, 4, 4), {}, "not supported"),
    ("GATHER", [ROW, I([3])], (1, 1), {"axis": 1}, "not supported"),
    ("DEPTH_TO_SPACE", [(1, 6, 6, 8)], (1, 12, 12, 2), {"block_size": 2}, "not supported"),
    ("TILE", [ROW, I([1, 2])], (1, 16), {}, "not supported"),
    ("MIRROR_PAD", [ROW, I([[0, 0], [1, 1]])], (1, 10), {"mode": "REFLECT"}, "not supported"),
]  # fmt: skip


@pytest.mark.parametrize("row", INSIDE, ids=lambda row: row[0])
def test_inside_the_limits(row: tuple[str, list[Any], Any, dict[str, Any]]) -> None:
    code, inputs, out, options = row
    verdict = judged(code, inputs, out, **options)
    assert verdict.mapped, verdict.reason


@pytest.mark.parametrize("row", OUTSIDE, ids=lambda row: f"{row[0]}-{row[4]}")
def test_outside_the_limits(row: tuple[str, list[Any], Any, dict[str, Any], str]) -> None:
    code, inputs, out, options, word = row
    verdict = judged(code, inputs, out, **options)
    assert not verdict.mapped and word in verdict.reason, verdict


def test_the_table_holds_every_row() -> None:
    assert len(INSIDE) + len(OUTSIDE) >= 60
    # A LSTM has 24 operands, most of them left out: the exporter writes none.
    assert {row[0] for row in INSIDE} == rules.OPERATORS - {"UNIDIRECTIONAL_SEQUENCE_LSTM"}


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_other_types_stay_on_the_cpu(dtype: str) -> None:
    verdict = judged("ADD", [MAP, MAP], MAP, dtype)
    assert not verdict.mapped and dtype in verdict.reason


def test_uint8_is_taken() -> None:
    assert judged("ADD", [MAP, MAP], MAP, "uint8").mapped


def test_sizes_that_are_not_static() -> None:
    g = Graph()
    x = g.input("x", MAP, "int8")
    x.dynamic = (1,)
    g.ops = [Op("RELU", [x], [Value("y", MAP, "int8")])]
    assert "not static" in check(g).verdicts[0].reason


@pytest.mark.parametrize(
    ("code", "version", "word"),
    [("GELU", 1, "came after"), ("CONV_2D", 6, "version 6"), ("EXP", 2, "version 2"),
     ("TRANSPOSE_CONV", 4, "version 4"), ("QUANTIZE", 3, "version 3")],
)  # fmt: skip
def test_what_refuses_the_whole_file(code: str, version: int, word: str) -> None:
    found = rules.refusal(Op(code, [], []), version)
    assert found is not None and word in found


def test_all_that_follows_an_operator_on_the_cpu_is_there_too() -> None:
    g = Graph()
    x = g.input("x", MAP, "int8")
    a, b, c, d = (Value(n, MAP, "int8") for n in "abcd")
    g.ops = [
        Op("RELU", [x], [a]), Op("HARD_SWISH", [a], [b]), Op("RELU6", [b], [c]),
        Op("TANH", [a], [d]),
    ]  # fmt: skip
    g.outputs, g.output_names = [c, d], ["c", "d"]
    found = check(g)
    assert [v.mapped for v in found.verdicts] == [True, False, False, True]
    assert [v.later for v in found.verdicts] == [False, False, True, False]
    assert found.percent == 50 and found.first is found.verdicts[1]


def test_segments_that_fit_the_chip() -> None:
    g, x = Graph(), None
    x = g.input("x", (1, 8, 8, 1024), "int8")
    q = Quantization(np.array([0.1], np.float32), np.array([0]))
    for i in range(20):
        w = Value(f"w{i}", (1024, 1, 1, 1024), "int8", np.ones((1024, 1, 1, 1024), np.int8))
        w.quantization = q
        y = Value(f"y{i}", (1, 8, 8, 1024), "int8")
        g.ops.append(Op("CONV_2D", [x, w], [y]))
        x = y
    memory = check(g).memory
    assert memory.parameter_bytes == 20 << 20 and memory.cached_bytes == 7 << 20
    assert [s.parameter_bytes >> 20 for s in memory.segments] in ([7, 6, 7], [7, 7, 6], [6, 7, 7])
    assert sum(s.operators for s in memory.segments) == 20
    assert memory.largest_activation == 65536 and memory.peak_activation == 131072
