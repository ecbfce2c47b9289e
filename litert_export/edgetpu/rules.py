"""For one operator of a LiteRT file: does the Edge TPU compiler map it, and if not, why.

A function for each row of the operator table of the compiler's release 16; what has no row runs on
the CPU. Operators and versions that the release does not know make it refuse the whole file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from litert_export.graph import Op, Value

# The highest versions that the release knows (it was built from TensorFlow 2.5).
VERSIONS = {
    "ADD": 3, "ARG_MAX": 2, "ARG_MIN": 2, "AVERAGE_POOL_2D": 3, "BATCH_MATMUL": 4, "CAST": 1,
    "CONCATENATION": 3, "CONV_2D": 5, "DEPTHWISE_CONV_2D": 6, "DEQUANTIZE": 4, "EXP": 1,
    "EXPAND_DIMS": 1, "FULLY_CONNECTED": 9, "HARD_SWISH": 1, "L2_NORMALIZATION": 2,
    "LEAKY_RELU": 2, "LOGISTIC": 3, "MAX_POOL_2D": 3, "MAXIMUM": 4, "MEAN": 3, "MINIMUM": 4,
    "MUL": 4, "PACK": 3, "PAD": 3, "PRELU": 1, "QUANTIZE": 2, "REDUCE_MAX": 3, "REDUCE_MIN": 3,
    "RELU": 3, "RELU6": 3, "RELU_N1_TO_1": 1, "RESHAPE": 1, "RESIZE_BILINEAR": 4,
    "RESIZE_NEAREST_NEIGHBOR": 4, "RSQRT": 2, "SLICE": 5, "SOFTMAX": 3, "SPACE_TO_DEPTH": 2,
    "SPLIT": 4, "SQUARED_DIFFERENCE": 2, "SQUEEZE": 2, "STRIDED_SLICE": 5, "SUB": 5, "SUM": 2,
    "TANH": 3, "TRANSPOSE": 5, "TRANSPOSE_CONV": 3, "UNIDIRECTIONAL_SEQUENCE_LSTM": 3,
}  # fmt: skip
# The operators of that release end here; a later number is "out of range".
LAST_OPERATOR = 139
SOFTMAX_ELEMENTS = 16_000
# Sizes from which the table says that an operator "might not be mapped" without saying which; at
# these a note is printed.
LARGE_RESIZE = 512 * 512
LARGE_RESHAPE = 1 << 20

_TYPES = frozenset({"int8", "uint8", "int32"})


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why an operator stays on the CPU, and what a user can do."""

    text: str
    remedy: str = ""


Rule = Callable[[Op], "Reason | None"]
BATCH = "give it a batch of one, or work on another dimension"


def reason(op: Op) -> Reason | None:
    """None where the Edge TPU takes the operator, a parameter or a neighbour aside."""
    if op.code not in _ROWS:
        return Reason("not supported by the Edge TPU", _REMEDIES.get(op.code, ""))
    for rule in _ROWS[op.code]:
        if (found := rule(op)) is not None:
            return found
    for v in (*op.inputs, *op.outputs):
        if v is not None and (found := _tensor(v)) is not None:
            return found
    return None


def refusal(op: Op, version: int) -> str | None:
    """Why the compiler would refuse the whole file for this operator; None if it does not."""
    from litert_export import schema

    number = {name: n for n, name in schema.builtin_names().items()}.get(op.code, -1)
    if number > LAST_OPERATOR:
        return f"{op.code} (operator {number}) came after the compiler"
    known = VERSIONS.get(op.code)
    if known is not None and version > known:
        return f"{op.code} has version {version}, the compiler knows up to {known}"
    return None


def note(op: Op) -> str | None:
    """What the table leaves open about an operator that it takes."""
    size = op.outputs[0].size
    if op.code.startswith("RESIZE") and size // op.outputs[0].shape[-1] >= LARGE_RESIZE:
        return "large: may not be mapped, to avoid loss in precision"
    if op.code == "RESHAPE" and size >= LARGE_RESHAPE:
        return "large: may not be mapped"
    return None


