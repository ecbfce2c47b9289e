"""Factorisations whose factors are free up to signs: their product is compared, and what is fixed.

Also random pooling with given samples, which leaves nothing to chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_SHAPES = {"tall": (5, 3), "wide": (3, 5), "batch": (2, 4, 4), "one": (1, 1)}


def _case(name: str, fn: Callable[..., Any], *shape: int) -> OpCase:
    return OpCase(name, fn, lambda: (torch.randn(shape),), halves=("cloud",))


def _qr(mode: str) -> Callable[[torch.Tensor], Any]:
    def fn(x: torch.Tensor) -> Any:
        q, r = torch.linalg.qr(x, mode=mode)
        return q @ r, q.mT @ q, r.abs()

    return fn


def _geqrf(x: torch.Tensor) -> Any:
    a, tau = torch.geqrf(x)
    q = torch.linalg.householder_product(a, tau) if x.shape[-2] >= x.shape[-1] else None
    r = a.triu()
    return r.abs() if q is None else (q @ r[..., : x.shape[-1], :], r.abs())


def _qr_gradient(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    q, r = torch.linalg.qr(x)
    # Free signs cancel in both terms.
    ((q @ r.sin().abs()).square().sum() + (q.square() * 0.3).sum()).backward()
    assert x.grad is not None
    return x.grad


def _fractional(dims: int, ratio: bool = False) -> OpCase:
    pool = getattr(torch.nn.functional, f"fractional_max_pool{dims}d_with_indices")
    size = (2, 3, *(9, 8, 7)[:dims])

    def fn(x: torch.Tensor, samples: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        options = (
            {"output_ratio": (0.6, 0.5, 0.7)[:dims]} if ratio else {"output_size": (4, 3, 5)[:dims]}
        )
        values, indices = pool(x, 2, **options, _random_samples=samples)
        weights = torch.arange(values.numel(), dtype=values.dtype, device="cpu").to(x.device)
        (values * weights.reshape(values.shape)).sum().backward()
        return values, indices, x.grad

    return OpCase(
        f"fractional_max_pool{dims}d" + "_ratio" * ratio,
        fn,
        lambda: (torch.randn(size), torch.rand(2, 3, dims)),
        halves=("cloud",),
    )


CASES = [
    *(_case(f"qr_{n}", _qr("reduced"), *s) for n, s in _SHAPES.items()),
    _case("qr_complete", _qr("complete"), 5, 3),
    _case("qr_r", lambda x: torch.linalg.qr(x, mode="r").R.abs(), 5, 3),
    _case("qr_gradient", _qr_gradient, 5, 3),
    *(_case(f"geqrf_{n}", _geqrf, *s) for n, s in _SHAPES.items()),
    *(_fractional(d, ratio) for d in (2, 3) for ratio in (False, True)),
]
