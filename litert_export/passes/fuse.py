"""Folds scale, shift, activation and padding into the operator beside them.

Runs after layout, when channels are the last axis. A batch norm is a MUL and an ADD by a constant
per channel: both go into the weight and bias of the convolution or linear layer before them,
computed in float64. Only activations that every LiteRT kernel honours are fused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from litert_export.graph import Graph, Op, Value

# Operator -> axis of the weight that holds the output channels.
_CHANNEL_AXIS = {
    "CONV_2D": 0,
    "DEPTHWISE_CONV_2D": 3,
    "TRANSPOSE_CONV": 0,
    "CONV_3D": 4,
    "CONV_3D_TRANSPOSE": 3,
    "FULLY_CONNECTED": 0,
}
_BIAS = {"TRANSPOSE_CONV": 3, "CONV_3D_TRANSPOSE": 3}
# TRANSPOSE_CONV could take an activation too, in a version that older runtimes lack.
_ACTIVATED = frozenset({
    "CONV_2D", "DEPTHWISE_CONV_2D", "CONV_3D", "FULLY_CONNECTED", "ADD", "SUB", "MUL", "DIV",
})  # fmt: skip
_ACTIVATIONS = ("RELU", "RELU6", "RELU_N1_TO_1")
_FUSED = "fused_activation_function"


def run(graph: Graph) -> Graph:
    """Fuse until nothing changes."""
    for inner in graph.subgraphs:
        run(inner)
    changed = True
    while changed:
        changed = False
        for rule in (_affine, _activation, _same, _pool_padding):
            changed |= _each(graph, rule)
    return graph


class _Context:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.outputs = set(graph.outputs)

    def update(self, op: Op) -> None:
        """Bring the tables up to date after a rule changed `op` or removed it."""
        if not op.outputs:
            self.graph.ops = [o for o in self.graph.ops if o.outputs]
        self.producers = self.graph.producers()
        self.consumers = self.graph.consumers()

    def source(self, v: Value) -> tuple[Op | None, list[Op]]:
        """The op behind `v`, past reshapes that keep the last axis, if nothing else reads it."""
        path: list[Op] = []
        while True:
            op = self.producers.get(v)
            if op is None or len(self.consumers.get(v, [])) != 1 or v in self.outputs:
                return None, []
            x = op.inputs[0] if op.inputs else None
            if op.code == "RESHAPE" and x is not None and x.shape[-1:] == v.shape[-1:]:
                path.append(op)
                v = x
                continue
            return op, path


def _each(graph: Graph, rule: Callable[[_Context, Op], bool]) -> bool:
    """Apply a rule to every op; it removes an op by emptying the op's outputs."""
    changed = False
    context = _Context(graph)
    for op in list(graph.ops):
        while op.outputs and rule(context, op):
            changed = True
            context.update(op)
    graph.ops = [o for o in graph.ops if o.outputs]
    return changed


def _bypass(context: _Context, op: Op, x: Value) -> None:
    """Remove an op: what it made is now made by the op that made `x`."""
    out = op.outputs[0]
    producer = context.producers[x]
    producer.outputs = [out if v is x else v for v in producer.outputs]
    op.outputs = []


def _constant(op: Op) -> tuple[Value, Value, bool] | None:
    """(data, constant, constant is second) of a binary op."""
    a, b = op.inputs
    assert a is not None and b is not None
    if b.is_const and not a.is_const:
        return a, b, True
    if a.is_const and not b.is_const:
        return b, a, False
    return None


def _affine(context: _Context, op: Op) -> bool:
    """x * c, x / c, x + c, x - c and c - x behind a layer with a constant weight."""
    if op.code not in ("MUL", "DIV", "ADD", "SUB") or op.outputs[0].dtype != "float32":
        return False
    found = _constant(op)
    if found is None or (op.code == "DIV" and not found[2]):
        return False
    x, c, second = found
    out = op.outputs[0]
    if x.shape != out.shape or not x.shape or c.size not in (1, x.shape[-1]):
        return False
    if c.size > 1 and c.shape[-1] != x.shape[-1]:
        return False
    layer, _ = context.source(x)
    if layer is None or layer.code not in _CHANNEL_AXIS:
        return False
    data = np.asarray(c.data, np.float64).reshape(-1)
    one = np.float64(1)
    scale, shift = {
        "MUL": (data, None),
        "DIV": (one / data if np.all(data != 0) else None, None),
        "ADD": (None, data),
        "SUB": (None, -data) if second else (-one, data),
    }[op.code]
    if op.code == "DIV" and scale is None:
        return False
    if not _fold(context, layer, scale, shift):
        return False
    layer.options[_FUSED] = op.options.get(_FUSED, "NONE")
    _bypass(context, op, x)
    return True


