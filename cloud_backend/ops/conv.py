"""Convolution in one, two and three dimensions, plain and transposed, and its gradients.

Everything becomes `conv_general_dilated`. The gradients are the transpose of the linear forward in
each operand, so that strides, groups and output padding have one definition. float16 and bfloat16
accumulate in float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cloud_backend.ops import lowers
from cloud_backend.ops._shared import cast, compute_dtype, expand_list, is_complex
from torch_tpu_unified.core.aten import aten

_LAYOUTS = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}


def _swap_groups(weight, groups):
    """A transposed convolution's weight (in, out / groups, ...) as (out, in / groups, ...)."""
    cin, cout, *kernel = weight.shape
    grouped = weight.reshape(groups, cin // groups, cout, *kernel).swapaxes(1, 2)
    return grouped.reshape(groups * cout, cin // groups, *kernel)


def _convolve(x, weight, stride, padding, dilation, transposed, output_padding, groups, wide):
    """The convolution without bias, in the dtype `wide`; x has its batch dimension."""
    n = x.ndim - 2
    stride, padding, dilation, output_padding = (
        expand_list(v, n) for v in (stride, padding, dilation, output_padding)
    )
    kernel = weight.shape[2:]
    if transposed:
        weight = jnp.flip(_swap_groups(weight, groups), range(2, n + 2))
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(r - p, r - p + o) for r, p, o in zip(reach, padding, output_padding, strict=True)]
        window, spread = (1,) * n, stride
    else:
        pads, window, spread = [(p, p) for p in padding], stride, (1,) * n
    return jax.lax.conv_general_dilated(
        x,
        weight,
        window,
        pads,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        dimension_numbers=_LAYOUTS[n],
        feature_group_count=groups,
        preferred_element_type=wide,
    )


def _output_size(x, weight, stride, padding, dilation, transposed, output_padding):
    n = x.ndim - 2
    stride, padding, dilation, output_padding = (
        expand_list(v, n) for v in (stride, padding, dilation, output_padding)
    )
    sizes = []
    for d in range(n):
        reach = dilation[d] * (weight.shape[d + 2] - 1)
        size = x.shape[d + 2]
        if transposed:
            sizes.append((size - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d] + 1)
        else:
            sizes.append((size + 2 * padding[d] - reach - 1) // stride[d] + 1)
    return tuple(sizes)


def _forward(x, weight, stride, padding, dilation, transposed, output_padding, groups):
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    wide = compute_dtype(x.dtype)
    if x.size == 0 or weight.size == 0:
        sizes = _output_size(x, weight, stride, padding, dilation, transposed, output_padding)
        # Summed with nothing, but connected to both operands so that gradients are zeros.
        return jnp.zeros((x.shape[0], channels, *sizes), wide) + 0 * (
            jnp.sum(x).astype(wide) + jnp.sum(weight).astype(wide)
        )
    if x.dtype.kind in "iub" or is_complex(x.dtype):
        return _exact(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    return _convolve(x, weight, stride, padding, dilation, transposed, output_padding, groups, wide)


def _exact(x, weight, *settings):
    """Integers, and complex numbers by their parts."""
    if is_complex(x.dtype):
        part = np.empty(0, x.dtype).real.dtype
        parts = [
            [_convolve(a, b, *settings, part) for b in (weight.real, weight.imag)]
            for a in (x.real, x.imag)
        ]
        return jax.lax.complex(parts[0][0] - parts[1][1], parts[0][1] + parts[1][0])
    return _convolve(x, weight, *settings, x.dtype)


@lowers(aten.convolution.default, aten.convolution_overrideable.default)
def convolution(
    input,
    weight,
    bias,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
):
    batched = input.ndim == weight.ndim
    x = input if batched else input[None]
    out = _forward(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None:
        out = out + cast(bias, out.dtype).reshape(-1, *(1,) * (out.ndim - 2))
    out = cast(out, input.dtype)
    return out if batched else out[0]


@lowers(aten._convolution.default)
def convolution_with_flags(
    input,
    weight,
    bias,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    benchmark,
    deterministic,
    cudnn_enabled,
    allow_tf32,
):
    return convolution(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def _gradients(grad, x, weight, settings, output_mask):
    """Gradients of x, weight and bias of a batched convolution, None where the mask says so."""
    wide = compute_dtype(x.dtype)
    grad_wide, x_wide, weight_wide = (cast(v, wide) for v in (grad, x, weight))
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        _, pull = jax.vjp(lambda v: _forward(v, weight_wide, *settings), x_wide)
        grad_x = cast(_conjugated(pull, grad_wide)[0], x.dtype)
    if output_mask[1]:
        _, pull = jax.vjp(lambda v: _forward(x_wide, v, *settings), weight_wide)
        grad_weight = cast(_conjugated(pull, grad_wide)[0], weight.dtype)
    if output_mask[2]:
        axes = (0, *range(2, grad.ndim))
        grad_bias = cast(jnp.sum(grad_wide, axis=axes), weight.dtype)
    return grad_x, grad_weight, grad_bias


def _conjugated(pull, grad):
    """PyTorch's gradients of complex functions are the conjugates of JAX's."""
    if is_complex(grad.dtype):
        return tuple(jnp.conj(g) for g in pull(jnp.conj(grad)))
    return pull(grad)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    grad_output,
    input,
    weight,
    bias_sizes,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    output_mask,
):
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    if input.ndim == weight.ndim:
        return _gradients(grad_output, input, weight, settings, output_mask)
    grads = _gradients(grad_output[None], input[None], weight, settings, output_mask)
    return (None if grads[0] is None else grads[0][0], *grads[1:])


@lowers(aten.convolution_backward_overrideable.default)
def convolution_backward_overrideable(
    grad_output,
    input,
    weight,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    output_mask,
):
    return convolution_backward(
        grad_output,
        input,
        weight,
        None,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )
