"""Graphs -> the bytes of a LiteRT file: buffers, operator codes, signatures, metadata.

One subgraph per signature; equal constants share one buffer across all of them. Weights go from the
array to the file without passing through Python lists, 16-byte aligned. Past `limit` bytes of
weights the data stands behind the flatbuffer (offset and size in the buffer's entry), which has no
2 GiB bound.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from litert_export import schema, versions
from litert_export.graph import Graph, Op, Quantization, Value

ALIGNMENT = 16
INLINE_LIMIT = (1 << 31) - (1 << 26)  # the flatbuffer format ends at 2 GiB; leave room for the rest
SOURCES = "torch_tpu_unified.sources"  # metadata: {subgraph: {tensor: source line}}


class _Buffers:
    """The file's buffers: number 0 is the empty one, equal data has one number."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any] | None] = [None]
        self._by_address: dict[Any, int] = {}
        self._by_content: dict[bytes, int] = {}
        self._kept: list[Any] = []

    def add(self, array: np.ndarray[Any, Any]) -> int:
        address = (array.__array_interface__["data"][0], array.nbytes, array.strides)
        if address in self._by_address:
            return self._by_address[address]
        # A zero-size constant still needs a buffer with data, else it reads as "not constant".
        flat = _bytes(array)
        digest = hashlib.blake2b(flat.data, digest_size=20).digest()
        digest += flat.nbytes.to_bytes(8, "little")
        number = self._by_content.get(digest)
        if number is None:
            number = self._by_content[digest] = len(self.arrays)
            self.arrays.append(flat)
        self._by_address[address] = number
        self._kept.append(array)  # an address is only a key while its array lives
        return number

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes + ALIGNMENT for a in self.arrays if a is not None)


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array as it lies in a file; of two int4 in a byte the first is the low half."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if array.dtype.name != "int4":
        return flat.view(np.uint8)
    halves = flat.astype(np.int8).view(np.uint8) & 15
    halves = np.concatenate([halves, np.zeros(halves.size % 2, np.uint8)])
    return halves[::2] | halves[1::2] << 4


class _ModelWriter:
    def __init__(self) -> None:
        self.module = schema.generated()
        self.buffers = _Buffers()
        self.codes: dict[tuple[str, int], int] = {}
        self.subgraphs: list[Any] = []
        self.sources: dict[str, dict[str, str]] = {}

    def graph(self, graph: Graph) -> int:
        """Add a graph, and those that it refers to; returns its index."""
        index = len(self.subgraphs)
        self.subgraphs.append(None)
        inner = {i + 1: self.graph(g) for i, g in enumerate(graph.subgraphs)}
        numbers = {id(v): i for i, v in enumerate(graph.values)}
        sub = self.module.SubGraphT()
        sub.name = graph.name
        sub.tensors = [self._tensor(v) for v in graph.values]
        sub.inputs = [numbers[id(v)] for v in graph.inputs]
        sub.outputs = [numbers[id(v)] for v in graph.outputs]
        sub.operators = [self._operator(op, numbers, inner) for op in graph.ops]
        self.subgraphs[index] = sub
        lines = {v.name: v.source for v in graph.values if v.source}
        if lines:
            self.sources[graph.name] = lines
        return index

    def _tensor(self, value: Value) -> Any:
        tensor = self.module.TensorT()
        tensor.name = value.name
        tensor.shape = np.asarray(value.shape, np.int32)
        if value.dynamic:
            tensor.shapeSignature = np.asarray(value.signature, np.int32)
        tensor.type = schema.tensor_type(value.dtype)
        tensor.buffer = 0 if value.data is None else self.buffers.add(value.data)
        tensor.hasRank = True
        tensor.isVariable = value.variable
        if value.quantization is not None:
            tensor.quantization = self._quantization(value.quantization)
        return tensor

    def _quantization(self, given: Quantization) -> Any:
        made = self.module.QuantizationParametersT()
        made.scale = np.asarray(given.scale, np.float32)
        made.zeroPoint = np.asarray(given.zero_point, np.int64)
        made.quantizedDimension = given.axis
        return made

    def _operator(self, op: Op, numbers: dict[int, int], inner: dict[int, int]) -> Any:
        result = self.module.OperatorT()
        result.opcodeIndex = self._code(op)
        result.inputs = np.array([-1 if v is None else numbers[id(v)] for v in op.inputs], np.int32)
        result.outputs = np.array([numbers[id(v)] for v in op.outputs], np.int32)
        name, member, union = schema.options_class(op.code)
        if name is not None:
            # A graph's own numbering of its subgraphs becomes the file's.
            options = {
                k: inner[v] if k.endswith("subgraph_index") else v for k, v in op.options.items()
            }
            made = schema.make_options(op.code, options)
            if union == 1:
                result.builtinOptionsType, result.builtinOptions = member, made
            else:
                result.builtinOptions2Type, result.builtinOptions2 = member, made
        return result

    def _code(self, op: Op) -> int:
        key = (op.code, versions.version(op))
        return self.codes.setdefault(key, len(self.codes))

    def operator_codes(self) -> list[Any]:
        result = []
        for code, version in self.codes:
            entry = self.module.OperatorCodeT()
            entry.builtinCode = schema.builtin_code(code)
            # Readers of older schemas look here; 127 sends newer ones to the wide field.
            entry.deprecatedBuiltinCode = min(entry.builtinCode, 127)
            entry.version = version
            result.append(entry)
        return result

    def signature(self, key: str, graph: Graph, index: int) -> Any:
        numbers = {id(v): i for i, v in enumerate(graph.values)}
        result = self.module.SignatureDefT()
        result.signatureKey, result.subgraphIndex = key, index
        result.inputs = self._map(graph.input_names, graph.inputs, numbers)
        result.outputs = self._map(graph.output_names, graph.outputs, numbers)
        return result

    def _map(self, names: list[str], values: list[Value], numbers: dict[int, int]) -> list[Any]:
        entries = []
        for name, value in zip(names, values, strict=True):
            entry = self.module.TensorMapT()
            entry.name, entry.tensorIndex = name, numbers[id(value)]
            entries.append(entry)
        return entries

    def metadata(self, entries: Mapping[str, bytes]) -> list[Any]:
        result = []
        for name, content in entries.items():
            entry = self.module.MetadataT()
            entry.name = name
            entry.buffer = self.buffers.add(np.frombuffer(content, np.uint8))
            result.append(entry)
        return result


