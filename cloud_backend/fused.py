"""Fused eager mode: operations are recorded, and run as one XLA program where a value is needed.

A recorded operation is a `Step` (a traced kernel, shared by all calls that look alike) and what it
reads: outputs of earlier steps, arrays, numbers. Numbers and start positions travel in packed
vectors, so a learning rate that varies compiles nothing. The flush looks up the program by the
steps, by the values that something still holds, and by the inputs that nothing else holds.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from cloud_backend import arguments, plan, rng, runtime, tensor, views
from cloud_backend.events import Memory
from cloud_backend.fused_program import COMPLEX, FLOAT, INT, WORDS, Program, example, starts_code
from cloud_backend.pending import Failure, Pending, Spec, Value, content_of, put, settled, spec_of
from cloud_backend.plan import Kernel, Plan
from cloud_backend.precision import Setting
from cloud_backend.tensor import DEVICE, Meta

Tensor = torch.Tensor
_new_tensor, _new_storage = tensor._new_tensor, tensor._new_storage
_take_address = tensor._take_address
_FLOAT = ("S", float)
# A recording ends at the first repetition of the step that ended the one before, once it has
# SOFT steps: loops without another end then settle on a few programs. HARD bounds its length,
# and HELD the bytes of arrays that only the recording keeps alive.
SOFT, HARD, HELD = 3000, 6000, 1 << 28


class Step(NamedTuple):
    """A kernel traced for one look of its call."""

    function: Callable[..., list[Any]]  # flat arrays in, flat arrays out
    plan: Plan
    outputs: tuple[Spec, ...]
    simple: Meta | None  # of the result, where that is one fresh contiguous tensor and no more

    __hash__ = object.__hash__
    __eq__ = object.__eq__  # type: ignore[assignment]


class Look:
    """How a tensor that is not just its storage's array lies in it: a part of a plan's key.

    There is one object each (`_look`), so identity compares. Start positions are no part of it.
    """

    __slots__ = ("marker",)

    def __init__(self, marker: Any) -> None:
        self.marker = marker


_interned = functools.lru_cache(maxsize=65536)(lambda spec, marker: Look(marker))


@functools.lru_cache(maxsize=65536)
def _look(
    spec: Spec, size: Any, stride: Any, offset: int, dtype: torch.dtype
) -> tuple[Look, tuple[int, ...]]:
    """The look of a tensor in a base array of `spec`, and its start positions there."""
    length = spec.nbytes // dtype.itemsize
    view, starts = views.spec(tuple(size), stride, offset, length)
    if starts is None:
        return _interned(spec, ("W", torch.Size(size), dtype)), ()
    return _interned(spec, ("V", view, dtype)), tuple(starts.tolist())


class _Recording:
    """The operations since the last flush."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.values: list[Value] = []
        self.specs: list[Spec] = []
        self.inputs: list[Any] = []
        self.input_specs: list[Spec] = []
        self.input_refs: dict[int, tuple[int, Spec]] = {}
        self.input_bytes = 0
        self.numbers: dict[int, list[Any]] = {FLOAT: [], INT: [], COMPLEX: [], WORDS: []}


