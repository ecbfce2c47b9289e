"""Calibration samples: from argument tuples, files and folders to arrays in the program's order.

On the command line: a folder of .npy, .npz or image files, one .npz file, or file.py:callable, a
function that gives an iterable of argument tuples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_tpu_unified import agreement, factories
from torch_tpu_unified.core.errors import InputError, OptionError
from torch_tpu_unified.programs import Program

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_ARRAYS = (".npy", ".npz")


def of_programs(found: Mapping[str, Program], calibration: Any) -> dict[str, list[Program]]:
    """Signature -> its program with each sample in the place of the example inputs.

    Args:
        calibration: an iterable of samples, each a tuple or list of arguments, a dict of keyword
            arguments, or a single tensor; for several programs a mapping of their names to such.

    Raises:
        OptionError: `calibration` has not that form.
    """
    given = calibration if isinstance(calibration, Mapping) else None
    if given is None:
        if len(found) > 1:
            raise OptionError("calibration: give a mapping of the signatures' names to samples")
        given = dict.fromkeys(found, calibration)
    if missing := [name for name in found if name not in given]:
        raise OptionError(f"calibration has no samples for {', '.join(missing)}")
    for samples in given.values():
        if isinstance(samples, torch.Tensor) or not isinstance(samples, Iterable):
            raise OptionError(
                f"calibration is a {type(samples).__name__}; give an iterable of argument tuples"
            )
    return {name: [_with(program, s) for s in given[name]] for name, program in found.items()}


def _with(program: Program, sample: Any) -> Program:
    sample = torch.utils._pytree.tree_map_only(np.ndarray, torch.from_numpy, sample)
    if isinstance(sample, Mapping):
        return dataclasses.replace(program, args=(), kwargs={**program.kwargs, **sample})
    args = tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)
    return dataclasses.replace(program, args=args)


def arrays(program: Program, io_layout: str) -> list[np.ndarray[Any, Any]]:
    """The inputs of a program as the arrays that its file takes.

    Raises:
        InputError: they have not the structure that the program was exported with.
    """
    found = [agreement.to_numpy(t) for t in program.flat_inputs()]
    if io_layout == "nhwc":
        found = [x.transpose(0, 2, 3, 1) if x.ndim == 4 else x for x in found]
    return found


def load(given: str, program: Program) -> list[tuple[Any, ...]]:
    """The samples that a command line names, as argument tuples.

    Args:
        given: a folder, a .npz file, or file.py:callable.

    Raises:
        OptionError: it is none of these.
        InputError: a file in it does not fit the model's inputs.
    """
    if factory := factories.split(given):
        made = factories.make(*factory)
        if not isinstance(made, Iterable) or isinstance(made, (torch.Tensor, Mapping)):
            raise OptionError(f"{given} gives a {type(made).__name__}, no iterable of samples")
        return [s if isinstance(s, tuple) else (s,) for s in made]
    path = Path(given)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in (*IMAGES, *_ARRAYS))
        if not files:
            raise OptionError(f"{given} has no {', '.join((*_ARRAYS, *IMAGES))} files")
        return [sample for file in files for sample in _of_file(file, program)]
    if path.suffix == ".npz" and path.is_file():
        return _of_file(path, program)
    raise OptionError(f"--calibration {given}: give a folder, a .npz file, or file.py:callable")


def _of_file(path: Path, program: Program) -> list[tuple[Any, ...]]:
    inputs = [np.asarray(agreement.to_numpy(t)) for t in program.flat_inputs()]
    if path.suffix.lower() in IMAGES:
        if len(inputs) != 1:
            raise InputError(f"{path.name}: images serve models with one input; give .npz files")
        return [(torch.from_numpy(_image(path, inputs[0])),)]
    loaded = np.load(path)
    parts = list(loaded.values()) if isinstance(loaded, np.lib.npyio.NpzFile) else [loaded]
    if isinstance(loaded, np.lib.npyio.NpzFile) and program.input_names is not None:
        if set(program.input_names) == set(loaded.files):
            parts = [loaded[name] for name in program.input_names]
    if len(parts) != len(inputs):
        raise InputError(f"{path.name} has {len(parts)} arrays, the model {len(inputs)} inputs")
    columns = [_samples(path, a, b) for a, b in zip(parts, inputs, strict=True)]
    if len({len(c) for c in columns}) > 1:
        raise InputError(f"{path.name}: its arrays hold different numbers of samples")
    return [tuple(map(torch.from_numpy, row)) for row in zip(*columns, strict=True)]


def _samples(path: Path, array: Any, like: Any) -> list[Any]:
    """An array as samples: it is one, it lacks the batch of one, or it is a stack of them."""
    array = np.asarray(array).astype(like.dtype)
    if array.shape == like.shape:
        return [array]
    if array.shape[1:] == like.shape:
        return list(array)
    if like.ndim and like.shape[0] == 1 and array.shape == like.shape[1:]:
        return [array[None]]
    if like.ndim and array.shape[1:] == like.shape[1:] and not array.shape[0] % like.shape[0]:
        return np.split(array, array.shape[0] // like.shape[0])
    raise InputError(
        f"{path.name} holds {list(array.shape)}, the input is {list(like.shape)}: give that shape, "
        "or a stack of it"
    )


def _image(path: Path, like: Any) -> Any:
    """Pixels between 0 and 1, at the input's size, channels first."""
    try:
        from PIL import Image
    except ImportError as err:
        raise InputError("images need the package pillow; or give .npy files") from err
    if like.ndim != 4 or like.shape[1] not in (1, 3):
        raise InputError(f"{path.name}: the input {list(like.shape)} is no image [N, 1 or 3, H, W]")
    n, channels, height, width = like.shape
    picture = Image.open(path).convert("RGB" if channels == 3 else "L").resize((width, height))
    pixels = np.asarray(picture, np.float32).reshape(height, width, channels) / 255
    return np.ascontiguousarray(np.repeat(pixels.transpose(2, 0, 1)[None], n, 0)).astype(like.dtype)
