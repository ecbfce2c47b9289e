"""Steps that compute new tensors: arithmetic, reductions, indexing, copies, values on the host."""

from __future__ import annotations

from tests.fuzz.draw import DTYPES, Draw, converts, is_number, kind
from tests.fuzz.program import Program, Step
from tests.fuzz.writes import positions, selection


@kind(8)
def unary(d: Draw, p: Program) -> Step | None:
    name = d.name(p)
    if name is None:
        return None
    made = d.pick(
        (
            f"{name} * 2",
            f"{name} + 1",
            f"-{name}",
            f"{name} - 1.5",
            f"{name}.abs()",
            f"{name} == 0",
            f"{name}.isnan()",
            f"torch.relu({name})",
            f"{name}.exp()",
            f"{name} / 2",
            f"~{name}",
            f"{name}.square()",
            f"{name}.sign()",
            f"{name}.logical_not()",
            f"2 - {name}",
            f"{name}.cos()",
            f"{name}.flip(0)",
            f"{name}.tril()",
            f"{name}.repeat(2, 1)",
            f"torch.cat(({name}, {name}))",
            f"torch.stack(({name}, {name}), -1)",
            f"{name}.sort(stable=True)[0]",
            f"torch.where({name} > 0, {name}, 0)",
        )
    )
    return Step(f"{p.fresh()} = {made}", "close", (), (name,))


@kind(8)
def binary(d: Draw, p: Program) -> Step | None:
    a, b = d.name(p), d.name(p)
    if a is None or b is None:
        return None
    made = d.pick(
        (
            f"{a} + {b}",
            f"{a} * {b}",
            f"{a} - {b}",
            f"{a} == {b}",
            f"{a} < {b}",
            f"torch.where({a} == 0, {b}, {a})",
            f"torch.maximum({a}, {b})",
            f"{a} & {b}",
            f"torch.cat(({a}, {b}))",
            f"{a} @ {b}",
            f"torch.equal({a}, {b})",
            f"torch.minimum({a}, {b})",
        )
    )
    prefix = "s" if "torch.equal" in made else "v"
    return Step(f"{p.fresh(prefix)} = {made}", "close", (), (a, b))


@kind(8)
def reduction(d: Draw, p: Program) -> Step | None:
    name = d.name(p, is_number)
    if name is None:
        return None
    dim = d.dim(p.cpu[name])
    made = d.pick(
        (
            f"{name}.sum({dim})",
            f"{name}.sum()",
            f"{name}.mean({dim})",
            f"{name}.amax({dim})",
            f"{name}.max({dim})[1]",
            f"{name}.min({dim})[0]",
            f"{name}.argmax({dim})",
            f"{name}.argmin()",
            f"{name}.all({dim})",
            f"{name}.any()",
            f"{name}.prod({dim})",
            f"{name}.cumsum({dim})",
            f"{name}.cumprod({dim})",
            f"{name}.sum({dim}, keepdim=True)",
            f"{name}.sum(dtype=torch.float64)",
            f"{name}.count_nonzero()",
            f"{name}.norm()",
            f"{name}.max()",
            f"{name}.logsumexp({dim})",
        )
    )
    return Step(f"{p.fresh()} = {made}", "close", (), (name,))


@kind(8)
def pick(d: Draw, p: Program) -> Step | None:
    """Reading by masks and positions."""
    name = d.name(p, is_number)
    if name is None:
        return None
    t = p.cpu[name]
    n = t.shape[0] if t.dim() else 1
    where = positions(d, n, False)
    made = d.pick(
        (
            f"{name}[{selection(d, t, False)}]",
            f"{name}[{selection(d, t, False)}]",
            f"{name}.index_select(0, {where.replace('-1', '0')}.flatten())",
            f"{name}.masked_select({name} != 0)",
            f"{name}.nonzero()",
            f"{name}.take({where})" if t.numel() else f"{name}[...]",
            f"{name}[{where}, ...]",
            f"torch.take_along_dim({name}, {name}.argsort(0, stable=True), 0)",
        )
    )
    return Step(f"{p.fresh()} = {made}", "nan")


@kind(7)
def cast(d: Draw, p: Program) -> Step | None:
    name = d.name(p)
    if name is None:
        return None
    dtype = d.pick(DTYPES)
    if not converts(p.cpu[name], dtype):
        return None
    made = d.pick(
        (f"{name}.to({dtype})", f"{name}.to({dtype}, copy=True)", f"{name}.type({dtype})")
    )
    return Step(f"{p.fresh()} = {made}", "nan")


@kind(5)
def duplicate(d: Draw, p: Program) -> Step | None:
    name = d.name(p)
    if name is None:
        return None
    made = d.pick(
        (
            f"{name}.clone()",
            f"{name}.contiguous()",
            f"{name}.detach().clone()",
            f"torch.empty_like({name}).copy_({name})",
            f"__import__('copy').deepcopy({name})",
            f"{name}.new_tensor([1, 2])",
            f"{name}.to('cpu').to(dev, copy=True)",
            f"{name}.cpu().to(dev, non_blocking=True, copy=True)",
        )
    )
    return Step(f"{p.fresh()} = {made}")


@kind(5)
def host(d: Draw, p: Program) -> Step | None:
    """What Python sees: host copies, numbers, truth."""
    name = d.name(p)
    if name is None:
        return None
    t = p.cpu[name]
    made = d.pick(
        (
            f"{name}.to('cpu', copy=True)",
            f"{name}.tolist()",
            f"{name}.item()",
            f"bool({name})",
            f"{name}.detach().resolve_conj().resolve_neg().to('cpu', copy=True)",
            f"float({name})",
            f"len({name})",
            f"{name}.is_set_to({name})",
        )
    )
    if "copy=True" in made:
        if t.requires_grad:
            made = made.replace(name, f"{name}.detach()", 1)
        return Step(f"{p.fresh('h')} = {made}")
    return Step(f"{p.fresh('s')} = {made}")
