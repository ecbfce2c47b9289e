"""Convolutions under the names of PyTorch's own kernels: depthwise, dilated, transposed, unfolded.

All of them are `convolution` with some of its settings fixed.
"""

from __future__ import annotations

from cloud_backend.ops import lowers
from cloud_backend.ops.conv import convolution, convolution_backward
from torch_tpu_unified.core.aten import aten


@lowers(aten._slow_conv2d_forward.default, aten.slow_conv3d_forward.default)
def unfolded(x, weight, kernel_size, bias, stride, padding):
    weight = weight.reshape(weight.shape[0], -1, *kernel_size)
    return convolution(x, weight, bias, stride, padding, 1, False, 0, 1)


@lowers(aten._slow_conv2d_backward.output_mask)
def unfolded_backward(grad_output, x, weight, kernel_size, stride, padding, output_mask):
    shape = weight.shape
    whole = weight.reshape(shape[0], -1, *kernel_size)
    grads = convolution_backward(
        grad_output, x, whole, None, stride, padding, 1, False, 0, 1, output_mask
    )
    grad_weight = grads[1]
    return grads[0], None if grad_weight is None else grad_weight.reshape(shape), grads[2]


@lowers(aten.slow_conv_dilated2d.default, aten.slow_conv_dilated3d.default, meta=False)
def dilated(x, weight, kernel_size, bias=None, stride=1, padding=0, dilation=1):
    return convolution(x, weight, bias, stride, padding, dilation, False, 0, 1)


@lowers(aten._conv_depthwise2d.default, aten.conv_depthwise3d.default, meta=False)
def depthwise(x, weight, kernel_size, bias, stride, padding, dilation):
    channels = x.shape[-len(kernel_size) - 1]
    return convolution(x, weight, bias, stride, padding, dilation, False, 0, channels)


@lowers(aten.slow_conv_transpose2d.default, aten.slow_conv_transpose3d.default)
def transposed(
    x, weight, kernel_size, bias=None, stride=1, padding=0, output_padding=0, dilation=1
):
    return convolution(x, weight, bias, stride, padding, dilation, True, output_padding, 1)
