"""The artifact store: a directory of verified, finished entries.

::

    <root>/v1/ab/cdef…/kernel.cubin     raw, so that cuobjdump and nvdisasm read it
    <root>/v1/ab/cdef…/artifact.json    what it is, the digest of the bytes, and a seal
    <root>/tmp/…                        staging; an entry appears by one rename

An entry is read, verified, or else a miss: it is never loaded damaged. Names come from
digests alone, and nothing in an entry is executed to read it. Every function here
blocks; the event loop calls them in a thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from ._artifact import Artifact, Origin, Output
from ._diagnostics import Diagnostic
from ._digest import digest
from ._resources import Resources

LAYOUT = "v1"
RECORD = "artifact.json"
_ENVIRONMENT = "KERNELS_ASYNC_CACHE_DIR"

logger = logging.getLogger("kernels_async")


def default_cache_dir() -> Path | None:
    """`KERNELS_ASYNC_CACHE_DIR`, else the user's cache directory, if there is one."""
    chosen = os.environ.get(_ENVIRONMENT)
    if chosen:
        return Path(chosen)
    if os.environ.get("HOME") == "" and not os.environ.get("XDG_CACHE_HOME"):
        return None
    try:
        found = user_cache_path("kernels_async", appauthor=False)
    except RuntimeError:  # the user has no home directory
        return None
    return found if found.is_absolute() else None


class Store:
    """Artifacts on disk, by key.

    What it holds is loaded and run: a directory that others than its owner can write, or
    that belongs to another user than root or this one, is not used.

    Args:
        root: The directory; `~` is expanded and it is made absolute once, here. It is
            made when the first artifact is published, for its owner alone.
        filename: What the toolchain's output is called, such as `kernel.cubin`.
    """

    def __init__(self, root: str | os.PathLike[str], filename: str) -> None:
        self.root = Path(root).expanduser().absolute()
        self._filename = filename
        self._telling = threading.Lock()
        self._told = False

    def read(self, key: str) -> Artifact | None:
        """The verified artifact of that key, or `None`: it is missing or damaged."""
        entry = self._entry(key)
        try:
            self._check_trust()
            return self._verified(key, entry, "disk")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            logger.warning("artifact %s is damaged and not used: %s", entry, error)
            return None
        except OSError as error:
            with self._telling:
                told, self._told = self._told, True
            if not told:
                logger.warning("artifacts cannot be read in %s: %s", self.root, error)
            return None

    def publish(self, key: str, entries: Mapping[str, str], output: Output) -> Artifact:
        """Keep `output` under `key`, the key of `entries`; return it as it lies on disk.

        The entry appears whole, by one rename. If another process was faster, its
        entry is returned; a damaged one is moved away and replaced.

        Raises:
            OSError: The directory cannot be written, or must not be trusted.
        """
        self._check_trust()
        record = {
            "key": key,
            "entries": dict(entries),
            "entry": output.entry,
            "output": digest(output.data),
            "diagnostics": [d.to_record() for d in output.diagnostics],
            "resources": output.resources and output.resources.to_record(),
            "compile_seconds": output.compile_seconds,
        }
        record["seal"] = _seal(record)
        staging = self._stage(
            {self._filename: output.data, RECORD: json.dumps(record).encode()}
        )
        try:
            self._reveal(staging, key)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return self._verified(key, self._entry(key), "compiled")

    def _check_trust(self) -> None:
        """Raise `PermissionError` if others can write the directory: it holds code."""
        try:
            found = self.root.stat()
        except FileNotFoundError:
            return
        if found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(f"{self.root} belongs to user {found.st_uid}")
        if found.st_mode & 0o022:
            mode = stat.S_IMODE(found.st_mode)
            raise PermissionError(f"{self.root} may be written by others ({mode:o})")

    def _entry(self, key: str) -> Path:
        return self.root / LAYOUT / key[:2] / key[2:]

    def _verified(self, key: str, entry: Path, origin: Origin) -> Artifact:
        record = json.loads((entry / RECORD).read_bytes())
        if not isinstance(record, dict) or record.pop("seal", None) != _seal(record):
            raise ValueError("its record is damaged")
        if record["key"] != key:
            raise ValueError(f"it holds the artifact {record['key']}")
        path = entry / self._filename
        data = path.read_bytes()
        if digest(data) != record["output"]:
            raise ValueError(f"{self._filename} is damaged")
        return _artifact(record, data, path, origin)

    def _stage(self, files: dict[str, bytes]) -> Path:
        """A finished, synced directory of `files` beside the entries."""
        staging = self.root / "tmp" / f"{os.getpid()}-{secrets.token_hex(8)}"
        _make_private(self.root)
        staging.mkdir(mode=0o700, parents=True)
        try:
            for name, data in files.items():
                _write_synced(staging / name, data)
            _sync_directory(staging)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        return staging

    def _reveal(self, staging: Path, key: str) -> None:
        entry = self._entry(key)
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            staging.rename(entry)
        except OSError:
            if self.read(key) is not None:
                return
            damaged = staging.with_name(f"{staging.name}-damaged")
            with contextlib.suppress(FileNotFoundError):
                entry.rename(damaged)
            staging.rename(entry)
            _remove(damaged)
        _sync_directory(entry.parent)


def _artifact(record: dict[str, Any], data: bytes, path: Path, origin: Origin) -> Artifact:
    try:
        entries, resources = record["entries"], record["resources"]
        return Artifact(
            digest=record["key"],
            bytes=data,
            path=path,
            symbol=entries["symbol"],
            entry=record["entry"],
            target=entries["target"],
            compiler_identity=entries["toolchain"],
            diagnostics=tuple(map(Diagnostic.from_record, record["diagnostics"])),
            resources=None if resources is None else Resources.from_record(resources),
            origin=origin,
            compile_seconds=record["compile_seconds"],
            output_digest=record["output"],
            entries=entries,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its record is incomplete: {error}") from error


def _seal(record: dict[str, Any]) -> str:
    return digest(json.dumps(record, sort_keys=True).encode())


def _make_private(folder: Path) -> None:
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
