"""The XLA program of a recording: what `fused` flushes.

What a step reads is one integer each: 4n is output n of the recording, 4n + 1 its input array n,
and 4n + 2 the next numbers of a packed vector, in the order of recording.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from cloud_backend import events, runtime
from torch_tpu_unified.core import flags

FLOAT, INT, COMPLEX, WORDS = 2, 6, 10, 14
_STARTS = 18
_DTYPES = {FLOAT: np.float64, INT: np.int64, COMPLEX: np.complex128, WORDS: np.uint32}
_EXAMPLES: dict[int, Any] = {
    FLOAT: 1.0, INT: 1, COMPLEX: 1j, WORDS: np.zeros(4, np.uint32),
}  # fmt: skip


def starts_code(length: int) -> int:
    """What a step that reads `length` start positions of a view refers to them by."""
    return _STARTS + 4 * length


def example(ref: int, specs: list[Any], inputs: list[Any]) -> Any:
    """Something with the type of what `ref` stands for, to trace a kernel with."""
    kind = ref % 4
    if kind == 0:
        spec = specs[ref // 4]
        return runtime.start().ShapeDtypeStruct(spec.shape, spec.dtype)
    if kind == 1:
        return inputs[ref // 4]
    return _EXAMPLES[ref] if ref < _STARTS else np.zeros((ref - _STARTS) // 4, np.int64)


class Program:
    """A recording as one jitted function.

    Args:
        steps: tuples (step, what it reads...).
        live: numbers of the outputs that leave the program.
        donated: numbers of the inputs whose memory the outputs may take.
        inputs: how many input arrays there are.
    """

    def __init__(
        self, steps: Any, live: tuple[int, ...], donated: tuple[int, ...], inputs: int
    ) -> None:
        events.fused_made(f"{len(steps)} fused operators")
        if flags.DEBUG.value:
            print(f"tpu: program for {len(steps)} fused operators", file=sys.stderr)
        self.steps, self.live, self.donated = steps, live, donated
        self.kept = tuple(i for i in range(inputs) if i not in set(donated))
        self.inputs = inputs
        self.jitted = runtime.start().jit(self._trace, donate_argnums=0)
        self.temporary_bytes: int | None = None  # known after the first call

    def __call__(self, inputs: list[Any], numbers: dict[int, list[Any]]) -> list[Any]:
        """The live outputs, as jax arrays; donated inputs are gone afterwards."""
        packed = {
            str(code): np.array(found, _DTYPES[code]) for code, found in numbers.items() if found
        }
        given = [inputs[i] for i in self.donated], [inputs[i] for i in self.kept], packed
        if self.temporary_bytes is None:
            with events.span("tpu::make_program"):
                memory = self.jitted.lower(*given).compile().memory_analysis()
            self.temporary_bytes = int(getattr(memory, "temp_size_in_bytes", 0) or 0)
        return self.jitted(*given)  # type: ignore[no-any-return]

    def _trace(self, donated: list[Any], kept: list[Any], packed: dict[str, Any]) -> list[Any]:
        arrays: list[Any] = [None] * self.inputs
        for i, a in zip((*self.donated, *self.kept), (*donated, *kept), strict=True):
            arrays[i] = a
        taken = dict.fromkeys(_DTYPES, 0)

        def take(code: int, length: int | None) -> Any:
            vector, start = packed[str(code)], taken[code]
            taken[code] += 1 if length is None else length
            return vector[start] if length is None else vector[start : start + length]

        values: list[Any] = []
        for step, *refs in self.steps:
            read = []
            for ref in refs:
                if ref % 4 == 0:
                    read.append(values[ref // 4])
                elif ref % 4 == 1:
                    read.append(arrays[ref // 4])
                elif ref < _STARTS:
                    read.append(take(ref, None))
                else:
                    read.append(take(INT, (ref - _STARTS) // 4))
            values.extend(step.function(*read))
        return [values[n] for n in self.live]