class Recorder:
    """Records the calls of kernels. One per process: autograd's threads record here as well."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.now = _Recording()
        self.steps: dict[Any, Step] = {}
        self.programs: dict[Any, Program] = {}
        self.end: Step | None = None

    # ---- recording

    def __call__(self, kernel: Kernel, args: Any, kwargs: Any) -> Any:
        """Run one kernel's call: check it, promise its results, remember what computes them."""
        generator = kwargs.pop("generator", None) if kernel.random else None
        if kernel.host and (kernel.host is True or kernel.host(args, kwargs)):
            return kernel._on_host(args, kwargs)
        with self.lock:
            now = self.now
            if len(now.steps) >= SOFT or now.input_bytes >= HELD:
                now = self._split()
            refs: list[Any] = [None]
            key: list[Any] = [kernel, Setting.name, arguments.head(kernel, args, kwargs)]
            lazy_bits, inputs = kernel.lazy_bits, now.input_refs
            for i, a in enumerate(args):
                # The commonest arguments inline what `_stored` does, as frames cost more than it.
                if isinstance(a, Tensor):
                    buffer = getattr(a.untyped_storage(), "buffer", None)
                    content = None if buffer is None else content_of(buffer)
                    promised = type(content) is Value
                    held = content.array if promised else content
                    now_made = promised and held is None
                    known = (content.index * 4, content.spec) if now_made else inputs.get(id(held))
                    if known is not None:
                        ref, spec = known
                        if (
                            a.dtype is spec.torch_dtype
                            and a.shape == spec.shape
                            and a.is_contiguous()
                            and not (lazy_bits and (a.is_neg() or a.is_conj()))
                        ):
                            refs.append(ref)
                            key.append(spec)
                            continue
                    key.append(self._stored(kernel, a, refs))
                elif type(a) is float and kernel.is_scalar[i] and a != kernel.usual[i]:
                    now.numbers[FLOAT].append(a)
                    refs.append(FLOAT)
                    key.append(_FLOAT)
                else:
                    key.append(self._flatten(kernel, a, i, refs))
            for name, a in kwargs.items():
                key.append((name, self._flatten(kernel, a, kernel.position[name], refs)))
            if kernel.random:
                now.numbers[WORDS].append(rng.take(generator))
                refs.append(WORDS)
            cache_key = tuple(key)
            step = self.steps.get(cache_key)
            if step is None:
                step = self.steps[cache_key] = self._step(kernel, cache_key[2:], refs, args, kwargs)
            refs[0] = step
            now.steps.append(tuple(refs))
            m = step.simple
            if m is not None:
                value = Value(step.outputs[0], len(now.values))
                now.specs.append(value.spec)
                now.values.append(value)
                made = _new_tensor(m.size, m.dtype)
                storage = made.untyped_storage()
                storage._swap_data_ptr_(_new_storage(_take_address(m.nbytes), DEVICE, m.nbytes))
                storage.buffer = Pending(value, m.nbytes)
                return made
            return self._promised(kernel, step, args, kwargs)

    def _promised(self, kernel: Kernel, step: Step, args: Any, kwargs: Any) -> Any:
        """The results of the step that was just recorded."""
        now = self.now
        outputs = step.outputs
        now.specs.extend(outputs)
        index = len(now.values)
        made = [Value(spec, index + i) for i, spec in enumerate(outputs)]
        now.values.extend(made)
        if kernel.writes:
            return _write_back(kernel, step.plan, made, args, kwargs)
        if step.plan.tree is None:
            return tensor.wrap(made[0], step.plan.fresh[0], Pending)
        return plan._rebuild(step.plan, _with_gaps(step.plan, made), Pending)

    def _flatten(self, kernel: Kernel, a: Any, i: int, refs: list[Any]) -> Any:
        """The part of the key that stands for one argument; `refs` gets what it reads."""
        if isinstance(a, Tensor):
            return self._stored(kernel, a, refs)
        kind = type(a)
        if kind is list or kind is tuple:
            if a and isinstance(a[0], Tensor):
                return ("L", self._list(kernel, a, i, refs))
            return ("L", tuple([self._flatten(kernel, x, i, refs) for x in a]))
        if kernel.is_scalar[i] and (kind is float or kind is int or kind is complex):
            p = kernel.parameters[i]
            if a != (p.default if p is not None else None) and (
                kind is not int or -(2**63) <= a < 2**63
            ):
                code = FLOAT if kind is float else INT if kind is int else COMPLEX
                self.now.numbers[code].append(a)
                refs.append(code)
                return ("S", kind)
        return ("C", kind, a)

    def _list(self, kernel: Kernel, given: Any, i: int, refs: list[Any]) -> tuple[Any, ...]:
        """`_flatten` for a list of tensors, as optimisers give; without frames for the usual."""
        inputs = self.now.input_refs
        parts: list[Any] = []
        for a in given:
            buffer = getattr(a.untyped_storage(), "buffer", None) if a is not None else None
            content = None if buffer is None else content_of(buffer)
            promised = type(content) is Value
            held = content.array if promised else content
            now_made = promised and held is None
            known = (content.index * 4, content.spec) if now_made else inputs.get(id(held))
            if known is not None:
                ref, spec = known
                if (
                    a.dtype is spec.torch_dtype
                    and a.shape == spec.shape
                    and a.is_contiguous()
                    and not (a.is_neg() or a.is_conj())
                ):
                    refs.append(ref)
                    parts.append(spec)
                    continue
            parts.append(self._flatten(kernel, a, i, refs))
        return tuple(parts)

    def _stored(self, kernel: Kernel, a: Tensor, refs: list[Any]) -> Any:
        """The part of the key for a tensor: its `Spec` alone if it is its whole storage."""
        buffer = getattr(a.untyped_storage(), "buffer", None)
        content = None if buffer is None else content_of(buffer)
        if type(content) is Value:
            spec = content.spec
            if content.array is None:
                refs.append(content.index * 4)
            else:
                refs.append(self._input(settled(content), spec)[0])
        elif buffer is None:
            return self._host(kernel, a, refs)
        else:
            ref, spec = self._input(tensor.base_of(a) if content is None else content)
            refs.append(ref)
        if a.dtype is spec.torch_dtype and a.shape == spec.shape and a.is_contiguous():
            part: Any = spec
        else:
            part, starts = _look(spec, a.shape, a.stride(), a.storage_offset(), a.dtype)
            if starts:
                self.now.numbers[INT].extend(starts)
                refs.append(starts_code(len(starts)))
        if a.is_neg() or a.is_conj():
            return ("N", part, a.is_conj(), a.is_neg())
        return part

    def _host(self, kernel: Kernel, a: Tensor, refs: list[Any]) -> Any:
        """A tensor of the host. What it holds now is what counts, though the program runs later."""
        host: list[Any] = []
        kernel._foreign(a, host)
        array = np.array(host[0], copy=True)
        ref, spec = self._input(array)
        refs.append(ref)
        return _interned(spec, ("W", a.shape, a.dtype))

    def _input(self, array: Any, spec: Spec | None = None) -> tuple[int, Spec]:
        now = self.now
        found = now.input_refs.get(id(array))
        if found is None:
            spec = spec or spec_of(array)
            found = now.input_refs[id(array)] = (len(now.inputs) * 4 + 1, spec)
            now.inputs.append(array)
            now.input_specs.append(spec)
            now.input_bytes += spec.nbytes
        return found

    def _step(self, kernel: Kernel, key: Any, refs: Any, args: Any, kwargs: Any) -> Step:
        """Trace a call that looks new.

        Raises:
            what the kernel raises for wrong arguments, as in strict mode.
        """
        now, jax = self.now, runtime.start()
        markers = (key[0], *(_marker(part) for part in key[1:]))
        arrays = [example(r, now.specs, now.inputs) for r in refs[1:]]
        made = kernel.plans.get(markers)
        if made is None:
            made = kernel._build(markers, len(args), arrays, args, kwargs, abstract=True)
            kernel.plans[markers] = made
        closed, shapes = jax.make_jaxpr(made.run, return_shape=True)(*arrays)
        import jax.extend.core as extended

        leaves = jax.tree_util.tree_leaves(shapes)
        m = made.fresh[0] if made.tree is None and not kernel.writes else None
        simple = m if m is not None and m.contiguous else None
        outputs = tuple(spec_of(x) for x in leaves)
        return Step(extended.jaxpr_as_fun(closed), made, outputs, simple)

    # ---- flushing

    def _split(self) -> _Recording:
        """End a recording that has become long, or that holds much memory, at a fitting place."""
        now = self.now
        count = len(now.steps)
        due = count >= HARD or (count >= SOFT and now.steps[-1][0] is self.end)
        if not due and now.input_bytes >= HELD:
            held = _unshared(now.inputs)
            now.input_bytes = sum(now.input_specs[i].nbytes for i in held)
            due = now.input_bytes >= HELD
        if due:
            self.end = now.steps[-1][0]
            self.flush()
        return self.now

    def flush(self) -> None:
        """Issue the recorded operations as one program. Does not wait for the results.

        Raises:
            what XLA raises; tensors that the program was to fill then refuse to be read.
        """
        with self.lock:
            now = self.now
            if not now.steps:
                return
            self.now = _Recording()
            # The list, the loop's variable and the question hold a value; more is a buffer.
            alive = [v for v in now.values if sys.getrefcount(v) > 3]
            now.values.clear()
            if not alive:
                return
            now.input_refs.clear()
            try:
                self._run(now, alive)
            except BaseException as e:
                for v in alive:
                    v.array = Failure(e)
                raise

    def _run(self, now: _Recording, alive: list[Value]) -> None:
        free = _unshared(now.inputs)
        donated = _donatable(free, now, alive)
        key = (tuple(now.steps), tuple([v.index for v in alive]), donated)
        program = self.programs.get(key)
        if program is None:
            program = self.programs[key] = Program(*key, inputs=len(now.inputs))
        held = sum(now.input_specs[i].nbytes for i in free.difference(donated))
        results = program(now.inputs, now.numbers)
        Memory.peak = max(Memory.peak, Memory.current + held + program.temporary_bytes)
        for v, array in zip(alive, results, strict=True):
            v.array = array


