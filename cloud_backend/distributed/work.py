"""`torch.distributed.Work` for operations that XLA orders by their data.

A collective's results are in the tensors when the call returns, as arrays that XLA is computing; so
`wait` waits for nothing, as on CUDA, where it only orders streams. Reading a value waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import Work as _Work

from cloud_backend import tensor


class Work(_Work):
    """An operation that has been started.

    Args:
        tensors: what it writes.
        result: what its future gives; default: `tensors`.
    """

    def __init__(self, tensors: Sequence[torch.Tensor] = (), result: Any = None) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(self._tensors if result is None else result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def is_completed(self) -> bool:
        """Whether the values are there."""
        arrays = [getattr(t.untyped_storage(), "buffer", None) for t in self._tensors]
        return all(b is None or b.array is None or b.array.is_ready() for b in arrays)

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        return self._future


class Receiving(Work):
    """Arrays that are on their way into tensors.

    XLA runs a process's programs in order, so one that waits for a message holds up all later ones,
    a send that the other rank waits for among them. Hence nothing is computed from the message
    before `wait`: a whole contiguous tensor takes the array itself, others are written then.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], arrays: Sequence[Any]) -> None:
        super().__init__(tensors)
        self._arriving = list(arrays)
        self._left = []
        for t, array in zip(tensors, arrays, strict=True):
            if t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.itemsize:
                t.untyped_storage().buffer.array = array
            else:
                self._left.append((t, array))
        if self._left:
            self._future = torch.futures.Future()

    def wait(self, timeout: Any = None) -> bool:
        if self._left:
            for t, array in self._left:
                tensor.write(t, array.reshape(tuple(t.shape)))
            self._left.clear()
            self._future.set_result(self._tensors)
        return True

    def is_completed(self) -> bool:
        return all(a.is_ready() for a in self._arriving)
