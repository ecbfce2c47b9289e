"""The typed graph between lowering and file: `Value`, `Op`, `Graph`.

Lowerings append to it, passes rewrite it, the writer packs it. Shapes are static; a value with
`data` is a constant; every other value is a graph input or the result of exactly one op, and ops
stand in execution order. `verify()` checks that, `text()` is stable and diffs well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from litert_export import schema

_CACHED_BYTES = 4096  # constants up to this size are shared by content, larger ones by address


@dataclasses.dataclass(frozen=True, eq=False)
class Quantization:
    """What the integers of a tensor stand for: `scale * (q - zero_point)`.

    Attributes:
        scale: float32 [n], one for the whole tensor or one per index along `axis`.
        zero_point: int64 [n].
        axis: the dimension that the n entries belong to.
    """

    scale: np.ndarray[Any, Any]
    zero_point: np.ndarray[Any, Any]
    axis: int = 0

    def __str__(self) -> str:
        if self.scale.size == 1:
            return f"{float(self.scale[0]):.6g}*(q{-int(self.zero_point[0]):+d})"
        return f"{self.scale.size} scales on axis {self.axis}"


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor: `shape`, LiteRT type name `dtype`, and `data` when it is a constant.

    `dynamic` holds the dimensions whose size a caller may change; `shape` has their default sizes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: np.ndarray[Any, Any] | None = None
    source: str | None = None
    variable: bool = False
    dynamic: tuple[int, ...] = ()
    quantization: Quantization | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_const(self) -> bool:
        return self.data is not None

    @property
    def signature(self) -> tuple[int, ...]:
        """The shape with -1 for dynamic sizes."""
        return tuple(-1 if i in self.dynamic else d for i, d in enumerate(self.shape))

    def type_text(self) -> str:
        """`float32[1,3,224,224]`; a dynamic size is -1."""
        return f"{self.dtype}[{','.join(map(str, self.signature))}]"


@dataclasses.dataclass(eq=False)
class Pair:
    """A complex value as its two real parts, of one shape; it exists while a graph is emitted."""

    re: Value
    im: Value
    dtype: str = "complex64"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.re.shape

    def type_text(self) -> str:
        """As that of a value."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(eq=False)
class Op:
    """An operator call. An input that is None is an optional one left out.

    `version` is what a file says that was read; 0 for an op that is in no file yet.
    """

    code: str
    inputs: list[Value | None]
    outputs: list[Value]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: str | None = None
    version: int = 0


class ResultType(NamedTuple):
    """What the program expects of one result of the call being lowered."""

    shape: tuple[int, ...]
    dtype: str


class GraphError(AssertionError):
    """A graph breaks its own rules: a bug in a lowering or a pass."""


