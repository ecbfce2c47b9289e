"""Promised contents of storages: what a buffer holds between recording and flushing.

In fused mode a buffer may hold a `Value` (an output of the program that is being recorded). Such a
buffer is `Pending`: the same object with a property where the array was, so that any code that
asks for the array flushes the recording first, and code outside fused mode pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

from cloud_backend import tensor
from cloud_backend.dtypes import to_torch
from cloud_backend.events import Memory
from cloud_backend.tensor import Buffer

content_of: Callable[[Any], Any] = Buffer.array.__get__  # type: ignore[attr-defined]
_set_content: Callable[[Any, Any], None] = Buffer.array.__set__  # type: ignore[attr-defined]


class Spec:
    """Shape and dtype of a base array; one object each (`spec_of`), so identity compares."""

    __slots__ = ("dtype", "nbytes", "shape", "size", "torch_dtype")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.size = int(np.prod(shape, dtype=np.int64))
        self.nbytes = self.size * dtype.itemsize
        self.torch_dtype = to_torch(dtype)


_specs: dict[tuple[tuple[int, ...], np.dtype], Spec] = {}


def spec_of(array: Any) -> Spec:
    """The `Spec` of an array, or of anything else with a shape and a dtype."""
    key = (tuple(array.shape), np.dtype(array.dtype))
    found = _specs.get(key)
    if found is None:
        found = _specs[key] = Spec(*key)
    return found


class Failure:
    """What stands for an array that a failed program was to compute."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Value:
    """One output of a recorded operation; `array` is set by the flush."""

    __slots__ = ("array", "index", "spec")

    def __init__(self, spec: Spec, index: int) -> None:
        self.spec, self.index = spec, index
        self.array: Any = None


class Pending(Buffer):
    """A buffer whose content is promised; it becomes a plain `Buffer` once the array is there."""

    __slots__ = ()
    flush: ClassVar[Callable[[], None]]

    def __init__(self, array: Any, nbytes: int) -> None:
        _set_content(self, array)
        self.nbytes = nbytes
        Memory.current += nbytes  # no new peak: memory is taken by the flush, which counts it

    @property
    def array(self) -> Any:
        content = content_of(self)
        if type(content) is Value:
            if content.array is None:
                Pending.flush()
            content = self.array = settled(content)
        return content

    @array.setter
    def array(self, array: Any) -> None:
        _set_content(self, array)
        self.__class__ = Buffer


def settled(value: Value) -> Any:
    """The array of a flushed value.

    Raises:
        RuntimeError: the program that was to compute it failed.
    """
    if type(value.array) is Failure:
        error = value.array.error
        raise RuntimeError(
            "tpu: this tensor has no values, because the fused program that was to compute "
            f"them failed: {error}"
        ) from error
    return value.array


def put(buffer: Buffer, content: Any) -> None:
    """Let `buffer` hold an array or a promised value."""
    _set_content(buffer, content)
    buffer.__class__ = Pending if type(content) is Value else Buffer


def content(t: torch.Tensor) -> Any:
    """What a tensor's storage holds, promised or not; zeros are made for unwritten memory."""
    buffer = getattr(t.untyped_storage(), "buffer", None)
    found = None if buffer is None else content_of(buffer)
    return tensor.base_of(t) if found is None else found


def shape_of(content: Any) -> tuple[int, ...]:
    """The shape of an array or of a promised value."""
    shape: tuple[int, ...] = content.spec.shape if type(content) is Value else content.shape
    return shape


def wrap(content: Any, m: tensor.Meta) -> torch.Tensor:
    """`tensor.wrap` for an array or a promised value."""
    return tensor.wrap(content, m, Pending if type(content) is Value else Buffer)
