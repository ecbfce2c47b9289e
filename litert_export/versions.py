"""Operator versions: the lowest one that covers a call, as older runtimes and compilers demand.

The rules are those of the LiteRT runtime's own version table: number types, ranks, options and the
count of inputs decide. `minimum_runtime` names the first TensorFlow Lite release with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from litert_export.graph import Op

_INT8_2 = frozenset({
    "ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "AVERAGE_POOL_2D", "MAX_POOL_2D", "LOGISTIC",
    "TANH", "SOFTMAX", "CONCATENATION", "PAD", "PADV2", "MEAN", "SUM", "REDUCE_MAX",
    "REDUCE_MIN", "REDUCE_PROD", "RELU", "RELU6", "RSQRT", "PACK", "UNPACK", "SPLIT",
    "SPLIT_V", "SLICE", "STRIDED_SLICE", "TRANSPOSE", "GATHER", "ARG_MAX", "ARG_MIN", "SELECT",
    "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "RESIZE_BILINEAR",
    "RESIZE_NEAREST_NEIGHBOR", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "TOPK_V2", "EXP", "LOG",
    "SQRT", "SQUARED_DIFFERENCE", "LOG_SOFTMAX", "L2_NORMALIZATION", "ABS", "GELU",
    "MIRROR_PAD", "BATCH_MATMUL", "DEQUANTIZE", "TRANSPOSE_CONV", "SPACE_TO_BATCH_ND",
    "BATCH_TO_SPACE_ND", "LEAKY_RELU",
})  # fmt: skip
_INT8_3 = frozenset({
    "CONV_2D", "DEPTHWISE_CONV_2D", "TILE", "REVERSE_V2", "CAST", "BROADCAST_TO",
})  # fmt: skip
_INT64 = {"ADD": 4, "SUB": 4, "MUL": 5, "RANGE": 2}
_BOOL = {
    "GATHER": 3, "TRANSPOSE": 3, "STRIDED_SLICE": 3, "UNPACK": 3, "ARG_MAX": 3, "ARG_MIN": 3,
    "PAD": 5, "GATHER_ND": 5, "REVERSE_V2": 2, "FILL": 2,
}  # fmt: skip
_FLOAT16 = {
    "ADD": 6, "MUL": 8, "TRANSPOSE": 9, "SLICE": 8, "CONCATENATION": 6, "SOFTMAX": 4, "GELU": 3,
    "SIN": 2, "COS": 2, "FILL": 4,
}  # fmt: skip
_RANK5 = {"SLICE": 5, "STRIDED_SLICE": 4, "PAD": 4, "SELECT": 3}
_BROADCAST5 = {"MAXIMUM": 3, "MINIMUM": 3, "SUB": 3, "DIV": 2}


_INT16 = {
    **dict.fromkeys((
        "ADD", "LOGISTIC", "TANH", "SOFTMAX", "CONCATENATION", "PAD", "MEAN", "RELU", "RELU6",
        "AVERAGE_POOL_2D", "MAX_POOL_2D", "BATCH_MATMUL", "PACK", "DEQUANTIZE",
    ), 3),
    **dict.fromkeys((
        "MUL", "MAXIMUM", "MINIMUM", "SLICE", "SPLIT", "UNPACK", "RESIZE_BILINEAR",
        "RESIZE_NEAREST_NEIGHBOR", "CONV_2D",
    ), 4),
    "SUB": 5, "TRANSPOSE": 5, "EQUAL": 5, "LEAKY_RELU": 2, "FULLY_CONNECTED": 7,
    "DEPTHWISE_CONV_2D": 5, "GATHER": 4, "STRIDED_SLICE": 4, "CAST": 4,
}  # fmt: skip


def _weights(op: Op) -> tuple[str, str, bool]:
    """(type of the data, type of the weights, whether these have a scale per channel)."""
    x, w = op.inputs[0], op.inputs[1]
    assert x is not None and w is not None
    scales = 1 if w.quantization is None else w.quantization.scale.size
    return x.dtype, w.dtype, scales > 1


def _fully_connected(op: Op) -> int:
    x, w, per_channel = _weights(op)
    found = 1
    if len(op.inputs) == 2:
        found = 6
    elif op.options.get("keep_num_dims"):
        found = 5
    if x == "float32" and w != "float32":
        found = max(found, 12 if per_channel else 3)
    if w == "int4":
        found = max(found, 13 if x == "int16" else 10)
    return found


def _conv_2d(op: Op) -> int:
    x, w = op.inputs[0], op.inputs[1]
    assert x is not None and w is not None
    found = 6 if x.shape[3] != w.shape[3] else 1
    kind, weights, per_channel = _weights(op)
    if kind == "float32" and weights != "float32":
        found = max(found, 5 if per_channel else 2)
    return max(found, 7) if weights == "int4" else found


def _depthwise(op: Op) -> int:
    factors = (op.options.get("dilation_w_factor", 1), op.options.get("dilation_h_factor", 1))
    found = 1 if factors == (1, 1) else 2
    kind, weights, per_channel = _weights(op)
    if kind == "float32" and weights != "float32":
        found = max(found, 6 if per_channel else 4)
    return max(found, 7) if weights == "int4" else found


def _mul(op: Op) -> int:
    """int8 products whose scale is above the result's need another multiplier."""
    a, b = (v.quantization for v in op.inputs if v is not None)
    out = op.outputs[0].quantization
    if op.outputs[0].dtype != "int8" or a is None or b is None or out is None:
        return 1
    return 3 if float(a.scale[0]) * float(b.scale[0]) / float(out.scale[0]) >= 1 else 1


