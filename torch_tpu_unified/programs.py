"""Programs: what a user has (a module, a file, a factory) as one `torch.export.ExportedProgram`.

Everything is exported on the CPU in eval mode. The user's module is not changed by it: neither
its mode nor its device nor its buffers. `Program.reference` is what every target is compared with.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torch_tpu_unified import factories, inputspec, opensizes, sources
from torch_tpu_unified.core import flags
from torch_tpu_unified.core.errors import ConversionError, InputError, OptionError, TtuError
from torch_tpu_unified.core.report import innermost_frame
from torch_tpu_unified.inputspec import InputSpec
from torch_tpu_unified.opensizes import OpenSize
from torch_tpu_unified.sources import Kind


@dataclasses.dataclass(frozen=True)
class Program:
    """An exported program with the inputs it is tried on.

    Attributes:
        exported: on the CPU, in eval mode.
        args, kwargs: example inputs, CPU tensors.
        run: the original in eager PyTorch on the CPU; takes the inputs, returns the outputs.
        name: a short name for files and messages.
        module: the original module on the CPU, when there is one.
        input_names: of the tensors, where the exported program does not know them.
    """

    exported: ExportedProgram
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run: Callable[..., Any]
    name: str = "model"
    module: torch.nn.Module | None = None
    input_names: tuple[str, ...] | None = None

    def reference(self, dtype: torch.dtype | None = None) -> list[Any]:
        """The flattened outputs of eager PyTorch on the example inputs.

        Args:
            dtype: compute in this floating type (float64 judges rounding); None: as the program is.
        """
        run, inputs = self.run, _clones((self.args, self.kwargs))
        if dtype is not None:
            run = _in_dtype(self, dtype)
            inputs = pytree.tree_map_only(
                torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, inputs
            )
        args, kwargs = inputs
        with torch.no_grad():
            outputs = run(*args, **kwargs)
        return leaves(outputs)

    def flat_leaves(self) -> list[Any]:
        """The example inputs in the order of the program's placeholders, numbers and None included.

        Raises:
            InputError: they do not have the structure that the program was exported with.
        """
        order = self.exported.call_spec.in_spec
        flat, spec = pytree.tree_flatten((self.args, self.kwargs))
        if order is None or spec == order:
            return flat
        names = list(order.child(1).context or [])
        if set(names) != set(self.kwargs):
            given = ", ".join(self.kwargs) or "none"
            raise InputError(f"{self.name} takes the keyword inputs {names}; given: {given}")
        flat, spec = pytree.tree_flatten((self.args, {n: self.kwargs[n] for n in names}))
        if spec != order:
            raise InputError(
                f"{self.name}: the inputs do not have the program's structure: {order}"
            )
        return flat

    def resized(self, shapes: Sequence[tuple[int, ...]]) -> Program:
        """The program with example inputs of other sizes, made of the values of these."""
        from litert_export import dynamic

        wanted = iter(shapes)
        flat, spec = self.flat_leaves(), self.exported.call_spec.in_spec
        changed = [
            dynamic.resized(x, next(wanted)) if isinstance(x, torch.Tensor) else x for x in flat
        ]
        args, kwargs = pytree.tree_unflatten(changed, spec)
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def flat_inputs(self) -> list[torch.Tensor]:
        """The example tensors in that order: the inputs of a LiteRT file."""
        return [x for x in self.flat_leaves() if isinstance(x, torch.Tensor)]


def leaves(outputs: Any) -> list[Any]:
    """The tensors and numbers in a (nested) result, in order; None is left out, as in a file."""
    found: list[Any] = []
    for x in pytree.tree_leaves(outputs):
        if isinstance(x, torch.Tensor):
            found.append(x.detach())
        elif isinstance(x, (bool, int, float)):
            found.append(np.asarray(x))
    return found


def _clones(values: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), values)


def _in_dtype(program: Program, dtype: torch.dtype) -> Callable[..., Any]:
    if program.module is not None and not isinstance(program.module, torch.jit.ScriptModule):
        return _eager(copy.deepcopy(program.module).to(dtype))
    raise TypeError("only a Python module can be run in another floating type")


def _eager(module: torch.nn.Module) -> Callable[..., Any]:
    """A call of the module that leaves its buffers as they are."""

    def run(*args: Any, **kwargs: Any) -> Any:
        buffers = {name: b.clone() for name, b in module.named_buffers()}
        with evaluating(module):
            return torch.func.functional_call(module, buffers, args, kwargs)

    return run


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Eval mode for a block; every submodule gets its own mode back."""
    modes = [(m, m.training) for m in module.modules()]
    with contextlib.suppress(NotImplementedError):  # an exported module has no modes
        module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


