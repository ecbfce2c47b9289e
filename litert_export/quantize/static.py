"""Writes the integer graph: int8 throughout, or int16 activations with int8 weights.

Walks the float graph in order. Every float value has an integer form, made by the op that made the
value; where an op stays in float32 (because the user said so), DEQUANTIZE and QUANTIZE stand around
it. Nothing stays in float32 unasked.
"""

from __future__ import annotations

import dataclasses
import fnmatch

import numpy as np

from litert_export import schema
from litert_export.graph import Graph, Op, Quantization, Value
from litert_export.passes import cleanup
from litert_export.quantize import params, traits
from litert_export.quantize.config import QuantConfig
from litert_export.quantize.regions import Regions
from litert_export.quantize.scales import Scales
from torch_tpu_unified.core.errors import ConversionError


def named_ops(graph: Graph, config: QuantConfig) -> set[Op]:
    """The ops that stay in float32 because the user named them."""
    if not config.float_layers:
        return set()
    touched = (op for op in graph.ops if traits.touches_float(op))
    return {op for op in touched if _named(op, config.float_layers)}


def float_ops(graph: Graph, config: QuantConfig, regions: Regions) -> set[Op]:
    """The ops that stay in float32: those that the user named, and those that have to.

    Raises:
        ConversionError: ops have no integer form, all of them, and `allow_float` is not set.
    """
    touched = [op for op in graph.ops if traits.touches_float(op)]
    chosen = named_ops(graph, config)
    tabled = regions.inside | set(regions.of)
    missing = [
        op
        for op in touched
        if op not in chosen | tabled and not traits.has_integer_form(op, config.activations)
    ]
    if missing and not config.allow_float:
        lines = [f"{config.mode}: operators without an integer form"]
        lines += [
            f"  {op.code} makes {op.outputs[0].name}" + (f"   [{op.source}]" if op.source else "")
            for op in missing
        ]
        lines.append(
            "next: float_layers=(name patterns) or allow_float=True (--allow-float) keeps them in "
            "float32, between DEQUANTIZE and QUANTIZE"
        )
        raise ConversionError("\n".join(lines))
    return chosen | set(missing)


def _named(op: Op, patterns: tuple[str, ...]) -> bool:
    names = [v.name for v in op.outputs] + [v.name for v in op.inputs if v is not None]
    return any(fnmatch.fnmatchcase(n, p) for p in patterns for n in names)


