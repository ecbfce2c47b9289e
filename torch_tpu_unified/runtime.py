"""Runs a LiteRT file on torch tensors: `load("model.tflite")(x)`.

A thin layer over the LiteRT interpreter: names, order and dtypes as in the PyTorch program, tensors
of any device in, CPU tensors out. One interpreter is kept; a signature is prepared on first use.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import torch

from litert_export import reader, verify
from torch_tpu_unified.agreement import to_numpy
from torch_tpu_unified.core.errors import InputError, NotYetAvailable, OptionError


class LiteRTModel:
    """A LiteRT file, callable on torch tensors.

    Attributes:
        signatures: name -> (input names, output names), in the PyTorch program's order.
    """

    def __init__(self, model: bytes | bytearray | str | os.PathLike[str]) -> None:
        self.signatures = reader.signatures(model)
        if not self.signatures:
            raise InputError("the file has no signature; convert it again with this package")
        self._interpreter = verify.interpreter(model)
        self._runners: dict[str, Any] = {}
        self._lock = threading.Lock()  # an interpreter has one set of input buffers

    def __call__(
        self, *args: Any, signature: str | None = None, **kwargs: Any
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run one signature.

        Args:
            args: tensors or arrays in the order of the signature's inputs, or one dict by name.
            signature: its name; may be left out when the file has one.
            kwargs: inputs by name.

        Floating inputs of a quantised file are quantised; its outputs are then made float32 too.

        Returns:
            The output, or a tuple of several in the program's order; CPU tensors.

        Raises:
            OptionError: the signature is unknown or must be named; an input is missing or unknown.
            InputError: an input has a wrong shape or dtype, or LiteRT fails.
        """
        key = self.signature_key(signature)
        given = self._named(key, args, kwargs)
        with self._lock:
            outputs = self._run(key, given)
        results = tuple(_tensor(outputs[name]) for name in self.signatures[key][1])
        return results[0] if len(results) == 1 else results

    def signature_key(self, signature: str | None) -> str:
        """The signature to run: the one named, or the only one.

        Raises:
            OptionError: it is unknown, or one of several must be named.
        """
        if signature is None and len(self.signatures) == 1:
            return next(iter(self.signatures))
        if signature not in self.signatures:
            known = ", ".join(self.signatures)
            told = "name a signature" if signature is None else f"no signature {signature!r}"
            raise OptionError(f"{told}; the file has {known}")
        return signature

    def _named(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = self.signatures[key][0]
        if len(args) == 1 and isinstance(args[0], dict) and not kwargs:
            kwargs, args = args[0], ()
        if len(args) > len(names):
            raise OptionError(f"{len(args)} inputs given; {key} takes {', '.join(names)}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names or name in given:
                told = "is given twice" if name in given else "is unknown"
                raise OptionError(f"input {name!r} {told}; {key} takes {', '.join(names)}")
            given[name] = value
        if missing := [n for n in names if n not in given]:
            raise OptionError(f"{key} lacks the input {', '.join(missing)}")
        return given

    def _run(self, key: str, given: dict[str, Any]) -> dict[str, Any]:
        if key not in self._runners:
            self._runners[key] = self._interpreter.get_signature_runner(key)
        runner = self._runners[key]
        details = runner.get_input_details()
        inputs = {name: _array(name, value, details[name]) for name, value in given.items()}
        try:
            outputs: dict[str, Any] = runner(**inputs)
        except (ValueError, RuntimeError) as error:
            raise InputError(f"LiteRT cannot run {key}: {error}") from error
        if any(np.dtype(details[n]["dtype"]) != to_numpy(v).dtype for n, v in given.items()):
            ends = runner.get_output_details()
            outputs = {name: verify.decoded(y, ends[name]) for name, y in outputs.items()}
        return outputs

    def __repr__(self) -> str:
        ends = [f"{k}({', '.join(i)}) -> {', '.join(o)}" for k, (i, o) in self.signatures.items()]
        return f"LiteRTModel({'; '.join(ends)})"


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _array(name: str, value: Any, detail: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The input as the file wants it; only lossless changes of integer width are made."""
    array = np.ascontiguousarray(to_numpy(value)).reshape(np.shape(value))
    array = verify.encoded(array, detail)
    wanted, shape = np.dtype(detail["dtype"]), tuple(map(int, detail["shape_signature"]))
    fits = len(shape) == array.ndim and all(
        s in (-1, d) for s, d in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise InputError(f"input {name!r} has the shape {list(array.shape)}, not {list(shape)}")
    if array.dtype != wanted:
        same_kind = array.dtype.kind in "iu" and wanted.kind in "iu"
        cast = array.astype(wanted)
        if not same_kind or not np.array_equal(cast, array):
            raise InputError(f"input {name!r} is {array.dtype}, not {wanted}; convert it first")
        array = cast
    return array


def load(
    model: bytes | bytearray | str | os.PathLike[str], *, delegate: str | None = None
) -> LiteRTModel:
    """Load a LiteRT file (a path or its bytes) to run it on torch tensors.

    Args:
        delegate: for accelerators; not available yet.

    Raises:
        InputError: there is no such file, it is damaged, or LiteRT cannot load it.
        NotYetAvailable: a delegate is asked for.
    """
    if delegate is not None:
        raise NotYetAvailable("load(delegate=...) is not available yet; leave it out for the CPU")
    return LiteRTModel(model)
