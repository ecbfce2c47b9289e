"""The last stage: run the file in the LiteRT interpreter and compare with PyTorch's outputs.

Floating outputs are judged by their error relative to the output's own range, integers and booleans
must be equal. Nothing here knows how the file was made.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litert_export import reader
from torch_tpu_unified.core.errors import InputError, VerificationError


@dataclasses.dataclass(frozen=True)
class OutputError:
    """How far one output is from the reference.

    Attributes:
        relative: `max_abs` over the largest magnitude of the reference.
        exact: whether the comparison was by equality (integers, booleans).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    mean_abs: float
    relative: float
    exact: bool

    def ok(self, tolerance: float) -> bool:
        """Whether the output agrees."""
        return self.max_abs == 0 if self.exact else self.relative <= tolerance


def interpreter(model: bytes | bytearray | str | os.PathLike[str], *, xnnpack: bool = True) -> Any:
    """A LiteRT interpreter for the file.

    Raises:
        InputError: the file cannot be loaded.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.AUTO if xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    where: dict[str, Any] = (
        {"model_content": bytes(model)}
        if isinstance(model, (bytes, bytearray))
        else {"model_path": os.fspath(model)}
    )
    try:
        return Interpreter(**where, experimental_op_resolver_type=kind)
    except (ValueError, RuntimeError) as err:
        raise InputError(f"LiteRT cannot load the model: {err}") from err


def run(
    model: bytes | bytearray | str | os.PathLike[str],
    inputs: Sequence[Any] | Mapping[str, Any],
    signature: str | None = None,
    *,
    xnnpack: bool = True,
    real: bool = False,
) -> list[np.ndarray[Any, Any]]:
    """The outputs of one call, in the program's order.

    Args:
        inputs: arrays in the order of the signature's inputs, or a mapping by name.
        signature: its name; default: the file's first.
        xnnpack: run with the runtime's default delegate.
        real: quantise floating inputs and make outputs float32, by the file's scales.

    Raises:
        InputError: the inputs do not fit the signature, or LiteRT refuses to run the file.
    """
    known = reader.signatures(model)
    key = signature or next(iter(known), None)
    if key is None or key not in known:
        raise InputError(f"the model has no signature {signature!r} (it has {', '.join(known)})")
    names, results = known[key]
    if isinstance(inputs, Mapping):
        given = dict(inputs)
        if set(given) != set(names):
            raise InputError(f"the model's inputs are {', '.join(names)}; got {', '.join(given)}")
    else:
        if len(inputs) != len(names):
            raise InputError(f"the model has {len(names)} inputs ({', '.join(names)})")
        given = dict(zip(names, inputs, strict=True))
    try:
        runner = interpreter(model, xnnpack=xnnpack).get_signature_runner(key)
        if real:
            details = runner.get_input_details()
            given = {k: encoded(v, details[k]) for k, v in given.items()}
        outputs = runner(**{k: np.asarray(v, order="C") for k, v in given.items()})
        if real:
            details = runner.get_output_details()
            outputs = {k: decoded(v, details[k]) for k, v in outputs.items()}
    except (ValueError, RuntimeError) as err:
        raise InputError(f"LiteRT cannot run the model: {err}") from err
    return [outputs[r] for r in results]


def encoded(array: Any, detail: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Numbers as the integers that a quantised input takes; everything else as it is.

    Args:
        detail: of the interpreter, with the input's type and scale.
    """
    given, kind = np.asarray(array), np.dtype(detail["dtype"])
    scale, zero = detail["quantization"]
    if not scale or kind.kind not in "iu" or given.dtype.kind != "f":
        return given
    limits = np.iinfo(kind)
    steps = np.rint(given.astype(np.float64) / scale) + zero
    return np.clip(steps, limits.min, limits.max).astype(kind)


def decoded(array: np.ndarray[Any, Any], detail: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The float32 numbers that the integers of a quantised output stand for."""
    scale, zero = detail["quantization"]
    if not scale or array.dtype.kind not in "iu":
        return array
    return ((array.astype(np.float64) - zero) * scale).astype(np.float32)


def compare_one(name: str, ours: Any, reference: Any) -> OutputError:
    """The error of one output; shapes and types must be those of the reference."""
    a, b = np.asarray(ours), np.asarray(reference)
    exact = b.dtype.kind in "biu"
    if a.shape != b.shape or a.dtype != b.dtype:
        raise VerificationError(
            f"output {name}: the file gives {a.dtype}{list(a.shape)}, "
            f"PyTorch {b.dtype}{list(b.shape)}"
        )
    if b.size == 0:
        return OutputError(name, b.shape, str(b.dtype), 0.0, 0.0, 0.0, exact)
    wide = np.complex128 if b.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(x - y))
    difference = np.where(np.isnan(difference), np.inf, difference)
    finite = np.abs(y[np.isfinite(y)])
    scale = float(finite.max()) if finite.size else 1.0
    worst = float(difference.max())
    return OutputError(
        name,
        b.shape,
        str(b.dtype),
        worst,
        float(difference.mean()),
        worst / scale if scale else worst,
        exact,
    )


def compare(
    ours: Sequence[Any], reference: Sequence[Any], names: Sequence[str] | None = None
) -> list[OutputError]:
    """The error of every output, in order.

    Raises:
        VerificationError: their number, shapes or types differ.
    """
    if len(ours) != len(reference):
        raise VerificationError(f"{len(ours)} outputs for {len(reference)} of PyTorch")
    labels = list(names or (f"output_{i}" for i in range(len(ours))))
    return [compare_one(n, a, b) for n, a, b in zip(labels, ours, reference, strict=True)]
