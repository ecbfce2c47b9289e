"""Pooling: windows, strides, paddings, ceil mode, divisors, adaptive sizes, all dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase


def _f(name: str, fn: Callable[..., Any], *shape: int) -> OpCase:
    return OpCase(name, fn, lambda: (torch.randn(shape),))


_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _both(name: str, *shape: int, **options: Any) -> list[OpCase]:
    count = len(shape) - 2
    return [
        _f(f"max_{name}", lambda x: _MAX[count](x, **options), *shape),
        _f(f"avg_{name}", lambda x: _AVG[count](x, **options), *shape),
    ]


CASES = [
    *_both("plain", 2, 3, 8, 8, kernel_size=2),
    *_both("uneven", 1, 3, 9, 7, kernel_size=(3, 2), stride=(2, 1)),
    *_both("padded", 1, 3, 8, 8, kernel_size=3, stride=2, padding=1),
    *_both("padded_odd", 1, 3, 9, 9, kernel_size=3, stride=2, padding=1),
    *_both("padded_stride_1", 1, 3, 7, 7, kernel_size=3, stride=1, padding=1),
    *_both("ceil", 1, 3, 8, 7, kernel_size=3, stride=2, ceil_mode=True),
    *_both("ceil_padded", 1, 3, 8, 7, kernel_size=3, stride=2, padding=1, ceil_mode=True),
    *_both("ceil_last_dropped", 1, 2, 5, 5, kernel_size=2, stride=4, padding=1, ceil_mode=True),
    *_both("one_dim", 2, 3, 9, kernel_size=3, stride=2, padding=1),
    *_both("three_dim", 1, 2, 6, 6, 6, kernel_size=2),
    *_both("three_dim_padded", 1, 2, 5, 6, 7, kernel_size=3, stride=2, padding=1),
    _f("max_unbatched", lambda x: F.max_pool2d(x, 2), 3, 8, 8),
    _f("avg_unbatched", lambda x: F.avg_pool2d(x, 2), 3, 8, 8),
    _f("max_dilated", lambda x: F.max_pool2d(x, 2, stride=2, dilation=2), 1, 3, 9, 9),
    _f("max_dilated_padded", lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2), 1, 3, 9, 9),
    _f("max_below_zero", lambda x: F.max_pool2d(x - 100, 3, 2, 1), 1, 3, 8, 8),
    _f("max_after_relu", lambda x: F.max_pool2d(F.relu(x), 3, 2, 1), 1, 3, 8, 8),
    _f("avg_exclude_pad", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), 1, 3, 8, 8),
    _f(
        "avg_exclude_pad_same",
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        1,
        3,
        7,
        7,
    ),
    _f("avg_exclude_ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), 1, 3, 8, 7),
    _f("avg_divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), 1, 3, 8, 8),
    _f(
        "avg_three_dim_exclude",
        lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False),
        1,
        2,
        5,
        5,
        5,
    ),
    _f("adaptive_avg_one", lambda x: F.adaptive_avg_pool2d(x, 1), 2, 3, 7, 5),
    _f("adaptive_avg_even", lambda x: F.adaptive_avg_pool2d(x, (2, 4)), 1, 3, 8, 8),
    _f("adaptive_avg_uneven", lambda x: F.adaptive_avg_pool2d(x, (3, 5)), 1, 3, 7, 8),
    _f("adaptive_avg_kept", lambda x: F.adaptive_avg_pool2d(x, (None, 3)), 1, 3, 7, 8),
    _f("adaptive_avg_larger", lambda x: F.adaptive_avg_pool2d(x, 7), 1, 3, 5, 5),
    _f("adaptive_avg_one_dim", lambda x: F.adaptive_avg_pool1d(x, 4), 1, 3, 10),
    _f("adaptive_avg_three_dim", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), 1, 2, 5, 6, 4),
    _f("adaptive_max", lambda x: F.adaptive_max_pool2d(x, (3, 2)), 1, 3, 7, 8),
    _f("adaptive_max_one_dim", lambda x: F.adaptive_max_pool1d(x, 4), 1, 3, 10),
    _f("adaptive_max_three_dim", lambda x: F.adaptive_max_pool3d(x, 2), 1, 2, 5, 6, 4),
    _f("max_values_only", lambda x: F.max_pool2d_with_indices(x, 2)[0], 1, 3, 6, 6),
    _f("max_values_only_3d", lambda x: F.max_pool3d_with_indices(x, 2)[0], 1, 3, 4, 4, 4),
]