def _fold(
    context: _Context, layer: Op, scale: np.ndarray | np.float64 | None, shift: np.ndarray | None
) -> bool:
    """Put a scale and a shift per channel into a layer's constants."""
    position = _BIAS.get(layer.code, 2)
    weight = layer.inputs[1]
    bias = layer.inputs[position] if position < len(layer.inputs) else None
    if layer.options.get(_FUSED, "NONE") != "NONE" or (bias is not None and bias.data is None):
        return False
    if weight is None or (scale is not None and weight.data is None):
        return False
    if scale is not None and len(context.consumers[weight]) > 1:
        return False  # a second copy of a shared weight costs more than a MUL
    channels = layer.outputs[0].shape[-1]
    b = np.zeros(channels) if bias is None else np.asarray(bias.data, np.float64)
    graph = context.graph
    if scale is not None:
        assert weight.data is not None
        shape = [1] * weight.rank
        shape[_CHANNEL_AXIS[layer.code]] = -1
        scaled = weight.data * np.broadcast_to(scale, (channels,)).reshape(shape)
        layer.inputs[1] = graph.const(scaled.astype(np.float32), name=weight.name)
        b = b * scale
    if shift is not None:
        b = b + shift
    if bias is None and not np.any(b):
        return True
    name = bias.name if bias is not None else f"{layer.outputs[0].name}/bias"
    made = graph.const(b.astype(np.float32), name=name)
    layer.inputs = [*layer.inputs[:position], made]
    return True


def _activation(context: _Context, op: Op) -> bool:
    if op.code not in _ACTIVATIONS:
        return False
    x = op.inputs[0]
    assert x is not None
    producer, _ = context.source(x)
    if producer is None or producer.code not in _ACTIVATED or x.dtype != "float32":
        return False
    if producer.options.get(_FUSED, "NONE") != "NONE":
        return False
    producer.options[_FUSED] = op.code
    _bypass(context, op, x)
    return True


def _window(op: Op) -> list[tuple[int, int]] | None:
    """(effective window, stride) of the spatial dimensions of a VALID op."""
    o = op.options
    if op.code in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        weight = op.inputs[1]
        assert weight is not None
        kernel = weight.shape[1:3]
    elif op.code == "MAX_POOL_2D":
        kernel = (o["filter_height"], o["filter_width"])
    else:
        return None
    factors = (o.get("dilation_h_factor", 1), o.get("dilation_w_factor", 1))
    sizes = [d * (k - 1) + 1 for k, d in zip(kernel, factors, strict=True)]
    return list(zip(sizes, (o["stride_h"], o["stride_w"]), strict=True))


def _same(context: _Context, op: Op) -> bool:
    """PAD and a VALID window that together are SAME."""
    if op.options.get("padding") != "VALID" or context.graph.any_size:
        return False
    x = op.inputs[0]
    before = None if x is None else context.producers.get(x)
    wanted = "PADV2" if op.code == "MAX_POOL_2D" else "PAD"
    if before is None or before.code != wanted or (windows := _window(op)) is None:
        return False
    inner, table = before.inputs[0], before.inputs[1]
    if inner is None or table is None or table.data is None:
        return False
    if wanted == "PADV2" and not _is_lowest(before.inputs[2]):
        return False
    expected = [[0, 0]]
    for n, (window, stride) in zip(inner.shape[1:3], windows, strict=True):
        total = max((-(-n // stride) - 1) * stride + window - n, 0)
        expected.append([total // 2, total - total // 2])
    if table.data.tolist() != [*expected, [0, 0]]:
        return False
    out = op.outputs[0].shape[1:3]
    if any(-(-n // s) != o for n, (_, s), o in zip(inner.shape[1:3], windows, out, strict=True)):
        return False
    op.inputs[0] = inner
    op.options["padding"] = "SAME"
    return True


def _is_lowest(v: Value | None) -> bool:
    return v is not None and v.data is not None and bool(np.all(np.isneginf(v.data)))


def _pool_padding(context: _Context, op: Op) -> bool:
    """A maximum over values >= 0 may be padded with zeros: PAD is fast where PADV2 is not."""
    if op.code != "PADV2" or not _is_lowest(op.inputs[2]):
        return False
    x = op.inputs[0]
    readers = context.consumers.get(op.outputs[0], [])
    if x is None or any(r.code != "MAX_POOL_2D" for r in readers):
        return False
    producer = context.producers.get(x)
    if producer is None:
        return False
    relu = ("RELU", "RELU6")
    if producer.code not in relu and producer.options.get(_FUSED) not in relu:
        return False
    op.code, op.inputs = "PAD", op.inputs[:2]
    return True
