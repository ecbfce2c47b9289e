"""Files that appear whole or not at all.

A file is written beside its place under a temporary name, synced, and renamed. Whatever goes wrong
(a full disk, an interrupt), the old file survives and the temporary one goes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from torch_tpu_unified.core.errors import InputError, TtuError


class WriteError(TtuError, OSError):
    """The file could not be written; what was there before is still there."""


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The real place of `path`, after making sure that a file can be written there.

    Raises:
        InputError: the folder is missing or not writable, or something other than a file is there.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        raise InputError(f"{path} is no regular file; name another")
    if not target.parent.is_dir():
        raise InputError(f"{path}: the folder {target.parent} does not exist; make it first")
    try:
        descriptor, probe = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(
            f"{path}: cannot write in {target.parent}: {error.strerror}; choose another folder"
        ) from error
    os.close(descriptor)
    os.unlink(probe)
    return target


def write(path: str | os.PathLike[str], data: Any) -> Path:
    """Write bytes (or any buffer) to `path` by an atomic rename; returns the file's real path.

    Raises:
        InputError: as `check_writable`.
        WriteError: the disk is full, or another failure of the system; the old file survives.
    """
    target = check_writable(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except OSError as error:
        raise WriteError(
            f"{path}: {error.strerror or error}; nothing was written, an older file is untouched"
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return target


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, else what the umask gives a new one."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
