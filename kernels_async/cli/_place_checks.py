"""Checks of the places on disk: the cache directory, the temporary one, CuPy's own.

They make nothing: where it matters whether a file can be written or locked, that is tried
with one that never has a name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from .._files import Files, opened
from .._inventory import entries, prefixes
from .._locks import is_network
from .._private import user_folder
from .._record import LAYOUT, Seal
from .._store import ASIDE, Store
from .._tiers import Place
from .._trust import OWN, open_root
from ._findings import Check, Finding, from_error, note, ok, problem, warning
from ._words import count, size

_LITTLE_SPACE = 1 << 30
_HEADERS_SPACE = 2 << 30
_SECONDS = 60.0
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


def checks(cache_dir: Path | None) -> list[Check]:
    """Those of the places.

    Args:
        cache_dir: The cache directory, if it is chosen.
    """
    return [
        Check("cache directory", partial(_cache, cache_dir)),
        Check("cache entries", partial(_entries, cache_dir), _SECONDS),
        Check("temporary directory", _temporary),
        Check("CuPy's directory", _cupys),
    ]


def _cache(cache_dir: Path | None) -> Iterator[Finding]:
    name, files = "cache directory", Files()
    root = Place.choose(cache_dir, (), None, None).root
    if root is None:
        text = "there is no home directory: artifacts are not kept"
        yield warning(name, text, "export KERNELS_ASYNC_CACHE_DIR=DIRECTORY")
        return
    why = "" if cache_dir is not None else _default_reason()
    try:
        fd = open_root(files, root, OWN)
    except FileNotFoundError:
        yield from _missing(name, root, why)
        return
    except PermissionError as error:
        told = from_error(name, error)
        remedy = told.remedy or "choose one of your own: export KERNELS_ASYNC_CACHE_DIR=…"
        yield problem(name, f"{told.text}: it is not used", remedy)
        return
    with opened(files, fd):
        yield ok(name, f"{root}{why}, yours alone, and so is what leads to it")
        yield from _space("cache space", root, _LITTLE_SPACE)
        yield from _writable(files, fd, root)


def _default_reason() -> str:
    chosen = os.environ.get("KERNELS_ASYNC_CACHE_DIR")
    return ", of $KERNELS_ASYNC_CACHE_DIR" if chosen else ", the default"


def _missing(name: str, root: Path, why: str) -> Iterator[Finding]:
    parent = next(folder for folder in root.parents if folder.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        text = f"{root}{why} is not there, and {parent} cannot be written"
        yield problem(name, text, f"mkdir -m 700 -p {root}, as who may, and chown it")
        return
    yield ok(name, f"{root}{why}: it will be made when there is something to keep")
    yield from _space("cache space", parent, _LITTLE_SPACE)


def _writable(files: Files, fd: int, root: Path) -> Iterator[Finding]:
    """Whether it can be written and locked, tried with a file that has no name."""
    name = "cache locks"
    network = is_network(files.stat(fd).st_dev)
    try:
        unnamed = files.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, fd)
    except OSError as error:
        if error.errno in _UNWRITABLE:
            text = f"{root} cannot be written: {error.strerror}: nothing new is kept"
            yield problem("cache writes", text, f"ls -ld {root}; df -h {root}")
            return
        unnamed = None  # a file system without such files
    if network:
        yield note(name, f"on a network file system; so its locks are in {user_folder()}")
    elif unnamed is None:
        yield note(name, "not tried: this file system has no files without a name")
    else:
        with opened(files, unnamed):
            yield _lock(files, unnamed)
        unnamed = None
    if unnamed is not None:
        files.close(unnamed)


def _lock(files: Files, fd: int) -> Finding:
    try:
        files.lock_byte(fd, 0)
    except OSError as error:
        return warning(
            "cache locks",
            f"none on this file system ({error.strerror}): processes may compile alike",
            "choose a local directory: export KERNELS_ASYNC_CACHE_DIR=…",
        )
    return ok("cache locks", "a file there can be written and locked")


def _entries(cache_dir: Path | None) -> Iterator[Finding]:
    place = Place.choose(cache_dir, (), None, None)
    root = place.root
    if root is None:
        return
    store = Store(root, "kernel", seal=Seal(place.key))
    try:
        found = [entry for prefix in prefixes(store) for entry in entries(store, prefix)]
    except PermissionError:  # a directory that is not trusted is told elsewhere
        return
    total = sum(entry.size for entry in found)
    sealed = "" if store.seal.namespace == LAYOUT else ", sealed with the cache key"
    yield ok("cache entries", f"{count(len(found), 'artifact')}, {size(total)}{sealed}")
    with contextlib.suppress(FileNotFoundError):
        aside = len(list((root / ASIDE).iterdir()))
        if aside:
            yield warning(
                "cache damage",
                f"{aside} damaged, and put aside in {root / ASIDE}",
                "kernels-async cache verify; then look at the disk",
            )


def _temporary() -> Iterator[Finding]:
    name = "temporary directory"
    place = Path(tempfile.gettempdir()).absolute()
    yield from _space(
        name, place, _HEADERS_SPACE, "headers are not kept precompiled: batches take longer"
    )
    try:
        os.close(open_root(Files(), user_folder(), OWN))
    except FileNotFoundError:
        return
    except PermissionError as error:
        told = from_error(name, error)
        text = f"{told.text}: each process takes a folder of another name"
        yield warning(name, text, told.remedy or f"rm -r {user_folder()}, as its owner")


def _cupys() -> Iterator[Finding]:
    if find_spec("cupy") is None:
        return
    place = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy/kernel_cache")
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        yield ok("CuPy's directory", f"{place}, can be written")
        return
    text = f"{place} cannot be written: CuPy cannot be imported"
    yield problem("CuPy's directory", text, "export CUPY_CACHE_DIR=DIRECTORY")


def _space(name: str, place: Path, least: int, so: str = "") -> Iterator[Finding]:
    free = shutil.disk_usage(place).free
    nodes = os.statvfs(place)
    if nodes.f_files and not nodes.f_favail:
        yield problem(name, f"no inode is free at {place}", f"df -i {place}")
        return
    text = f"{size(free)} free at {place}"
    if free >= least:
        yield ok(name, text)
        return
    less = f"{text}, less than {size(least)}"
    yield warning(name, f"{less}: {so}" if so else less, f"df -h {place}; make room")
