"""Parts of layers and of gradients that PyTorch calls by names of their own, and `out=` forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase

aten = torch.ops.aten
randn = torch.randn
Made = Callable[[], tuple[Any, ...]]


def _either(ours: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """The operator on the device; on the CPU, which lacks it, the formula."""

    def run(*args: Any) -> Any:
        return (ours if args[0].device.type == "tpu" else reference)(*args)

    run.device_only = True  # type: ignore[attr-defined]
    return run


def _matmul_grads(grad: Any, a: Any, b: Any) -> Any:
    with torch.enable_grad():
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        return torch.autograd.grad(a @ b, (a, b), grad)


def _pool_grad(grad: Any, x: Any) -> Any:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(F.max_pool2d(x, 3, 2, 1), x, grad)[0]


def _qkv(qkv: Any, bias: Any) -> Any:
    b, t, d = qkv.shape
    q, k, v = (qkv + bias).reshape(b, t, 3, 2, d // 6).permute(2, 0, 3, 1, 4)
    return q / math.sqrt(d // 6), k, v


def _padded(values: Any, starts: Any) -> Any:
    rows = [values[a:b] for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
    out = values.new_full((len(rows), 4, *values.shape[1:]), -1.0)
    for i, row in enumerate(rows):
        out[i, : min(len(row), 4)] = row[:4]
    return out


def _jagged(dense: Any, starts: Any) -> Any:
    lengths = (starts[1:] - starts[:-1]).tolist()
    return torch.cat([row[:n] for row, n in zip(dense, lengths, strict=True)])


def _starts() -> torch.Tensor:
    return torch.tensor([0, 2, 2, 6])


def _outs(call: Callable[..., Any], *shapes: tuple[int, ...], write: tuple[int, ...] = ()) -> Any:
    """Call an `out=` form with fresh results of these shapes; returns all that it wrote."""

    def run(*args: Any) -> Any:
        args = tuple(a.clone() for a in args)
        outs = [torch.full(s, 7.0, device=args[0].device, dtype=args[0].dtype) for s in shapes]
        call(*args, *outs)
        return *outs, *(args[i] for i in write)

    return run


def _cummax(x: torch.Tensor) -> Any:
    values, indices = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
    aten._cummax_helper(x, values, indices, 1)
    return values, indices


_CALLS: dict[str, tuple[Callable[..., Any], Made]] = {
    "linear_combination": (
        aten._compute_linear_combination.default,
        lambda: (randn(3, 2, 4), randn(5, 3)),
    ),
    "cholesky_solve_helper": (
        lambda b, a: aten._cholesky_solve_helper(b, torch.linalg.cholesky(a @ a.mT + 3), False),
        lambda: (randn(2, 4, 3), randn(2, 4, 4)),
    ),
    "masked_scale": (
        _either(lambda x, m: aten._masked_scale(x, m, 1.5), lambda x, m: x * m * 1.5),
        lambda: (randn(3, 4), torch.rand(3, 4) > 0.5),
    ),
    "glu_backward_jvp": (
        lambda g, x, dg, dx: aten.glu_backward_jvp(aten.glu_backward(g, x, 1), g, x, dg, dx, 1),
        lambda: (randn(3, 4), randn(3, 8), randn(3, 4), randn(3, 8)),
    ),
    "matmul_backward": (
        _either(lambda g, a, b: aten.matmul_backward(g, a, b, [True, True]), _matmul_grads),
        lambda: (randn(2, 3, 5), randn(2, 3, 4), randn(4, 5)),
    ),
    "max_pool2d_backward": (
        _either(lambda g, x: aten.max_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1]), _pool_grad),
        lambda: (randn(1, 2, 3, 3), randn(1, 2, 6, 5)),
    ),
    "weight_norm_backward": (
        lambda g, v, s: aten._weight_norm_interface_backward(
            g, v, s, v.norm(2, [1, 2], keepdim=True), 0
        ),
        lambda: (randn(3, 4, 2), randn(3, 4, 2), randn(3, 1, 1)),
    ),
    "weight_norm_backward_last": (
        lambda g, v, s: aten._weight_norm_interface_backward(
            g, v, s, v.norm(2, [0, 1], keepdim=True), 2
        ),
        lambda: (randn(3, 4, 2), randn(3, 4, 2), randn(1, 1, 2)),
    ),
    "transform_bias_rescale_qkv": (
        _either(lambda x, b: aten._transform_bias_rescale_qkv(x, b, 2), _qkv),
        lambda: (randn(2, 3, 12), randn(12)),
    ),
    "jagged_to_padded": (
        _either(
            lambda v, s: aten._jagged_to_padded_dense_forward(v, [s], [4], -1.0),
            _padded,
        ),
        lambda: (randn(6, 3), _starts()),
    ),
    "padded_to_jagged": (
        _either(lambda d, s: aten._padded_dense_to_jagged_forward(d, [s], 6), _jagged),
        lambda: (randn(3, 4, 2), _starts()),
    ),
    "padded_to_jagged_unknown": (
        _either(lambda d, s: aten._padded_dense_to_jagged_forward(d, [s]), _jagged),
        lambda: (randn(3, 4, 2), _starts()),
    ),
    "lanczos_smaller": (
        lambda x: aten._upsample_lanczos2d_aa(x, [3, 4], False),
        lambda: (randn(1, 2, 8, 9),),
    ),
    "lanczos_larger": (
        lambda x: aten._upsample_lanczos2d_aa(x, [9, 11], False),
        lambda: (randn(1, 2, 5, 6),),
    ),
    "lanczos_backward": (
        lambda g: aten._upsample_lanczos2d_aa_backward(g, [3, 4], [1, 2, 8, 9], False),
        lambda: (randn(1, 2, 3, 4),),
    ),
    "cummax_helper": (_cummax, lambda: (randn(3, 4),)),
    "batch_norm_out": (
        _outs(
            lambda x, w, b, m, v, *o: aten._native_batch_norm_legit.out(
                x, w, b, m, v, True, 0.1, 1e-5, out=o[0], save_mean=o[1], save_invstd=o[2]
            ),
            (4, 3, 2),
            (3,),
            (3,),
            write=(3, 4),
        ),
        lambda: (randn(4, 3, 2), randn(3), randn(3), randn(3), torch.rand(3)),
    ),
    "rrelu_out": (
        _outs(
            lambda x, n, o: aten.rrelu_with_noise.out(x, n, 0.1, 0.3, False, None, out=o),
            (3, 4),
        ),
        lambda: (randn(3, 4), randn(3, 4)),
    ),
    "adaptive_pool3d_backward_out": (
        _outs(
            lambda g, x, o: aten.adaptive_avg_pool3d_backward.grad_input(g, x, grad_input=o),
            (1, 2, 4, 5, 6),
        ),
        lambda: (randn(1, 2, 2, 3, 2), randn(1, 2, 4, 5, 6)),
    ),
    "slow_conv2d_backward_out": (
        _outs(
            lambda g, x, w, *o: aten._slow_conv2d_backward.grad_input(
                g, x, w, [2, 2], [1, 1], [0, 0],
                grad_input=o[0], grad_weight=o[1], grad_bias=o[2],
            ),
            (1, 2, 4, 4),
            (3, 2, 2, 2),
            (3,),
        ),
        lambda: (randn(1, 3, 3, 3), randn(1, 2, 4, 4), randn(3, 2, 2, 2)),
    ),
}  # fmt: skip

# ---- products of 8-bit floats

_E4M3 = torch.float8_e4m3fn


def _scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return torch._scaled_mm(
        a.to(_E4M3), b.to(_E4M3).t().contiguous().t(), scale_a, scale_b, out_dtype=torch.bfloat16
    )


def _scaled_reference(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    product = a.to(_E4M3).float() @ b.to(_E4M3).float()
    return (product * scale_a * scale_b).to(torch.bfloat16)


def _scaled_v2(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    rows = [1] if scale_a.numel() > 1 else [0]
    return aten._scaled_mm_v2(
        a.to(_E4M3), b.to(_E4M3), [scale_a], rows, [0], [scale_b], rows, [0], None, torch.bfloat16
    )


def _grouped(a: Any, b: Any, scale_a: Any, scale_b: Any, ends: Any) -> Any:
    return aten._scaled_grouped_mm(a.to(_E4M3), b.to(_E4M3), scale_a, scale_b, ends)


def _grouped_v2(a: Any, b: Any, scale_a: Any, scale_b: Any, ends: Any) -> Any:
    one = ([1], [0])
    return aten._scaled_grouped_mm_v2(
        a.to(_E4M3), b.to(_E4M3), [scale_a], *one, [scale_b], *one, ends, None, torch.bfloat16
    )


def _grouped_reference(a: Any, b: Any, scale_a: Any, scale_b: Any, ends: Any) -> Any:
    parts, start = [], 0
    for i, end in enumerate(ends.tolist()):
        rows = a[start:end].to(_E4M3).float() * scale_a[start:end, None]
        parts.append(rows @ (b[i].to(_E4M3).float() * scale_b[i]))
        start = end
    return torch.cat(parts).to(torch.bfloat16)


_SCALED: dict[str, tuple[Callable[..., Any], Made]] = {
    f"scaled_mm_{name}{version}": (_either(call, _scaled_reference), args)
    for version, call in (("", _scaled), ("_v2", _scaled_v2))
    for name, args in (
        (
            "whole",
            lambda: (randn(16, 32), randn(32, 16), torch.tensor(0.5), torch.tensor(2.0)),
        ),
        (
            "rows",
            lambda: (randn(16, 32), randn(32, 16), torch.rand(16, 1), torch.rand(1, 16)),
        ),
    )
} | {
    f"scaled_grouped_mm{version}": (
        _either(call, _grouped_reference),
        lambda: (
            randn(6, 8),
            randn(2, 8, 4),
            torch.rand(6),
            torch.rand(2, 4),
            torch.tensor([2, 6], dtype=torch.int32),
        ),
    )
    for version, call in (("", _grouped), ("_v2", _grouped_v2))
}

CASES = [
    OpCase(name, fn, args, halves=("cloud",))
    for table in (_CALLS, _SCALED)
    for name, (fn, args) in table.items()
]
