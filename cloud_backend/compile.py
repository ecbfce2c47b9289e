"""The `torch.compile` backend: AOTAutograd graphs, each lowered to one XLA program."""

from __future__ import annotations

from typing import Any


class Programs:
    """Compiled programs so far."""

    count = 0


def tpu_backend(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
    raise NotImplementedError
