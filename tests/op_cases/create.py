"""Factories next to a computed tensor: each shape, type and value form."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.op_cases.case import OpCase

_LIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "full": lambda x: x + torch.full((2, 3), 1.5),
    "zeros_ones": lambda x: torch.zeros(3) + x + torch.ones(2, 1),
    "full_like": lambda x: torch.full_like(x, -2),
    "full_like_dtype": lambda x: torch.full_like(x, 3, dtype=torch.int64),
    "zeros_like": torch.zeros_like,
    "zeros_like_bool": lambda x: torch.zeros_like(x, dtype=torch.bool),
    "ones_like": torch.ones_like,
    "new_full": lambda x: x.new_full((4,), 7),
    "new_zeros": lambda x: x.new_zeros(2, 2),
    "new_ones": lambda x: x.new_ones((), dtype=torch.int32),
    "large": lambda x: torch.full_like(x.expand(400, 2, 3).reshape(-1), 2.5)[:7],
    "fill": lambda x: x.clone().fill_(4),
    "fill_tensor": lambda x: x.clone().fill_(x[0, 0]),
    "zero": lambda x: x.clone().zero_(),
    "arange": lambda x: x + torch.arange(3),
    "arange_start": lambda x: x + torch.arange(2, 5),
    "triu_indices": lambda x: x[:, torch.triu_indices(3, 3)[1]],
    "empty": lambda x: torch.empty(2, 3).fill_(1) + x,
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0)).fill_(1) + x,
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2)).fill_(1) + x,
    "empty_like": lambda x: torch.empty_like(x).fill_(x[0, 0]),
    "new_empty": lambda x: x.new_empty(4).fill_(x[0, 0]),
    "arange_step": lambda x: x + torch.arange(1, 7, 2),
    "arange_float": lambda x: x + torch.arange(0.5, 2.0, 0.5),
    "arange_down": lambda x: x + torch.arange(3, 0, -1),
    "linspace": lambda x: x + torch.linspace(-1, 1, 3),
    "eye": lambda x: x @ torch.eye(3),
    "eye_wide": lambda x: x + torch.eye(2, 3),
    "tril_indices": lambda x: x[:, torch.tril_indices(3, 3)[0]],
    "scalar_tensor": lambda x: x * torch.tensor(2.5),
}
CASES = [OpCase(name, fn, lambda: (torch.randn(2, 3),)) for name, fn in _LIKE.items()]
