"""Compiled programs on disk, so that a second process starts warm.

jax asks a `CacheInterface` by a key that covers the program, compiler, versions and flags. This one
writes each entry whole or not at all, checks it when it is read, and keeps the folder below a size
by dropping what was used least recently. Processes share a folder without locks: an entry is one
file, put in place by a rename. Entries are machine code and are trusted like the program itself, so
the folder is its owner's alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from torch_tpu_unified.core import flags

log = logging.getLogger("torch_tpu_unified")
_MAGIC = b"TTUC1\n"
_DIGEST = 32
_SUFFIX = ".program"
_CALL_SUFFIX = ".call"
# After an eviction this share of the bound is in use, so that not every write evicts.
_KEEP = 0.8


class Statistics:
    """What the disk cache did in this process."""

    hits = 0
    misses = 0
    writes = 0
    corrupt = 0
    evictions = 0


class Asked(threading.local):
    """The key of the program that jax asked for last, in this thread."""

    key: str | None = None


class ProgramCache:
    """A folder of compiled programs: `get` and `put` by key, as jax's `CacheInterface` has them.

    Beside them lie small entries that say which program a call needs (`get_call`, `put_call`).

    Args:
        folder: made if it is not there, for its owner only.
        limit: bytes that the entries may take together; default: `TTU_CACHE_SIZE`.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder
        self.limit = flags.CACHE_SIZE.value << 20 if limit is None else limit
        self._path = folder  # jax's name for it
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.used = sum(size for _, size, _ in self.files())

    def _file(self, key: str, suffix: str = _SUFFIX) -> Path:
        # jax's keys hold the program's name, which may be longer than a file name can be.
        return self.folder / (hashlib.sha256(key.encode()).hexdigest() + suffix)

    def entries(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, file) of every program, the least recently used first."""
        return [entry for entry in self.files() if entry[2].suffix == _SUFFIX]

    def files(self) -> list[tuple[float, int, Path]]:
        """As `entries`, what says which program a call needs included."""
        found = []
        for item in os.scandir(self.folder):
            if item.name.endswith((_SUFFIX, _CALL_SUFFIX)):
                with contextlib.suppress(FileNotFoundError):  # another process dropped it
                    status = item.stat()
                    found.append((status.st_mtime, status.st_size, Path(item.path)))
        return sorted(found)

    def get(self, key: str) -> bytes | None:
        """The program's content; None where there is none or it is damaged (then it is removed)."""
        Asked.key = key
        value = self._read(self._file(key))
        if value is None:
            Statistics.misses += 1
        else:
            Statistics.hits += 1
        return value

    def has(self, key: str) -> bool:
        """Whether there is a file for this program, damaged or not."""
        return self._file(key).exists()

    def put(self, key: str, value: bytes) -> None:
        """Store the content; a reader sees the old entry or the new one, never a part."""
        if self._write(self._file(key), value):
            Statistics.writes += 1

    def get_call(self, name: str) -> bytes | None:
        """What `put_call` stored under the name; None as in `get`."""
        return self._read(self._file(name, _CALL_SUFFIX))

    def put_call(self, name: str, value: bytes) -> None:
        """Store what a call needs, as `put` stores a program."""
        self._write(self._file(name, _CALL_SUFFIX), value)

    def _read(self, path: Path) -> bytes | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        value = _unpacked(content)
        if value is None:
            Statistics.corrupt += 1
            log.warning("tpu: the cache entry %s is damaged; the program is compiled anew", path)
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
        return value

    def _write(self, path: Path, value: bytes) -> bool:
        content = _packed(value)
        if len(content) > self.limit:
            return False
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self.used += len(content)
        if self.used > self.limit:
            self._evict()
        return True

    def remove_damaged(self) -> list[Path]:
        """Read every entry and remove those that do not match their checksum; returns them."""
        damaged = []
        for _, _, path in self.files():
            with contextlib.suppress(FileNotFoundError):  # another process dropped it
                if _unpacked(path.read_bytes()) is None:
                    path.unlink()
                    damaged.append(path)
        return damaged

    def clear(self) -> int:
        """Remove every entry, and what killed writers left; returns how many programs."""
        entries = self.entries()
        for path in [*(path for _, _, path in self.files()), *self.folder.glob("*.part")]:
            path.unlink(missing_ok=True)
        self.used = 0
        return len(entries)

    def _evict(self) -> None:
        entries = self.files()
        self.used = sum(size for _, size, _ in entries)
        if self.used <= self.limit:  # other processes dropped enough
            return
        for _, size, path in entries:
            if self.used <= self.limit * _KEEP:
                break
            path.unlink(missing_ok=True)
            self.used -= size
            Statistics.evictions += 1
        _remove_abandoned(self.folder)


def _remove_abandoned(folder: Path) -> None:
    """Remove what writers left that were killed, an hour after."""
    now = max((p.stat().st_mtime for p in folder.glob("*" + _SUFFIX)), default=0.0)
    for part in folder.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            if part.stat().st_mtime < now - 3600:
                part.unlink()


def _packed(value: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(value).digest() + value


def _unpacked(content: bytes) -> bytes | None:
    start = len(_MAGIC) + _DIGEST
    value = content[start:]
    if not content.startswith(_MAGIC) or len(content) < start:
        return None
    return value if hashlib.sha256(value).digest() == content[len(_MAGIC) : start] else None


_active: ProgramCache | None = None


def active() -> ProgramCache | None:
    """The cache of this process; None when off."""
    return _active


def folder() -> Path | None:
    """Where programs are kept: `TTU_CACHE`, by default the user's cache folder; None when off."""
    if flags.CACHE.value == "off":
        return None
    if flags.CACHE.value:
        return Path(flags.CACHE.value).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "torch_tpu_unified" / "programs"


def start(jax: Any) -> None:
    """Let jax keep its compiled programs here, unless the user gave jax a folder of its own."""
    global _active
    place = folder()
    if place is None or jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        _active = ProgramCache(place)
    except OSError as err:
        log.warning("tpu: programs are not kept on disk, %s cannot be used: %s", place, err)
        return
    from jax._src import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(place))
    # Eager programs are small and many; they count as much as large ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # Otherwise the folder's name becomes part of every key, for caches of other platforms.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    compilation_cache._cache = _active  # type: ignore[assignment]
    compilation_cache._cache_initialized = True


def stats() -> dict[str, Any]:
    """The disk cache in numbers.

    Returns:
        `folder` (None when off), `entries` (programs), `bytes` and `limit_bytes` of the folder now;
        `hits`, `misses`, `writes` of programs, `corrupt`, `evictions` of files, of this process.
    """
    files = _active.files() if _active is not None else []
    return {
        "folder": str(_active.folder) if _active is not None else None,
        "entries": sum(path.suffix == _SUFFIX for _, _, path in files),
        "bytes": sum(size for _, size, _ in files),
        "limit_bytes": _active.limit if _active is not None else 0,
        "hits": Statistics.hits,
        "misses": Statistics.misses,
        "writes": Statistics.writes,
        "corrupt": Statistics.corrupt,
        "evictions": Statistics.evictions,
    }
