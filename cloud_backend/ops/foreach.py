"""`_foreach_*`: pointwise and norm operators over lists of tensors, as optimisers use them.

Each is the operator of the same name applied to every element, so that meaning lives in one place;
under jit the whole list becomes one program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cloud_backend.ops import TABLE, compare, lowers, pointwise, reduce
from cloud_backend.ops import arithmetic as ar
from torch_tpu_unified.core.aten import aten

_UNARY = (
    "abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p "
    "log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"
)


def _lowering(op: Any) -> Callable[..., Any]:
    entry = TABLE.get(op)
    assert entry is not None, op
    return entry.function


def unary(name: str) -> None:
    """Register `_foreach_<name>` from `<name>.default`."""
    f = _lowering(getattr(aten, name).default)

    @lowers(getattr(aten, f"_foreach_{name}").default)
    def lowering(x):
        return [f(v) for v in x]


for _name in _UNARY.split():
    unary(_name)


def _forms(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The Scalar, ScalarList, List and Tensor overloads of a binary operator."""

    def scalar(x, scalar):
        return [f(v, scalar) for v in x]

    def scalar_list(x, scalars):
        return [f(v, s) for v, s in zip(x, scalars, strict=True)]

    def lists(x, other):
        return [f(v, o) for v, o in zip(x, other, strict=True)]

    def tensor(x, other):
        return [f(v, other) for v in x]

    return {"Scalar": scalar, "ScalarList": scalar_list, "List": lists, "Tensor": tensor}


def binary(name: str, f: Callable[[Any, Any], Any], **replaced: Callable[..., Any]) -> None:
    """Register the overloads of `_foreach_<name>`; `replaced` are those with more arguments."""
    packet = getattr(aten, f"_foreach_{name}")
    for overload, form in {**_forms(f), **replaced}.items():
        lowers(getattr(packet, overload))(form)


def _with_alpha(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    def lists(x, other, *, alpha):
        return [f(v, o, alpha=alpha) for v, o in zip(x, other, strict=True)]

    def tensor(x, other, *, alpha):
        return [f(v, other, alpha=alpha) for v in x]

    return {"List": lists, "Tensor": tensor}


binary("add", lambda v, o: ar.add(v, o, alpha=1), **_with_alpha(ar.add))
binary("sub", lambda v, o: ar.sub(v, o, alpha=1), **_with_alpha(ar.sub))
binary("mul", _lowering(aten.mul.Tensor))
binary("div", ar.div)
for _name in ("maximum", "clamp_min"):
    binary(_name, compare.clamp_min)
for _name in ("minimum", "clamp_max"):
    binary(_name, compare.clamp_max)


@lowers(aten._foreach_pow.List)
def pow_list(x, exponent):
    return [ar.pow_tensor(v, e) for v, e in zip(x, exponent, strict=True)]


@lowers(aten._foreach_pow.Scalar, static=("exponent",))
def pow_scalar(x, exponent):
    return [ar.pow_tensor_scalar(v, exponent) for v in x]


@lowers(aten._foreach_pow.ScalarList, static=("exponent",))
def pow_scalar_list(x, exponent):
    return [ar.pow_tensor_scalar(v, e) for v, e in zip(x, exponent, strict=True)]


@lowers(aten._foreach_pow.ScalarAndTensor)
def pow_scalar_and_tensor(x, exponent):
    return [ar.pow_scalar(x, e) for e in exponent]


def ternary(name: str, f: Callable[..., Any]) -> None:
    """Register `_foreach_addcmul` or `_foreach_addcdiv`."""
    packet = getattr(aten, f"_foreach_{name}")

    @lowers(packet.Scalar)
    def scalar(x, tensor1, tensor2, value):
        return [f(v, a, b, value=value) for v, a, b in zip(x, tensor1, tensor2, strict=True)]

    @lowers(packet.ScalarList, packet.Tensor)
    def scalar_list(x, tensor1, tensor2, scalars):
        return [
            f(v, a, b, value=scalars[i])
            for i, (v, a, b) in enumerate(zip(x, tensor1, tensor2, strict=True))
        ]


ternary("addcmul", ar.addcmul)
ternary("addcdiv", ar.addcdiv)


@lowers(aten._foreach_lerp.List)
def lerp_list(x, tensors1, weights):
    return [ar.lerp(v, e, w) for v, e, w in zip(x, tensors1, weights, strict=True)]


@lowers(aten._foreach_lerp.Scalar)
def lerp_scalar(x, tensors1, weight):
    return [ar.lerp(v, e, weight) for v, e in zip(x, tensors1, strict=True)]


@lowers(aten._foreach_lerp.ScalarList)
def lerp_scalar_list(x, tensors1, weight):
    return [ar.lerp(v, e, w) for v, e, w in zip(x, tensors1, weight, strict=True)]


@lowers(aten._foreach_norm.Scalar, static=("ord",))
def norm(x, ord, dtype):
    return [reduce.vector_norm(v, ord, None, False, dtype) for v in x]


@lowers(aten._foreach_powsum.Scalar, static=("ord",))
def powsum(x, ord, dtype):
    return [reduce.power_sum(v, ord, dtype) for v in x]


@lowers(aten._foreach_max.default)
def maxima(x):
    return [reduce.max_all(v) for v in x]


@lowers(aten._foreach_copy.default)
def copy(x, src):
    return [pointwise.copy(v, s) for v, s in zip(x, src, strict=True)]


@lowers(aten._foreach_mm.default)
def mm(x, mat2):
    f = _lowering(aten.mm.default)
    return [f(a, b) for a, b in zip(x, mat2, strict=True)]
