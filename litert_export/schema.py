"""LiteRT's operators and types by name, over the object API that the runtime's wheel ships.

Operator codes, options classes, enum values and number types are looked up here and nowhere else.
An unknown operator, option or enum value raises, so that a misspelt one cannot be written to a
file.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

DTYPES = (
    "float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64", "int8",
    "float64", "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4",
    "bfloat16",
)  # fmt: skip

# Operators whose options table has not the operator's own name.
_OPTIONS = {
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "CONV_3D": "Conv3DOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "LOCAL_RESPONSE_NORMALIZATION": "LocalResponseNormalizationOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "BATCH_TO_SPACE_ND": "BatchToSpaceNDOptions",
    "SPACE_TO_BATCH_ND": "SpaceToBatchNDOptions",
    "LSTM": "LSTMOptions",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
    "BIDIRECTIONAL_SEQUENCE_LSTM": "BidirectionalSequenceLSTMOptions",
    "RNN": "RNNOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    "BIDIRECTIONAL_SEQUENCE_RNN": "BidirectionalSequenceRNNOptions",
    "SVDF": "SVDFOptions",
    "TOPK_V2": "TopKV2Options",
    "PADV2": "PadV2Options",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "ATAN2": "ATan2Options",
    "RFFT2D": "Rfft2dOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "MULTINOMIAL": "RandomOptions",
    "STABLEHLO_COMPOSITE": "StableHLOCompositeOptions",
    **dict.fromkeys(
        ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"),
        "ReducerOptions",
    ),
}
_ENUMS = {
    "fused_activation_function": "ActivationFunctionType",
    "padding": "Padding",
    "mode": "MirrorPadMode",
    "in_data_type": "TensorType",
    "out_data_type": "TensorType",
    "out_type": "TensorType",
    "idx_out_type": "TensorType",
    "quantized_bias_type": "TensorType",
    "weights_format": "FullyConnectedOptionsWeightsFormat",
}


def generated() -> Any:
    """The generated schema module, imported on first use."""
    import ai_edge_litert.schema_py_generated as module

    return module


def snake(name: str) -> str:
    """`strideW` -> `stride_w`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@functools.cache
def builtin_code(code: str) -> int:
    """The number of an operator.

    Raises:
        KeyError: LiteRT has no such operator.
    """
    value = getattr(generated().BuiltinOperator, code, None)
    if not isinstance(value, int):
        raise KeyError(f"LiteRT has no operator {code}")
    return value


@functools.cache
def builtin_names() -> dict[int, str]:
    """Operator number -> name."""
    operators = vars(generated().BuiltinOperator)
    return {v: k for k, v in operators.items() if isinstance(v, int) and k.isupper()}


@functools.cache
def options_class(code: str) -> tuple[str | None, int, int]:
    """(class name, union member, 1 or 2 for which union) of an operator's options; None without."""
    builtin_code(code)
    module = generated()
    name = _OPTIONS.get(code) or "".join(w.capitalize() for w in code.split("_")) + "Options"
    for union, number in (("BuiltinOptions", 1), ("BuiltinOptions2", 2)):
        member = getattr(getattr(module, union), name, None)
        if member is not None:
            return name, member, number
    return None, 0, 1


@functools.cache
def options_attributes(code: str) -> dict[str, str]:
    """Option name in snake case -> attribute of the object API."""
    name, _, _ = options_class(code)
    if name is None:
        return {}
    return {snake(a): a for a in vars(getattr(generated(), name + "T")())}


def check_options(code: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with snake-case names.

    Raises:
        KeyError: the operator does not exist or has no such option.
    """
    known = options_attributes(code)
    result = {snake(k): v for k, v in options.items()}
    for name in result:
        if name not in known:
            have = ", ".join(known) or "no options"
            raise KeyError(f"{code} has no option '{name}' (it has {have})")
    return result


def enum_value(enum: str, value: Any) -> int:
    """The number of an enum's value given by name; numbers pass through."""
    if isinstance(value, (int, np.integer)):
        return int(value)
    found = getattr(getattr(generated(), enum), str(value).upper(), None)
    if not isinstance(found, int):
        raise KeyError(f"{enum} has no value {value!r}")
    return found


def make_options(code: str, options: dict[str, Any]) -> Any:
    """The options object of the generated API, or None for an operator without options."""
    name, _, _ = options_class(code)
    if name is None:
        return None
    result = getattr(generated(), name + "T")()
    if hasattr(result, "potScaleInt16"):
        # The generated default is True, which means another int16 arithmetic and op version.
        result.potScaleInt16 = False
    attributes = options_attributes(code)
    for key, value in options.items():
        if key in _ENUMS and value is not None:
            value = enum_value(_ENUMS[key], value)
        setattr(result, attributes[key], value)
    return result


@functools.cache
def enum_names(option: str) -> dict[int, str]:
    """Number -> name of the enum that an option holds; empty when it holds none."""
    if option not in _ENUMS:
        return {}
    members = vars(getattr(generated(), _ENUMS[option]))
    return {v: k for k, v in members.items() if isinstance(v, int)}


def tensor_type(dtype: str) -> int:
    """The number of a tensor type given by its lower-case name."""
    return enum_value("TensorType", dtype)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of a LiteRT type name."""
    if dtype in ("bfloat16", "int4"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype))
    return np.dtype(dtype)


def dtype_name(dtype: Any) -> str:
    """The LiteRT type name of a NumPy or torch dtype.

    Raises:
        TypeError: LiteRT has no such type.
    """
    name = str(dtype).removeprefix("torch.") if "torch" in str(dtype) else np.dtype(dtype).name
    if name not in DTYPES:
        raise TypeError(f"LiteRT has no tensors of type {name}")
    return name
