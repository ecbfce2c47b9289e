"""Reductions, scans, norms: every dimension form, keepdim, dtype and correction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_FLOAT = {
    "sum": lambda x: x.sum(),
    "sum_dim": lambda x: x.sum(-2),
    "sum_dims_keep": lambda x: x.sum((0, 2), keepdim=True),
    "sum_dtype": lambda x: x.sum(1, dtype=torch.int64),
    "mean": lambda x: x.mean(),
    "mean_dim": lambda x: x.mean(1),
    "mean_dims_keep": lambda x: x.mean((-1, 0), keepdim=True),
    "prod": lambda x: x.prod(),
    "prod_dim": lambda x: x.prod(1, keepdim=True),
    "amax": lambda x: x.amax((0, 2)),
    "amax_all": lambda x: x.amax(),
    "amin": lambda x: x.amin(1, keepdim=True),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_dim": lambda x: x.max(1),
    "max_dim_keep": lambda x: x.max(-1, keepdim=True),
    "min_dim": lambda x: x.min(0),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: x.argmax(),
    "argmax_dim": lambda x: x.argmax(1, keepdim=True),
    "argmin_dim": lambda x: x.argmin(-1),
    "var": lambda x: x.var(),
    "var_dim": lambda x: x.var(1, keepdim=True),
    "var_population": lambda x: x.var((0, 2), correction=0),
    "var_correction": lambda x: x.var(1, correction=2),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "var_large_mean": lambda x: (x + 1000).var(1, unbiased=False),
    "std": lambda x: x.std(1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1), keepdim=True),
    "norm": lambda x: x.norm(),
    "norm_dim": lambda x: x.norm(dim=1, keepdim=True),
    "norm_1": lambda x: torch.linalg.vector_norm(x, 1, (0, 1)),
    "norm_3": lambda x: torch.linalg.vector_norm(x, 3, 2),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "norm_minus_inf": lambda x: torch.linalg.vector_norm(x, -float("inf"), 1),
    "norm_0": lambda x: torch.linalg.vector_norm(x.relu(), 0, 1),
    "old_norm": lambda x: torch.ops.aten.norm(x, 3),
    "old_norm_dim": lambda x: torch.ops.aten.norm(x, None, [1], True),
    "old_norm_dtype": lambda x: torch.ops.aten.norm(x, 1, dtype=torch.float32),
    "old_norm_dim_dtype": lambda x: torch.ops.aten.norm(x, 2, [0], False, dtype=torch.float32),
    "all_dims": lambda x: torch.all(x.relu(), (0, 2)),
    "count_nonzero_dims": lambda x: x.relu().count_nonzero((0, 2)),
    "normalize": lambda x: torch.nn.functional.normalize(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "logsumexp_keep": lambda x: x.logsumexp((0, 2), keepdim=True),
    "logsumexp_infinite": lambda x: x.tril().log().logsumexp(2),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.round().cummin(2),
    "count_nonzero": lambda x: x.relu().count_nonzero(1),
    "any_float": lambda x: x.relu().any(1),
    "all_float": lambda x: x.relu().all(),
    "cosine": lambda x: torch.cosine_similarity(x, x.flip(0), dim=2),
}
_INT = {
    "sum": lambda x: x.sum(1),
    "prod": lambda x: x.prod(1),
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(1),
    "argmax": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(1, keepdim=True),
    "amin": lambda x: x.amin(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(1),
    "any": lambda x: x.any(1),
    "mean": lambda x: x.float().mean(),
    "norm": lambda x: x.float().norm(),
}


def _float(name: str, fn: Callable[..., Any]) -> OpCase:
    def args() -> tuple[torch.Tensor]:
        x = torch.randn(3, 5, 4)
        return (x.abs() if "infinite" in name else x,)

    return OpCase(name, fn, args)


def _int(name: str, fn: Callable[..., Any], dtype: torch.dtype) -> OpCase:
    label = str(dtype).removeprefix("torch.")
    return OpCase(f"{name}_{label}", fn, lambda: (torch.randint(-3, 4, (4, 5)).to(dtype),))


def _on(name: str, fn: Callable[..., Any], make: Callable[[], torch.Tensor]) -> OpCase:
    return OpCase(name, fn, lambda: (make(),))


CASES = [
    *(_float(name, fn) for name, fn in _FLOAT.items()),
    *(_int(n, f, t) for t in (torch.int64, torch.int32, torch.int16) for n, f in _INT.items()),
    _int("sum", lambda x: x.sum(), torch.bool),
    _int("any", lambda x: x.any(), torch.bool),
    _int("any_dims", lambda x: x.any((0, 1), keepdim=True), torch.bool),
    _int("all", lambda x: x.all(-1), torch.bool),
    _int("amax", lambda x: x.amax(1), torch.bool),
    _int("cumsum", lambda x: x.cumsum(0), torch.bool),
    _int("any", lambda x: x.any(1), torch.uint8),
    _on("sum_scalar", lambda x: x.sum(), lambda: torch.randn(())),
    _on("argmax_scalar", lambda x: x.argmax(), lambda: torch.randn(())),
    _on("cumsum_scalar", lambda x: x.cumsum(0), lambda: torch.randn(())),
    _on("sum_nothing", lambda x: x.sum(0), lambda: torch.randn(0, 3)),
    _on("prod_nothing", lambda x: x.prod(1), lambda: torch.randn(2, 0)),
    _on("mean_nothing", lambda x: x.mean(0), lambda: torch.randn(0, 3)),
    _on("all_nothing", lambda x: x.all(), lambda: torch.ones(0, dtype=torch.bool)),
    _on("any_nothing", lambda x: x.any(0), lambda: torch.ones(0, 2, dtype=torch.bool)),
    _on("amax_no_result", lambda x: x.amax(1), lambda: torch.randn(0, 3)),
    _on("argmax_ties", lambda x: x.argmax(1), lambda: torch.tensor([[1.0, 3.0, 3.0, 2.0]])),
    _on("max_ties", lambda x: x.max(1), lambda: torch.tensor([[5, 9, 9], [4, 4, 4]])),
    _on("cumsum_long", lambda x: x.cumsum(0), lambda: torch.randn(300)),
    _on("cumprod_long", lambda x: x.cumprod(0), lambda: 1 + 0.01 * torch.randn(300)),
]
