"""When a result counts as right: as close to float64 as CPU PyTorch's own, up to a small factor.

`|ours - ref64| <= 4 |torch - ref64| + eps (|ref64| + range / 10)`; integers, bools, shapes and
dtypes are equal, and NaNs and infinities stand where CPU PyTorch has them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

FACTOR = 4.0
EPSILON = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}


def widened(tree: Any) -> Any:
    """Arguments with float tensors and float dtypes made float64, for the reference."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype in _WIDER:
            wide = leaf.detach().to(_WIDER[leaf.dtype])
            return wide.requires_grad_(leaf.requires_grad)
        return _WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    return tree_map(widen, tree)


def leaves(tree: Any) -> list[Any]:
    """Tensors and numbers of nested results, in order."""
    return [leaf for leaf in tree_flatten(tree)[0] if leaf is not None]


def assert_close(
    ours: Any,
    expected: Any,
    reference: Any = None,
    *,
    tol: float | None = None,
    floor: float = torch.finfo(torch.float32).tiny,
    label: str = "",
) -> None:
    """Compare results (nested tuples of tensors and numbers) leaf by leaf.

    Args:
        ours: results to judge, on the CPU.
        expected: CPU PyTorch's results.
        reference: results in float64, or None to measure against `expected`.
        tol: replaces the dtype's epsilon.
        floor: an error that is always allowed, for sums that cancel.

    Raises:
        AssertionError: says which leaf is wrong and by how much.
    """
    mine, theirs = leaves(ours), leaves(expected)
    assert len(mine) == len(theirs), f"{label}: {len(mine)} results instead of {len(theirs)}"
    wide = leaves(reference) if reference is not None else theirs
    wide = wide if len(wide) == len(theirs) else theirs
    for i, (a, b, r) in enumerate(zip(mine, theirs, wide, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert a == b or (a != a and b != b), f"{label}[{i}]: {a!r} instead of {b!r}"
            continue
        _assert_tensor(a.detach(), b.detach(), r, tol, floor, f"{label}[{i}]")


def _assert_tensor(a: Any, b: Any, r: Any, tol: float | None, floor: float, label: str) -> None:
    assert a.dtype == b.dtype, f"{label}: dtype {a.dtype} instead of {b.dtype}"
    assert a.shape == b.shape, f"{label}: shape {tuple(a.shape)} instead of {tuple(b.shape)}"
    if b.dtype not in EPSILON:
        wrong = a != b
        assert not wrong.any(), (
            f"{label}: {a[wrong][:5].tolist()} instead of {b[wrong][:5].tolist()}"
        )
        return
    if b.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
        if isinstance(r, torch.Tensor) and r.is_complex():
            r = torch.view_as_real(r.detach().resolve_conj())
    epsilon = EPSILON[b.dtype] if tol is None else tol
    a, b = a.double(), b.double()
    r = r.detach().double() if isinstance(r, torch.Tensor) and r.shape == b.shape else b
    r = torch.where(r.isfinite() & b.isfinite(), r, b)
    special = ~b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    assert same[special].all(), (
        f"{label}: {a[special & ~same][:5].tolist()} instead of {b[special & ~same][:5].tolist()}"
    )
    a, b, r = a[~special], b[~special], r[~special]
    if not b.numel():
        return
    scale = r.abs() + 0.1 * (r.max() - r.min())
    bound = FACTOR * (b - r).abs() + epsilon * scale + floor
    over = ~((a - r).abs() <= bound)
    assert not over.any(), (
        f"{label}: {int(over.sum())} of {over.numel()} off, such as "
        f"{a[over][:3].tolist()} instead of {r[over][:3].tolist()} "
        f"(allowed {bound[over][:3].tolist()})"
    )
