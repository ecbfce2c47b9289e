"""LiteRT files -> Graphs, for inspection, comparison and tests.

Reads what any converter wrote, not only our own. A custom operator's name is kept in its options.
Bad files give one InputError that says what is wrong with them.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from litert_export import schema
from litert_export.graph import Graph, Op, Quantization, Value
from litert_export.writer import SOURCES
from torch_tpu_unified.core.errors import InputError


def load_bytes(model: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Any:
    """The file's content (mapped, not copied, when a path is given).

    Raises:
        InputError: there is no such file, or it is no LiteRT file.
    """
    if isinstance(model, (bytes, bytearray, memoryview, mmap.mmap)):
        content: Any = model
        name = "the model"
    else:
        name = str(model)
        path = Path(model)
        if not path.is_file():
            raise InputError(f"{name}: no such file")
        if path.stat().st_size == 0:
            raise InputError(f"{name}: the file is empty")
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(content) < 8 or bytes(content[4:8]) != b"TFL3":
        raise InputError(f"{name}: not a LiteRT file (it lacks the TFL3 mark)")
    return content


def unpack(model: Any) -> Any:
    """The generated API's ModelT of a file.

    Raises:
        InputError: the file is damaged.
    """
    content = load_bytes(model)
    try:
        return schema.generated().ModelT.InitFromPackedBuf(content, 0)
    except Exception as err:  # the flatbuffer reader raises struct, index, value and memory errors
        raise InputError(f"the LiteRT file is damaged ({type(err).__name__}: {err})") from err


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


class _Reader:
    def __init__(self, content: Any) -> None:
        self.content = content
        self.model = unpack(content)
        self.codes = [
            (max(c.builtinCode, c.deprecatedBuiltinCode), _text(c.customCode), c.version)
            for c in self.model.operatorCodes or []
        ]
        names = {i: _text(s.signatureKey) for s in self._signatures() for i in [s.subgraphIndex]}
        self.graphs = [self._graph(i, names.get(i)) for i in range(len(self.model.subgraphs or []))]
        for s in self._signatures():
            self._name_ends(s)
        lines = self._lines()
        for graph in self.graphs:
            of = lines.get(graph.name, {})
            for op in graph.ops:
                op.source = next((of[v.name] for v in op.outputs if v.name in of), None)

    def _signatures(self) -> list[Any]:
        return list(self.model.signatureDefs or [])

    def _data(self, number: int, dtype: str, shape: tuple[int, ...]) -> Any:
        buffer = self.model.buffers[number]
        if buffer.offset > 1 and buffer.data is None:
            raw = np.frombuffer(self.content, np.uint8, buffer.size, buffer.offset)
        elif buffer.data is None:
            return None
        else:
            raw = np.asarray(buffer.data, np.uint8)
        if dtype in ("string", "variant", "resource"):
            return None
        count = int(np.prod(shape, dtype=np.int64))
        kind = schema.numpy_dtype(dtype)
        if dtype == "int4":
            # Two to a byte; a shift left and back carries the sign.
            halves = np.stack([raw << 4, raw & 0xF0], 1).view(np.int8).reshape(-1)[:count] >> 4
            return halves.reshape(shape).astype(kind) if halves.size == count else None
        if raw.nbytes < count * kind.itemsize:
            return None
        raw = np.ascontiguousarray(raw[: count * kind.itemsize])
        return raw.view(kind).reshape(shape)

    def _tensor(self, t: Any) -> Value:
        shape = () if t.shape is None else tuple(int(d) for d in t.shape)
        dtype = schema.DTYPES[t.type] if t.type < len(schema.DTYPES) else f"type{t.type}"
        data = self._data(t.buffer, dtype, shape) if t.buffer else None
        dynamic = tuple(i for i, d in enumerate(_ints(t.shapeSignature)) if d == -1)
        return Value(
            _text(t.name),
            shape,
            dtype,
            data,
            variable=bool(t.isVariable),
            quantization=_quantization(t.quantization),
            dynamic=dynamic,
        )

    def _graph(self, index: int, name: str | None) -> Graph:
        sub = self.model.subgraphs[index]
        graph = Graph(name or _text(sub.name) or f"subgraph_{index}")
        tensors = [self._tensor(t) for t in sub.tensors or []]
        for v in tensors:
            v.name = graph.unique(v.name)
        graph.inputs = [tensors[i] for i in _ints(sub.inputs)]
        graph.outputs = [tensors[i] for i in _ints(sub.outputs)]
        graph.input_names = [v.name for v in graph.inputs]
        graph.output_names = [v.name for v in graph.outputs]
        graph.ops = [self._op(o, tensors) for o in sub.operators or []]
        return graph

    def _op(self, operator: Any, tensors: list[Value]) -> Op:
        number, custom, version = self.codes[operator.opcodeIndex]
        code = schema.builtin_names().get(number, f"CODE_{number}")
        made = operator.builtinOptions or operator.builtinOptions2
        options = {} if made is None else {schema.snake(k): v for k, v in vars(made).items()}
        options = {k: schema.enum_names(k).get(_plain(v), v) for k, v in options.items()}
        if code == "CUSTOM":
            options["custom_code"] = custom
        return Op(
            code,
            [None if i < 0 else tensors[i] for i in _ints(operator.inputs)],
            [tensors[i] for i in _ints(operator.outputs)],
            options,
            version=version,
        )

    def _lines(self) -> dict[str, dict[str, str]]:
        """Graph -> tensor -> the source line that our writer noted."""
        for entry in self.model.metadata or []:
            if _text(entry.name) == SOURCES:
                buffer = self.model.buffers[entry.buffer]
                raw = np.asarray(buffer.data if buffer.data is not None else [], np.uint8)
                found: dict[str, dict[str, str]] = json.loads(raw.tobytes() or b"{}")
                return found
        return {}

    def _name_ends(self, signature: Any) -> None:
        graph = self.graphs[signature.subgraphIndex]
        tensors = self.model.subgraphs[signature.subgraphIndex]
        for entries, ends, attribute in (
            (signature.inputs, _ints(tensors.inputs), "input_names"),
            (signature.outputs, _ints(tensors.outputs), "output_names"),
        ):
            names = list(getattr(graph, attribute))
            left = list(entries or [])
            for position, tensor in enumerate(ends):
                found = next((e for e in left if e.tensorIndex == tensor), None)
                if found is not None:
                    left.remove(found)
                    names[position] = _text(found.name)
            setattr(graph, attribute, names)


def _quantization(given: Any) -> Quantization | None:
    if given is None or given.scale is None or not len(given.scale):
        return None
    zeros = np.zeros(len(given.scale)) if given.zeroPoint is None else given.zeroPoint
    return Quantization(
        np.asarray(given.scale, np.float32),
        np.asarray(zeros, np.int64),
        int(given.quantizedDimension),
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, np.integer)) else None


def _ints(array: Any) -> list[int]:
    return [] if array is None else [int(i) for i in array]


def read(model: bytes | bytearray | memoryview | str | os.PathLike[str]) -> dict[str, Graph]:
    """Signature name (else subgraph name) -> Graph, in the file's order.

    Raises:
        InputError: the file does not exist, is no LiteRT file, or is damaged.
    """
    content = load_bytes(model)
    try:
        reader = _Reader(content)
    except InputError:
        raise
    except Exception as err:  # any index of a damaged file may be out of range
        raise InputError(f"the LiteRT file is damaged ({type(err).__name__}: {err})") from err
    result: dict[str, Graph] = {}
    for graph in reader.graphs:
        result[graph.name if graph.name not in result else f"{graph.name}_{len(result)}"] = graph
    return result


def signatures(model: Any) -> dict[str, tuple[list[str], list[str]]]:
    """Signature name -> (input names, output names), in the program's order."""
    found = unpack(model)
    result = {}
    for s in found.signatureDefs or []:
        sub = found.subgraphs[s.subgraphIndex]
        names = []
        for entries, ends in ((s.inputs, sub.inputs), (s.outputs, sub.outputs)):
            ordered, listed = list(entries or []), list(_ints(ends))
            # A tensor that stands twice in the list has no order but the map's own.
            if [e.tensorIndex for e in ordered] != listed:
                order = {t: i for i, t in reversed(list(enumerate(listed)))}
                ordered.sort(key=lambda e: order.get(e.tensorIndex, len(order)))
            names.append([_text(e.name) for e in ordered])
        result[_text(s.signatureKey)] = (names[0], names[1])
    return result
