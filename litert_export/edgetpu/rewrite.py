"""Rewrites a float graph so that its integer form consists of what the Edge TPU compiler maps.

Runs before calibration. All are exact but for float32 rounding, save GELU: its error function
becomes the sigmoid form of the tanh approximation, at most 5e-4 away.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litert_export.graph import Graph, Op, Value
from litert_export.passes import cleanup
from litert_export.quantize.prepare import NONE, Rule, rewrite

# A mean of more numbers than this is taken over one dimension after the other.
LARGE_MEAN = 4096
# Groups of a convolution are joined (with zeros between) until they are as wide as the multiplier.
GROUP_WIDTH = 64


def run(graph: Graph) -> Graph:
    """Rewrite in place; returns the graph."""
    _widest_pools(graph)
    rewrite(graph, RULES)
    return cleanup.run(graph)


def _operands(op: Op) -> list[Value]:
    return [v for v in op.inputs if v is not None]


def _is_image(v: Value) -> bool:
    return v.rank == 4 and v.shape[0] == 1


def _scaled(g: Graph, x: Value, factor: float) -> Value:
    made: Value = g.emit("MUL", x, g.const(np.float32(factor)), shape=x.shape, **NONE)
    return made


def _depthwise(g: Graph, x: Value, factors: np.ndarray) -> Value:
    """Each channel times a number: a depthwise convolution with a 1 x 1 kernel."""
    n = x.shape[3]
    made: Value = g.emit(
        "DEPTHWISE_CONV_2D", x, g.const(factors.reshape(1, 1, 1, n).astype(np.float32)),
        g.const(np.zeros(n, np.float32)), shape=x.shape, depth_multiplier=1, padding="VALID",
        stride_h=1, stride_w=1, dilation_h_factor=1, dilation_w_factor=1, **NONE,
    )  # fmt: skip
    return made


def _conv(g: Graph, x: Value, w: np.ndarray, b: np.ndarray | None = None) -> Value:
    """A 1 x 1 convolution with weights [outputs, inputs]."""
    n = w.shape[0]
    made: Value = g.emit(
        "CONV_2D", x, g.const(np.ascontiguousarray(w, np.float32).reshape(n, 1, 1, -1)),
        g.const(np.zeros(n, np.float32) if b is None else b), shape=(*x.shape[:3], n),
        padding="VALID", stride_h=1, stride_w=1, dilation_h_factor=1, dilation_w_factor=1, **NONE,
    )  # fmt: skip
    return made


def _leaky(g: Graph, op: Op) -> Sequence[Value] | None:
    (x,), slope = _operands(op), float(op.options["alpha"])
    return [_with_slopes(g, x, np.float32(slope))]


def _prelu(g: Graph, op: Op) -> Sequence[Value] | None:
    x, slopes = _operands(op)
    if slopes.data is None or any(d != 1 for d in slopes.shape[:-1]):
        return None
    return [_with_slopes(g, x, slopes.data.reshape(-1))]


def _with_slopes(g: Graph, x: Value, slopes: np.ndarray) -> Value:
    """x above zero, x times the slopes below."""

    def product(v: Value) -> Value:
        if np.unique(slopes).size == 1:
            return _scaled(g, v, float(np.reshape(slopes, -1)[0]))
        if _is_image(v):
            return _depthwise(g, v, slopes)
        made: Value = g.emit("MUL", v, g.const(slopes), shape=v.shape, **NONE)
        return made

    made: Value
    if np.all((slopes >= 0) & (slopes <= 1)):
        made = g.emit("MAXIMUM", x, product(x), shape=x.shape)
    elif np.all(slopes >= 1):
        made = g.emit("MINIMUM", x, product(x), shape=x.shape)
    else:
        below = g.emit("MINIMUM", x, g.const(np.float32(0)), shape=x.shape)
        made = g.emit("ADD", g.emit("RELU", x), product(below), shape=x.shape, **NONE)
    return made


def _hard_swish(g: Graph, op: Op) -> Sequence[Value] | None:
    (x,) = _operands(op)
    gate = g.emit(
        "ADD", x, g.const(np.float32(3)), shape=x.shape, fused_activation_function="RELU6"
    )
    # A sixth of x has the integers of x: nothing is rounded twice.
    return [g.emit("MUL", _scaled(g, x, 1 / 6), gate, shape=x.shape, **NONE)]


def _gelu(g: Graph, op: Op) -> Sequence[Value] | None:
    """x * sigmoid(2u), u being the argument of tanh in the approximation."""
    (x,) = _operands(op)
    inner = float(np.sqrt(2 / np.pi))
    square = g.emit("MUL", x, x, **NONE)
    factor = g.emit(
        "ADD", _scaled(g, square, 2 * inner * 0.044715), g.const(np.float32(2 * inner)),
        shape=x.shape, **NONE,
    )  # fmt: skip
    gate = g.emit("LOGISTIC", g.emit("MUL", x, factor, **NONE))
    return [g.emit("MUL", x, gate, **NONE)]


def _mean(g: Graph, op: Op) -> Sequence[Value] | None:
    x, at = _operands(op)
    if at.data is None or not _is_image(x):
        return None
    axes = sorted({int(a) % 4 for a in at.data.reshape(-1)})
    if 3 in axes and x.shape[3] % 4 and 0 not in axes and len(axes) < 3:
        # The innermost dimension is reduced in fours only: what stays becomes the innermost one.
        kept = [a for a in (1, 2, 3) if a not in axes]
        x = g.transpose(x, [0, *axes, *kept])
        axes = list(range(1, 1 + len(axes)))
        if np.prod([x.shape[a] for a in axes]) <= LARGE_MEAN:
            shape = [1 if i in axes else d for i, d in enumerate(x.shape)]
            at = g.const(np.array(axes, np.int32))
            return [
                g.reshape(g.emit("MEAN", x, at, shape=shape, keep_dims=True), op.outputs[0].shape)
            ]
    if len(axes) < 2 or np.prod([x.shape[a] for a in axes]) <= LARGE_MEAN:
        return None
    for a in reversed(axes):
        shape = [1 if i == a else d for i, d in enumerate(x.shape)]
        x = g.emit("MEAN", x, g.const(np.array([a], np.int32)), shape=shape, keep_dims=True)
    return [g.reshape(x, op.outputs[0].shape)]


def _grouped(g: Graph, op: Op) -> Sequence[Value] | None:
    """Convolutions of slices, each of as many groups as make good use of the multiplier."""
    x, w, b = _operands(op)
    if w.data is None or b.data is None or x.shape[3] == w.shape[3]:
        return None
    groups = x.shape[3] // w.shape[3]
    parts = next(
        n
        for n in range(groups, 0, -1)
        if not groups % n and (n == 1 or x.shape[3] // n >= GROUP_WIDTH)
    )
    merged, deep, wide = groups // parts, x.shape[3] // parts, w.shape[0] // parts
    whole = np.zeros((parts, wide, *w.shape[1:3], deep), np.float32)
    outs, ins = w.shape[0] // groups, w.shape[3]
    for i in range(groups):
        part, k = divmod(i, merged)
        rows, columns = slice(k * outs, (k + 1) * outs), slice(k * ins, (k + 1) * ins)
        whole[part, rows, :, :, columns] = w.data[i * outs : (i + 1) * outs]
    made = []
    for i in range(parts):
        piece = _slice(g, x, 3, i * deep, deep)
        bias = g.const(np.ascontiguousarray(b.data[i * wide : (i + 1) * wide]))
        shape = (*op.outputs[0].shape[:3], wide)
        made.append(g.emit("CONV_2D", piece, g.const(whole[i]), bias, shape=shape, **op.options))
    if parts == 1:
        return made
    return [g.emit("CONCATENATION", *made, shape=op.outputs[0].shape, axis=3, **NONE)]


def _slice(g: Graph, x: Value, axis: int, start: int, count: int) -> Value:
    if count == x.shape[axis]:
        return x
    begin, size = [0] * x.rank, list(x.shape)
    begin[axis], size[axis] = start, count
    ends = (g.const(np.array(v, np.int32)) for v in (begin, size))
    made: Value = g.emit("SLICE", x, *ends, shape=size)
    return made


def _pixel_shuffle(g: Graph, op: Op) -> Sequence[Value] | None:
    """A transposed convolution whose weights pick one channel for each pixel of a block."""
    (x,), r, y = _operands(op), int(op.options["block_size"]), op.outputs[0]
    if not _is_image(x):
        return None
    channels = y.shape[3]
    w = np.zeros((channels, r, r, x.shape[3]), np.float32)
    for i in range(r):
        for j in range(r):
            start = (i * r + j) * channels
            w[np.arange(channels), i, j, start + np.arange(channels)] = 1
    size = g.const(np.array(y.shape, np.int32))
    return [
        g.emit(
            "TRANSPOSE_CONV", size, g.const(w), x, shape=y.shape, dtype=x.dtype, padding="VALID",
            stride_h=r, stride_w=r, **NONE,
        )
    ]  # fmt: skip


def _gather(g: Graph, op: Op) -> Sequence[Value] | None:
    """Known channels of an image are picked by a convolution; a row elsewhere is a slice."""
    x, at = _operands(op)
    if x.data is not None or at.data is None or op.options.get("batch_dims"):
        return None
    axis, index = int(op.options.get("axis", 0)) % x.rank, at.data.reshape(-1)
    if at.rank > 1 or x.dtype != "float32":
        return None
    if np.array_equal(index, np.arange(index[0], index[0] + index.size)):
        piece = _slice(g, x, axis, int(index[0]), index.size)
        return [g.reshape(piece, op.outputs[0].shape)]
    if not _is_image(x) or axis == 0:
        return None
    # The dimension becomes that of the channels, and goes back.
    order = [*(a for a in range(4) if a != axis), axis]
    y = _conv(g, g.transpose(x, order), np.eye(x.shape[axis], dtype=np.float32)[index])
    return [g.transpose(y, np.argsort(order).tolist())]


def _linear(g: Graph, op: Op) -> Sequence[Value] | None:
    """Of several rows: a 1 x 1 convolution of an image with one line."""
    x, w, *rest = _operands(op)
    rows = op.outputs[0].size // op.outputs[0].shape[-1]
    if rows == 1 or w.data is None or x.dtype != "float32" or (rest and rest[0].data is None):
        return None
    image = g.reshape(x, (1, 1, rows, w.shape[1]))
    y = _conv(g, image, w.data, rest[0].data if rest else None)
    activation = op.options.get("fused_activation_function", "NONE")
    g.ops[-1].options["fused_activation_function"] = activation
    return [g.reshape(y, op.outputs[0].shape)]


def _split(g: Graph, op: Op) -> Sequence[Value] | None:
    x, sizes, at = _operands(op)
    if sizes.data is None or at.data is None or x.data is not None:
        return None
    axis, made, start = int(at.data.reshape(-1)[0]) % x.rank, [], 0
    for v in op.outputs:
        made.append(_slice(g, x, axis, start, v.shape[axis]))
        start += v.shape[axis]
    return made


def _activation(g: Graph, op: Op) -> Sequence[Value] | None:
    """Pools and concatenations take no fused activation: it becomes an op."""
    fused = op.options.get("fused_activation_function", "NONE")
    if fused in ("NONE", None):
        return None
    plain = g.emit(
        op.code, *op.inputs, shape=op.outputs[0].shape, dtype=op.outputs[0].dtype,
        **{**op.options, **NONE},
    )  # fmt: skip
    return [g.emit(fused, plain)]


def _widest_pools(graph: Graph) -> None:
    """Padding of a maximum with minus infinity: its border repeated, which no maximum notices.

    A window that reaches a repeated number also covers the number itself.
    """
    readers = graph.consumers()

    def rule(g: Graph, op: Op) -> Sequence[Value] | None:
        x, table, low = _operands(op)
        if low.data is None or table.data is None or float(low.data.reshape(-1)[0]) > -1e30:
            return None
        if not all(o.code == "MAX_POOL_2D" for o in readers.get(op.outputs[0], ())):
            return None
        for axis, (before, after) in enumerate(table.data.tolist()):
            if not before and not after:
                continue
            first, last = (_slice(g, x, axis, at, 1) for at in (0, x.shape[axis] - 1))
            parts = [first] * before + [x] + [last] * after
            shape = [d + (i == axis) * (before + after) for i, d in enumerate(x.shape)]
            x = g.emit("CONCATENATION", *parts, shape=shape, axis=axis, **NONE)
        return [x]

    rewrite(graph, {"PADV2": rule})


RULES: dict[str, Rule] = {
    "LEAKY_RELU": _leaky,
    "PRELU": _prelu,
    "HARD_SWISH": _hard_swish,
    "GELU": _gelu,
    "MEAN": _mean,
    "CONV_2D": _grouped,
    "DEPTH_TO_SPACE": _pixel_shuffle,
    "GATHER": _gather,
    "FULLY_CONNECTED": _linear,
    "SPLIT_V": _split,
    "AVERAGE_POOL_2D": _activation,
    "MAX_POOL_2D": _activation,
    "CONCATENATION": _activation,
}
