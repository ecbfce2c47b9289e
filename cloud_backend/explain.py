"""The text of a refusal: what cannot run, which call, from which line, what to do next."""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from torch_tpu_unified.core import schema


def user_line() -> str:
    """The innermost line on the stack that is neither PyTorch's nor this project's."""
    import traceback

    own = ("/torch/", "/cloud_backend/", "/torch_tpu_unified/")
    frames = [f for f in traceback.extract_stack() if not any(o in f.filename for o in own)]
    return f"{frames[-1].filename}:{frames[-1].lineno}   {frames[-1].line}" if frames else "?"


def explain(op: OpOverload, args: Any, kwargs: Any, reason: str) -> str:
    """The text of a LoweringError: what, which call, from where, what to do next."""
    return (
        f"tpu: cannot run {op}\n"
        f"  reason  {reason}\n"
        f"  call    {schema.format_call(op, args, kwargs)}\n"
        f"  from    {user_line()}\n"
        "  next    TTU_FALLBACK=warn runs such operators on the CPU, counted and named in the log"
    )
