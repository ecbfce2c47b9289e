"""One eager call as one XLA program, cached by what the call looks like.

`Kernel` is the implementation of one ATen overload. A call is flattened into arrays (base arrays of
storages, start positions of views, numbers that may change) and a key (sizes, strides, dtypes, the
other arguments). A new key makes a plan: PyTorch's meta kernel says what comes out (and refuses
wrong arguments with PyTorch's own errors), the lowering from the table is jitted between reading
the views and writing the results. In-place and `out=` overloads use the functional lowering.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from cloud_backend import arguments, events, mesh, precision, refusals, rng, runtime, tensor, views
from cloud_backend.dtypes import to_jax, to_torch
from cloud_backend.explain import explain
from cloud_backend.program import Plan, Program, number, on_device, zero
from cloud_backend.tensor import Buffer, Meta, host_array
from torch_tpu_unified.core import flags, schema
from torch_tpu_unified.core.errors import LoweringError, Unsupported
from torch_tpu_unified.core.optable import Entry, Parameter

Tensor = torch.Tensor
_new_tensor, _new_storage = tensor._new_tensor, tensor._new_storage
_take_address, DEVICE = tensor._take_address, tensor.DEVICE
_default_dtype = torch.get_default_dtype


class Calls:
    """Who takes the calls of kernels instead of strict mode: debug's, fused mode's or a mesh's
    function; and who makes their programs instead of `Plan.program`, over a mesh."""

    take: ClassVar[Callable[[Kernel, Any, Any], Any] | None] = None
    program: ClassVar[Callable[..., Program] | None] = None


def _scalar_flags(entry: Entry, p: Parameter) -> bool:
    if p.name in entry.traits["static"] or (p.target or p.name) in entry.traits["static"]:
        return False
    # `x * 0.5` reaches the overload with two tensors as a number in the place of the second.
    return "number" in p.type or p.type == "Tensor" or p.name in entry.traits["dynamic"]


def _sees_lazy_bits(op: OpOverload) -> bool:
    """Whether tensors with a conjugate or negative bit reach the kernel unresolved."""
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
        for key in ("Conjugate", "Negative")
    )


class Kernel:
    """The implementation of `op` by the lowering `entry` of its functional form.

    Args:
        op: the overload that is registered.
        entry: the table entry of its functional form, whose results are `op`'s fresh results
            followed by the new values of the arguments that `op` writes.
        writes: names of the written arguments, where the schema does not say so.
    """

    def __init__(self, op: OpOverload, entry: Entry, writes: tuple[str, ...] = ()) -> None:
        self.op, self.entry = op, entry
        self.writes = writes or schema.written_arguments(op)
        arguments = op._schema.arguments
        self.position = {a.name: i for i, a in enumerate(arguments)}
        by_name = {p.name: p for p in entry.parameters}
        self.parameters = [by_name.get(a.name) for a in arguments]
        self.is_scalar = [p is not None and _scalar_flags(entry, p) for p in self.parameters]
        # `bernoulli_(p=0.5)` has defaults that its functional form lacks.
        self.defaults = {
            a.name: a.default_value
            for a in arguments
            if a.has_default_value() and a.name in by_name and by_name[a.name].required
        }
        self.random = entry.traits["random"]
        self.host = entry.traits["host"]
        returns = op._schema.returns
        self.fresh_count = sum(1 for r in returns if r.alias_info is None)
        first = arguments[0].name if arguments else ""
        # Calls that need more than flattening; a method that writes `self` alone needs no more.
        self.inplace = self.writes == (first,) and [r.alias_info is None for r in returns] == [
            False
        ]
        self.special = bool(self.random or self.host or (self.writes and not self.inplace))
        self.lazy_bits = _sees_lazy_bits(op)
        self.usual = [None if p is None else p.default for p in self.parameters]
        self.plans: dict[Any, Plan] = {}
        self.quick: dict[Any, tuple[Any, Any, Meta | None]] = {}

    # ---- flattening

    def _tensor(self, a: Tensor, arrays: list[Any]) -> Any:
        if a.is_neg() or (a.is_complex() and a.is_conj()):
            return ("N", self._stored(a, arrays), a.is_conj(), a.is_neg())
        return self._stored(a, arrays)

    def _stored(self, a: Tensor, arrays: list[Any]) -> Any:
        storage = a.untyped_storage()
        buffer = getattr(storage, "buffer", None)
        if buffer is None:
            return self._foreign(a, arrays)
        base = buffer.array
        if base is None:
            base = tensor.base_of(a)
        shape = a.shape
        arrays.append(base)
        if base.shape == shape and a.is_contiguous() and base.dtype.itemsize == a.itemsize:
            return ("W", shape, a.dtype)
        view, starts = tensor.view_of(a, base)
        if starts is None:
            return ("W", shape, a.dtype)
        arrays.append(starts)
        return ("V", view, a.dtype)

    def _foreign(self, a: Tensor, arrays: list[Any]) -> Any:
        # Indices may stay on the host, and the scalars of `_foreach_addcmul.Tensor` must in
        # PyTorch.
        host = any(part in self.op._schema.name for part in ("index", "_foreach_addc"))
        if a.device.type == "cpu" and (a.dim() == 0 or host):
            arrays.append(host_array(a))
            events.to_device(a.nbytes)
            return ("W", a.shape, a.dtype)
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"tpu:0 and {a.device}! (when checking arguments of {self.op})"
        )

    def _flatten(self, a: Any, i: int, arrays: list[Any]) -> Any:
        if isinstance(a, Tensor):
            return self._tensor(a, arrays)
        kind = type(a)
        if kind is list or kind is tuple:
            return ("L", tuple([self._flatten(x, i, arrays) for x in a]))
        if self.is_scalar[i] and (kind is float or kind is int or kind is complex):
            p = self.parameters[i]
            if a != (p.default if p is not None else None) and (
                kind is not int or -(2**63) <= a < 2**63
            ):
                arrays.append(a)
                return ("S", kind)
        return ("C", kind, a)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if Calls.take is not None:
            return Calls.take(self, args, kwargs)
        # The commonest calls (tensors and numbers, one result) inline `_tensor`, `on_device` and
        # `tensor.wrap`: each Python frame on this path costs as much as the addition itself.
        if self.special:
            return self._general(args, kwargs)
        arrays: list[Any] = []
        key: list[Any] = [_default_dtype(), precision.Setting.name]
        for i, a in enumerate(args):
            if isinstance(a, Tensor):
                buffer = getattr(a.untyped_storage(), "buffer", None)
                if buffer is None or (base := buffer.array) is None:
                    return self._general(args, kwargs)
                if self.lazy_bits and (a.is_neg() or a.is_conj()):
                    return self._general(args, kwargs)
                if i and self.inplace and buffer is args[0].untyped_storage().buffer:
                    return self._general(args, kwargs)  # which checks how they overlap
                arrays.append(base)
                if base.shape == (shape := a.shape) and a.is_contiguous():
                    key += (shape, a.dtype, base.dtype)
                    continue
                view, starts = tensor.placed_view_of(a, base)
                if starts is not None:
                    arrays.append(starts)
                key += (view, base.shape, a.dtype, base.dtype)
                continue
            kind = type(a)
            if (kind is float or kind is int) and self.is_scalar[i] and a != self.usual[i]:
                if kind is int and not -(2**63) <= a < 2**63:
                    return self._general(args, kwargs)
                arrays.append(number(a) if a else zero(a))
                key.append(kind)
            elif kind is list or kind is tuple:
                if any(isinstance(x, Tensor) for x in a):
                    return self._general(args, kwargs)
                key += (tuple(a), tuple(map(type, a)))
            elif kind is complex:  # `_flatten` passes it as an array, whatever its value
                return self._general(args, kwargs)
            else:
                key += (kind, a)
        if kwargs and not self._options(kwargs, arrays, key):
            return self._general(args, kwargs)
        quick_key = tuple(key)
        quick = self.quick.get(quick_key)
        if quick is None:
            return self._general(args, kwargs, quick_key)
        execute, handlers, m = quick
        array = execute(arrays).consume_with_handlers(handlers)[0]
        if m is None:
            args[0].untyped_storage().buffer.array = array
            return args[0]
        if not m.contiguous:
            return tensor.wrap(array, m)
        made = _new_tensor(m.size, m.dtype)
        storage = made.untyped_storage()
        storage._swap_data_ptr_(_new_storage(_take_address(m.nbytes), DEVICE, m.nbytes))
        storage.buffer = Buffer(array, m.nbytes)
        return made

    def _options(self, kwargs: Any, arrays: list[Any], key: list[Any]) -> bool:
        """Flatten keyword arguments as `__call__` does the others; False if they need more."""
        for name, a in kwargs.items():
            if isinstance(a, (Tensor, list, tuple, complex)):
                return False
            kind, i = type(a), self.position[name]
            if kind in (float, int) and self.is_scalar[i] and a != self.usual[i]:
                if kind is int and not -(2**63) <= a < 2**63:
                    return False
                arrays.append(number(a) if a else zero(a))
                a = None
            key += (name, kind, a)
        return True

    def _general(self, args: Any, kwargs: Any, quick_key: Any = None) -> Any:
        generator = kwargs.pop("generator", None) if self.random else None
        if self.host and (self.host is True or self.host(args, kwargs)):
            return self._on_host(args, kwargs)
        if self.inplace:
            refusals.check_apart(args[0], args[1:])
        if mesh.Active.mesh is not None:
            mesh.settle(args, kwargs)
        arrays: list[Any] = []
        key: list[Any] = [arguments.head(self, args, kwargs)]
        for i, a in enumerate(args):
            key.append(self._flatten(a, i, arrays))
        for name, a in kwargs.items():
            key.append((name, self._flatten(a, self.position[name], arrays)))
        if self.random:
            arrays.append(rng.take(generator))
        cache_key = tuple(key)
        plan = self.plans.get(cache_key)
        if plan is None:
            with events.span("tpu::make_program"):
                plan = self._build(cache_key, len(args), arrays, args, kwargs)
            self.plans[cache_key] = plan
        arrays = on_device(arrays)
        if Calls.program is None:
            program = plan.program(arrays)
        else:
            program = Calls.program(self, plan, arrays, args, kwargs)
        if quick_key is not None and not any(map(tensor.lies_otherwise, args)):
            self._remember(quick_key, plan, program)
        results = program(arrays)
        if self.writes:
            return self._write_back(plan, results, args, kwargs)
        if plan.tree is None:
            return tensor.wrap(results, plan.fresh[0])
        return _rebuild(plan, results)

    def _remember(self, key: Any, plan: Plan, program: Program) -> None:
        """Let `__call__` serve calls that look like this one, if they need no more than it does."""
        m = None if self.inplace else plan.fresh[0] if len(plan.fresh) == 1 else None
        if self.inplace or (plan.tree is None and isinstance(m, Meta)):
            self.quick[key] = (program.execute, program.handlers, m)

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        i = self.position[name]
        return args[i] if i < len(args) else kwargs.get(name)

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        found: list[Tensor] = []
        for name in self.writes:
            value = self.argument(name, args, kwargs)
            found.extend(
                value if isinstance(value, (list, tuple)) else [] if value is None else [value]
            )
        return found

    def _write_back(self, plan: Plan, results: Any, args: Any, kwargs: Any) -> Any:
        fresh, bases = results
        written = self._written(args, kwargs)
        for target, base in zip(written, bases, strict=True):
            target.untyped_storage().buffer.array = base
        made = [tensor.wrap(r, m) for r, m in zip(fresh, plan.fresh, strict=True)]  # type: ignore[arg-type]
        return self._returned(made, args, kwargs)

    def _returned(self, made: list[Any], args: Any, kwargs: Any) -> Any:
        """What the call returns: the fresh results `made` and the written arguments."""
        returned: list[Any] = []
        names = iter(self.writes)
        for r in self.op._schema.returns:
            if r.alias_info is None:
                returned.append(made.pop(0))
            else:
                returned.append(self.argument(next(names), args, kwargs))
        if not returned:
            return None
        return returned[0] if len(returned) == 1 else tuple(returned)

    # ---- building

    def _build(
        self,
        key: Any,
        count: int,
        arrays: list[Any],
        args: Any,
        kwargs: Any,
        abstract: bool = False,
    ) -> Plan:
        """The plan of a new kind of call, with its program unless `abstract` (arrays as shapes)."""
        events.plan_made(str(self.op))
        if flags.DEBUG.value:
            print(f"tpu: program for {schema.format_call(self.op, args, kwargs)}", file=sys.stderr)
        if self.writes and self.op._schema.name not in refusals.MAY_REPEAT:
            refusals.check_written(self._written(args, kwargs))
        if check := refusals.CHECKS.get(self.op._schema.name):
            check(*args, **kwargs)
        try:
            metas = self._metas(args, kwargs)
            extra: dict[str, Any] = {}
            if name := self.entry.traits["contiguous"]:
                extra["contiguous"] = self.argument(name, args, kwargs).is_contiguous()
            if metas is None:
                metas = self._evaluate(self._trace(key, count, None, extra), arrays)
            run = self._trace(key, count, metas, extra)
            compiled = runtime.start().jit(run, keep_unused=True)
            leaves, tree = metas
            known = (str(self.op), key, count, metas, extra) if self._is_ours() else None
            plan = Plan(compiled, tuple(leaves), tree, {}, known)
            if abstract or mesh.Active.mesh is not None:  # whose programs `Calls.program` makes
                compiled.eval_shape(*arrays)
            else:
                plan.program(on_device(arrays))
        except Unsupported as e:
            raise LoweringError(explain(self.op, args, kwargs, str(e))) from e
        except (TypeError, ValueError) as e:  # shapes or dtypes that do not go together
            raise RuntimeError(f"{self.op._schema.name}: {e}") from e
        return plan

    def _is_ours(self) -> bool:
        """Whether the lowering is one of this project's, whose sources the index of programs
        knows; a user's own may change between two processes."""
        return str(self.entry.function.__module__).startswith("cloud_backend.ops.")

    def _metas(self, args: Any, kwargs: Any) -> tuple[list[Meta | None], Any] | None:
        """Metadata of the fresh results, from PyTorch's meta kernel; None where it has none."""
        if not self.entry.traits["meta"]:
            return None
        foreach = self.op._schema.name.startswith("aten::_foreach_")

        def to_meta(a: Any) -> Any:
            if isinstance(a, Tensor):
                if a.device.type == "cpu" and (a.dim() == 0 or foreach):
                    return a  # some meta kernels insist on scalars of the host
                return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
            return torch.device("meta") if isinstance(a, torch.device) else a

        margs, mkwargs = pytree.tree_map(to_meta, (args, kwargs))
        if self.random and "generator" in self.position:
            mkwargs["generator"] = None
        try:
            with _disable_current_modes(), torch.no_grad():
                results = self.op(*margs, **mkwargs)
        except NotImplementedError:
            return None
        if self.writes:
            returned = results if isinstance(results, (tuple, list)) else [results]
            flags = [r.alias_info is None for r in self.op._schema.returns]
            results = tuple(r for r, new in zip(returned, flags, strict=False) if new)
        if isinstance(results, Tensor):
            return [self._metadata(results, margs)], None
        leaves, tree = pytree.tree_flatten(results, is_leaf=lambda x: x is None)
        # Numbers among the results (`max_q` of attention) are known here and stand for themselves.
        return [_meta_of(x) if isinstance(x, Tensor) else x for x in leaves], tree

    def _metadata(self, result: Tensor, args: Any) -> Meta:
        """Pointwise results of contiguous tensors are so too; Python's meta kernels forget that
        where a dimension of one lets the strides be others."""
        m = _meta_of(result)
        plain = torch.Tag.pointwise in self.op.tags and "memory_format" not in self.position
        if plain and all(a.is_contiguous() for a in args if isinstance(a, Tensor)):
            return m._replace(stride=views.contiguous_stride(m.size), contiguous=0 not in m.size)
        return m

    def _evaluate(self, run: Any, arrays: list[Any]) -> tuple[list[Meta | None], Any]:
        """Metadata by abstract evaluation of the lowering: contiguous results."""
        if self.writes and not self.fresh_count:
            return [], pytree.tree_flatten(())[1]
        shapes = runtime.start().eval_shape(run, *arrays)
        leaves, tree = pytree.tree_flatten(shapes, is_leaf=lambda x: x is None)
        metas = [None if x is None else _meta_of_shape(x) for x in leaves]
        return metas, None if tree.is_leaf() else tree

    def _trace(self, key: Any, count: int, metas: Any, extra: Any) -> Callable[..., Any]:
        entry, names = self.entry, [a.name for a in self.op._schema.arguments]
        leaves, tree = metas if metas is not None else ([], None)

        def run(*arrays: Any) -> Any:
            stream = iter(arrays)
            places: dict[str, list[Any]] = {}
            values: dict[str, Any] = dict(self.defaults)
            for i, part in enumerate(key[1:]):
                name, marker = (names[i], part) if i < count else part
                places[name] = []
                values[name] = arguments.value(marker, stream, places[name])
            bound = entry.bind((), values)
            if self.random:
                bound["key"] = rng.key(next(stream))
            results = entry.function(**bound, **extra)
            if metas is None:
                return results[: self.fresh_count] if self.writes else results
            if self.writes:
                flat = _flat(results)
                fresh, new = flat[: len(leaves)], flat[len(leaves) :]
                targets = [p for n in self.writes for p in places.get(n, [])]
                new = [v for v in new if v is not None]
                if len(new) != len(targets):
                    raise Unsupported(f"{len(new)} new values for {len(targets)} written tensors")
                bases = arguments.stored(key[0], targets, new)
                return [self._laid_out(v, m) for v, m in zip(fresh, leaves, strict=True)], bases
            if tree is None:
                return self._laid_out(results, leaves[0])
            return [self._laid_out(v, m) for v, m in zip(_flat(results), leaves, strict=True)]

        run.__name__ = self.op._schema.name.replace("::", "_")
        return run

    def _laid_out(self, value: Any, m: Meta | None) -> Any:
        if not isinstance(m, tensor.Meta) or value is None:
            return None
        value = runtime.start().numpy.asarray(value)
        if value.shape != m.size or value.dtype != to_jax(m.dtype):
            raise LoweringError(
                f"tpu: the lowering of {self.op} gave {schema.format_value(value)} where "
                "PyTorch says "
                f"{schema.short_dtype(m.dtype)}{list(m.size)}; please report this"
            )
        return views.lay_out(value, m.size, m.stride)

    def _on_host(self, args: Any, kwargs: Any) -> Any:
        """Run a lowering whose result shape depends on values: concrete arrays, outside jit."""
        events.host_sync(str(self.op))
        self_check = pytree.tree_map_only(Tensor, tensor.read_any, (args, kwargs))
        names = [a.name for a in self.op._schema.arguments]
        values = {**dict(zip(names, self_check[0], strict=False)), **self_check[1]}
        try:
            results = self.entry.function(**self.entry.bind((), values))
        except Unsupported as e:
            raise LoweringError(explain(self.op, args, kwargs, str(e))) from e
        made = [tensor.to_tensor(r) for r in _flat(results)]
        if isinstance(results, (tuple, list)):
            return type(results)(made) if isinstance(results, list) else tuple(made)
        return made[0]


def _rebuild(plan: Plan, results: Any, kind: type[tensor.Buffer] = tensor.Buffer) -> Any:
    made = [
        tensor.wrap(r, m, kind) if isinstance(m, tensor.Meta) else m
        for r, m in zip(results, plan.fresh, strict=True)
    ]
    return pytree.tree_unflatten(made, plan.tree)


def _meta_of(t: Tensor) -> Meta:
    return tensor.meta(t.shape, t.stride(), t.dtype)


def _meta_of_shape(x: Any) -> Meta:
    size = tuple(x.shape)
    return tensor.meta(size, views.contiguous_stride(size), to_torch(x.dtype))


def _flat(results: Any) -> list[Any]:
    if not isinstance(results, (tuple, list)):
        return [results]
    return [x for r in results for x in (_flat(r) if isinstance(r, (tuple, list)) else [r])]
