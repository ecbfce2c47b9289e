"""Steps of autograd: leaves that need gradients, backward, writes with and without a gradient."""

from __future__ import annotations

import torch

from tests.fuzz.draw import Draw, is_number, kind, literal
from tests.fuzz.program import Program, Step


def _grads(p: Program) -> tuple[str, ...]:
    return tuple(f"{n}.grad" for n in p.names())


@kind(4)
def leaf(d: Draw, p: Program) -> Step | None:
    """A new leaf that needs a gradient, or an old tensor that becomes one."""
    name = d.name(p)
    if name is None or not d.seldom(3):
        dtype = d.pick((torch.float32, torch.float32, torch.float64, torch.complex64))
        shape = d.pick(((2, 3), (6,), ()))
        return Step(f"{p.fresh()} = {literal(d, shape, dtype)}.to(dev, copy=True).requires_grad_()")
    return Step(f"{name}.requires_grad_({d.pick(('', '', 'False'))})")


@kind(5)
def backward(d: Draw, p: Program) -> Step | None:
    name = d.name(p, lambda t: t.requires_grad) or (d.name(p) if d.seldom(8) else None)
    if name is None:
        return None
    t = p.cpu[name]
    total = (
        f"torch.view_as_real({name}.resolve_conj()).sum()" if t.is_complex() else f"{name}.sum()"
    )
    call = d.pick(
        (
            f"{total}.backward()",
            f"{total}.backward(retain_graph=True)",
            f"({total} * 2).backward()",
            f"{name}.backward()",
            f"{name}.backward(torch.ones_like({name}))",
            f"{name}.backward(torch.ones((), device=dev).expand({tuple(t.shape)}))",
        )
    )
    return Step(call, "close", _grads(p), (name,))


@kind(3)
def grad(d: Draw, p: Program) -> Step | None:
    """`torch.autograd.grad` between two live tensors."""
    y = d.name(p, lambda t: t.requires_grad and is_number(t))
    x = d.name(p, lambda t: t.requires_grad)
    if x is None or y is None:
        return None
    call = f"torch.autograd.grad({y}.abs().sum(), {x}, retain_graph=True)[0]"
    return Step(f"{p.fresh()} = {call}", "close", (), (y,))


@kind(3)
def no_grad(d: Draw, p: Program) -> Step | None:
    """Writes that autograd does not see."""
    name = d.name(p, lambda t: t.requires_grad)
    if name is None:
        return None
    call = d.pick(
        (
            f"with torch.no_grad(): {name}.mul_(2)",
            f"{name}.detach().zero_()",
            f"{name}.data.add_(1)",
            f"with torch.no_grad(): {p.fresh()} = {name}[..., None]",
            f"{name}.grad = None",
            f"{name}.grad = torch.ones_like({name}.detach())",
            f"with torch.no_grad(): {name}.set_({name}.detach().clone())",
        )
    )
    return Step(call, "close", (name,), (name,))