def to_cpu(value: Any) -> Any:
    """Tensors (nested) moved to the CPU; a module elsewhere is copied, never moved."""
    if isinstance(value, torch.nn.Module):
        held = [*value.parameters(), *value.buffers()]
        return value if all(t.device.type == "cpu" for t in held) else copy.deepcopy(value).cpu()
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), value)


def from_module(
    module: torch.nn.Module,
    args: Sequence[Any] | None,
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    name: str | None = None,
) -> Program:
    """Export a module, on the CPU and in eval mode.

    Args:
        args, kwargs: example inputs of `module.forward`.
        dynamic_shapes: as torch.export takes it, or a list of `OpenSize`; a dynamic size of 1 in
            the example inputs is no problem.

    Raises:
        OptionError: no example inputs are given.
        InputError: the module fails on the inputs in PyTorch itself.
        ConversionError: `torch.export` cannot trace the module; names the source line.
    """
    if args is None and not kwargs:
        raise OptionError(
            f"{type(module).__name__}: example inputs are missing; give args, such as "
            "(torch.randn(1, 3, 224, 224),), or on the command line --input float32[1,3,224,224]"
        )
    if isinstance(args, torch.Tensor):
        raise OptionError("args is a tensor; give a tuple of the inputs: (x,)")
    module, args, kwargs = to_cpu(module), tuple(to_cpu(tuple(args or ()))), to_cpu(kwargs or {})
    if isinstance(dynamic_shapes, (list, tuple)) and all(
        isinstance(s, OpenSize) for s in dynamic_shapes
    ):
        sizes = [s for s in dynamic_shapes if isinstance(s, OpenSize)]
        dynamic_shapes = opensizes.for_module(sizes, module, args, kwargs) if sizes else None
    exported = _export(module, args, kwargs, dynamic_shapes)
    name = name or type(module).__name__
    return Program(exported, args, kwargs, _eager(module), name, module)


