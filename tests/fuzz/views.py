"""Steps that make views, or change what a tensor is a view of."""

from __future__ import annotations

import torch

from tests.fuzz.draw import (
    COMPLEX,
    DTYPES,
    SHAPES,
    Draw,
    kind,
    literal,
)
from tests.fuzz.program import Program, Step

_FORMATS = ("contiguous_format", "channels_last", "preserve_format")


@kind(4)
def new(d: Draw, p: Program) -> Step:
    shape, dtype = d.pick(SHAPES), d.dtype()
    return Step(f"{p.fresh()} = {literal(d, shape, dtype)}.to(dev, copy=True)")


@kind(2)
def factory(d: Draw, p: Program) -> Step | None:
    like, shape, dtype = d.name(p), d.pick(SHAPES), d.dtype()
    if like is None:
        return None
    made = d.pick(
        (
            f"torch.zeros({shape}, dtype={dtype}, device=dev)",
            f"torch.ones({shape}, dtype={dtype}, device=dev)",
            f"torch.full({shape}, 2, dtype={dtype}, device=dev)",
            f"torch.zeros_like({like})",
            f"torch.empty_like({like}).fill_(1)",
            f"{like}.new_zeros({shape})",
            f"torch.empty_strided((2, 3), (1, 2), dtype={dtype}, device=dev).fill_(1)",
            f"torch.empty_like({like}, memory_format=torch.contiguous_format).copy_({like})",
            "torch.zeros((1, 2, 2, 2), device=dev).to(memory_format=torch.channels_last)",
            "torch.arange(6, device=dev)",
        )
    )
    return Step(f"{p.fresh()} = {made}")


@kind(10)
def index(d: Draw, p: Program) -> Step | None:
    """Basic indexing."""
    name = d.name(p)
    if name is None:
        return None
    return Step(f"{p.fresh()} = {name}[{basic_index(d, p.cpu[name])}]")


def basic_index(d: Draw, t: torch.Tensor) -> str:
    """Source of an index of ints, slices, None and `...`."""
    parts = []
    for n in t.shape[: d.below(min(t.dim(), 2) + 1)]:
        last = max(n - 1, 0)
        choices = [":", "1:", "::2", "0", ":1", f"{last}", "-1", ":-1", "1:1", "7:"]
        parts.append(str(n) if d.seldom(40) else d.pick(choices))
    if d.seldom(4):
        parts.insert(d.below(len(parts) + 1), d.pick(("None", "...")))
    return ", ".join(parts) or "..."


@kind(14)
def view(d: Draw, p: Program) -> Step | None:
    name = d.name(p)
    if name is None:
        return None
    t = p.cpu[name]
    a, b = d.dim(t), d.dim(t)
    n = t.numel()
    shape = d.pick(((-1,), (n,), (1, n), (n, 1), (2, -1), (3, 2), (2, 3), (1, 2, -1, 2), ()))
    length = t.shape[a] if -t.dim() <= a < t.dim() else 1
    made = d.pick(
        (
            f"view({shape})",
            f"reshape({shape})",
            "t()",
            f"transpose({a}, {b})",
            f"unsqueeze({a})",
            f"squeeze({a})",
            "squeeze()",
            "flatten()",
            f"permute({', '.join(str(i) for i in reversed(range(t.dim())))})",
            f"narrow({a}, {d.below(length + 1)}, {d.below(length + 1)})",
            f"select({a}, {d.below(length) if length else 0})",
            f"diagonal({d.below(3) - 1})",
            f"unfold({a}, {1 + d.below(2)}, {1 + d.below(2)})",
            f"expand({', '.join(['2', *['-1'] * t.dim()])})",
            f"expand({', '.join(['3'] * t.dim()) or '()'})",
            f"movedim({a}, {b})",
            f"split(1, {a})[-1]",
            f"chunk(2, {a})[0]",
            f"unbind({a})[0]",
            f"view_as({name})",
            "mT",
        )
    )
    return Step(f"{p.fresh()} = {name}.{made}")


@kind(2)
def several(d: Draw, p: Program) -> Step | None:
    """Operators that return several views, whose members may not be written with a gradient."""
    name = d.name(p, lambda t: t.dim() > 0 and t.shape[0] == 2)
    if name is None:
        return None
    made = d.pick(("unbind()", "chunk(2)", "split(1)", "tensor_split(2)"))
    return Step(f"{p.fresh()}, {p.fresh()} = {name}.{made}")