def _quantize(op: Op) -> int:
    types = {v.dtype for v in (*op.inputs, *op.outputs) if v is not None}
    return 2 if types & {"int16", "uint8"} or len(types) == 1 or "float32" not in types else 1


def _dequantize(op: Op) -> int:
    x = op.inputs[0]
    assert x is not None
    if x.dtype == "int4":
        return 6
    if x.quantization is not None and x.quantization.scale.size > 1:
        return 5
    return {"float16": 3, "int16": 3, "int8": 2}.get(x.dtype, 1)


def _transpose_conv(op: Op) -> int:
    if op.options.get("fused_activation_function", "NONE") != "NONE":
        return 4
    return 3 if len(op.inputs) > 3 else 1


def _transpose(op: Op) -> int:
    rank = op.outputs[0].rank
    return 1 if rank < 5 else {5: 4, 6: 6}.get(rank, 8)


def _resize_bilinear(op: Op) -> int:
    return 3 if op.options.get("half_pixel_centers") else 1


def _resize_nearest(op: Op) -> int:
    flags = op.options.get("half_pixel_centers") or op.options.get("align_corners")
    return 3 if flags else 1


def _gather(op: Op) -> int:
    return 5 if op.options.get("batch_dims") else 1


def _strided_slice(op: Op) -> int:
    if op.options.get("offset"):
        return 8
    return 6 if op.options.get("ellipsis_mask") or op.options.get("new_axis_mask") else 1


def _cast(op: Op) -> int:
    types = {v.dtype for v in [op.inputs[0], op.outputs[0]] if v is not None}
    if "bfloat16" in types:
        return 7
    if types & {"float16", "float64"}:
        return 5
    return 3 if "int8" in types else 1


def _space(op: Op) -> int:
    return 1 if op.outputs[0].rank == 4 else 3


def _where(op: Op) -> int:
    x = op.inputs[0]
    return 1 if x is not None and x.dtype == "bool" else 2


_RULES: dict[str, Callable[[Op], int]] = {
    "FULLY_CONNECTED": _fully_connected,
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transpose_conv,
    "MUL": _mul,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
    "TRANSPOSE": _transpose,
    "RESIZE_BILINEAR": _resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": _resize_nearest,
    "GATHER": _gather,
    "STRIDED_SLICE": _strided_slice,
    "CAST": _cast,
    "SPACE_TO_BATCH_ND": _space,
    "BATCH_TO_SPACE_ND": _space,
    "WHERE": _where,
    "BROADCAST_TO": lambda op: 2,
}


