"""Normalisation in evaluation: batch, layer, group, instance and RMS norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase


def _f(name: str, fn: Callable[..., Any], *shape: int) -> OpCase:
    return OpCase(name, fn, lambda: (2 * torch.randn(shape) + 1,))


def _random(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


_W, _B, _M = _random(6), _random(6, seed=4), _random(6, seed=5)
_V = _random(6, seed=6).abs() + 0.1
_KERNEL = _random(6, 3, 3, 3)


def _batch_norm(x: torch.Tensor, w: Any = _W, b: Any = _B) -> torch.Tensor:
    return F.batch_norm(x, _M.to(x), _V.to(x), _to(w, x), _to(b, x), eps=1e-3)


def _to(v: Any, x: torch.Tensor) -> Any:
    return None if v is None else v.to(x)


def _decomposed(x: torch.Tensor) -> torch.Tensor:
    """What a program that was decomposed before it came here holds."""
    op = torch.ops.aten._native_batch_norm_legit_no_training.default
    w, b, m, v = (_to(t, x) for t in (_W, _B, _M, _V))
    return op(x, w, b, m, v, 0.1, 1e-3)[0]


def _statistics(name: str, training: bool, running: torch.dtype, weight: torch.dtype) -> OpCase:
    """All results of a batch norm of bfloat16, whose statistics have the parameters' dtype."""

    def make() -> tuple[Any, ...]:
        parameters = (torch.rand(3).to(d) for d in (weight, weight, running, running))
        return torch.randn(4, 3, 5).bfloat16(), *parameters

    def fn(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        return torch.ops.aten.native_batch_norm(x, w, b, m, v, training, 0.1, 1e-5)

    return OpCase(f"batch_statistics_{name}", fn, make, halves=("cloud",))


CASES = [
    _statistics("trained", True, torch.bfloat16, torch.bfloat16),
    _statistics("stored", False, torch.bfloat16, torch.bfloat16),
    _statistics("trained_mixed", True, torch.float32, torch.float32),
    _statistics("stored_mixed", False, torch.float32, torch.float32),
    OpCase(
        "batch_norm_no_training",
        lambda *a: torch.ops.aten._native_batch_norm_legit_no_training(*a, 0.1, 1e-5),
        lambda: (torch.randn(2, 3, 4), *(torch.rand(3) for _ in range(4))),
        halves=("cloud",),
    ),
    _f("batch_decomposed", _decomposed, 2, 6, 4, 5),
    _f("batch_2d", _batch_norm, 2, 6, 4, 5),
    _f("batch_1d", _batch_norm, 2, 6, 7),
    _f("batch_0d", _batch_norm, 4, 6),
    _f("batch_3d", _batch_norm, 1, 6, 2, 3, 4),
    _f("batch_plain", lambda x: _batch_norm(x, None, None), 2, 6, 4, 5),
    _f("batch_after_conv", lambda x: F.relu(_batch_norm(F.conv2d(x, _KERNEL.to(x)))), 1, 3, 6, 6),
    OpCase(
        "batch_computed",
        lambda x, w, m, v: F.batch_norm(x, m, v.abs() + 0.1, w, None),
        lambda: (torch.randn(2, 3, 4, 4), torch.randn(3), torch.randn(3), torch.randn(3)),
    ),
    _f("layer", lambda x: F.layer_norm(x, (6,), _W.to(x), _B.to(x)), 2, 5, 6),
    _f("layer_plain", lambda x: F.layer_norm(x, (5, 6)), 2, 5, 6),
    _f("layer_no_bias", lambda x: F.layer_norm(x, (6,), _W.to(x), None, 1e-3), 4, 6),
    _f("layer_whole", lambda x: F.layer_norm(x, (6,), _W.to(x), _B.to(x)), 6),
    _f("layer_results", lambda x: torch.native_layer_norm(x, (6,), None, None, 1e-5), 3, 6),
    OpCase(
        "layer_statistics",
        lambda x, w: [torch.native_layer_norm(x, (6,), p, p, 1e-5) for p in (w, w.float())],
        lambda: (torch.randn(3, 6).bfloat16(), torch.randn(6).bfloat16()),
        halves=("cloud",),
    ),
    _f("group", lambda x: F.group_norm(x, 3, _W.to(x), _B.to(x)), 2, 6, 4, 5),
    _f("group_plain", lambda x: F.group_norm(x, 2), 2, 6, 5),
    _f("group_one", lambda x: F.group_norm(x, 1, _W.to(x), _B.to(x)), 2, 6, 4, 4),
    _f("group_flat", lambda x: F.group_norm(x, 2, _W.to(x), None), 3, 6),
    _f("instance", lambda x: F.instance_norm(x, weight=_W.to(x), bias=_B.to(x)), 2, 6, 4, 5),
    _f("instance_plain", F.instance_norm, 2, 6, 9),
    _f(
        "instance_stored",
        lambda x: F.instance_norm(x, _M.to(x), _V.to(x), use_input_stats=False),
        2,
        6,
        4,
        5,
    ),
    _f("rms", lambda x: F.rms_norm(x, (6,), _W.to(x)), 2, 5, 6),
    _f("rms_eps", lambda x: F.rms_norm(x, (5, 6), None, 1e-3), 2, 5, 6),
    _f("rms_fused", lambda x: torch.ops.aten._fused_rms_norm(x, [6], _W.to(x), 1e-5), 2, 6),
    _f("local_response", lambda x: F.local_response_norm(x, 3), 2, 6, 4, 4),
    _f("normalize", lambda x: F.normalize(x, dim=1), 3, 6),
]
