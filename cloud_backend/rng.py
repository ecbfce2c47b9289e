"""Random numbers: `torch.Generator(device="tpu")` and the state behind `torch.manual_seed`.

A generator is a seed and a count of draws; every random operator folds the count into the seed's
key, so that a state can be read, set and passed into a compiled program as plain numbers.
`torch.Generator` is taken over for device tpu only, since C++ can make no generator for it.
"""

from __future__ import annotations

import secrets
import weakref
from typing import Any

import numpy as np
import torch

_CpuGenerator = torch._C.Generator
_MASK = (1 << 64) - 1
# C++ hands kernels a plain generator over the same C++ object; this finds ours again.
_by_address: weakref.WeakValueDictionary[int, TpuGenerator] = weakref.WeakValueDictionary()


class TpuGenerator(_CpuGenerator):
    """A generator of the tpu device. State: seed and draw count as little-endian uint64."""

    def __new__(cls, device: Any = "tpu") -> TpuGenerator:
        return super().__new__(cls, device="cpu")

    def __init__(self, device: Any = "tpu") -> None:
        self._seed, self._draws = 67280421310721, 0
        _by_address[self._cdata] = self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("tpu", 0)

    def manual_seed(self, seed: int) -> TpuGenerator:
        self._seed, self._draws = int(seed) & _MASK, 0
        return self

    def seed(self) -> int:
        self.manual_seed(secrets.randbits(63))
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> torch.Tensor:
        return torch.from_numpy(
            np.array([self._seed, self._draws], np.uint64).view(np.uint8).copy()
        )

    def set_state(self, state: torch.Tensor) -> TpuGenerator:
        if state.device.type != "cpu" or state.dtype != torch.uint8 or state.numel() != 16:
            raise RuntimeError(
                "RNG state of a tpu generator must be a CPU uint8 tensor of 16 bytes"
            )
        seed, draws = state.contiguous().numpy().view(np.uint64)
        self._seed, self._draws = int(seed), int(draws)
        return self

    def clone_state(self) -> TpuGenerator:
        other = TpuGenerator()
        other._seed, other._draws = self._seed, self._draws
        return other

    def graphsafe_get_state(self) -> TpuGenerator:
        return self.clone_state()

    def graphsafe_set_state(self, other: TpuGenerator) -> TpuGenerator:
        self._seed, self._draws = other._seed, other._draws
        return self

    def __reduce__(self) -> Any:
        return _rebuild_generator, (self._seed, self._draws)

    def take(self) -> np.ndarray:
        """The state words of the next draw: uint32[4] (seed low, high, count low, high)."""
        words = np.array([self._seed, self._draws], np.uint64).view(np.uint32)
        self._draws = (self._draws + 1) & _MASK
        return words


def _rebuild_generator(seed: int, draws: int) -> TpuGenerator:
    generator = TpuGenerator()
    generator._seed, generator._draws = seed, draws
    return generator


default_generator = TpuGenerator()


def take(generator: Any) -> np.ndarray:
    """State words for one random operator.

    Raises:
        RuntimeError: the generator belongs to another device.
    """
    if generator is None:
        return default_generator.take()
    found = _by_address.get(generator._cdata)
    if found is None:
        raise RuntimeError(
            f"Expected a 'tpu' device type for generator but found '{generator.device.type}'"
        )
    return found.take()


def key(words: Any) -> Any:
    """The jax PRNG key of state words (traceable)."""
    import jax

    base = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(base, words[2]), words[3])


class _GeneratorMeta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _CpuGenerator)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _CpuGenerator)


def install() -> None:
    """Let `torch.Generator(device="tpu")` make a `TpuGenerator`; other devices are untouched."""

    def make(cls: type, device: Any = "cpu") -> _CpuGenerator:
        kind = torch.device(device).type
        return TpuGenerator() if kind == "tpu" else _CpuGenerator(device=device)

    members = {"__new__": make, "__doc__": _CpuGenerator.__doc__, "__module__": "torch"}
    torch.Generator = _GeneratorMeta("Generator", (), members)  # type: ignore[misc, assignment]
