"""The eager modes of the device: strict, debug and fused.

strict runs each operator as it comes, asynchronously; debug waits for each one and names the line
that called it in errors; fused records operators and runs them together (see `fused`).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from torch_tpu_unified.core import flags
from torch_tpu_unified.core.errors import InputError

if TYPE_CHECKING:
    from cloud_backend import plan


class EagerMode(enum.Enum):
    """The modes, under the names of Google's torch_tpu."""

    DEFER_NEVER = "strict"
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "debug"
    DEFER_AND_FUSE = "fused"


_current = EagerMode.DEFER_NEVER
_hook: Any = None


def _as_mode(mode: EagerMode | str) -> EagerMode:
    if isinstance(mode, EagerMode):
        return mode
    for known in EagerMode:
        if mode in (known.value, known.name):
            return known
    names = ", ".join(repr(known.value) for known in EagerMode)
    raise InputError(f"eager mode {mode!r} is not one of {names}")


def get_eager_mode() -> EagerMode:
    """The mode that holds now, for all threads of the process."""
    return _current


def set_eager_mode(mode: EagerMode | str) -> None:
    """Choose how operators run from now on, in all threads of the process.

    Args:
        mode: "strict", "debug" or "fused", or a member of `EagerMode`.

    Raises:
        InputError: no such mode, or "fused" while `tpu` stands for a mesh of chips.
    """
    global _current, _hook
    from cloud_backend import mesh, plan

    mode = _as_mode(mode)
    strict: Any = None
    if mesh.Active.mesh is not None:
        from cloud_backend import sharded

        if mode is EagerMode.DEFER_AND_FUSE:
            raise InputError(sharded.NOT_FUSED)
        strict = sharded.take
    flush()
    if _hook is not None:
        _hook.remove()
        _hook = None
    if mode is EagerMode.DEFER_AND_FUSE:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from cloud_backend.fused import RECORDER

        # A training loop that reads no value still ends its recordings at the same place.
        _hook = register_optimizer_step_post_hook(lambda *_: RECORDER.flush())
        plan.Calls.take = RECORDER
    else:
        debug = mode is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
        plan.Calls.take = _debug if debug else strict
    _current = mode


@contextlib.contextmanager
def eager_mode(mode: EagerMode | str) -> Iterator[None]:
    """`set_eager_mode` for a `with` block."""
    before = _current
    set_eager_mode(mode)
    try:
        yield
    finally:
        set_eager_mode(before)


def flush() -> None:
    """Issue what fused mode has recorded; does not wait for it."""
    if _current is EagerMode.DEFER_AND_FUSE:
        from cloud_backend import pending

        pending.Pending.flush()


def start() -> None:
    """Take the mode that the environment asks for."""
    if flags.EAGER_MODE.value != "strict":
        set_eager_mode(flags.EAGER_MODE.value)


def _debug(kernel: plan.Kernel, args: Any, kwargs: Any) -> Any:
    """Run a kernel's call, wait for all that it made and wrote, and name the user's line."""
    try:
        result = kernel._general(args, dict(kwargs))
        made = result if isinstance(result, (tuple, list)) else [result]
        for t in (*made, *kernel._written(args, kwargs)):
            buffer = isinstance(t, torch.Tensor) and getattr(t.untyped_storage(), "buffer", None)
            if buffer and buffer.array is not None:
                buffer.array.block_until_ready()
        return result
    except Exception as e:
        if e.args and isinstance(e.args[0], str) and "\n  from    " not in e.args[0]:
            from cloud_backend import explain

            e.args = (
                f"{e.args[0]}\n  call    {kernel.op}\n  from    {explain.user_line()}",
                *e.args[1:],
            )
        raise
