"""The modes that change weights only and need no samples.

    int8-dynamic  int8 weights of convolutions and linear layers; their kernels quantise the
                  activations at run time
    int8-weight   int8 constants, made float32 again by a DEQUANTIZE before their op
    int4-weight   the same in 4 bits
    float16       the same in float16

Only constants of more than `SMALLEST` elements change: scalars and biases cost nothing.
"""

from __future__ import annotations

import numpy as np

from litert_export.graph import Graph, Op, Value
from litert_export.quantize import params, traits
from litert_export.quantize.config import QuantConfig

SMALLEST = 256
# Kernels that take int8 weights beside float32 data.
_HYBRID = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"})


class _Weights:
    def __init__(self, graph: Graph, config: QuantConfig, warnings: list[str]) -> None:
        self.graph, self.config, self.warnings = graph, config, warnings
        self.dtype = {"int4-weight": "int4", "float16": "float16"}.get(config.mode, "int8")
        self.stored: dict[tuple[int, int | None], Value] = {}
        self.dequantized: dict[Value, Value] = {}

    def run(self) -> None:
        old, self.graph.ops = self.graph.ops, []
        for op in old:
            for i, v in enumerate(op.inputs):
                if v is not None and v.data is not None and _is_weight(v):
                    op.inputs[i] = self._operand(op, i, v)
            self.graph.ops.append(op)

    def _operand(self, op: Op, position: int, v: Value) -> Value:
        axis = _axis(op, position, v)
        if self.config.mode == "int8-dynamic":
            weighted = op.code in _HYBRID and position == traits.WEIGHTED[op.code][1]
            data = op.inputs[0]
            if weighted and data is not None and data.data is None:
                if op.code == "FULLY_CONNECTED":
                    op.options["asymmetric_quantize_inputs"] = False
                return self._store(v, axis)
            if op.code not in ("TRANSPOSE_CONV", "BATCH_MATMUL", "GATHER"):
                return v
        return self._dequantized(self._store(v, axis), op)

    def _store(self, v: Value, axis: int | None) -> Value:
        key = (id(v), axis)
        if key not in self.stored:
            assert v.data is not None
            name = v.name if not any(k[0] == id(v) for k in self.stored) else None
            name = name or self.graph.unique(v.name)
            if self.dtype == "float16":
                limit = float(np.finfo(np.float16).max)
                data = np.clip(v.data, -limit, limit).astype(np.float16)
                if np.any(np.isfinite(v.data) & (np.abs(v.data) > limit)):
                    self.warnings.append(f"{v.name}: numbers beyond float16's range are cut off")
                self.stored[key] = Value(name, v.shape, "float16", data, v.source)
            else:
                q = params.weight(v.data, axis, self.dtype)
                data = params.quantized(v.data, q, self.dtype, narrow=True)
                self.stored[key] = Value(name, v.shape, self.dtype, data, v.source, quantization=q)
        return self.stored[key]

    def _dequantized(self, stored: Value, op: Op) -> Value:
        if stored not in self.dequantized:
            made = Value(self.graph.unique(f"{stored.name}/float"), stored.shape, "float32")
            self.graph.ops.append(Op("DEQUANTIZE", [stored], [made], {}, op.source))
            self.dequantized[stored] = made
        return self.dequantized[stored]


def _is_weight(v: Value) -> bool:
    return v.dtype == "float32" and v.size >= SMALLEST and v.rank >= 1


def _axis(op: Op, position: int, v: Value) -> int | None:
    """The axis along which a constant has its scales."""
    if op.code in traits.WEIGHTED and position == traits.WEIGHTED[op.code][1]:
        return traits.WEIGHTED[op.code][0]
    if v.rank < 2:
        return None
    if op.code == "BATCH_MATMUL":
        return v.rank - 1 if not op.options.get("adj_y") else v.rank - 2
    return 0


def quantize(graph: Graph, config: QuantConfig, warnings: list[str]) -> Graph:
    """Change the constants of a graph and of its subgraphs in place; returns it.

    Args:
        warnings: gets a sentence for each constant that lost more than precision.
    """
    for inner in graph.graphs:
        _Weights(inner, config, warnings).run()
    return graph
