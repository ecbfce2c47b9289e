"""Steps that write: in place, through indices, into `out=`, from other tensors and devices.

A step is only drawn where its result is defined: no float out of an integer's range, no two writes
of different values to one place, no partly overlapping operands that PyTorch does not refuse.
"""

from __future__ import annotations

import torch

from tests.fuzz.draw import (
    Draw,
    broadcasts,
    converts,
    dense,
    dtype_name,
    is_number,
    kind,
    literal,
    may_combine,
    may_write,
)
from tests.fuzz.program import Program, Step
from tests.fuzz.views import basic_index

Tensor = torch.Tensor


@kind(14)
def in_place(d: Draw, p: Program) -> Step | None:
    """In place with a number or nothing."""
    name = d.name(p, may_write)
    if name is None:
        return None
    t = p.cpu[name]
    call = d.pick(
        (
            "mul_(2)",
            "add_(1)",
            "fill_(3)",
            "zero_()",
            "neg_()",
            "sub_(2)",
            "mul_(0.5)",
            "add_(1.5)",
            "fill_(1.5)",
            "abs_()",
            "clamp_(-1, 2)",
            "clamp_(min=0)",
            "sign_()",
            "bitwise_not_()",
            "logical_not_()",
            "div_(2)",
            "floor_divide_(2)",
            "remainder_(3)",
            "pow_(2)",
            "square_()",
            "fill_(300)",
            "add_(300)",
            "mul_(-1)",
            "fill_(-1)",
            "fill_(1j)",
            "add_(1j)",
            "add_(True)",
            "fill_(float('nan'))",
            "eq_(3)",
            "lt_(0)",
            "round_()",
            "nan_to_num_()",
            "conj_physical_()",
            "relu_()",
            "masked_fill_(torch.tensor(True).to(dev), 2)",
            "triu_()",
            "cumsum_(0)",
        )
    )
    if t.is_floating_point() and "nan" in call and not t.dtype.itemsize > 1:
        return None
    return Step(f"{name}.{call}", "close", (name,), (name,))


@kind(10)
def combine(d: Draw, p: Program) -> Step | None:
    """In place with another tensor."""
    name, other = d.name(p), d.name(p)
    if name is None or other is None or not may_combine(p.cpu[name], p.cpu[other]):
        return None
    call = d.pick(
        (
            f"add_({other})",
            f"mul_({other})",
            f"sub_({other})",
            f"add_({other}, alpha=2)",
            f"eq_({other})",
            f"lt_({other})",
            f"logical_and_({other})",
            f"bitwise_xor_({other})",
            f"clamp_(min={other})",
            f"masked_fill_({other} == 0, 1)",
            f"addcmul_({other}, {other})",
            f"lerp_({other}, 0.5)",
            f"copysign_({other})",
        )
    )
    if "bitwise" in call and not all(
        torch.can_cast(p.cpu[n].dtype, torch.int64) for n in (name, other)
    ):
        return None
    if "addcmul" in call and not p.cpu[other].is_floating_point():
        return None
    return Step(f"{name}.{call}", "close", (name,), (name, other))


@kind(12)
def copy(d: Draw, p: Program) -> Step | None:
    """`copy_` and assignment between views, dtypes and devices."""
    name, other = d.name(p), d.name(p)
    if name is None or other is None:
        return None
    target, source = p.cpu[name], p.cpu[other]
    if not converts(source, target.dtype):
        return None
    way = d.below(6)
    if way == 0:
        return (
            Step(f"{name}.copy_({other}.to('cpu', copy=True))", "nan", (name,))
            if may_write(target)
            else None
        )
    if way == 1 and may_write(target):
        host = literal(d, tuple(target.shape), d.dtype())
        # Small numbers: in every dtype's range, except that unsigned ones have no negatives.
        if "inf" in host or "nan" in host or (not target.dtype.is_signed and "-" in host):
            return None
        return Step(f"{name}.copy_({host})", "nan", (name,))
    if not may_combine(target, source):
        return None
    if way == 2:
        return Step(f"{name}[{basic_index(d, target)}] = {other}.clone()", "nan", (name,))
    return Step(f"{name}.copy_({other})", "nan", (name,))


