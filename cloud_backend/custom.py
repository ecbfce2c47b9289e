"""`jax_op`: a JAX (or Pallas) function becomes a torch operator.

The operator is defined with `torch.library`, so Dynamo, `torch.export`, autograd and checkpointing
treat it as one of PyTorch's own. Its entry stands in a table beside ATen's, its kernel on the
device is the same `plan.Kernel`, its fake implementation is `jax.eval_shape`, its gradient is an
operator made in the same way from `jax.vjp` or from a function that the user gives.
"""

from __future__ import annotations

import functools
import inspect
import re
import string
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cloud_backend import dispatch, explain, ops, plan, runtime, tensor
from cloud_backend.dtypes import to_jax, to_torch
from cloud_backend.registration import hide_from_dynamo
from torch_tpu_unified.core import custom
from torch_tpu_unified.core.errors import InputError, LoweringError, Unsupported
from torch_tpu_unified.core.optable import parameter_name

Tensor = torch.Tensor
NAMESPACE = "jax_op"
_PLAIN = {int: "int", float: "float", bool: "bool", str: "str", Tensor: "Tensor"}
_GRADIENT = ("grad_outputs", "saved_outputs", "wanted_inputs")
_libraries: dict[str, torch.library.Library] = {}


class JaxOp:
    """A torch operator whose values a JAX function computes; call it like the function.

    Attributes:
        op: the `OpOverload`, as it stands in graphs.
        function: the JAX function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        schema: str,
        backward: Callable[..., Any] | None,
        torch_form: Callable[..., Any] | None,
        level: int = 0,
    ) -> None:
        self.function, self.name, self._level = function, name, level
        self._given_backward, self._torch_form = backward, torch_form
        if old := _libraries.pop(name, None):
            old._destroy()  # a cell of a notebook that runs again
        library = _libraries[name] = torch.library.Library(NAMESPACE, "FRAGMENT")
        library.define(name + schema)
        self.op: Any = getattr(getattr(torch.ops, NAMESPACE), name).default
        ops.CUSTOM.entries.pop(self.op, None)
        ops.CUSTOM.lowers(self.op)(self._compute)
        self.entry = ops.CUSTOM.entries[self.op]
        self.single = schema.rpartition("->")[2].strip() == "Tensor"
        self.listed = schema.endswith("Tensor[]")
        hide_from_dynamo(self._on_tpu, self._on_cpu)
        library.impl(name, self._on_tpu, "PrivateUse1")
        library.impl(name, self._on_cpu, "CPU")
        torch.library.register_fake(f"{NAMESPACE}::{name}", self._fake, lib=library)
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", self._backward, setup_context=self._save, lib=library
        )
        if torch_form is not None:
            custom.TORCH_FORMS[self.op] = torch_form

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator.

        Args:
            args, kwargs: as the JAX function takes them, with torch tensors for arrays.

        Returns:
            A tensor, or a tuple of tensors.
        """
        return self.op(*args, **kwargs)

    def __repr__(self) -> str:
        return f"jax_op({self.op._schema})"

    # ---- values

    @property
    def _compute(self) -> Callable[..., Any]:
        """The function with the schema's signature, its results checked."""

        def compute(**arguments: Any) -> Any:
            return self._checked(self.function(**arguments))

        names = [parameter_name(a.name) for a in self.op._schema.arguments]
        kind = inspect.Parameter.KEYWORD_ONLY
        compute.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
        return compute

    def _checked(self, results: Any) -> Any:
        count = len(self.op._schema.returns)
        if self.listed:
            return list(results)
        found = len(results) if isinstance(results, (tuple, list)) else None
        if self.single and found is None:
            return results
        if self.single or found != count:
            gave = "one array" if found is None else f"{found} arrays"
            raise Unsupported(
                f"the function of jax_op {self.name} gave {gave}, its schema says {count}; "
                "annotate its result (`-> tuple[jax.Array, jax.Array]`) or give schema="
            )
        return tuple(results)

    @functools.cached_property
    def _kernel(self) -> plan.Kernel:
        dispatch.boot()
        return plan.Kernel(self.op, self.entry)

    def _on_tpu(self, *args: Any, **kwargs: Any) -> Any:
        return self._kernel(*args, **kwargs)

    def _on_cpu(self, *args: Any, **kwargs: Any) -> Any:
        """CPU tensors: the torch form where there is one, else JAX on the CPU."""
        if self._torch_form is not None:
            return self._torch_form(*args, **kwargs)
        jax = runtime.start()
        bound = self.entry.bind(args, kwargs)
        arrays: list[Any] = []
        rebuild = _split(bound, lambda t: arrays.append(tensor.host_array(t)))
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            results = jax.jit(lambda given: self.entry.function(**rebuild(given)))(arrays)
        return jax.tree.map(lambda a: tensor.to_tensor(a).cpu(), results)

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        jax = runtime.start()
        shapes: list[Any] = []
        first: list[Tensor] = []

        def note(t: Tensor) -> None:
            first.append(t)
            # JAX has no open sizes: a symbolic one becomes the number that it stands for.
            size = tuple(int(n) for n in t.shape)
            shapes.append(jax.ShapeDtypeStruct(size, to_jax(t.dtype)))

        rebuild = _split(self.entry.bind(args, kwargs), note)
        try:
            found = jax.eval_shape(lambda given: self.entry.function(**rebuild(given)), shapes)
        except Unsupported as e:
            raise LoweringError(explain.explain(self.op, args, kwargs, str(e))) from e
        return jax.tree.map(lambda a: first[0].new_empty(a.shape, dtype=to_torch(a.dtype)), found)

    # ---- gradients

    @functools.cached_property
    def gradient(self) -> JaxOp:
        """The operator of the vector-Jacobian product, made when it is first needed."""
        head, _, _ = str(self.op._schema).partition(" ->")
        arguments = head.partition("(")[2].rpartition(")")[0]
        kinds = ("Tensor[]", "Tensor[]", "bool[]")
        own = ", ".join(map(" ".join, zip(kinds, self._gradient_names, strict=True)))
        schema = f"({own}, {arguments}) -> Tensor[]"
        return JaxOp(self._vjp, f"{self.name}_backward", schema, None, None, self._level + 1)

    @property
    def _gradient_names(self) -> list[str]:
        """The gradient's own parameters; a gradient of a gradient needs other names."""
        return [name + (str(self._level) if self._level else "") for name in _GRADIENT]

    def _vjp(self, **arguments: Any) -> list[Any]:
        """Gradients of the wanted array arguments, in order."""
        jax = runtime.start()
        grad_outputs, saved_outputs, wanted = (arguments.pop(n) for n in self._gradient_names)
        arrays: list[Any] = []
        rebuild = _split(arguments, arrays.append, _is_array)
        positions = [i for i, w in enumerate(wanted) if w]
        if self._given_backward is not None:
            given = self._given_backward(tuple(arrays), tuple(saved_outputs), tuple(grad_outputs))
            if len(given) != len(arrays):
                raise Unsupported(
                    f"the backward of jax_op {self.name} gave {len(given)} gradients for "
                    f"{len(arrays)} arrays; give one for each, or None"
                )
            return [_or_zeros(jax, given[i], arrays[i]) for i in positions]

        def of(chosen: list[Any]) -> list[Any]:
            full = list(arrays)
            for i, x in zip(positions, chosen, strict=True):
                full[i] = x
            results = self.entry.function(**rebuild(full))
            return [results] if self.single else list(results)

        outputs, pull = jax.vjp(of, [arrays[i] for i in positions])
        pairs = zip(grad_outputs, outputs, strict=True)
        return list(pull([_cotangent(jax, g, o) for g, o in pairs])[0])

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors: list[Tensor] = []
        arguments = self.entry.op._schema.arguments
        named = dict(zip((a.name for a in arguments), inputs, strict=False))
        ctx.rebuild = _split(named, tensors.append)
        ctx.differentiable = [t.requires_grad for t in tensors]
        outputs = [output] if isinstance(output, Tensor) else list(output)
        ctx.count = len(tensors)
        ctx.outputs = [(t.shape, t.dtype, t.device) for t in outputs]
        # A gradient by `jax.vjp` computes the outputs again; only a given one reads them.
        ctx.save_for_backward(*tensors, *(outputs if self._given_backward else ()))

    def _backward(self, ctx: Any, *gradients: Any) -> Any:
        if self.listed:
            gradients = tuple(gradients[0])
        saved = ctx.saved_tensors
        tensors, outputs = saved[: ctx.count], list(saved[ctx.count :])
        arguments = ctx.rebuild(tensors)
        gradients = tuple(
            torch.zeros(size, dtype=dtype, device=device) if g is None else g
            for g, (size, dtype, device) in zip(gradients, ctx.outputs, strict=True)
        )
        found = self.gradient.op(list(gradients), outputs, ctx.differentiable, **arguments)
        results = iter(found)
        by_place = [next(results) if w else None for w in ctx.differentiable]
        names = [a.name for a in self.op._schema.arguments]
        mapped = _split(ctx.rebuild(tensors), lambda t: None)(by_place)
        # PyTorch leaves trailing defaults out of a call with lists, and wants no gradient for them.
        listing = getattr(ctx, "_pt_metadata", None)
        given = len(names) if listing is None else listing.input_spec.num_children - 1
        return tuple(_only_gradients(mapped.get(n), arguments.get(n)) for n in names[:given])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _split(
    arguments: dict[str, Any], note: Callable[[Any], None], is_leaf: Any = _is_tensor
) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Call `note` with every tensor; returns what puts others in their places."""
    places: dict[str, Any] = {}
    count = 0
    for name, value in arguments.items():
        if is_leaf(value):
            note(value)
            places[name], count = count, count + 1
        elif isinstance(value, (list, tuple)) and any(is_leaf(v) for v in value):
            inner: list[Any] = []
            for v in value:
                inner.append(count if is_leaf(v) else None)
                if is_leaf(v):
                    note(v)
                    count += 1
            places[name] = inner

    def rebuild(given: Sequence[Any]) -> dict[str, Any]:
        made = dict(arguments)
        for name, place in places.items():
            if isinstance(place, int):
                made[name] = given[place]
            else:
                made[name] = [None if i is None else given[i] for i in place]
        return made

    return rebuild


def _only_gradients(gradient: Any, argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return gradient
    if isinstance(argument, (list, tuple)) and all(_is_tensor(a) for a in argument):
        return gradient if argument else []  # PyTorch wants the arguments' own structure
    return None


def _or_zeros(jax: Any, gradient: Any, like: Any) -> Any:
    if gradient is None:
        return jax.numpy.zeros(like.shape, like.dtype)
    return gradient.astype(like.dtype).reshape(like.shape)


def _cotangent(jax: Any, gradient: Any, output: Any) -> Any:
    import numpy as np

    if not jax.numpy.issubdtype(output.dtype, jax.numpy.inexact):
        return np.zeros(output.shape, jax.dtypes.float0)
    return gradient.astype(output.dtype)


# ---- from a Python signature to a schema


def _schema_of(function: Callable[..., Any]) -> str:
    """The operator schema of a function, from its annotations and defaults."""
    hints = _hints(function)
    parts = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise InputError(
                f"jax_op: {p} has no place in an operator's schema; give the function named "
                "parameters (a list of arrays is annotated list[jax.Array])"
            )
        if p.name.rstrip(string.digits) in _GRADIENT:
            raise InputError(f"jax_op: the name {p.name} is taken; rename the parameter")
        default = None if p.default is p.empty else p.default
        kind = _type(hints.get(p.name, p.empty), default, p.default is None)
        text = f"{kind} {p.name}"
        if p.default is not p.empty:
            text += f"={_default(default)}"
        parts.append(text)
    if not any(part.startswith("Tensor") for part in parts):
        raise InputError("jax_op: the function takes no array; an operator needs at least one")
    return f"({', '.join(parts)}) -> {_returns(hints.get('return', inspect.Parameter.empty))}"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # names of a type checker's block
        return {}


def _type(hint: Any, default: Any, none_default: bool) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        return _type(inner[0] if len(inner) == 1 else Any, default, False).removesuffix("?") + "?"
    if typing.get_origin(hint) in (list, tuple, Sequence):
        inside = _type((typing.get_args(hint) or (Any,))[0], None, False)
        if "?" in inside:
            raise InputError("jax_op: a list of optional arrays has no gradient in PyTorch")
        return inside + "[]"
    if hint in _PLAIN:
        return _PLAIN[hint]
    if type(default) in _PLAIN:
        return _PLAIN[type(default)]
    return "Tensor?" if none_default else "Tensor"


def _default(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace('"', '\\"') + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_default, value)) + "]"
    return str(value)


def _returns(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        arguments = typing.get_args(hint)
        if Ellipsis in arguments:
            return "Tensor[]"
        return f"({', '.join('Tensor' for _ in arguments)})"
    return "Tensor[]" if typing.get_origin(hint) is list else "Tensor"


def jax_op(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    schema: str | None = None,
    backward: Callable[..., Any] | None = None,
    torch_form: Callable[..., Any] | None = None,
) -> Any:
    """Make a torch operator of a JAX or Pallas function; also a decorator.

    The operator works in eager mode, under `torch.compile` (inside the program, without a copy), in
    `torch.export`, and under autograd. The function must be traceable by `jax.jit`; JAX runs with
    64-bit types on, so it should say the dtypes of what it makes. Sizes are fixed in each program.

    Args:
        function: takes arrays and plain values, by name. Parameters without annotation are arrays;
            `int`, `float`, `bool`, `str`, `list[...]`, `X | None` are understood, and a plain
            default says the type as well. A new plain value makes a new program.
        name: of the operator, `torch.ops.jax_op.<name>`; default: from the function's name.
        schema: instead of the annotations, such as `(Tensor x, int n=1) -> (Tensor, Tensor)`.
        backward: `backward(inputs, outputs, gradients)`, tuples of arrays, gives a gradient (or
            None) for each input array; default: `jax.vjp` of the function.
        torch_form: the same computation by torch operators, for CPU tensors and for targets without
            JAX (a LiteRT file); default: CPU tensors run the JAX function on the CPU.

    Returns:
        A `JaxOp`.

    Raises:
        InputError: the signature cannot be an operator's.
    """
    if function is None:
        return functools.partial(
            jax_op, name=name, schema=schema, backward=backward, torch_form=torch_form
        )
    if not callable(function):
        raise InputError(f"jax_op takes a function, not a {type(function).__name__}")
    if name is None:
        base = inspect.unwrap(function)
        while isinstance(base, functools.partial):
            base = base.func
        told = f"{getattr(base, '__module__', '')}.{getattr(base, '__qualname__', 'function')}"
        name = re.sub(r"\W+", "_", told.replace("<locals>", "").replace("<lambda>", "lambda"))
    elif not name.isidentifier():
        raise InputError(f"jax_op: the name {name!r} is no identifier")
    return JaxOp(function, name, schema or _schema_of(function), backward, torch_form)
