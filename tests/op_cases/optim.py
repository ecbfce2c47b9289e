"""Fused optimiser kernels and loss scaling, as pure functions of lists; whole optimisers too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.op_cases.case import OpCase

_CLOUD = ("cloud",)


def _list(scale: float = 1.0, positive: bool = False) -> list[torch.Tensor]:
    made = [torch.randn(s) * scale for s in ((3, 2), (5,))]
    return [v.abs() for v in made] if positive else made


def _steps(n: float) -> list[torch.Tensor]:
    return [torch.tensor(n), torch.tensor(n)]


def _adam(
    name: str, op: Callable[..., Any], scaled: bool = False, tensor_lr: bool = False, **changed: Any
) -> OpCase:
    numbers = {
        "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8,
        "amsgrad": False, "maximize": False, **changed,
    }  # fmt: skip

    def run(p: Any, g: Any, m: Any, v: Any, top: Any, n: Any, *scaling: Any) -> Any:
        extra = dict(zip(("grad_scale", "found_inf"), scaling, strict=False))
        top = top if numbers["amsgrad"] else []
        rate = torch.tensor(0.01) if tensor_lr else 0.01
        return op(p, g, m, v, top, n, lr=rate, **numbers, **extra)

    def args() -> tuple[Any, ...]:
        lists = (_list(), _list(), _list(0.1), _list(0.1, True), _list(0.1, True), _steps(3.0))
        return (*lists, torch.tensor(4.0), torch.tensor(0.0)) if scaled else lists

    return OpCase(name, run, args, halves=_CLOUD)


def _sgd(name: str, tensor_lr: bool = False, **changed: Any) -> OpCase:
    numbers = {
        "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.2, "nesterov": False,
        "maximize": False, "is_first_step": False, **changed,
    }  # fmt: skip

    def run(p: Any, g: Any, b: Any) -> Any:
        buffers = b if numbers["momentum"] else []
        op = torch.ops.aten._fused_sgd
        if tensor_lr:
            return op.tensor_lr(p, g, buffers, lr=torch.tensor(0.1), **numbers)
        return op(p, g, buffers, lr=0.1, **numbers)

    return OpCase(name, run, lambda: (_list(), _list(), _list()), halves=_CLOUD)


def _adagrad(p: Any, g: Any, s: Any, n: Any) -> Any:
    return torch.ops.aten._fused_adagrad(
        p, g, s, n, lr=0.1, lr_decay=0.01, weight_decay=0.1, eps=1e-10, maximize=False
    )


def _adagrad_tensor_lr(p: Any, g: Any, s: Any, n: Any) -> Any:
    numbers = {"lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-10, "maximize": False}
    return torch.ops.aten._fused_adagrad.tensor_lr(p, g, s, n, lr=torch.tensor(0.1), **numbers)


def _training(name: str, make: Callable[[Any], Any]) -> OpCase:
    """Three steps of an optimiser on a small quadratic; the parameters afterwards."""

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        params = [torch.nn.Parameter(v.detach().clone()) for v in given]
        optimiser = make(params)
        for _ in range(3):
            optimiser.zero_grad()
            loss = sum(((p - 1) ** 2 * (i + 1)).sum() for i, p in enumerate(params))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimiser.step()
        return [p.detach() for p in params]

    return OpCase(name, run, lambda: tuple(_list()), halves=_CLOUD)


def _update_scale(found: float, tracker: int) -> OpCase:
    def run(scale: Any, growth: Any, inf: Any) -> Any:
        return torch.ops.aten._amp_update_scale(scale, growth, inf, 2.0, 0.5, 3)

    def args() -> tuple[Any, ...]:
        tracked = torch.tensor(tracker, dtype=torch.int32)
        return torch.tensor(1024.0), tracked, torch.tensor(found)

    return OpCase(f"update_scale_{found:g}_{tracker}", run, args, halves=_CLOUD)


def _unscale(name: str, bad: float) -> OpCase:
    def args() -> tuple[Any, ...]:
        grads = [torch.randn(3), torch.tensor([1.0, bad])]
        return grads, torch.tensor(0.0), torch.tensor(0.25)

    op = torch.ops.aten._amp_foreach_non_finite_check_and_unscale
    return OpCase(name, op, args, halves=_CLOUD)


_fused_adam, _fused_adamw = torch.ops.aten._fused_adam, torch.ops.aten._fused_adamw
CASES = [
    _adam("adam", _fused_adam),
    _adam("adam_amsgrad", _fused_adam, amsgrad=True),
    _adam("adam_maximize", _fused_adam, maximize=True),
    _adam("adam_scaled", _fused_adam, scaled=True),
    _adam("adamw", _fused_adamw),
    _adam("adamw_amsgrad", _fused_adamw, amsgrad=True, weight_decay=0.0),
    _adam("adam_tensor_lr", _fused_adam.tensor_lr, tensor_lr=True),
    _adam("adamw_tensor_lr", _fused_adamw.tensor_lr, tensor_lr=True),
    _sgd("sgd"),
    _sgd("sgd_tensor_lr", tensor_lr=True),
    _sgd("sgd_first", is_first_step=True),
    _sgd("sgd_nesterov", nesterov=True, dampening=0.0),
    _sgd("sgd_plain", momentum=0.0, dampening=0.0, maximize=True),
    OpCase(
        "adagrad", _adagrad, lambda: (_list(), _list(), _list(1, True), _steps(2.0)), halves=_CLOUD
    ),
    OpCase(
        "adagrad_tensor_lr",
        _adagrad_tensor_lr,
        lambda: (_list(), _list(), _list(1, True), _steps(2.0)),
        halves=_CLOUD,
    ),
    _update_scale(0.0, 0),
    _update_scale(0.0, 2),
    _update_scale(1.0, 2),
    _unscale("unscale_finite", 2.0),
    _unscale("unscale_infinite", float("inf")),
    _unscale("unscale_nan", float("nan")),
    _training("train_sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    _training("train_adam", lambda p: torch.optim.Adam(p, lr=0.1)),
    _training("train_adam_loop", lambda p: torch.optim.Adam(p, lr=0.1, foreach=False)),
    _training("train_adamw", lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True)),
    _training("train_adamw_foreach", lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True)),
    _training("train_rmsprop", lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5)),
    _training("train_adagrad", lambda p: torch.optim.Adagrad(p, lr=0.1)),
    _training("train_adadelta", lambda p: torch.optim.Adadelta(p)),
    _training("train_nadam", lambda p: torch.optim.NAdam(p, lr=0.1)),
    _training("train_radam", lambda p: torch.optim.RAdam(p, lr=0.1)),
    _training("train_adamax", lambda p: torch.optim.Adamax(p, lr=0.1)),
    _training("train_asgd", lambda p: torch.optim.ASGD(p, lr=0.1)),
    _training("train_rprop", lambda p: torch.optim.Rprop(p, lr=0.1)),
]