def _tensor(v: Value) -> Reason | None:
    if v.dynamic:
        return Reason(f"{v.name} has a size that is not static", "convert with fixed shapes")
    if v.dtype not in _TYPES or (v.data is None and v.dtype == "int32"):
        advice = "quantise the model to int8" if v.dtype.startswith("float") else ""
        return Reason(f"{v.name} is {v.dtype}, not int8 or uint8", advice)
    if v.data is None and any(d != 1 for d in v.shape[:-3]):
        return Reason(
            f"{v.name} is {list(v.shape)}: more than its three innermost dimensions are above 1",
            "give it a batch of one",
        )
    return None


def _no_activation(op: Op) -> Reason | None:
    fused = op.options.get("fused_activation_function", "NONE")
    return None if fused in ("NONE", None) else Reason(f"it has a fused activation ({fused})")


def _dilation(op: Op) -> Reason | None:
    h, w = (op.options.get(f"dilation_{d}_factor", 1) for d in "hw")
    if h == w:
        return None
    return Reason(f"its dilation is {h} x {w}: it must be the same in both directions")


def _constant_parameters(*positions: int) -> Rule:
    def rule(op: Op) -> Reason | None:
        for i in positions:
            v = op.inputs[i] if i < len(op.inputs) else None
            if v is not None and v.data is None:
                return Reason(f"{v.name} is computed: parameters must be constant")
        return None

    return rule


def _groups(op: Op) -> Reason | None:
    x, w = op.inputs[0], op.inputs[1]
    if x is None or w is None or x.shape[3] == w.shape[3]:
        return None
    return Reason("grouped convolution", "--to edgetpu splits it")


def _zero_concatenation(op: Op) -> Reason | None:
    constants = [v for v in op.inputs if v is not None and v.data is not None]
    if not constants:
        return None
    v = constants[0]
    zero = 0 if v.quantization is None else int(v.quantization.zero_point[0])
    if len(op.inputs) == 2 and v.data is not None and np.all(v.data == zero):
        return None
    return Reason("a constant is concatenated that is not all zeros, or not with one other tensor")


def _linear(op: Op) -> Reason | None:
    if op.options.get("weights_format", "DEFAULT") not in ("DEFAULT", 0):
        return Reason("its weights are not in the default format")
    y, w = op.outputs[0], op.inputs[1]
    if any(d != 1 for d in y.shape[:-1]):
        return Reason(
            f"its output {list(y.shape)} has more than one row",
            "--to edgetpu makes it a 1 x 1 convolution",
        )
    if w is not None and w.quantization is not None and w.quantization.scale.size > 1:
        return Reason(
            "its weights have a scale for each row", "quantise with per_channel_linear=False"
        )
    return None


def _axes(op: Op) -> list[int]:
    x, at = op.inputs[0], op.inputs[1]
    assert x is not None
    if at is None or at.data is None:
        return []
    return [int(a) % x.rank for a in at.data.reshape(-1)]


def _not_over_batch(op: Op) -> Reason | None:
    x = op.inputs[0]
    assert x is not None
    if x.rank == 4 and 0 in _axes(op):
        return Reason("it reduces the batch", BATCH)
    return None


def _depth_of_four(op: Op) -> Reason | None:
    x = op.inputs[0]
    assert x is not None
    if x.rank - 1 in _axes(op) and x.shape[-1] % 4:
        return Reason(f"it reduces {x.shape[-1]} channels, which is no multiple of 4")
    return None


def _axis_not_batch(what: str) -> Rule:
    def rule(op: Op) -> Reason | None:
        if op.code == "PACK":
            at = int(op.options.get("axis", 0)) % op.outputs[0].rank
            whole = op.outputs[0].rank == 4
        else:
            x, axis = op.inputs[1], op.inputs[0]
            assert x is not None and axis is not None and axis.data is not None
            at, whole = int(axis.data.reshape(-1)[0]) % x.rank, x.rank == 4
        return Reason(f"{what} the batch", BATCH) if whole and at == 0 else None

    return rule


def _pad_not_batch(op: Op) -> Reason | None:
    x, table = op.inputs[0], op.inputs[1]
    assert x is not None
    if x.rank == 4 and table is not None and table.data is not None and np.any(table.data[0]):
        return Reason("it pads the batch", BATCH)
    return None


def _slope(op: Op) -> Reason | None:
    v = op.inputs[1]
    if v is None or all(d == 1 for d in v.shape[:-1]):
        return None
    return Reason(f"its slopes are {list(v.shape)}: only the innermost dimension may be above 1")


