"""Operators that are parts of layers: synchronised batch norm, fake quantisation, old convolutions.

Where CPU PyTorch has no kernel, the reference is the formula, written with other operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase

aten = torch.ops.aten
Made = Callable[[], tuple[Any, ...]]
randn = torch.randn


def _either(ours: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """The operator on the device, the formula on the CPU."""

    def run(*args: Any) -> Any:
        args = tuple(a.clone() for a in args)  # some of them are written
        return (ours if args[0].device.type == "tpu" else reference)(*args)

    run.device_only = True  # type: ignore[attr-defined]
    return run


def _vector(v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return v.reshape(1, -1, *[1] * (x.dim() - 2))


# ---- batch norm over several processes


def _stats(x: torch.Tensor, eps: float = 1e-5) -> tuple[torch.Tensor, torch.Tensor]:
    axes = [d for d in range(x.dim()) if d != 1]
    return x.mean(axes), (x.var(axes, correction=0) + eps).rsqrt()


def _gather(mean: Any, invstd: Any, low: Any, var: Any, counts: Any) -> Any:
    total = counts.sum()
    n = counts[:, None]
    joint = (mean * n).sum(0) / total
    squares = ((invstd**-2 - 1e-5 + (mean - joint) ** 2) * n).sum(0)
    low.mul_(0.9).add_(0.1 * joint)
    var.mul_(0.9).add_(0.1 * squares / (total - 1))
    return joint, (squares / total + 1e-5).rsqrt(), low, var


def _gather_ours(mean: Any, invstd: Any, low: Any, var: Any, counts: Any) -> Any:
    found = aten.batch_norm_gather_stats_with_counts(
        mean, mean, invstd, low, var, 0.1, 1e-5, counts
    )
    return *found, low, var


def _gather_equal(mean: Any, invstd: Any, low: Any, var: Any, counts: Any) -> Any:
    return *aten.batch_norm_gather_stats(mean, mean, invstd, low, var, 0.1, 1e-5, 6), low, var


def _reduce(grad: Any, x: Any, mean: Any, invstd: Any, weight: Any) -> Any:
    axes = [d for d in range(x.dim()) if d != 1]
    sums = grad.sum(axes), (grad * (x - _vector(mean, x))).sum(axes)
    return *sums, sums[1] * invstd, sums[0]


def _elements(grad: Any, x: Any, mean: Any, invstd: Any, weight: Any) -> Any:
    n = x.numel() // x.shape[1]
    dy, dyx, _, _ = _reduce(grad, x, mean, invstd, weight)
    slope = _vector(invstd**2 * dyx / n, x) * (x - _vector(mean, x))
    return (grad - _vector(dy / n, x) - slope) * _vector(invstd * weight, x)


def _elements_ours(grad: Any, x: Any, mean: Any, invstd: Any, weight: Any) -> Any:
    n = torch.tensor([x.numel() // x.shape[1]], dtype=torch.int32, device=x.device)
    dy, dyx, _, _ = aten.batch_norm_backward_reduce(grad, x, mean, invstd, weight, True, True, True)
    return aten.batch_norm_backward_elemt(grad, x, mean, invstd, weight, dy, dyx, n)


def _updated(x: Any, mean: Any, var: Any) -> Any:
    mean, var = mean.clone(), var.clone()
    return *aten.batch_norm_update_stats(x, mean, var, 0.1), mean, var


def _image() -> tuple[torch.Tensor, ...]:
    return (randn(4, 3, 5, 2),)


def _backward_inputs() -> tuple[torch.Tensor, ...]:
    return randn(4, 3, 5, 2), randn(4, 3, 5, 2), randn(3), torch.rand(3) + 0.5, randn(3)


def _processes(*counts: float) -> Made:
    return lambda: (
        randn(2, 3),
        torch.rand(2, 3) + 0.5,
        randn(3),
        torch.rand(3),
        torch.tensor(counts),
    )


_SYNC: dict[str, tuple[Callable[..., Any], Made]] = {
    "stats": (_either(lambda x: aten.batch_norm_stats(x, 1e-5), _stats), _image),
    "elemt": (
        _either(
            lambda x, w, b, m, s: aten.batch_norm_elemt(x, w, b, m, s, 1e-5),
            lambda x, w, b, m, s: (x - _vector(m, x)) * _vector(s * w, x) + _vector(b, x),
        ),
        lambda: (randn(4, 3, 5, 2), randn(3), randn(3), randn(3), torch.rand(3)),
    ),
    "gather_counts": (_either(_gather_ours, _gather), _processes(6.0, 9.0)),
    "gather": (_either(_gather_equal, _gather), _processes(6.0, 6.0)),
    "backward_reduce": (
        _either(
            lambda *a: aten.batch_norm_backward_reduce(*a, True, True, True),
            _reduce,
        ),
        _backward_inputs,
    ),
    "backward_elemt": (_either(_elements_ours, _elements), _backward_inputs),
    "update_stats": (_updated, lambda: (randn(4, 3, 5, 2), randn(3), torch.rand(3))),
}

# ---- fake quantisation


def _observer(per_row: bool, symmetric: bool, low: int, high: int) -> Callable[..., Any]:
    def run(x: Any, on: Any, quantize: Any, *state: Any) -> Any:
        state = tuple(s.clone() for s in state)
        found = aten._fused_moving_avg_obs_fq_helper(
            x, on, quantize, *state, 0.1, low, high, 0, per_row, symmetric
        )
        return *found, *state

    return run


def _observed(channels: int, on: int, quantize: int, fresh: bool, shift: float = 0.0) -> Made:
    start = float("inf") if fresh else 0.5
    return lambda: (
        randn(3, 5) + shift,
        torch.tensor([on]),
        torch.tensor([quantize]),
        torch.full((channels,), start),
        torch.full((channels,), -start if fresh else 1.5),
        torch.ones(channels) * 0.03,
        torch.ones(channels, dtype=torch.int32) * 7,
    )


_QUANT: dict[str, tuple[Callable[..., Any], Made]] = {
    "per_tensor": (
        lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, 0, 20),
        lambda: (randn(6, 7) * 2,),
    ),
    "ties_to_even": (
        lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.5, 0, -4, 3),
        lambda: (torch.arange(-12, 12) * 0.25,),
    ),
    "of_tensors": (
        lambda x, s, z, e: aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            x, s, z, e, 0, 20
        ),
        lambda: (randn(6, 7), torch.tensor([0.1]), torch.tensor([3]), torch.tensor([1])),
    ),
    "of_tensors_disabled": (
        lambda x, s, z, e: aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            x, s, z, e, 0, 20
        ),
        lambda: (randn(6, 7), torch.tensor([0.1]), torch.tensor([3]), torch.tensor([0])),
    ),
    "per_channel": (
        lambda x, s, z: aten.fake_quantize_per_channel_affine_cachemask(x, s, z, 1, 0, 20),
        lambda: (randn(3, 4, 2), torch.rand(4) * 0.2 + 0.05, torch.tensor([0, 5, 9, 20]).int()),
    ),
    "learnable": (
        lambda x, s, z: aten._fake_quantize_learnable_per_tensor_affine(x, s, z, 0, 20, 0.5),
        lambda: (randn(6, 7), torch.tensor([0.13]), torch.tensor([3.6])),
    ),
    "learnable_channel": (
        lambda x, s, z: aten._fake_quantize_learnable_per_channel_affine(x, s, z, 1, 0, 20, 0.5),
        lambda: (randn(3, 4), torch.rand(4) * 0.2 + 0.05, torch.tensor([0.0, 5.2, 9.7, 20.0])),
    ),
    "learnable_backward": (
        lambda g, x, s, z: aten._fake_quantize_learnable_per_tensor_affine_backward(
            g, x, s, z, 0, 20, 0.5
        ),
        lambda: (randn(6, 7), randn(6, 7), torch.tensor([0.13]), torch.tensor([3.0])),
    ),
    "learnable_channel_backward": (
        lambda g, x, s, z: aten._fake_quantize_learnable_per_channel_affine_backward(
            g, x, s, z, 1, 0, 20, 0.5
        ),
        lambda: (
            randn(3, 4),
            randn(3, 4),
            torch.rand(4) * 0.2 + 0.05,
            torch.tensor([0.0, 5.0, 9.0, 20.0]),
        ),
    ),
    "observer_first": (_observer(False, False, 0, 255), _observed(1, 1, 1, True)),
    "observer_next": (_observer(False, False, 0, 255), _observed(1, 1, 1, False)),
    "observer_positive": (_observer(False, False, 0, 255), _observed(1, 1, 1, True, 9.0)),
    "observer_symmetric": (_observer(False, True, -128, 127), _observed(1, 1, 1, True)),
    "observer_rows": (_observer(True, False, 0, 255), _observed(3, 1, 1, True)),
    "observer_rows_symmetric": (_observer(True, True, -128, 127), _observed(3, 1, 1, True)),
    "observer_off": (_observer(False, False, 0, 255), _observed(1, 0, 1, False)),
    "observer_only": (_observer(False, False, 0, 255), _observed(1, 1, 0, False)),
}

# ---- convolutions by their old names

_CONVOLUTIONS: dict[str, tuple[Callable[..., Any], Made]] = {
    "slow_conv2d": (
        lambda x, w, b: aten._slow_conv2d_forward(x, w, [3, 2], b, [2, 1], [1, 0]),
        lambda: (randn(2, 3, 6, 5), randn(4, 3, 3, 2), randn(4)),
    ),
    "slow_conv2d_backward": (
        lambda g, x, w: aten._slow_conv2d_backward.output_mask(
            g, x, w, [3, 2], [2, 1], [1, 0], [True] * 3
        ),
        lambda: (randn(2, 4, 3, 4), randn(2, 3, 6, 5), randn(4, 3, 3, 2)),
    ),
    "slow_conv3d": (
        lambda x, w, b: aten.slow_conv3d_forward(x, w, [2, 3, 2], b, [1, 2, 1], [0, 1, 0]),
        lambda: (randn(2, 3, 4, 6, 5), randn(4, 3, 2, 3, 2), randn(4)),
    ),
    "dilated2d": (
        lambda x, w, b: aten.slow_conv_dilated2d(x, w, [3, 2], b, [2, 1], [1, 0], [2, 2]),
        lambda: (randn(2, 3, 8, 6), randn(4, 3, 3, 2), randn(4)),
    ),
    "dilated3d": (
        lambda x, w: aten.slow_conv_dilated3d(x, w, [2, 3, 2], None, [1] * 3, [0] * 3, [1, 2, 1]),
        lambda: (randn(2, 3, 4, 8, 5), randn(4, 3, 2, 3, 2)),
    ),
    "transpose2d": (
        lambda x, w, b: aten.slow_conv_transpose2d(x, w, [3, 2], b, [2, 1], [1, 0], [1, 0]),
        lambda: (randn(2, 3, 4, 5), randn(3, 4, 3, 2), randn(4)),
    ),
    "transpose3d": (
        lambda x, w: aten.slow_conv_transpose3d(x, w, [2, 3, 2], None, [1, 2, 1]),
        lambda: (randn(2, 3, 4, 3, 5), randn(3, 4, 2, 3, 2)),
    ),
    "depthwise2d": (
        _either(
            lambda x, w: aten._conv_depthwise2d(x, w, [3, 3], None, [1, 1], [1, 1], [1, 1]),
            lambda x, w: F.conv2d(x, w, padding=1, groups=3),
        ),
        lambda: (randn(2, 3, 6, 5), randn(6, 1, 3, 3)),
    ),
    "depthwise3d": (
        _either(
            lambda x, w: aten.conv_depthwise3d(x, w, [2] * 3, None, [1] * 3, [0] * 3, [1] * 3),
            lambda x, w: F.conv3d(x, w, groups=3),
        ),
        lambda: (randn(2, 3, 4, 5, 3), randn(3, 1, 2, 2, 2)),
    ),
}

CASES = [
    OpCase(name, fn, args, halves=("cloud",))
    for table in (_SYNC, _QUANT, _CONVOLUTIONS)
    for name, (fn, args) in table.items()
]