def write(
    signatures: Mapping[str, Graph],
    *,
    description: str = "",
    metadata: Mapping[str, bytes] | None = None,
    limit: int = INLINE_LIMIT,
) -> bytes | bytearray:
    """The file's bytes.

    Args:
        signatures: name -> graph; the first is the one that runs without a name.
        metadata: further entries; source lines and the least runtime version are added.
        limit: weights beyond this many bytes go behind the flatbuffer.
    """
    writer = _ModelWriter()
    model = writer.module.ModelT()
    model.version = 3
    model.description = description
    indices = {key: writer.graph(graph) for key, graph in signatures.items()}
    model.subgraphs = writer.subgraphs
    model.operatorCodes = writer.operator_codes()
    model.signatureDefs = [
        writer.signature(key, graph, indices[key]) for key, graph in signatures.items()
    ]
    entries = {
        "min_runtime_version": versions.minimum_runtime(writer.codes).encode().ljust(16, b"\0")
    }
    if writer.sources:
        entries[SOURCES] = json.dumps(writer.sources).encode()
    model.metadata = writer.metadata({**entries, **(metadata or {})})
    if writer.buffers.nbytes > limit:
        return _pack_offsets(model, writer.buffers)
    return _pack_inline(model, writer.buffers)


def _finish(model: Any, size: int) -> bytearray:
    import flatbuffers

    builder = flatbuffers.Builder(size)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return memoryview(builder.Bytes)[builder.Head() :]  # type: ignore[return-value]


def _pack_inline(model: Any, buffers: _Buffers) -> bytes:
    base = schema.generated().BufferT
    module = schema.generated()

    class AlignedBuffer(base):  # type: ignore[misc,valid-type]
        """Writes its data at a multiple of 16, which the generated class does not."""

        def Pack(self, builder: Any) -> int:
            if self.data is None:
                return int(super().Pack(builder))
            count = len(self.data)
            builder.StartVector(1, count, ALIGNMENT)
            builder.head -= count
            builder.Bytes[builder.head : builder.head + count] = memoryview(self.data)
            builder.vectorNumElems = count
            data = builder.EndVector()
            module.BufferStart(builder)
            module.BufferAddData(builder, data)
            return int(module.BufferEnd(builder))

    model.buffers = [AlignedBuffer(data=a) for a in buffers.arrays]
    return bytes(_finish(model, buffers.nbytes + (1 << 20)))


def _pack_offsets(model: Any, buffers: _Buffers) -> bytearray:
    def entries(offsets: list[int]) -> list[Any]:
        return [
            base() if a is None else base(offset=o, size=max(a.nbytes, 1))
            for a, o in zip(buffers.arrays, offsets, strict=True)
        ]

    base = schema.generated().BufferT
    # First with any offset, so that both fields exist: the header's length is then final.
    model.buffers = entries([2] * len(buffers.arrays))
    position = len(_finish(model, 1 << 20))
    offsets = []
    for a in buffers.arrays:
        position = -(-position // ALIGNMENT) * ALIGNMENT
        offsets.append(position)
        position += 0 if a is None else max(a.nbytes, 1)
    model.buffers = entries(offsets)
    header = _finish(model, 1 << 20)
    result = bytearray(position)
    result[: len(header)] = header
    view = memoryview(result)
    for a, o in zip(buffers.arrays, offsets, strict=True):
        if a is not None and a.nbytes:
            view[o : o + a.nbytes] = a.data
    return result
