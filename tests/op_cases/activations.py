"""Activation functions: variants, thresholds, far tails, other axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.op_cases.case import OpCase


def _f(name: str, fn: Callable[..., Any], *shape: int) -> OpCase:
    return OpCase(name, fn, lambda: (4 * torch.randn(shape or (3, 5)),))


_SLOPE = torch.tensor([0.1, -0.2, 0.3, 0.7])

CASES = [
    *(
        _f(n, getattr(F, n))
        for n in (
            "relu relu6 gelu silu sigmoid tanh hardswish hardsigmoid leaky_relu elu selu celu "
            "softplus mish logsigmoid hardtanh softsign tanhshrink hardshrink softshrink"
        ).split()
    ),
    _f("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    _f("gelu_far", lambda x: (F.gelu(x * 5), F.gelu(x * 5, approximate="tanh"))),
    _f("leaky_relu_slope", lambda x: F.leaky_relu(x, 0.3)),
    _f("elu_alpha", lambda x: F.elu(x, 0.4)),
    _f("celu_alpha", lambda x: F.celu(x, 1.5)),
    _f("softplus_beta", lambda x: F.softplus(x, beta=2.5, threshold=5)),
    _f("softplus_far", lambda x: F.softplus(x * 30)),
    _f("mish_far", lambda x: F.mish(x * 30)),
    _f("hardtanh_known", lambda x: (F.hardtanh(x, 0, 6), F.hardtanh(x, -1, 1))),
    _f("hardtanh_other", lambda x: F.hardtanh(x, -0.3, 2)),
    _f("threshold", lambda x: F.threshold(x, 0.5, -3)),
    _f("glu", lambda x: F.glu(x, 1), 3, 6),
    _f("glu_first", lambda x: F.glu(x, 0), 4, 3),
    _f("prelu", lambda x: F.prelu(x, _SLOPE), 2, 4, 3, 3),
    _f("prelu_single", lambda x: F.prelu(x, _SLOPE[:1])),
    OpCase("prelu_computed", F.prelu, lambda: (torch.randn(2, 4, 3), torch.randn(4))),
    _f("softmax_last", lambda x: x.softmax(-1), 2, 3, 5),
    _f("softmax_first", lambda x: x.softmax(0), 4, 3),
    _f("softmax_middle", lambda x: x.softmax(1), 2, 3, 4, 5),
    _f("softmax_far", lambda x: (x * 40).softmax(-1)),
    _f("softmax_zero_rank", lambda x: x.sum().softmax(0)),
    _f("log_softmax", lambda x: F.log_softmax(x, -1)),
    _f("log_softmax_middle", lambda x: F.log_softmax(x, 1), 2, 3, 4),
    _f("log_softmax_far", lambda x: F.log_softmax(x * 40, -1)),
    _f("softmin", lambda x: F.softmin(x, 1)),
    _f("gelu_chain", lambda x: F.silu(F.gelu(x) + 1).tanh()),
    OpCase("relu_ints", F.relu, lambda: (torch.randint(-5, 5, (3, 4)),)),
    OpCase("relu_int8", F.relu, lambda: (torch.randint(-5, 5, (3, 4)).to(torch.int8),)),
    OpCase("sigmoid_ints", torch.sigmoid, lambda: (torch.randint(-5, 5, (3, 4)),)),
    OpCase(
        "safe_softmax",
        lambda x: torch.ops.aten._safe_softmax(x, -1),
        lambda: (
            torch.randn(3, 4).masked_fill(
                torch.eye(3, 4) + torch.tensor([[1], [0], [0]]) > 0, -torch.inf
            ),
        ),
    ),
    OpCase(
        "half",
        lambda x: F.gelu(x.half()).float(),
        lambda: (torch.randn(3, 4),),
        tol=2e-3,
        halves=("litert",),
    ),
]
