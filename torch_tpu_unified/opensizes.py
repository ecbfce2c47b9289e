"""Dynamic shapes of a module's inputs: what `--dynamic` means, how they are exported, why not.

PyTorch takes a size of 1 in the example inputs for a constant, so that such inputs are repeated for
the export. Where PyTorch itself fixes a size, the error names the dimension and the line that did.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_tpu_unified.core.errors import OptionError

if TYPE_CHECKING:
    import torch

_FORM = re.compile(
    r"(?P<name>[A-Za-z_]\w*)=(?:(?P<input>[A-Za-z_]\w*)\.)?(?P<axis>\d+)"
    r"(?:@(?P<low>\d+)?\.\.(?P<high>\d+)?)?"
)
FORMS = (
    "give NAME=AXIS for every input (batch=0), NAME=INPUT.AXIS for one (length=ids.1), and a range "
    "if the model needs one (length=1@2..512)"
)
_LOGGER = "torch.fx.experimental.symbolic_shapes"


@dataclasses.dataclass(frozen=True)
class OpenSize:
    """A dimension of the inputs, or of one of them, that callers may choose."""

    name: str
    axis: int
    input: str | None = None
    low: int | None = None
    high: int | None = None


def parse(text: str) -> OpenSize:
    """Read what `--dynamic` takes, such as `batch=0` or `length=ids.1@2..512`.

    Raises:
        OptionError: it is malformed.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise OptionError(f"--dynamic {text!r} cannot be read; {FORMS}")
    number = {k: None if found[k] is None else int(found[k]) for k in ("axis", "low", "high")}
    if number["low"] is not None and number["high"] is not None and number["low"] >= number["high"]:
        raise OptionError(f"--dynamic {text!r}: the range holds one size or none; {FORMS}")
    return OpenSize(
        found["name"], int(found["axis"]), found["input"], number["low"], number["high"]
    )


def for_module(
    sizes: Sequence[OpenSize], module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The `dynamic_shapes` of torch.export that these mean for a module with these inputs.

    Raises:
        OptionError: an input does not exist, or none has the dimension.
    """
    import torch

    given = named(module, args, kwargs)
    result: dict[str, dict[int, Any]] = {n: {} for n in given}
    dims: dict[str, Any] = {}
    for size in sizes:
        if size.input is not None and size.input not in given:
            raise OptionError(f"--dynamic: no input {size.input!r}; it has {', '.join(given)}")
        if size.name not in dims:
            dims[size.name] = torch.export.Dim(size.name, min=size.low, max=size.high)
        names = [size.input] if size.input else list(given)
        fitting = [n for n in names if getattr(given[n], "ndim", 0) > size.axis]
        if not fitting:
            raise OptionError(f"--dynamic {size.name}: no input has a dimension {size.axis}")
        for n in fitting:
            result[n][size.axis] = dims[size.name]
    return {n: axes or None for n, axes in result.items()}


def named(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs by the names of forward's parameters."""
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # torch.export says what is wrong with such inputs
        return {**{f"input {i}": a for i, a in enumerate(args)}, **kwargs}


def widened(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs with dynamic dimensions of size 1 repeated to 2, which PyTorch keeps open."""
    if isinstance(dynamic_shapes, Mapping):
        specs = dict(dynamic_shapes)
        names = list(named(module, args, kwargs))
        positional = [specs.get(n) for n in names[: len(args)]]
        by_name = {k: specs.get(k) for k in kwargs}
    else:
        positional = list(dynamic_shapes or ())[: len(args)]
        by_name = dict(zip(kwargs, list(dynamic_shapes or ())[len(args) :], strict=False))
    positional += [None] * (len(args) - len(positional))
    wide = tuple(_widened(a, s) for a, s in zip(args, positional, strict=True))
    return wide, {k: _widened(v, by_name.get(k)) for k, v in kwargs.items()}


def _widened(value: Any, spec: Any) -> Any:
    import torch

    if spec is None:
        return value
    if isinstance(value, torch.Tensor):
        axes = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for axis, dim in axes:
            if dim is None or isinstance(dim, int) or value.shape[axis] != 1:
                continue
            if str(dim).endswith("STATIC"):
                continue
            value = value.repeat_interleave(2, dim=axis)
        return value
    if isinstance(value, Mapping) and isinstance(spec, Mapping):
        return type(value)({k: _widened(v, spec.get(k)) for k, v in value.items()})  # type: ignore[call-arg]
    if isinstance(value, (list, tuple)) and isinstance(spec, (list, tuple)):
        return type(value)(_widened(v, s) for v, s in zip(value, spec, strict=False))
    return value


class _Guards(logging.Handler):
    """Notes each condition on sizes that an export takes for granted, with the user's line."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "[guard added]" not in text:
            return
        from torch_tpu_unified.core.report import is_foreign

        stack = [f for f in traceback.extract_stack() if f.filename != logging.__file__]
        frames = [f for f in stack if not is_foreign(f.filename)]
        inner = frames[-1] if frames else None
        condition = text.removeprefix("eval ").partition(" [guard added]")[0]
        where = f" by {inner.filename}:{inner.lineno} ({inner.line})" if inner else ""
        self.found.append(f"{condition}{where}")


def reasons(export: Callable[[], Any]) -> list[str]:
    """The conditions on sizes that make an export fail, each with the line that asks for it."""
    logger = logging.getLogger(_LOGGER)
    guards, level, spread = _Guards(), logger.level, logger.propagate
    handlers = list(logger.handlers)
    logger.handlers[:] = [guards]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        export()
    except Exception:  # the failure is known; only what led to it is wanted
        return guards.found
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = spread
    return []
