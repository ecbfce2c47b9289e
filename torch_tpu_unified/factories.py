"""Finds the function that makes a model: `package.module:factory` or `path/file.py:factory`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

from torch_tpu_unified.core.errors import InputError, OptionError

_FORM = re.compile(r"(?P<where>.+):(?P<name>[A-Za-z_][\w.]*)")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def split(source: str) -> tuple[str, str] | None:
    """(module or file, factory) of a source with a colon, None when it is a path."""
    match = _FORM.fullmatch(source)
    if not match or Path(source).exists():
        return None
    where = match["where"]
    return (where, match["name"]) if where.endswith(".py") or _MODULE.fullmatch(where) else None


def find(where: str, name: str) -> Any:
    """What a source names, not called.

    Raises:
        OptionError: the file, the module or the name does not exist.
        InputError: the module raises.
    """
    found: Any = _load_file(Path(where)) if where.endswith(".py") else _import(where)
    for part in name.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise OptionError(f"{where} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def make(where: str, name: str) -> Any:
    """Call the factory and return what it gives; an nn.Module that is no factory is taken as it is.

    Raises:
        OptionError: the file, the module or the name does not exist.
        InputError: the module or the factory raises.
    """
    import torch

    found = find(where, name)
    if isinstance(found, torch.nn.Module | torch.export.ExportedProgram):
        return found
    if not callable(found):
        raise InputError(f"{where}:{name} is a {type(found).__name__}, which makes no model")
    try:
        return found()
    except Exception as error:
        raise InputError(f"{where}:{name}() raised {_told(error)}") from error


def _told(error: BaseException) -> str:
    from torch_tpu_unified.core.report import innermost_frame

    frame = innermost_frame(error)
    return f"{type(error).__name__}: {error}" + (f" [{frame}]" if frame else "")


def _import(module: str) -> Any:
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise OptionError(
                f"no module named {error.name!r} here; run in its folder, install it, or give "
                "path/FILE.py:FACTORY"
            ) from error
        raise InputError(f"importing {module} raised {_told(error)}") from error
    except Exception as error:
        raise InputError(f"importing {module} raised {_told(error)}") from error


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise OptionError(f"{path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # as `python path` would: it may import its neighbours
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"running {path} raised {_told(error)}") from error
    finally:
        sys.path.remove(folder)
    return module