def version(op: Op, dtype: str | None = None) -> int:
    """The lowest version of the operator that covers this call.

    Args:
        dtype: as if its data had this type.
    """
    present = [v for v in op.inputs if v is not None]
    # The first data operand decides; index and shape parameters come after it, SPLIT's before it.
    main = present[0] if present else op.outputs[0]
    if op.code == "SPLIT":
        main = present[-1]
    elif op.code == "TRANSPOSE_CONV":
        main = present[2]
    found = [1]
    if op.code in _RULES:
        found.append(_RULES[op.code](op))
    rank = max([v.rank for v in present], default=0)
    if rank >= 5:
        found.append(_RANK5.get(op.code, 1))
        if len({v.shape for v in present}) > 1:
            found.append(_BROADCAST5.get(op.code, 1))
    found.append(_by_type(op, dtype or main.dtype))
    return max(found)


def _by_type(op: Op, dtype: str) -> int:
    if dtype == "int8":
        if op.code == "FULLY_CONNECTED":
            return 4
        return 3 if op.code in _INT8_3 else 2 if op.code in _INT8_2 else 1
    table = {"int64": _INT64, "bool": _BOOL, "float16": _FLOAT16, "int16": _INT16}.get(dtype, {})
    return table.get(op.code, 1)


# (operator, version) -> the first release that has it, where that is later than 1.5.
_SINCE: dict[tuple[str, int], tuple[int, int]] = {
    ("FULLY_CONNECTED", 4): (1, 14),
    ("FULLY_CONNECTED", 10): (2, 18),
    ("FULLY_CONNECTED", 12): (2, 18),
    ("CONV_2D", 3): (1, 14),
    ("CONV_2D", 4): (2, 3),
    ("CONV_2D", 5): (2, 4),
    ("CONV_2D", 7): (2, 11),
    ("DEPTHWISE_CONV_2D", 3): (1, 14),
    ("DEPTHWISE_CONV_2D", 5): (2, 3),
    ("DEPTHWISE_CONV_2D", 6): (2, 4),
    ("DEPTHWISE_CONV_2D", 7): (2, 11),
    ("QUANTIZE", 1): (1, 14),
    ("DEQUANTIZE", 2): (1, 14),
    ("DEQUANTIZE", 3): (1, 15),
    ("DEQUANTIZE", 5): (2, 12),
    ("DEQUANTIZE", 6): (2, 18),
    ("MUL", 3): (1, 15),
    ("FULLY_CONNECTED", 5): (2, 0),
    ("FULLY_CONNECTED", 6): (2, 1),
    ("CONV_2D", 6): (2, 9),
    ("TRANSPOSE_CONV", 3): (2, 3),
    ("TRANSPOSE_CONV", 4): (2, 13),
    ("TRANSPOSE", 4): (2, 5),
    ("TRANSPOSE", 6): (2, 12),
    ("SLICE", 5): (2, 4),
    ("STRIDED_SLICE", 4): (2, 1),
    ("STRIDED_SLICE", 6): (2, 6),
    ("RESIZE_BILINEAR", 3): (2, 2),
    ("RESIZE_NEAREST_NEIGHBOR", 3): (2, 3),
    ("BATCH_MATMUL", 1): (2, 3),
    ("BROADCAST_TO", 2): (2, 3),
    ("GELU", 1): (2, 9),
    ("HARD_SWISH", 1): (1, 15),
    ("CUMSUM", 1): (2, 4),
    ("CONV_3D", 1): (2, 5),
    ("CONV_3D_TRANSPOSE", 1): (2, 7),
    ("SELECT_V2", 1): (2, 2),
    ("GATHER", 5): (2, 8),
    ("ADD", 4): (2, 6),
    ("MUL", 5): (2, 9),
    ("ATAN2", 1): (2, 11),
    ("SIGN", 1): (2, 12),
    ("BITWISE_XOR", 1): (2, 13),
    ("RIGHT_SHIFT", 1): (2, 13),
    ("DYNAMIC_UPDATE_SLICE", 1): (2, 9),
    ("STABLEHLO_SCATTER", 1): (2, 15),
    ("STABLEHLO_GATHER", 1): (2, 15),
    ("REDUCE_WINDOW", 1): (2, 15),
}


def minimum_runtime(codes: Iterable[tuple[str, int]]) -> str:
    """The release, such as `2.9.0`, that first has every (operator, version) given."""
    needed = [(1, 5)]
    for code, number in codes:
        needed += [r for (c, v), r in _SINCE.items() if c == code and v <= number]
    major, minor = max(needed)
    return f"{major}.{minor}.0"
