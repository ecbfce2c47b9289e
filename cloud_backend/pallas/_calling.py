"""How the kernels here are called: by Mosaic on a TPU, interpreted everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl


def kernel_call(kernel: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`pl.pallas_call` that the platform of the lowering decides: also ahead of time, for a TPU.

    Index arithmetic is 32-bit, as the chip's is, whatever the program around it uses.
    """

    def call(*arrays: Any) -> Any:
        compiled = pl.pallas_call(kernel, **options)
        interpreted = pl.pallas_call(kernel, **options, interpret=True)
        with jax.enable_x64(False):
            return jax.lax.platform_dependent(*arrays, tpu=compiled, default=interpreted)

    return call


def product(a: Any, b: Any, axes: tuple[int, int]) -> Any:
    """The matrix product over one axis of each, summed in float32.

    bfloat16 goes to the matrix unit as it is; everything else is exact to float32.
    """
    jnp = jax.numpy
    if a.dtype == b.dtype == jnp.bfloat16:
        precision = jax.lax.Precision.DEFAULT  # not the user's setting for float32
    else:
        a, b, precision = a.astype(jnp.float32), b.astype(jnp.float32), jax.lax.Precision.HIGHEST
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(
        a, b, dimensions, precision=precision, preferred_element_type=jnp.float32
    )


def padded(x: Any, axis: int, multiple: int) -> Any:
    """The array with zeros behind `axis`, up to a multiple."""
    missing = -x.shape[axis] % multiple
    if not missing:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    return jax.numpy.pad(x, widths)