class _Writer:
    def __init__(
        self,
        graph: Graph,
        scales: Scales,
        config: QuantConfig,
        floating: set[Op],
        regions: Regions,
    ) -> None:
        self.graph, self.scales, self.config, self.floating = graph, scales, config, floating
        self.regions = regions
        self.dtype = config.activations
        self.integers: dict[Value, Value] = {}
        self.floats: dict[Value, Value] = {}
        self.constants: dict[tuple[int, str, str], Value] = {}

    def run(self) -> Graph:
        old, self.graph.ops = self.graph.ops, []
        self.graph.inputs = [self._input(v) for v in self.graph.inputs]
        for op in old:
            self.graph.scope, self.graph.source = op.outputs[0].name, op.source
            if op in self.regions.inside:
                continue
            if not traits.touches_float(op):
                self.graph.ops.append(op)
            elif op in self.floating:
                self._stay(op)
            else:
                self._integer(op)
        self.graph.outputs = [self._output(v) for v in self.graph.outputs]
        return cleanup.run(self.graph)

    # ends

    def _input(self, v: Value) -> Value:
        wanted = self.config.input_type or self.dtype
        if v.dtype != "float32":
            return v
        if wanted == "float32":
            self.floats[v] = v
            return v
        made = self.value(v)
        if wanted == self.dtype:
            self.integers[v] = made
            return made
        outer = dataclasses.replace(v, dtype=wanted, quantization=self._ends(v, wanted))
        made.name = self.graph.unique(f"{v.name}/{self.dtype}")
        self.graph.ops.append(Op("QUANTIZE", [outer], [made]))
        self.integers[v] = made
        return outer

    def _output(self, v: Value) -> Value:
        wanted = self.config.output_type or self.dtype
        if v.dtype != "float32":
            return v
        if v.data is not None:
            q = params.activation(params.Range(float(v.data.min()), float(v.data.max())), wanted)
            return v if wanted == "float32" else self.constant(v, q, wanted)
        if wanted == "float32":
            return self.float_(v)
        inner = self.integer(v)
        if wanted == self.dtype:
            return inner
        outer = dataclasses.replace(
            v, name=inner.name, dtype=wanted, quantization=self._ends(v, wanted)
        )
        inner.name = self.graph.unique(f"{v.name}/{self.dtype}")
        self.graph.ops.append(Op("QUANTIZE", [inner], [outer]))
        return outer

    def _ends(self, v: Value, dtype: str) -> Quantization:
        """The same numbers in another integer type."""
        q = self.scales.of[v]
        scale, zero = float(q.scale[0]), int(q.zero_point[0])
        if (self.dtype, dtype) == ("int8", "uint8"):
            return params.one(scale, zero + 128)
        low, high = params.real(np.array(params.LIMITS[self.dtype]), q)
        return params.activation(params.Range(float(low), float(high)), dtype)

    # values

    def value(self, v: Value, q: Quantization | None = None) -> Value:
        """The integer form of a value, not yet made by anything."""
        return Value(
            v.name, v.shape, self.dtype, source=v.source, quantization=q or self.scales.of[v]
        )

    def constant(
        self, v: Value, q: Quantization, dtype: str | None = None, *, narrow: bool = False
    ) -> Value:
        """A constant in integers of a scale; the same one serves all its uses."""
        dtype = dtype or self.dtype
        assert v.data is not None
        key = (id(v), dtype, f"{q.scale.tobytes()!r}{q.zero_point.tobytes()!r}{q.axis}")
        if key not in self.constants:
            data = params.quantized(v.data, q, dtype, narrow=narrow)
            taken = any(k[0] == id(v) for k in self.constants)
            name = self.graph.unique(v.name) if taken else v.name
            self.constants[key] = Value(name, v.shape, dtype, data, v.source, quantization=q)
        return self.constants[key]

    def integer(self, v: Value) -> Value:
        """The integer form of a value, through QUANTIZE where only floats exist."""
        if v not in self.integers:
            made = self.value(v)
            made.name = self.graph.unique(f"{v.name}/{self.dtype}")
            self.graph.ops.append(Op("QUANTIZE", [self.floats[v]], [made], {}, v.source))
            self.integers[v] = made
        return self.integers[v]

    def float_(self, v: Value) -> Value:
        """The float form of a value, through DEQUANTIZE where only integers exist."""
        if v.data is not None:
            return v
        if v not in self.floats:
            made = Value(self.graph.unique(f"{v.name}/float"), v.shape, "float32", source=v.source)
            self.graph.ops.append(Op("DEQUANTIZE", [self.integers[v]], [made], {}, v.source))
            self.floats[v] = made
        return self.floats[v]

    def operand(self, op: Op, position: int) -> Value | None:
        """An operand as it enters the integer op."""
        v = op.inputs[position]
        if v is None or v.dtype != "float32":
            return v
        shared = op.code in traits.SAME
        if v.data is not None:
            q = self._shared(op) if shared else self.scales.constant(op, position, self.dtype)
            return self.constant(v, q)
        if (op, position) not in self.scales.requantised:
            return self.integer(v)
        q = self._shared(op)
        made = self.value(v, q)
        made.name = self.graph.unique(f"{v.name}/rescaled")
        self.graph.ops.append(Op("QUANTIZE", [self.integer(v)], [made], {}, v.source))
        return made

    def _shared(self, op: Op) -> Quantization:
        return self.scales.of[next(v for v in op.outputs if v.dtype == "float32")]

    # ops

    def _stay(self, op: Op) -> None:
        op.inputs = [v if v is None or v.dtype != "float32" else self.float_(v) for v in op.inputs]
        self.graph.ops.append(op)
        self.floats.update({v: v for v in op.outputs if v.dtype == "float32"})

    def _integer(self, op: Op) -> None:
        if op in self.regions.of:
            self._table(op, *self.regions.of[op])
        elif (found := traits.function(op, self.dtype)) is not None:
            self._table(op, op.inputs[found[0]], found[1])
        elif op.code == "CAST":
            self._cast(op)
        elif op.code in traits.WEIGHTED:
            self._weighted(op)
        elif op.code in traits.COMPARE:
            self._compare(op)
        else:
            inputs = [self.operand(op, i) for i in range(len(op.inputs))]
            if op.code == "DIV":
                inputs[1] = self._divisor(op, inputs[1])
            self._append(op, inputs)

    def _append(self, op: Op, inputs: list[Value | None]) -> None:
        outputs = []
        for v in op.outputs:
            made = self.value(v) if v.dtype == "float32" else v
            outputs.append(made)
            if made is not v:
                self.integers[v] = made
        self.graph.ops.append(Op(op.code, inputs, outputs, op.options, op.source))

    def _weighted(self, op: Op) -> None:
        axis, at_weight, at_data, at_bias = traits.WEIGHTED[op.code]
        inputs = list(op.inputs)
        x, w = inputs[at_data], inputs[at_weight]
        assert x is not None and w is not None
        if w.data is None:
            raise ConversionError(f"{op.code} ({op.outputs[0].name}): its weights are computed")
        if x.data is not None:
            data = self.constant(x, self.scales.constant(op, at_data, self.dtype))
        else:
            data = self.integer(x)
        assert data.quantization is not None
        rows = self.config.per_channel_linear and self.config.target != "edgetpu"
        per_channel = op.code != "FULLY_CONNECTED" or rows
        q = params.weight(w.data, axis if per_channel else None)
        b = inputs[at_bias] if at_bias < len(inputs) else None
        if b is not None:
            if b.data is None:
                raise ConversionError(f"{op.code} ({op.outputs[0].name}): its bias is computed")
            q = _with_room(q, data.quantization, b.data)
            scale = params.bias_scale(data.quantization, q)
            inputs[at_bias] = self._bias(b, scale)
        inputs[at_data], inputs[at_weight] = data, self.constant(w, q, "int8", narrow=True)
        self._append(op, inputs)

    def _bias(self, b: Value, q: Quantization) -> Value:
        assert b.data is not None
        dtype = "int64" if self.dtype == "int16" else "int32"
        steps = np.rint(b.data.astype(np.float64) / q.scale.astype(np.float64))
        name = self.graph.unique(b.name)
        return Value(name, b.shape, dtype, steps.astype(dtype), b.source, quantization=q)

    def _divisor(self, op: Op, y: Value | None) -> Value:
        """The divisor, kept from zero: the kernel stops the whole program on it."""
        v = op.inputs[1]
        assert y is not None and y.quantization is not None and v is not None
        zero = int(y.quantization.zero_point[0])
        seen = self.scales.ranges[v]
        if seen.low < 0 < seen.high:
            raise ConversionError(
                f"DIV ({op.outputs[0].name}): the divisor {v.name} has both signs in the "
                f"calibration samples, which {self.config.mode} cannot divide by; "
                "float_layers keeps it in float32"
            )
        code, step = ("MAXIMUM", 1) if seen.low >= 0 else ("MINIMUM", -1)
        data = np.array(zero + step, schema.numpy_dtype(self.dtype))
        least = Value(
            self.graph.unique("least_divisor"), (), self.dtype, data, quantization=y.quantization
        )
        made = dataclasses.replace(y, name=self.graph.unique(f"{y.name}/nonzero"), data=None)
        self.graph.ops.append(Op(code, [y, least], [made], {}, op.source))
        return made

    def _compare(self, op: Op) -> None:
        """At one scale in int32: the kernels of 8 bits stop the program on scales above 1."""
        variables = [v for v in op.inputs if v is not None and v.data is None]
        widest = max((self.scales.of[v] for v in variables), key=lambda q: float(q.scale[0]))
        inputs: list[Value | None] = []
        for v in op.inputs:
            assert v is not None
            if v.data is not None:
                steps = np.rint(v.data.astype(np.float64) / float(widest.scale[0]))
                steps = np.nan_to_num(steps) + float(widest.zero_point[0])
                low, high = params.LIMITS["int32"]
                inputs.append(self.graph.const(np.clip(steps, low, high).astype(np.int32)))
                continue
            x = self.integer(v)
            if str(x.quantization) != str(widest):
                made = self.value(v, widest)
                made.name = self.graph.unique(f"{v.name}/rescaled")
                self.graph.ops.append(Op("QUANTIZE", [x], [made], {}, op.source))
                x = made
            inputs.append(self.graph.cast(x, "int32"))
        self.graph.ops.append(Op(op.code, inputs, op.outputs, op.options, op.source))

    def _cast(self, op: Op) -> None:
        x, out = op.inputs[0], op.outputs[0]
        assert x is not None
        if x.dtype == "float32" and x.data is None:
            kind = schema.numpy_dtype(out.dtype)
            self._table(op, x, lambda a: (a != 0) if kind.kind == "b" else np.trunc(a))
        elif x.dtype == "bool":
            options = {"in_data_type": "bool", "out_data_type": self.dtype}
            self._append(dataclasses.replace(op, options=options), [x])
        else:
            whole = x if x.dtype == "int32" else self.graph.cast(x, "int32")
            # An integer is a quantised number of scale one.
            whole.quantization = whole.quantization or params.one(1.0)
            self._append(dataclasses.replace(op, code="QUANTIZE", options={}), [whole])

    def _table(self, op: Op, v: Value | None, function: traits.Function) -> None:
        """x -> the row of a table that belongs to its integer; exact but for the rounding."""
        out = op.outputs[0]
        assert v is not None
        x = self.integer(v)
        assert x.quantization is not None
        low, high = params.LIMITS[self.dtype]
        with np.errstate(all="ignore"):
            results = function(params.real(np.arange(low, high + 1), x.quantization))
        if out.dtype == "float32":
            q = self.scales.of[out]
            scale, zero = float(q.scale[0]), float(q.zero_point[0])
            steps = np.nan_to_num(results / scale + zero, nan=zero, posinf=high, neginf=low)
            table = np.clip(np.rint(steps), low, high).astype(schema.numpy_dtype(self.dtype))
            made, dtype = self.value(out), self.dtype
        else:
            table = np.nan_to_num(results).astype(schema.numpy_dtype(out.dtype))
            made, dtype, q = out, out.dtype, None
        row = Value(
            self.graph.unique(f"{out.name}/table"), table.shape, dtype, table, quantization=q
        )
        wide = self.graph.cast(x, "int32")
        index = self.graph.emit(
            "ADD", wide, self.graph.const(np.int32(-low)), fused_activation_function="NONE"
        )
        options = {"axis": 0, "batch_dims": 0}
        self.graph.ops.append(Op("GATHER", [row, index], [made], options, op.source))
        if made is not out:
            self.integers[out] = made


def _with_room(w: Quantization, x: Quantization, bias: params.Array) -> Quantization:
    """Weight scales, raised where the bias would not fit int32 at the product of scales."""
    least = np.abs(bias.reshape(-1).astype(np.float64)) / (float(x.scale[0]) * 2**30)
    if w.scale.size == 1:
        least = least.max(initial=0.0, keepdims=True)
    scale = np.maximum(w.scale.astype(np.float64), least).astype(np.float32)
    return Quantization(scale, w.zero_point, w.axis)


def quantize(
    graph: Graph, scales: Scales, config: QuantConfig, floating: set[Op], regions: Regions
) -> Graph:
    """Rewrite a float graph to integers in place; returns it.

    Args:
        scales: of `scales.assign` for the same graph.
        floating: ops that stay in float32, of `float_ops`.
        regions: what becomes tables, of `regions.find`.

    Raises:
        ConversionError: an op's operands have no integer form.
    """
    return _Writer(graph, scales, config, floating, regions).run()
