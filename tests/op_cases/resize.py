"""Resizing: nearest, linear, cubic and antialiased; by size, by scale, up and down."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase


def _r(name: str, shape: tuple[int, ...], mode: str, **options: Any) -> OpCase:
    return OpCase(
        name, lambda x: F.interpolate(x, mode=mode, **options), lambda: (torch.randn(shape),)
    )


_IMAGE = (1, 3, 6, 5)
_aten = torch.ops.aten

CASES = [
    _r("nearest_twice", _IMAGE, "nearest", scale_factor=2),
    _r("nearest_size", _IMAGE, "nearest", size=(9, 7)),
    _r("nearest_down", _IMAGE, "nearest", size=(4, 2)),
    _r("nearest_scale", _IMAGE, "nearest", scale_factor=1.7),
    _r("nearest_exact", _IMAGE, "nearest-exact", size=(9, 7)),
    _r("nearest_exact_twice", _IMAGE, "nearest-exact", scale_factor=2),
    _r("nearest_1d", (1, 3, 6), "nearest", scale_factor=2),
    _r("nearest_exact_1d", (1, 3, 6), "nearest-exact", size=9),
    _r("nearest_3d", (1, 2, 3, 4, 5), "nearest", scale_factor=2),
    _r("nearest_exact_3d", (1, 2, 3, 4, 5), "nearest-exact", size=(4, 6, 5)),
    _r("bilinear_twice", _IMAGE, "bilinear", scale_factor=2),
    _r("bilinear_corners", _IMAGE, "bilinear", scale_factor=2, align_corners=True),
    _r("bilinear_size", _IMAGE, "bilinear", size=(9, 7)),
    _r("bilinear_down", _IMAGE, "bilinear", size=(3, 2)),
    _r("bilinear_scale", _IMAGE, "bilinear", scale_factor=1.7),
    _r("bilinear_one", _IMAGE, "bilinear", size=(1, 1), align_corners=True),
    _r("bilinear_aa", _IMAGE, "bilinear", size=(3, 2), antialias=True),
    _r("bicubic", _IMAGE, "bicubic", size=(9, 7)),
    _r("bicubic_corners", _IMAGE, "bicubic", size=(9, 7), align_corners=True),
    _r("bicubic_aa", _IMAGE, "bicubic", size=(3, 2), antialias=True),
    _r("linear", (1, 3, 6), "linear", size=9),
    _r("linear_corners", (1, 3, 6), "linear", scale_factor=2, align_corners=True),
    _r("trilinear", (1, 2, 3, 4, 5), "trilinear", scale_factor=2),
    *(
        OpCase(f"{op}_by_size", getattr(_aten, op).default, lambda s=s, n=n: (torch.randn(s), n))
        for op, s, n in (
            ("upsample_nearest1d", (1, 3, 6), [9]),
            ("upsample_nearest2d", _IMAGE, [9, 7]),
            ("upsample_nearest3d", (1, 2, 3, 4, 5), [4, 6, 5]),
            ("_upsample_nearest_exact1d", (1, 3, 6), [9]),
            ("_upsample_nearest_exact2d", _IMAGE, [9, 7]),
            ("_upsample_nearest_exact3d", (1, 2, 3, 4, 5), [4, 6, 5]),
        )
    ),
]
