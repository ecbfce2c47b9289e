"""Recognises what a file is by its content, without running anything in it.

Names lie and pickles run code: a zip is told apart by its entries, a pickle is only ever opened
with PyTorch's restricted loader, and an exported program is searched for hidden pickles first.
"""

from __future__ import annotations

import enum
import io
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

from torch_tpu_unified.core.errors import InputError, OptionError


class Kind(enum.Enum):
    """What a file holds."""

    PROGRAM = "an exported program (torch.export.save)"
    TORCHSCRIPT = "a TorchScript module"
    PICKLE = "a pickle (torch.save)"


# first bytes, at an offset -> what it is and what to do
_FOREIGN = (
    (4, b"TFL3", "a LiteRT model already; tpu-convert takes PyTorch models"),
    (0, b"\x89HDF\r\n", "an HDF5 file (Keras?); tpu-convert takes PyTorch models"),
    (0, b"GGUF", "a GGUF file of weights; give the PyTorch model with its class"),
    (0, b"\x7fELF", "a program or shared library; tpu-convert takes PyTorch models"),
)
_WHAT = (
    "give a .pt2 from torch.export.save, a TorchScript .pt, a pickled nn.Module with "
    "--trust-pickle, or FILE.py:FACTORY"
)
_PICKLE_STARTS = tuple(b"\x80" + bytes([n]) for n in range(1, 6))


def recognise(path: Path) -> Kind:
    """The kind of a model file.

    Raises:
        InputError: it is missing, empty, truncated or of another kind; says what to give instead.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; {_WHAT}")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        raise OptionError(f"{path} does not exist; {_WHAT}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if not head:
        raise InputError(f"{path} is empty; save the model again")
    for offset, mark, what in _FOREIGN:
        if head[offset : offset + len(mark)] == mark:
            raise InputError(f"{path} is {what}")
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(path)
    if head.startswith(_PICKLE_STARTS):
        return Kind.PICKLE
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        raise InputError(f"{path} is {STATE_DICT}".replace("a state_dict", "a safetensors file"))
    if path.suffix == ".py":
        raise OptionError(f"{path}: name what makes the model: {path}:FACTORY")
    raise InputError(f"{path} is no model that is known here; {_WHAT}")


STATE_DICT = (
    "a state_dict: weights without the module class they belong to. Build the module, load the "
    "weights into it, and export it: torch.export.save(torch.export.export(module, args), "
    "'model.pt2'); or give FILE.py:FACTORY of a function that does so"
)


def _entries(archive: zipfile.ZipFile) -> dict[str, str]:
    """Names below the archive's one top folder -> full names."""
    return {name.partition("/")[2]: name for name in archive.namelist()}


def _zip_kind(path: Path) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive)
            broken = archive.testzip()
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"{path} is truncated or corrupt ({error}); copy or save it again"
        ) from error
    if broken:
        raise InputError(f"{path} is corrupt: {broken} does not match its checksum; save it again")
    if "constants.pkl" in entries and any(name.startswith("code/") for name in entries):
        return Kind.TORCHSCRIPT
    if "archive_format" in entries or "serialized_exported_program.json" in archive.namelist():
        if any(name.startswith("data/aotinductor") for name in entries):
            raise InputError(
                f"{path} is compiled code (AOTInductor); give the program from torch.export.save"
            )
        return Kind.PROGRAM
    if "data.pkl" in entries:
        return Kind.PICKLE
    raise InputError(f"{path} is a zip archive, but no PyTorch model; {_WHAT}")


def refuse_pickles(path: Path) -> None:
    """Refuse an exported program that holds objects which only a full unpickling could load.

    Raises:
        OptionError: names the first one.
    """
    with zipfile.ZipFile(path) as archive:
        entries = _entries(archive)
        suspects = {n for n in archive.namelist() if n.endswith(".pt")}
        for name, full in entries.items():
            if name.startswith("data/constants/custom_obj"):
                suspects.add(full)
            if name.endswith("_config.json"):
                folder = full.rpartition("/")[0]
                config = json.loads(archive.read(full)).get("config", {})
                for item in config.values():
                    if item.get("use_pickle"):
                        suspects.add(f"{folder}/{item['path_name']}")
        for suspect in sorted(suspects & set(archive.namelist())):
            data = archive.read(suspect)
            if data and not _loads_safely(data):
                raise OptionError(
                    f"{path} holds a pickled object ({suspect}), and a pickle can run any code; "
                    "if you trust the file, add --trust-pickle"
                )


def _loads_safely(data: bytes) -> bool:
    import torch

    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # whatever the restricted loader dislikes, it did not load
        return False
    return True


def restricted_load(path: Path) -> Any:
    """What a pickle holds if plain tensors and containers suffice, else None.

    Raises:
        InputError: the file is truncated or corrupt.
    """
    import pickle

    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # on unusual pickle protocols
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "truncated" in str(error):
            raise InputError(f"{path} is truncated; save it again") from error
        return None
    except (EOFError, RuntimeError, ValueError, KeyError, AttributeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is truncated or corrupt ({first}); save it again") from error