class Graph:
    """Ops in execution order with named inputs and outputs.

    Attributes:
        inputs, outputs: Values; `input_names`, `output_names` are their names in the signature.
        result: the expected results of the call being lowered (set by the emitter).
        any_size: forms that hold only for some sizes must not be chosen.
        subgraphs: graphs that control-flow ops refer to by index (1 is the first of them).
    """

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.ops: list[Op] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.input_names: list[str] = []
        self.output_names: list[str] = []
        self.result: tuple[ResultType, ...] = ()
        self.scope: str = "op"
        self.source: str | None = None
        self.subgraphs: list[Graph] = []
        self.any_size = False
        self._constants: dict[Any, Value] = {}
        self._names: dict[str, int] = {}

    # building

    def unique(self, name: str) -> str:
        """`name`, or `name_1`, `name_2`, … when it is taken."""
        count = self._names.get(name)
        self._names[name] = (count or 0) + 1
        if count is None:
            return name
        return self.unique(f"{name}_{count}")

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        """Add a graph input, `name` being its name in the signature too."""
        value = Value(self.unique(name), tuple(shape), dtype)
        self.inputs.append(value)
        self.input_names.append(name)
        return value

    def const(self, array: Any, name: str | None = None, dtype: str | None = None) -> Value:
        """A constant; equal small ones and the same large one give the same Value."""
        data = np.asarray(array, schema.numpy_dtype(dtype) if dtype else None)
        if not isinstance(array, (np.ndarray, np.generic)) and dtype is None:
            # Python numbers: what LiteRT's parameter tensors use.
            data = data.astype({"f": np.float32, "i": np.int32}.get(data.dtype.kind, data.dtype))
        key: Any = (data.dtype.str, data.shape)
        if data.nbytes <= _CACHED_BYTES:
            key += (data.tobytes(),)
        else:
            key += (data.__array_interface__["data"][0], data.strides)
        found = self._constants.get(key)
        if found is None:
            label = self.unique(name or f"{self.scope}/const")
            found = Value(label, data.shape, schema.dtype_name(data.dtype), data)
            self._constants[key] = found
        return found

    def emit(
        self,
        code: str,
        *inputs: Value | None,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        outputs: Sequence[tuple[Sequence[int], str]] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Append an op; returns its Value, or the list of them when `outputs` is given.

        Args:
            code: LiteRT's spelling, such as `CONV_2D`.
            shape, dtype: of the result; default: broadcast of the inputs, dtype of the first input.
            outputs: (shape, dtype) of each result, for ops with several.
            options: attributes of the op's options table; an unknown one raises KeyError.
        """
        several = outputs is not None
        if outputs is None:
            present = [v for v in inputs if v is not None]
            if shape is None:
                shape = np.broadcast_shapes(*(v.shape for v in present))
            outputs = [(shape, dtype or present[0].dtype)]
        label = name or f"{self.scope}/{code.lower()}"
        results = [
            Value(self.unique(label), tuple(int(d) for d in s), t, source=self.source)
            for s, t in outputs
        ]
        checked = schema.check_options(code, options)
        self.ops.append(Op(code, list(inputs), results, checked, self.source))
        return results if several else results[0]

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """TRANSPOSE; constants are permuted at once, the identity gives `x` itself."""
        perm = [p % x.rank for p in perm]
        if perm == list(range(x.rank)):
            return x
        shape = tuple(x.shape[p] for p in perm)
        if x.data is not None:
            return self.const(np.ascontiguousarray(x.data.transpose(perm)), name=x.name)
        result: Value = self.emit("TRANSPOSE", x, self.const(np.array(perm, np.int32)), shape=shape)
        return result

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """RESHAPE to a static shape (one -1 allowed); `x` itself when nothing changes."""
        target = [int(d) for d in shape]
        if -1 in target:
            rest = int(np.prod([d for d in target if d != -1], dtype=np.int64))
            target[target.index(-1)] = x.size // rest if rest else 0
        if tuple(target) == x.shape:
            return x
        if x.data is not None:
            return self.const(x.data.reshape(target), name=x.name)
        new = np.array(target, np.int32)
        result: Value = self.emit("RESHAPE", x, self.const(new), shape=target, new_shape=new)
        return result

    def cast(self, x: Value, dtype: str) -> Value:
        """CAST; `x` itself when it has that type already."""
        if x.dtype == dtype:
            return x
        if x.data is not None:
            return self.const(x.data.astype(schema.numpy_dtype(dtype)), name=x.name)
        result: Value = self.emit(
            "CAST", x, shape=x.shape, dtype=dtype, in_data_type=x.dtype, out_data_type=dtype
        )
        return result

    def broadcast_to(self, x: Value, shape: Sequence[int]) -> Value:
        """BROADCAST_TO; lower ranks are padded with ones in front, as PyTorch does."""
        target = tuple(int(d) for d in shape)
        x = self.reshape(x, (1,) * (len(target) - x.rank) + x.shape)
        if x.shape == target:
            return x
        wanted = self.const(np.array(target, np.int32))
        result: Value = self.emit("BROADCAST_TO", x, wanted, shape=target)
        return result

    # reading

    @property
    def values(self) -> list[Value]:
        """Every value in use, in order of first appearance."""
        seen: dict[int, Value] = {}
        for value in self._appearing():
            seen.setdefault(id(value), value)
        return list(seen.values())

    def _appearing(self) -> Iterator[Value]:
        yield from self.inputs
        for op in self.ops:
            yield from (v for v in op.inputs if v is not None)
            yield from op.outputs
        yield from self.outputs

    def consumers(self) -> dict[Value, list[Op]]:
        """Value -> the ops that read it, in order, an op once per use."""
        result: dict[Value, list[Op]] = {}
        for op in self.ops:
            for v in op.inputs:
                if v is not None:
                    result.setdefault(v, []).append(op)
        return result

    def producers(self) -> dict[Value, Op]:
        """Value -> the op that makes it."""
        return {v: op for op in self.ops for v in op.outputs}

    def replace(self, mapping: dict[Value, Value]) -> None:
        """Let every reader of a key read its value instead, graph outputs included."""

        def final(v: Value) -> Value:
            while v in mapping:
                v = mapping[v]
            return v

        for op in self.ops:
            op.inputs = [None if v is None else final(v) for v in op.inputs]
        self.outputs = [final(v) for v in self.outputs]

    @property
    def graphs(self) -> list[Graph]:
        """The graph and all graphs inside it, at any depth."""
        return [self, *(g for inner in self.subgraphs for g in inner.graphs)]

    def histogram(self) -> dict[str, int]:
        """Operator -> number of calls, subgraphs included, the most frequent first."""
        counts: dict[str, int] = {}
        for graph in self.graphs:
            for op in graph.ops:
                counts[op.code] = counts.get(op.code, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def verify(self) -> None:
        """Check the graph's rules.

        Raises:
            GraphError: a value is read before it is made, made twice, or a constant's data does not
                fit its shape and type.
        """
        known: set[int] = {id(v) for v in self.inputs}
        names: dict[str, Value] = {}
        for op in self.ops:
            for v in op.inputs:
                if v is not None and v.data is None and not v.variable and id(v) not in known:
                    raise GraphError(f"{op.code} reads {v.name} before it is made")
            for v in op.outputs:
                if id(v) in known or v.data is not None:
                    raise GraphError(f"{op.code} makes {v.name}, which exists already")
                known.add(id(v))
        for v in self.outputs:
            if v.data is None and id(v) not in known:
                raise GraphError(f"the output {v.name} is never made")
        for v in self.values:
            if names.setdefault(v.name, v) is not v:
                raise GraphError(f"two values are called {v.name}")
            self._verify_value(v)
        for graph in self.subgraphs:
            graph.verify()

    @staticmethod
    def _verify_value(v: Value) -> None:
        if v.dtype not in schema.DTYPES:
            raise GraphError(f"{v.name} has the unknown type {v.dtype}")
        if v.data is not None:
            same = v.data.shape == v.shape and v.data.dtype == schema.numpy_dtype(v.dtype)
            if not same:
                raise GraphError(
                    f"{v.name} is {v.type_text()}, its data {v.data.dtype}{list(v.data.shape)}"
                )

    def text(self, *, data: bool = True) -> str:
        """One line per op; constants of up to eight elements are shown when `data` is set."""

        def ref(v: Value | None) -> str:
            if v is None:
                return "-"
            if v.data is None:
                return v.name
            if data and v.data.size <= 8:
                shown = np.array2string(v.data, separator=",", max_line_width=10**6)
                return f"{v.dtype}{shown}{_scaled(v)}"
            return f"const {v.type_text()}{_scaled(v)}"

        lines = [f"graph {self.name}"]
        for label, v in zip(self.input_names, self.inputs, strict=True):
            lines.append(f"  input {label}: {v.type_text()}{_scaled(v)} = {v.name}")
        for op in self.ops:
            made = ", ".join(f"{v.name}: {v.type_text()}{_scaled(v)}" for v in op.outputs)
            options = ", ".join(f"{k}={_show(v)}" for k, v in sorted(op.options.items()))
            call = f"{op.code}({', '.join(map(ref, op.inputs))})"
            lines.append(f"  {made} = {call}" + (f" {{{options}}}" if options else ""))
        for label, v in zip(self.output_names, self.outputs, strict=True):
            lines.append(f"  output {label}: {v.type_text()} = {ref(v)}")
        return "\n".join([*lines, *(s.text(data=data) for s in self.subgraphs)]) + "\n"


def _scaled(v: Value) -> str:
    return f" {v.quantization}" if v.quantization is not None else ""


def _show(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(value.tolist())
    return str(value)


def broadcast_shape(values: Iterable[Value]) -> tuple[int, ...]:
    """The broadcast of the values' shapes."""
    return tuple(np.broadcast_shapes(*(v.shape for v in values)))