def _place(d: Draw, p: Program, name: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    choices = (
        ((2, 3), (3, 1), 0),
        ((2, 2), (1, 2), 1),
        ((3,), (2,), 0),
        ((2,), (1,), 2),
        ((2, 2), (1, 1), 0),
        ((), (), 1),
        ((2, 2), (0, 1), 0),
        ((0,), (1,), 0),
        ((4, 4), (4, 1), 0),
    )
    return d.pick(choices)


@kind(5)
def as_strided(d: Draw, p: Program) -> Step | None:
    name = d.name(p)
    if name is None:
        return None
    size, stride, offset = _place(d, p, name)
    where = f"{size}, {stride}" + ("" if d.seldom(3) else f", {offset}")
    return Step(f"{p.fresh()} = {name}.as_strided({where})")


@kind(5)
def dtype_view(d: Draw, p: Program) -> Step | None:
    """The same bytes as another dtype; to bool only where they are bools."""
    name = d.name(p)
    if name is None:
        return None
    t, dtype = p.cpu[name], d.pick(DTYPES)
    if t.dtype == torch.bool:  # a write through a view of bools could leave bytes that are none
        return Step(f"{p.fresh()} = {name}.view(torch.uint8).clone()")
    if dtype == torch.bool:
        return None
    same_size = [x for x in DTYPES if x.itemsize == t.dtype.itemsize and x != torch.bool]
    if same_size and not d.seldom(3):
        dtype = d.pick(same_size)
    return Step(f"{p.fresh()} = {name}.view({dtype})")


@kind(6)
def lazy_bits(d: Draw, p: Program) -> Step | None:
    """Conjugate and negative views, and the parts of complex tensors."""
    name = d.name(p, lambda t: t.dtype in COMPLEX)
    if name is None:
        name = d.name(p, lambda t: t.is_floating_point())
        if name is None:
            return None
        made = d.pick(
            (
                f"torch.view_as_complex({name})",
                f"torch._neg_view({name})",
                f"{name}.real",
                f"{name}.conj()",
                f"{name}.imag",
                f"{name}.resolve_neg()",
            )
        )
        return Step(f"{p.fresh()} = {made}")
    made = d.pick(
        (
            f"{name}.conj()",
            f"{name}.imag",
            f"{name}.real",
            f"torch.view_as_real({name})",
            f"{name}.mH",
            f"torch._neg_view({name})",
            f"{name}.resolve_conj()",
            f"{name}.resolve_neg()",
            f"{name}.conj().imag",
            f"{name}.conj_physical()",
        )
    )
    return Step(f"{p.fresh()} = {made}")


@kind(3)
def alias(d: Draw, p: Program) -> Step | None:
    name = d.name(p)
    if name is None:
        return None
    made = d.pick((f"{name}.detach()", f"{name}.data", f"torch.ops.aten.alias({name})"))
    return Step(f"{p.fresh()} = {made}")


@kind(4)
def share(d: Draw, p: Program) -> Step | None:
    """Tensors over another's storage."""
    name = d.name(p)
    if name is None:
        return None
    t = p.cpu[name]
    dtype = t.dtype if not d.seldom(4) else d.pick(DTYPES)
    if torch.bool in (dtype, t.dtype):
        dtype = t.dtype
    size, stride, offset = _place(d, p, name)
    nbytes = t.untyped_storage().nbytes()
    reach = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
    if 0 not in size and reach * dtype.itemsize > nbytes:
        size, stride, offset = (nbytes // dtype.itemsize,), (1,), 0
    empty = f"torch.empty(0, dtype={dtype}, device=dev)"
    made = d.pick(
        (
            f"{empty}.set_({name}.untyped_storage(), {offset}, {size}, {stride})",
            f"{empty}.set_({name}.untyped_storage())",
            f"{empty}.set_({name})",
            f"torch.empty(0, dtype={t.dtype}, device=dev).set_({name})",
        )
    )
    return Step(f"{p.fresh()} = {made}")


@kind(4)
def reseat(d: Draw, p: Program) -> Step | None:
    """Changes of a tensor's own metadata or storage."""
    name, other = d.name(p), d.name(p)
    if name is None:
        return None
    t = p.cpu[name]
    a, b = d.dim(t), d.dim(t)
    size, stride, offset = _place(d, p, name)
    return Step(
        d.pick(
            (
                f"{name}.t_()",
                f"{name}.transpose_({a}, {b})",
                f"{name}.unsqueeze_({a})",
                f"{name}.squeeze_({a})",
                f"{name}.squeeze_()",
                f"{name}.data = {other}",
                f"{name}.data = {other}.detach().clone()",
                f"{name}.set_({other})",
                f"{name}.set_()",
                f"{name}.as_strided_({size}, {stride}, {offset})",
                f"{name}.detach_()",
                f"del {name}",
            )
        )
    )


@kind(4)
def resize(d: Draw, p: Program) -> Step | None:
    """Changes of size; what grows is filled at once, since new memory has no defined content."""
    name, other = d.name(p), d.name(p)
    if name is None or other is None:
        return None
    t, shape = p.cpu[name], d.pick(SHAPES)
    n = 1
    for s in shape:
        n *= s
    nbytes = t.untyped_storage().nbytes()
    if p.cpu[other].numel() > t.numel():
        other = name
    way = d.below(6)
    if way == 4:
        return Step(f"{name}.resize_as_({other})")
    if way == 5:
        return Step(f"{name}.untyped_storage().resize_({nbytes})")
    if (t.storage_offset() + n) * t.element_size() <= nbytes:
        return Step(f"{name}.resize_({shape})")
    # The part that has content keeps it.
    fill = (
        f"s = {name}.untyped_storage(); r = torch.empty(0, dtype=torch.uint8, device=dev).set_(s)"
        f"; r[{nbytes}:].zero_(); del s, r"
    )
    return Step(f"{name}.resize_({shape}); {fill}")


@kind(2)
def layout(d: Draw, p: Program) -> Step | None:
    name = d.name(p, lambda t: t.dim() == 4) or d.name(p)
    if name is None:
        return None
    way = d.pick(("contiguous", "clone", "to"))
    return Step(f"{p.fresh()} = {name}.{way}(memory_format=torch.{d.pick(_FORMATS)})")