def _unshared(arrays: list[Any]) -> set[int]:
    """Which of the arrays nothing but this list holds."""
    return {i for i in range(len(arrays)) if sys.getrefcount(arrays[i]) <= 2}


def _donatable(free: set[int], now: _Recording, alive: list[Value]) -> tuple[int, ...]:
    """Inputs that nothing else holds and that an output of the same form can overwrite."""
    room: dict[Spec, int] = {}
    for v in alive:
        room[v.spec] = room.get(v.spec, 0) + 1
    chosen = []
    for i in sorted(free):
        if isinstance(now.inputs[i], np.ndarray):
            continue
        spec = now.input_specs[i]
        if room.get(spec, 0):
            room[spec] -= 1
            chosen.append(i)
    return tuple(chosen)


def _marker(part: Any) -> Any:
    """The part of a plan's key (see `plan.Kernel`) that a part of a step's key stands for."""
    if isinstance(part, Spec):
        return ("W", torch.Size(part.shape), part.torch_dtype)
    if isinstance(part, Look):
        return part.marker
    kind = part[0]
    if kind == "N":
        return ("N", _marker(part[1]), *part[2:])
    if kind == "L":
        return ("L", tuple(_marker(x) for x in part[1]))
    if kind in ("S", "C"):
        return part
    return (kind, _marker(part[1]))  # a keyword argument


def _with_gaps(made: Plan, values: list[Value]) -> list[Any]:
    rest = iter(values)
    return [next(rest) if isinstance(m, tensor.Meta) else None for m in made.fresh]


def _write_back(kernel: Kernel, made: Plan, values: list[Value], args: Any, kwargs: Any) -> Any:
    count = sum(isinstance(m, tensor.Meta) for m in made.fresh)
    for target, value in zip(kernel._written(args, kwargs), values[count:], strict=True):
        put(target.untyped_storage().buffer, value)
    fresh = [
        tensor.wrap(v, m, Pending) if m is not None else None
        for v, m in zip(_with_gaps(made, values[:count]), made.fresh, strict=True)
    ]
    return kernel._returned(fresh, args, kwargs)


RECORDER = Recorder()
Pending.flush = RECORDER.flush
