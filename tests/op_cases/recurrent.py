"""Recurrent layers: every kind, direction, bias and state form, few steps and many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.op_cases.case import OpCase

_LONG = 11


def _module(kind: str, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return getattr(nn, kind)(3, 4, **options).eval().requires_grad_(False)


def _case(name: str, kind: str, steps: int = _LONG, batch: int = 2, **options: Any) -> OpCase:
    module = _module(kind, **options)
    shape = (batch, steps, 3) if options.get("batch_first") else (steps, batch, 3)
    return OpCase(name, lambda x: module(x), lambda: (torch.randn(shape),))


def _states(kind: str, width: int = 4, **options: Any) -> Callable[[], tuple[Any, ...]]:
    def args() -> tuple[Any, ...]:
        h = torch.randn(1, 2, width)
        state = (h, torch.randn(1, 2, 4)) if kind == "LSTM" else h
        return torch.randn(_LONG, 2, 3), state

    return args


def _with_state(kind: str, width: int = 4, **options: Any) -> OpCase:
    module = _module(kind, **options)
    label = f"{kind.lower()}_state" + ("_projected" if options else "")
    return OpCase(label, lambda x, s: module(x, s), _states(kind, width))


def _cell(kind: str) -> OpCase:
    cell = _module(kind)
    return OpCase(kind.lower(), lambda x: cell(x), lambda: (torch.randn(2, 3),))


CASES = [
    *(_case(f"{k.lower()}_short", k, 3) for k in ("LSTM", "GRU", "RNN")),
    *(_case(f"{k.lower()}_long", k) for k in ("LSTM", "GRU", "RNN")),
    *(_case(f"{k.lower()}_one_step", k, 1, batch=1) for k in ("LSTM", "GRU")),
    *(_case(f"{k.lower()}_both", k, bidirectional=True) for k in ("LSTM", "GRU", "RNN")),
    *(_case(f"{k.lower()}_both_short", k, 3, bidirectional=True) for k in ("LSTM", "GRU")),
    *(_case(f"{k.lower()}_deep", k, num_layers=2, batch_first=True) for k in ("LSTM", "GRU")),
    *(_case(f"{k.lower()}_no_bias", k, bias=False) for k in ("LSTM", "GRU")),
    _case("rnn_relu", "RNN", nonlinearity="relu"),
    _case("lstm_everything", "LSTM", num_layers=2, bidirectional=True, batch_first=True),
    _case("lstm_projected", "LSTM", proj_size=2),
    *(_with_state(k) for k in ("LSTM", "GRU", "RNN")),
    _with_state("LSTM", 2, proj_size=2),
    *(_cell(k) for k in ("LSTMCell", "GRUCell", "RNNCell")),
]
