"""Convolutions: 1-d to 3-d, groups, dilation, strides, paddings, transposed, constant and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase

_FORWARD = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def _conv(
    name: str, x: tuple[int, ...], w: tuple[int, ...], *, bias: bool = True, **options: Any
) -> OpCase:
    """A convolution with constant weight."""
    weight = _random(*w)
    b = _random(w[0]) if bias else None
    fn = _FORWARD[len(w) - 2]
    return OpCase(name, lambda v: fn(v, weight, b, **options), lambda: (torch.randn(x),))


def _up(
    name: str, x: tuple[int, ...], w: tuple[int, ...], *, bias: bool = True, **options: Any
) -> OpCase:
    """A transposed convolution with constant weight."""
    weight = _random(*w)
    b = _random(w[1] * options.get("groups", 1)) if bias else None
    fn = _TRANSPOSED[len(w) - 2]
    return OpCase(name, lambda v: fn(v, weight, b, **options), lambda: (torch.randn(x),))


def _computed(name: str, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> OpCase:
    return OpCase(name, fn, lambda: tuple(torch.randn(s) for s in shapes))


CASES = [
    _conv("plain", (2, 3, 7, 8), (4, 3, 3, 3)),
    _conv("no_bias", (2, 3, 7, 8), (4, 3, 3, 3), bias=False),
    _conv("one_by_one", (2, 3, 4, 5), (6, 3, 1, 1)),
    _conv("same_odd", (1, 3, 7, 7), (4, 3, 3, 3), padding=1),
    _conv("stride_even", (1, 3, 8, 8), (4, 3, 3, 3), padding=1, stride=2),
    _conv("stride_odd", (1, 3, 9, 9), (4, 3, 3, 3), padding=1, stride=2),
    _conv("string_same", (1, 3, 8, 6), (4, 3, 4, 3), padding="same"),
    _conv("string_valid", (1, 3, 8, 6), (4, 3, 4, 3), padding="valid"),
    _conv("uneven", (1, 3, 9, 8), (4, 3, 2, 5), padding=(1, 2), stride=(1, 2)),
    _conv("dilated", (1, 3, 9, 9), (4, 3, 3, 3), padding=2, dilation=2),
    _conv("dilated_stride", (1, 3, 11, 11), (4, 3, 3, 3), padding=1, dilation=2, stride=2),
    _conv("depthwise", (1, 4, 7, 7), (4, 1, 3, 3), padding=1, groups=4),
    _conv("depthwise_twice", (1, 4, 7, 7), (8, 1, 3, 3), padding=1, groups=4),
    _conv("depthwise_dilated", (1, 4, 9, 9), (4, 1, 3, 3), padding=2, dilation=2, groups=4),
    _conv("depthwise_stride", (1, 4, 8, 8), (4, 1, 3, 3), padding=1, stride=2, groups=4),
    _conv("grouped", (2, 4, 6, 6), (6, 2, 3, 3), groups=2),
    _conv("grouped_padded", (1, 6, 6, 6), (6, 2, 3, 3), padding=1, stride=2, groups=3),
    _conv("single_channel", (1, 1, 6, 6), (3, 1, 3, 3)),
    _conv("unbatched", (3, 6, 6), (4, 3, 3, 3), padding=1),
    _conv("one_dim", (2, 3, 9), (4, 3, 3), padding=1),
    _conv("one_dim_stride", (1, 3, 10), (4, 3, 4), padding=1, stride=3),
    _conv("one_dim_dilated", (1, 3, 12), (4, 3, 3), padding=2, dilation=2),
    _conv("one_dim_depthwise", (1, 4, 9), (4, 1, 5), padding=2, groups=4),
    _conv("one_dim_same", (1, 3, 9), (4, 3, 4), padding="same"),
    _conv("three_dim", (1, 2, 5, 6, 7), (3, 2, 3, 3, 3), padding=1),
    _conv(
        "three_dim_stride", (1, 2, 6, 6, 6), (3, 2, 3, 2, 3), padding=(1, 0, 1), stride=(1, 2, 2)
    ),
    _conv("three_dim_groups", (1, 4, 4, 4, 4), (4, 2, 2, 2, 2), groups=2),
    _computed("computed_weight", F.conv2d, (1, 3, 6, 6), (4, 3, 3, 3), (4,)),
    _computed(
        "computed_depthwise",
        lambda x, w: F.conv2d(x, w, groups=3, padding=1),
        (1, 3, 6, 6),
        (3, 1, 3, 3),
    ),
    _up("up_plain", (1, 3, 5, 5), (3, 4, 3, 3)),
    _up("up_two", (2, 3, 4, 5), (3, 4, 2, 2), stride=2),
    _up("up_padded", (1, 3, 5, 5), (3, 4, 3, 3), stride=2, padding=1),
    _up("up_output_padding", (1, 3, 5, 5), (3, 4, 3, 3), stride=2, padding=1, output_padding=1),
    _up("up_beyond", (1, 3, 4, 4), (3, 4, 2, 2), stride=3, output_padding=2),
    _up("up_same", (1, 3, 5, 5), (3, 4, 4, 4), stride=2, padding=1),
    _up("up_dilated", (1, 3, 5, 5), (3, 4, 3, 3), stride=2, dilation=2, padding=1),
    _up("up_no_bias", (1, 3, 5, 5), (3, 4, 3, 3), bias=False, stride=2),
    _up("up_beyond_no_bias", (1, 3, 4, 4), (3, 4, 2, 2), bias=False, stride=3, output_padding=2),
    _up("up_uneven", (1, 3, 4, 5), (3, 2, 3, 4), stride=(1, 2), padding=(1, 0)),
    _up("up_groups", (1, 4, 5, 5), (4, 3, 3, 3), stride=2, padding=1, output_padding=1, groups=2),
    _up("up_depthwise", (1, 4, 5, 5), (4, 1, 4, 4), stride=2, padding=1, groups=4),
    _up("up_groups_crop", (1, 4, 5, 5), (4, 1, 2, 2), stride=2, padding=2, groups=4),
    _up("up_one_dim", (1, 3, 6), (3, 4, 4), stride=2, padding=1),
    _up("up_one_dim_groups", (1, 4, 6), (4, 2, 3), stride=2, padding=1, groups=2),
    _up("up_three_dim", (1, 2, 3, 3, 3), (2, 3, 2, 2, 2), stride=2),
    _up(
        "up_three_dim_padded",
        (1, 2, 3, 3, 3),
        (2, 3, 3, 3, 3),
        stride=2,
        padding=1,
        output_padding=1,
    ),
    _computed(
        "up_computed", lambda x, w: F.conv_transpose2d(x, w, stride=2), (1, 3, 4, 4), (3, 2, 2, 2)
    ),
]
