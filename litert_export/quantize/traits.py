"""What LiteRT's integer kernels demand of their operands, by operator.

    free      every operand has a scale of its own
    fixed     the result's scale is the kernel's (params.FIXED)
    same      data and results share one scale: the kernel moves or picks integers
    weighted  constant symmetric weights, and a bias at the product of two scales
    compare   two operands, taken to one scale; a result that is no number
    pick      an operand of any scale, a result that is an index
    table     an elementwise function of one operand: becomes a look-up of its 256 results

Operands that are no floating data (axes, paddings, indices, conditions) are left alone everywhere.
An operator that is in none of these has no integer form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from litert_export.graph import Op

FREE = frozenset({
    "ADD", "SUB", "MUL", "SQUARED_DIFFERENCE", "DIV", "RELU", "RELU6", "RELU_N1_TO_1", "LEAKY_RELU",
    "HARD_SWISH", "GELU", "ELU", "EXP", "LOG", "RSQRT", "ABS", "MEAN", "SUM", "BATCH_MATMUL",
    "PRELU",
})  # fmt: skip
FIXED = frozenset({"SOFTMAX", "LOGISTIC", "TANH", "L2_NORMALIZATION", "LOG_SOFTMAX"})
SAME = frozenset({
    "AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION", "PACK", "UNPACK", "RESHAPE", "TRANSPOSE",
    "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "PAD", "PADV2", "MIRROR_PAD", "GATHER",
    "GATHER_ND", "SLICE", "STRIDED_SLICE", "SPLIT", "SPLIT_V", "TILE", "BROADCAST_TO",
    "EXPAND_DIMS", "SQUEEZE", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND",
    "BATCH_TO_SPACE_ND", "REVERSE_V2", "MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN", "SELECT",
    "SELECT_V2", "DYNAMIC_UPDATE_SLICE", "DILATE", "TOPK_V2", "FILL", "ONE_HOT",
})  # fmt: skip
# Operator -> (axis of the weight with the output channels, its operand, the data's, the bias's).
WEIGHTED: dict[str, tuple[int, int, int, int]] = {
    "CONV_2D": (0, 1, 0, 2),
    "DEPTHWISE_CONV_2D": (3, 1, 0, 2),
    "FULLY_CONNECTED": (0, 1, 0, 2),
    "TRANSPOSE_CONV": (0, 1, 2, 3),
}
COMPARE = frozenset({
    "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL",
})  # fmt: skip
PICK = frozenset({"ARG_MAX", "ARG_MIN"})
# Kernels that int8 has and int16 has not.
NO_INT16 = frozenset({
    "HARD_SWISH", "GELU", "ELU", "EXP", "LOG", "RSQRT", "ABS", "RELU_N1_TO_1", "LOG_SOFTMAX",
    "L2_NORMALIZATION",
})  # fmt: skip

Function = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(options: dict[str, Any]) -> Function:
    if options.get("approximate"):
        inner = math.sqrt(2 / math.pi)
        return lambda x: 0.5 * x * (1 + np.tanh(inner * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))


FUNCTIONS: dict[str, Callable[[dict[str, Any]], Function]] = {
    "SQUARE": lambda o: np.square,
    "SQRT": lambda o: np.sqrt,
    "RSQRT": lambda o: lambda x: 1 / np.sqrt(x),
    "SIN": lambda o: np.sin,
    "COS": lambda o: np.cos,
    "EXP": lambda o: np.exp,
    "LOG": lambda o: np.log,
    "FLOOR": lambda o: np.floor,
    "CEIL": lambda o: np.ceil,
    "ROUND": lambda o: np.rint,
    "SIGN": lambda o: np.sign,
    "ABS": lambda o: np.abs,
    "NEG": lambda o: np.negative,
    "ELU": lambda o: lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "HARD_SWISH": lambda o: lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "GELU": _gelu,
    "RELU_0_TO_1": lambda o: lambda x: np.clip(x, 0, 1),
    "RELU_N1_TO_1": lambda o: lambda x: np.clip(x, -1, 1),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "POW": np.power,
    "DIV": np.divide,
    "ATAN2": np.arctan2,
    "FLOOR_DIV": lambda a, b: np.floor(a / b),
    "FLOOR_MOD": np.mod,
}


def data_inputs(op: Op) -> list[int]:
    """Positions of the operands that hold floating data."""
    return [i for i, v in enumerate(op.inputs) if v is not None and v.dtype == "float32"]


def function(op: Op, dtype: str) -> tuple[int, Function] | None:
    """(position of the variable operand, float64 function) of an op that a table can replace.

    None where the kernel itself serves, or where there are two variables.
    """
    has_kernel = op.code in FREE and not (dtype == "int16" and op.code in NO_INT16)
    if has_kernel and op.code != "DIV":
        return None
    if op.code in FUNCTIONS:
        return 0, FUNCTIONS[op.code](op.options)
    if op.code not in BINARY:
        return None
    variable = [i for i in data_inputs(op) if op.inputs[i].data is None]  # type: ignore[union-attr]
    constant = [v for v in op.inputs if v is not None and v.data is not None]
    if len(variable) != 1 or len(constant) != 1 or constant[0].size != 1:
        return None
    assert constant[0].data is not None
    c, f = float(constant[0].data.reshape(-1)[0]), BINARY[op.code]
    return variable[0], (lambda x: f(x, c)) if variable[0] == 0 else (lambda x: f(c, x))


def touches_float(op: Op) -> bool:
    """Whether an op reads or makes floating numbers."""
    present = [v for v in (*op.inputs, *op.outputs) if v is not None]
    return any(v.dtype == "float32" for v in present)


def has_integer_form(op: Op, dtype: str) -> bool:
    """Whether an op can be computed on integers of the type."""
    if function(op, dtype) is not None:
        return True
    if dtype == "int16" and op.code in NO_INT16:
        return False
    return (
        op.code in FREE | FIXED | SAME | COMPARE | PICK or op.code in WEIGHTED or op.code == "CAST"
    )
