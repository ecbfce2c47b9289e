"""Rewrites a float graph so that every operator has an integer kernel, or a table in its place.

Runs before calibration: what it adds is observed like all else. Every rewrite is exact but for
float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from litert_export.graph import Graph, Op, Value
from litert_export.passes import cleanup
from litert_export.quantize import unroll

NONE = {"fused_activation_function": "NONE"}
Rule = Callable[[Graph, Op], "Sequence[Value] | None"]


def run(graph: Graph, dtype: str) -> Graph:
    """Loops are unrolled, then ops rewritten, for activations of the type `dtype`."""
    unroll.run(graph)
    rewrite(graph, RULES if dtype == "int8" else RULES | RULES_INT16)
    return cleanup.run(graph)


def rewrite(graph: Graph, rules: dict[str, Rule]) -> None:
    """Replace ops by what their rules emit; a rule that returns None keeps its op."""
    old, graph.ops = graph.ops, []
    mapping: dict[Value, Value] = {}
    for op in old:
        op.inputs = [None if v is None else mapping.get(v, v) for v in op.inputs]
        graph.scope, graph.source = op.outputs[0].name, op.source
        rule = rules.get(op.code)
        made = rule(graph, op) if rule else None
        if made is None:
            graph.ops.append(op)
            continue
        for before, after in zip(op.outputs, made, strict=True):
            mapping[before] = after
            if any(after in o.outputs for o in graph.ops[-1:]) and after.data is None:
                after.name = before.name
    graph.outputs = [mapping.get(v, v) for v in graph.outputs]


def _is_float(op: Op) -> bool:
    return op.outputs[0].dtype == "float32"


def _negative(g: Graph, op: Op) -> Sequence[Value] | None:
    # The kernel would need a zero point of the other sign, which int8 need not have.
    if not _is_float(op):
        return None
    return [g.emit("MUL", op.inputs[0], g.const(np.float32(-1)), **NONE)]


def _square(g: Graph, op: Op) -> Sequence[Value] | None:
    return [g.emit("MUL", op.inputs[0], op.inputs[0], **NONE)] if _is_float(op) else None


def _squared_difference(g: Graph, op: Op) -> Sequence[Value] | None:
    if not _is_float(op):
        return None
    difference = g.emit("SUB", *op.inputs, **NONE)
    return [g.emit("MUL", difference, difference, **NONE)]


def _division(g: Graph, op: Op) -> Sequence[Value] | None:
    x, c = op.inputs
    assert x is not None and c is not None
    if not _is_float(op) or c.data is None or np.any(c.data == 0):
        return None
    factor = (1 / c.data.astype(np.float64)).astype(np.float32)
    return [g.emit("MUL", x, g.const(factor), shape=op.outputs[0].shape, **op.options)]


def _floor_division(g: Graph, op: Op) -> Sequence[Value] | None:
    a, b = op.inputs
    assert a is not None and b is not None
    if not _is_float(op) or b.data is not None:
        return None
    return [g.emit("FLOOR", g.emit("DIV", a, b, **NONE))]


def _floor_modulo(g: Graph, op: Op) -> Sequence[Value] | None:
    parts = _floor_division(g, op)
    if parts is None:
        return None
    return [g.emit("SUB", op.inputs[0], g.emit("MUL", op.inputs[1], parts[0], **NONE), **NONE)]


def _running_sum(g: Graph, op: Op) -> Sequence[Value] | None:
    """A product with a triangle of ones."""
    x, at = op.inputs
    if not _is_float(op) or x is None or at is None or at.data is None:
        return None
    axis, n = int(at.data.reshape(-1)[0]) % x.rank, 0
    n = x.shape[axis]
    ones = np.tril(np.ones((n, n), np.float32), -1 if op.options.get("exclusive") else 0)
    if op.options.get("reverse"):
        ones = ones.T
    order = [*(d for d in range(x.rank) if d != axis), axis]
    moved = g.transpose(x, order)
    flat = g.reshape(moved, (-1, n))
    y = g.emit(
        "FULLY_CONNECTED", flat, g.const(np.ascontiguousarray(ones)), shape=flat.shape,
        keep_num_dims=True, weights_format="DEFAULT", **NONE,
    )  # fmt: skip
    return [g.transpose(g.reshape(y, moved.shape), np.argsort(order).tolist())]


def _convolution_3d(g: Graph, op: Op) -> Sequence[Value] | None:
    """A sum over the kernel's depth of CONV_2D on slices, the depth folded into the batch."""
    x, w, b = (*op.inputs, None)[:3]
    if x is None or w is None or w.data is None or (b is not None and b.data is None):
        return None
    o = op.options
    stride, dilation = o.get("stride_d", 1), o.get("dilation_d_factor", 1)
    n, depth, height, width, channels = x.shape
    _, out_d, out_h, out_w, filters = op.outputs[0].shape
    if o["padding"] == "SAME":
        total = max((out_d - 1) * stride + (w.shape[0] - 1) * dilation + 1 - depth, 0)
        table = np.zeros((5, 2), np.int32)
        table[1] = total // 2, total - total // 2
        depth += total
        x = g.emit("PAD", x, g.const(table), shape=(n, depth, height, width, channels))
    zero = g.const(np.zeros(filters, np.float32))
    result: Value | None = None
    for k in range(w.shape[0]):
        start = k * dilation
        ends = [n, start + (out_d - 1) * stride + 1, height, width, channels]
        part = g.emit(
            "STRIDED_SLICE", x, g.const(np.array([0, start, 0, 0, 0], np.int32)),
            g.const(np.array(ends, np.int32)), g.const(np.array([1, stride, 1, 1, 1], np.int32)),
            shape=(n, out_d, height, width, channels),
        )  # fmt: skip
        y = g.emit(
            "CONV_2D", g.reshape(part, (n * out_d, height, width, channels)),
            g.const(np.ascontiguousarray(w.data[k].transpose(3, 0, 1, 2))),
            b if k == 0 and b is not None else zero, shape=(n * out_d, out_h, out_w, filters),
            stride_h=o["stride_h"], stride_w=o["stride_w"], padding=o["padding"],
            dilation_h_factor=o["dilation_h_factor"], dilation_w_factor=o["dilation_w_factor"],
            **NONE,
        )  # fmt: skip
        result = y if result is None else g.emit("ADD", result, y, **NONE)
    assert result is not None
    activation = o.get("fused_activation_function", "NONE")
    if activation != "NONE":
        result = g.emit(activation, result)
    return [g.reshape(result, op.outputs[0].shape)]


def _zeros(g: Graph, op: Op) -> Sequence[Value] | None:
    v = op.outputs[0]
    return [g.const(np.zeros(v.shape, np.float32))] if _is_float(op) else None


RULES: dict[str, Rule] = {
    "NEG": _negative,
    "SQUARE": _square,
    "DIV": _division,
    "FLOOR_DIV": _floor_division,
    "FLOOR_MOD": _floor_modulo,
    "CUMSUM": _running_sum,
    "CONV_3D": _convolution_3d,
    "ZEROS_LIKE": _zeros,
}
# int16 has fewer kernels.
RULES_INT16: dict[str, Rule] = {"SQUARED_DIFFERENCE": _squared_difference}