def _export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    wide = (args, kwargs)
    if dynamic_shapes is not None:
        wide = opensizes.widened(module, args, kwargs, dynamic_shapes)

    def export() -> ExportedProgram:
        with torch.no_grad(), evaluating(module), quiet():
            made = torch.export.export(module, *wide, dynamic_shapes=dynamic_shapes)
        if dynamic_shapes is not None:
            made.example_inputs = (args, kwargs)
        return made

    try:
        return export()
    except Exception as error:
        try:
            with torch.no_grad():
                _eager(module)(*_clones(args), **_clones(kwargs))
        except Exception as own:
            raise InputError(
                f"{type(module).__name__} fails on these inputs in PyTorch itself: {brief(own)}"
            ) from own
        if dynamic_shapes is not None and (why := opensizes.reasons(export)):
            told = str(error).partition("\n\n")[0]
            raise ConversionError(
                f"PyTorch fixes or limits a dynamic size of {type(module).__name__}: {told}\n"
                + "\n".join(f"  needs {reason}" for reason in why)
                + "\n  next: change that line, narrow the range of the dimension, or leave it fixed"
            ) from error
        raise ConversionError(
            f"torch.export cannot trace {type(module).__name__}: {brief(error)}; change that line "
            "(torch.cond, torch.where or a fixed Python value instead of a decision on data), or "
            "export the module yourself and give the ExportedProgram"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides what torch.export says to its developers; TTU_DEBUG=1 shows it."""
    if flags.DEBUG.value:
        yield
        return
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def brief(error: BaseException) -> str:
    """The first line of an error with its type and the innermost line of the user's code."""
    error = getattr(error, "inner_exception", error)  # what torch.compile wraps
    if isinstance(error, TtuError):
        return str(error)  # written for users already
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    frame = innermost_frame(error)
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{text} [{frame}]" if frame else text


def from_exported(
    exported: ExportedProgram,
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    name: str = "model",
) -> Program:
    """Take an exported program; example inputs default to its own.

    Raises:
        OptionError: the program holds no example inputs and none are given.
    """
    exported = _program_to_cpu(exported)
    if args is None and kwargs is None:
        if exported.example_inputs is None:
            raise OptionError(f"{name}: the program holds no example inputs; give them")
        args, kwargs = exported.example_inputs
    args, kwargs = tuple(to_cpu(tuple(args or ()))), to_cpu(kwargs or {})

    def run(*a: Any, **k: Any) -> Any:
        with quiet():  # copying warns about PyTorch's own classes
            module = copy.deepcopy(unlifted())
        return module(*a, **k)

    unlifted = functools.cache(exported.module)
    return Program(exported, args, kwargs, run, name)


def _program_to_cpu(exported: ExportedProgram) -> ExportedProgram:
    held = [*exported.state_dict.values(), *exported.constants.values()]
    places = {t.device.type for t in held if isinstance(t, torch.Tensor)}
    places |= {
        v.device.type
        for n in exported.graph.nodes
        if isinstance(v := n.meta.get("val"), torch.Tensor)
    }
    if places <= {"cpu"}:
        return exported
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(exported, "cpu")


def load_program(
    source: str | os.PathLike[str],
    inputs: Sequence[str | InputSpec] = (),
    *,
    trust_pickle: bool = False,
    seed: int = 0,
    dynamic: Sequence[OpenSize] = (),
) -> Program:
    """Load what a command line names: a model file, `package.module:factory` or `file.py:factory`.

    Args:
        inputs: example inputs, such as `float32[1,3,224,224]` or `ids=int64[1,16]:0..999`.
        trust_pickle: allow unpickling, which can run any code in the file.
        seed: of the random example inputs.
        dynamic: sizes of the inputs that stay open; an exported program has its own.

    Raises:
        OptionError: the file is absent, needs `trust_pickle`, or example inputs are missing.
        InputError: the file is empty, truncated, corrupt or of another kind.
        ConversionError: the model cannot be exported.
    """
    specs = [inputspec.parse(i) if isinstance(i, str) else i for i in inputs]
    args, kwargs = inputspec.examples(specs, seed) if specs else (None, None)
    if found := factories.split(str(source)):
        return _from_factory(factories.make(*found), args, kwargs, found[1], dynamic)
    path = Path(source)
    kind = sources.recognise(path)
    if kind is Kind.PROGRAM:
        _refuse_dynamic(dynamic, str(path))
        return _load_exported(path, args, kwargs, trust_pickle)
    if kind is Kind.TORCHSCRIPT:
        return _load_torchscript(path, args, kwargs, dynamic)
    module = _load_pickle(path, trust_pickle)
    return from_module(module, args, kwargs, name=path.stem, dynamic_shapes=dynamic)


def _refuse_dynamic(dynamic: Sequence[OpenSize], name: str) -> None:
    if dynamic:
        raise OptionError(
            f"{name} is an exported program, whose sizes are fixed or open already; leave out "
            "--dynamic, or export it with dynamic_shapes"
        )


def _from_factory(
    made: Any, args: Any, kwargs: Any, name: str, dynamic: Sequence[OpenSize]
) -> Program:
    """A factory gives a module, an ExportedProgram, or (module, args[, kwargs])."""
    if isinstance(made, tuple) and made and isinstance(made[0], torch.nn.Module):
        if len(made) > 3:
            raise InputError(f"{name} gives {len(made)} values; give (module, args[, kwargs])")
        own = (*made[1:], None, None)
        made, args, kwargs = made[0], *((own[0], own[1]) if args is None else (args, kwargs))
    if isinstance(made, ExportedProgram):
        _refuse_dynamic(dynamic, name)
        return from_exported(made, args, kwargs, name=name)
    if isinstance(made, torch.nn.Module):
        return from_module(made, args, kwargs, name=name, dynamic_shapes=dynamic)
    raise InputError(
        f"{name} gives a {type(made).__name__}; it must give an nn.Module, (nn.Module, args) or an "
        "ExportedProgram"
    )


def _load_exported(path: Path, args: Any, kwargs: Any, trust_pickle: bool) -> Program:
    if not trust_pickle:
        sources.refuse_pickles(path)
    try:
        with quiet():
            exported = torch.export.load(path)
    except Exception as error:
        raise InputError(
            f"{path} is no exported program that this PyTorch {torch.__version__} can load "
            f"({brief(error)}); export it again with this version"
        ) from error
    return from_exported(exported, args, kwargs, name=path.stem)


def _load_torchscript(
    path: Path, args: Any, kwargs: Any, dynamic: Sequence[OpenSize] = ()
) -> Program:
    try:
        script = torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as error:
        raise InputError(
            f"{path} is a broken TorchScript file ({brief(error)}); save it again"
        ) from error
    if args is None:
        raise OptionError(
            f"{path} is TorchScript, which holds no example inputs; add --input, such as "
            "--input float32[1,3,224,224]"
        )
    names = [a.name for a in script.forward.schema.arguments][1:]
    args = (*args, *(kwargs.pop(n) for n in names[len(args) :] if n in (kwargs or {})))
    if kwargs:
        raise OptionError(
            f"{path}: forward has no argument {sorted(kwargs)[0]!r}; it has {', '.join(names)}"
        )
    try:
        with torch.no_grad():
            script(*_clones(args))
    except Exception as error:
        last = [line.strip() for line in str(error).splitlines() if line.strip()][-1]
        raise InputError(f"{path} fails on these inputs in PyTorch itself: {last}") from error
    try:
        from torch._export.converter import TS2EPConverter

        with torch.no_grad(), quiet():
            found = TS2EPConverter(script, args).convert().module(check_guards=False)
        # The converter leaves every size open; the file has those of the example inputs.
        shapes = opensizes.for_module(dynamic, found, args, {}) if dynamic else None
        exported = _export(found, args, {}, shapes)
    except Exception as error:
        raise ConversionError(
            f"{path}: this TorchScript cannot be exported ({brief(error)}); export the module from "
            "its Python source: torch.export.save(torch.export.export(module, args), 'model.pt2')"
        ) from error
    return Program(exported, args, {}, script, path.stem, input_names=tuple(names[: len(args)]))


def _load_pickle(path: Path, trust_pickle: bool) -> torch.nn.Module:
    held = sources.restricted_load(path)
    if held is None and not trust_pickle:
        raise OptionError(
            f"{path} is a pickle that holds more than tensors, and loading it can run any code in "
            "it; if you trust the file, add --trust-pickle"
        )
    if held is None:
        try:
            held = torch.load(path, map_location="cpu", weights_only=False)
        except Exception as error:
            raise InputError(
                f"{path} cannot be unpickled: {brief(error)}; the module's class must be "
                "importable from here (run in its folder or install its package)"
            ) from error
    if isinstance(held, torch.nn.Module):
        return held
    if isinstance(held, dict):
        raise InputError(f"{path} is {sources.STATE_DICT}")
    raise InputError(f"{path} holds a {type(held).__name__}, not an nn.Module")