@kind(6)
def assign(d: Draw, p: Program) -> Step | None:
    """A number through basic indices."""
    name = d.name(p, may_write)
    if name is None:
        return None
    value = d.pick(("0", "2", "-1", "1.5", "True", "300", "1j", "float('inf')"))
    t = p.cpu[name]
    if value in ("1.5", "float('inf')", "1j", "300", "-1") and t.numel() == 0:
        value = "1"
    sign = d.pick(("=", "=", "+=", "*="))
    return Step(f"{name}[{basic_index(d, t)}] {sign} {value}", "close", (name,))


def positions(d: Draw, n: int, unique: bool) -> str:
    """Source of a tensor of positions into a dimension of n."""
    if n == 0:
        return "torch.tensor([], dtype=torch.int64).to(dev)"
    last = n - 1
    choices = [f"[{last}, 0]" if n > 1 else "[0]", "[0]", "[-1]", "[]"]
    if not unique:
        choices += [f"[0, {last}, 0]", f"[[{last}], [0]]"]
    dtype = "torch.int64" if not d.seldom(4) else "torch.int32"
    return f"torch.tensor({d.pick(choices)}, dtype={dtype}).to(dev)"


def mask(d: Draw, t: Tensor) -> str:
    """Source of a mask over a tensor or its first dimension."""
    shape = tuple(t.shape) if not t.dim() or not d.seldom(3) else (t.shape[0],)
    return f"{literal(d, shape, torch.bool)}.to(dev)"


def selection(d: Draw, t: Tensor, unique: bool) -> str:
    """Source of an index with masks and tensors."""
    way = d.below(6)
    if way < 2 or t.dim() == 0:
        return mask(d, t)
    if way == 2 and t.dim() > 1:
        return f":, {positions(d, t.shape[1], unique)}"
    if way == 3 and t.dim() > 1:
        return f"{positions(d, t.shape[0], unique)}, 0" if t.shape[1] else "..."
    if way == 4 and t.dim() > 1:
        return f"1:, {literal(d, (t.shape[1],), torch.bool)}.to(dev)"
    return positions(d, t.shape[0], unique)


@kind(10)
def put(d: Draw, p: Program) -> Step | None:
    """Through masks and tensors of positions; duplicates only where they are added."""
    name = d.name(p, lambda t: may_write(t) and is_number(t) and not broadcasts(t))
    if name is None:
        return None
    t = p.cpu[name]
    way = d.below(8)
    other = d.name(p, lambda o: o.untyped_storage()._cdata != t.untyped_storage()._cdata)
    if way == 0 and t.dim():
        where = positions(d, t.shape[0], False)
        value = f"torch.ones((), dtype={dtype_name(t)}, device=dev)"
        call = f"{name}.index_put_(({where},), {value}, accumulate=True)"
        return Step(call, "close", (name,), (name,))
    if way == 1 and other is not None and converts(p.cpu[other], t.dtype):
        where = selection(d, t, True)
        if "bool" in where and p.cpu[other].numel() != 1:
            return None  # how many values a mask takes is known on the host alone
        call = f"{name}[{where}] = {other}"
        return Step(call, "nan", (name,))
    if way == 2 and t.dim():
        a, b = selection(d, t, True), selection(d, t, True)
        if "bool" in a:
            b = a
        call = f"{name}[{a}] = {name}[{b}]"
        return Step(call, "nan", (name,))
    if way == 3:
        return Step(f"{name}.masked_fill_({mask(d, t)}, {d.pick(('2', '1.5', '-1'))})")
    if way == 4 and other is not None and p.cpu[other].dtype == t.dtype:
        return Step(f"{name}.masked_scatter_({mask(d, t)}, {other})")
    value = d.pick(("0", "2", "-1", "1.5", "True"))
    sign = d.pick(("=", "=", "+=", "*="))
    return Step(f"{name}[{selection(d, t, True)}] {sign} {value}", "close", (name,))


