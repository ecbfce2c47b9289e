"""What several families share: PyTorch's type promotion, dimension arithmetic, reduction axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from cloud_backend.dtypes import to_jax, to_torch


def is_scalar(x: Any) -> bool:
    """True for a Python number and for a traced one (0-d and weakly typed)."""
    if isinstance(x, (bool, int, float, complex)):
        return True
    return getattr(x, "weak_type", False) and x.ndim == 0


def scalar_kind(x: Any) -> type:
    """bool, int, float or complex: the Python type of a scalar, traced or not."""
    if isinstance(x, (bool, int, float, complex)):
        return type(x)
    return {"b": bool, "i": int, "u": int, "f": float, "c": complex}[np.dtype(x.dtype).kind]


@functools.cache
def _joined(
    dims: tuple[np.dtype, ...],
    zero: tuple[np.dtype, ...],
    kinds: tuple[type, ...],
    default: torch.dtype,
) -> np.dtype:
    """PyTorch's promotion: tensors with dimensions first, then 0-d tensors, then Python scalars,
    each of which only counts when its category is higher than what stands before it."""

    def category(d: torch.dtype) -> int:
        if d.is_complex:
            return 3
        return 2 if d.is_floating_point else 0 if d == torch.bool else 1

    def join(dtypes: Sequence[np.dtype]) -> torch.dtype | None:
        result = None
        for d in map(to_torch, dtypes):
            result = d if result is None else torch.promote_types(result, d)
        return result

    scalar_of = {
        bool: torch.bool,
        int: torch.int64,
        float: default,
        complex: torch.promote_types(default, torch.complex64),
    }
    scalar = None
    for k in kinds:
        scalar = scalar_of[k] if scalar is None else torch.promote_types(scalar, scalar_of[k])

    def combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
        if higher is None or lower is None:
            return lower if higher is None else higher
        if category(lower) <= category(higher):
            return higher
        if higher.is_floating_point:  # of a complex number of lower rank only its kind counts
            return higher.to_complex()
        return torch.promote_types(higher, lower)

    result = combine(join(dims), combine(join(zero), scalar))
    assert result is not None
    return to_jax(result)


def result_dtype(*args: Any) -> np.dtype:
    """`torch.result_type` of arrays and scalars, as a NumPy dtype. None is left out."""
    args = tuple(a for a in args if a is not None)
    arrays = [a for a in args if not is_scalar(a)]
    return _joined(
        tuple(np.dtype(a.dtype) for a in arrays if a.ndim),
        tuple(np.dtype(a.dtype) for a in arrays if not a.ndim),
        tuple(scalar_kind(a) for a in args if is_scalar(a)),
        torch.get_default_dtype(),
    )


def to_float(dtype: np.dtype) -> np.dtype:
    """The dtype of an operator that maps integers to floats (`sin`, `div`, `mean`)."""
    if np.dtype(dtype).kind in "biu":
        return to_jax(torch.get_default_dtype())
    return np.dtype(dtype)


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """float32 for float16 and bfloat16, which PyTorch's CPU and CUDA kernels compute in float32."""
    return (
        np.dtype(np.float32)
        if np.dtype(dtype).itemsize == 2 and is_float(dtype)
        else np.dtype(dtype)
    )


def rounded(x: Any, dtype: Any) -> Any:
    """`x`, in its own dtype, as if it had been stored in `dtype` for a moment.

    For operators that PyTorch composes of others, each of which rounds its bfloat16 result.
    """
    if dtype == jnp.bfloat16:
        return jax.lax.reduce_precision(x, 8, 7)  # casts to and fro would cancel out
    return cast(cast(x, dtype), x.dtype)


def is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def is_complex(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def is_integral(dtype: Any) -> bool:
    """True for integers and bool."""
    return np.dtype(dtype).kind in "biu"


# The one 8-bit float of PyTorch without infinities and with a sign of zero: what is too large
# becomes its largest number, where XLA makes a NaN.
_SATURATING = to_jax(torch.float8_e4m3fn)
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def cast(x: Any, dtype: Any) -> jax.Array:
    """`x` (array or scalar) as a strongly typed array; float -> integer truncates as in PyTorch."""
    dtype = np.dtype(dtype)
    if dtype == _SATURATING and np.dtype(getattr(x, "dtype", float)) != dtype:
        x = jnp.clip(cast(x, np.float32), -_LARGEST, _LARGEST)
    if isinstance(x, jax.Array):
        if is_complex(x.dtype) and not is_complex(dtype):
            x = (x != 0) if dtype == np.bool_ else x.real
        if is_float(x.dtype) and dtype.kind in "iu" and dtype.itemsize < 4:
            # XLA saturates; PyTorch wraps, by way of a wider integer.
            x = jax.lax.convert_element_type(x, np.int64)
    elif dtype.kind in "iu" and isinstance(x, int):
        x = np.asarray(x & ((1 << 64) - 1), np.uint64)
    return jax.lax.convert_element_type(x, dtype)


def real_dtype(dtype: Any) -> np.dtype:
    """The dtype of a complex dtype's parts; a real one is itself; None is the default dtype."""
    if dtype is None:
        return to_jax(torch.get_default_dtype())
    dtype = np.dtype(dtype)
    return np.empty(0, dtype).real.dtype if is_complex(dtype) else dtype


def elementwise(f: Callable[..., Any], *args: Any, floating: bool = False) -> jax.Array:
    """`f` of the promoted arguments, computed in `compute_dtype` and rounded to the common dtype.

    Python scalars go to the compute dtype at once, so that 0.1 is not rounded to bfloat16 first.
    """
    dtype = result_dtype(*args)
    if floating:
        dtype = to_float(dtype)
    wide = compute_dtype(dtype)
    return cast(f(*(cast(a, wide) for a in args)), dtype)


def promoted(*args: Any, floating: bool = False) -> list[jax.Array]:
    """The arguments cast to their common dtype; `floating=True` for integer-to-float operators."""
    dtype = result_dtype(*args)
    if floating:
        dtype = to_float(dtype)
    return [cast(a, dtype) for a in args]


def canonical_dim(dim: int, ndim: int) -> int:
    """A dimension counted from the start. 0-d tensors take 0 and -1.

    Raises:
        IndexError: out of range, in PyTorch's words.
    """
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], "
            f"but got {dim})"
        )
    return dim % span


def canonical_dims(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Reduction axes: None or an empty list means all of them."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(canonical_dim(d, ndim) for d in dims) if ndim else ()


def expand_list(value: Any, n: int) -> tuple[int, ...]:
    """`kernel_size` and the like: an int or a list of one stands for all n spatial dimensions."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values