def _one_row(op: Op) -> Reason | None:
    x = op.inputs[0]
    assert x is not None
    if any(d != 1 for d in x.shape[:-1]):
        return Reason(f"its input {list(x.shape)} has more than one row")
    if x.size > SOFTMAX_ELEMENTS:
        return Reason(f"{x.size} elements, at most {SOFTMAX_ELEMENTS}")
    return None


def _plain_slice(op: Op) -> Reason | None:
    steps = op.inputs[3] if len(op.inputs) > 3 else None
    if steps is not None and steps.data is not None and np.any(steps.data != 1):
        return Reason(f"its strides are {steps.data.tolist()}: they must be 1")
    for name in ("ellipsis_mask", "new_axis_mask"):
        if op.options.get(name):
            return Reason(f"its {name.replace('_', ' ')} is not 0")
    return None


def _image(op: Op) -> Reason | None:
    x = op.inputs[0]
    assert x is not None
    return None if x.rank == 4 and x.shape[0] == 1 else Reason("its input is no single image")


def _integers(op: Op) -> Reason | None:
    x, y = op.inputs[0], op.outputs[0]
    assert x is not None
    both = {x.dtype, y.dtype}
    return None if both <= {"int8", "uint8"} else Reason(f"it takes {x.dtype} to {y.dtype}")


_ROWS: dict[str, tuple[Rule, ...]] = {
    "ADD": (),
    "AVERAGE_POOL_2D": (_no_activation,),
    "CONCATENATION": (_no_activation, _zero_concatenation),
    "CONV_2D": (_dilation, _groups, _constant_parameters(1, 2)),
    "DEPTHWISE_CONV_2D": (_dilation, _constant_parameters(1, 2)),
    "EXPAND_DIMS": (),
    "FULLY_CONNECTED": (_linear, _constant_parameters(1, 2)),
    "L2_NORMALIZATION": (),
    "LOGISTIC": (),
    "MAXIMUM": (),
    "MAX_POOL_2D": (_no_activation,),
    "MEAN": (_not_over_batch, _depth_of_four),
    "MINIMUM": (),
    "MUL": (),
    "PACK": (_axis_not_batch("it packs along"),),
    "PAD": (_pad_not_batch, _constant_parameters(1)),
    "PRELU": (_slope, _constant_parameters(1)),
    "QUANTIZE": (_integers,),
    "REDUCE_MAX": (_not_over_batch,),
    "REDUCE_MIN": (_not_over_batch,),
    "RELU": (),
    "RELU6": (),
    "RELU_N1_TO_1": (),
    "RESHAPE": (_constant_parameters(1),),
    "RESIZE_BILINEAR": (_image, _constant_parameters(1)),
    "RESIZE_NEAREST_NEIGHBOR": (_image, _constant_parameters(1)),
    "RSQRT": (),
    "SLICE": (_constant_parameters(1, 2),),
    "SOFTMAX": (_one_row,),
    "SPACE_TO_DEPTH": (),
    "SPLIT": (_axis_not_batch("it splits"),),
    "SQUARED_DIFFERENCE": (),
    "SQUEEZE": (),
    "STRIDED_SLICE": (_plain_slice, _constant_parameters(1, 2, 3)),
    "SUB": (),
    "SUM": (_not_over_batch,),
    "TANH": (),
    "TRANSPOSE": (_constant_parameters(1),),
    "TRANSPOSE_CONV": (_constant_parameters(0, 1, 3),),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (),
}
OPERATORS = frozenset(_ROWS)
_CONVERT = "convert it with --to edgetpu, which writes it in operators that are mapped"
_REMEDIES = {
    **dict.fromkeys(
        ("LEAKY_RELU", "HARD_SWISH", "GELU", "DEPTH_TO_SPACE", "SPLIT_V", "DIV"), _CONVERT
    ),
    "QUANTIZE": "--inference-type int8 gives the file integer inputs and outputs",
    "DEQUANTIZE": "--inference-type int8 gives the file integer inputs and outputs",
    "ARG_MAX": "leave it to the program that reads the output",
    "TOPK_V2": "leave it to the program that reads the output",
    "GATHER": "slices of a row are mapped where the indices are known",
    "BATCH_MATMUL": "a product with a constant becomes a convolution; of two computed values none",
    "WHILE": "convert with int8: loops with a known number of steps are written out",
    "CUSTOM": "custom operators always run on the CPU",
}
