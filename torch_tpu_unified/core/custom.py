"""Operators of users that have a second form in torch operators, for targets without the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload

# The operator -> a function of torch operators with its signature; filled by `jax_op`.
TORCH_FORMS: dict[OpOverload, Callable[..., Any]] = {}