@kind(7)
def along(d: Draw, p: Program) -> Step | None:
    """`index_copy_`, `index_add_`, `index_fill_`, `scatter_` and the like along one dimension."""
    name = d.name(p, lambda t: may_write(t) and is_number(t))
    if name is None:
        return None
    t = p.cpu[name]
    dim = d.dim(t)
    if not -t.dim() <= dim < t.dim():
        dim = 0
    n = t.shape[dim] if t.dim() else 1
    where = positions(d, n, True).replace("-1", "0")
    if "[]" in where or n == 0:
        where, count = "torch.tensor([], dtype=torch.int64).to(dev)", 0
    else:
        count = 2 if f"[{n - 1}, 0]" in where and n > 1 else 1
    source = list(t.shape)
    if source:
        source[dim] = count
    values = f"torch.ones({tuple(source)}, dtype={dtype_name(t)}, device=dev)"
    index = f"torch.zeros({tuple(source)}, dtype=torch.int64, device=dev)"
    call = d.pick(
        (
            f"index_add_({dim}, {where}, {values})",
            f"index_copy_({dim}, {where}, {values})",
            f"index_fill_({dim}, {where}, 2)",
            f"scatter_({dim}, {index}, 2)",
            f"scatter_add_({dim}, {index}, {values})",
            f"scatter_({dim}, {index}, {values})",
            f"put_({index}.flatten()[:1], {values}.flatten()[:1])",
            f"index_add_({dim}, {where}, {values}, alpha=2)",
        )
    )
    return Step(f"{name}.{call}", "close", (name,), (name,))


@kind(8)
def out(d: Draw, p: Program) -> Step | None:
    """Into `out=`: a live tensor or an empty one."""
    a, b, target = d.name(p, is_number), d.name(p, is_number), d.name(p, may_write)
    if a is None or b is None or target is None:
        return None
    t = p.cpu[target]
    shared = False
    for operand in (p.cpu[a], p.cpu[b]):
        if not may_combine(t, operand):
            return None
        same = t.untyped_storage()._cdata == operand.untyped_storage()._cdata
        if same and (not dense(t) or broadcasts(operand)):
            return None
        shared = shared or same
    if d.seldom(3):
        target = p.fresh()
        before = f"{target} = torch.empty(0, dtype={d.dtype()}, device=dev); "
    else:
        before = ""
    call = d.pick(
        (
            f"add({a}, {b}",
            f"mul({a}, {b}",
            f"neg({a}",
            f"sub({a}, 1",
            f"eq({a}, {b}",
            f"abs({a}",
            f"cat(({a}, {a})",
            f"stack(({a}, {a})",
            f"maximum({a}, {b}",
            f"clamp({a}, 0, 2",
            f"index_select({a}, 0, torch.tensor([0]).to(dev)",
            f"logical_not({a}",
            f"bitwise_and({a}, {b}",
        )
    )
    if before and call.startswith("stack"):
        return None  # resized before it refuses another dtype, and then holds anything
    grows = p.cpu[target].numel() if not before else 0
    if shared and not before and call.startswith(("cat", "stack", "index")):
        return None  # each of these has its own rule for outputs that are inputs
    if not before and grows < _result_size(call, p):
        return None  # memory that a resize adds is not defined where the result does not fill it
    return Step(f"{before}torch.{call}, out={target})", "close", (target,), (a, b))


def _result_size(call: str, p: Program) -> int:
    try:
        result = eval(f"torch.{call})", {**p.cpu, "dev": "cpu"})
    except Exception:
        return 0
    return int(result.numel())


@kind(4)
def reduce_out(d: Draw, p: Program) -> Step | None:
    """Reductions into `out=`."""
    a, target = d.name(p, is_number), d.name(p, may_write)
    if a is None or target is None:
        return None
    t, source = p.cpu[target], p.cpu[a]
    if not source.numel():
        return None  # two errors in one line: which comes first is not of interest
    if t.untyped_storage()._cdata == source.untyped_storage()._cdata:
        return None
    dim = d.dim(source)
    call = d.pick(
        (
            f"sum({a}, {dim}",
            f"amax({a}, {dim}",
            f"argmax({a}, {dim}",
            f"all({a}, {dim}",
            f"mean({a}, {dim}",
            f"cumsum({a}, {dim}",
            f"prod({a}, {dim}",
        )
    )
    if t.numel() < _result_size(call, p):
        return None
    return Step(f"torch.{call}, out={target})", "close", (target,), (a,))
