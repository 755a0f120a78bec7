"""The artifact store: a directory of verified, finished entries.

::

    <root>/v1/ab/cdef…/kernel.cubin     raw, so that cuobjdump and nvdisasm read it
    <root>/v1/ab/cdef…/artifact.json    what it is, the digest of the bytes, and a seal
    <root>/v1-<name of a key>/…         the same, sealed with that key
    <root>/tmp/…                        staging; an entry appears by one rename
    <root>/aside/…                      the last few that were found damaged
    <root>/locks                        one byte is locked while its artifact is made

An entry is read, verified, or else a miss: it is never loaded damaged. Names come from
digests alone, and nothing in an entry is executed to read it. Every function here
blocks; the event loop calls them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from platformdirs import user_cache_path

from ._artifact import Artifact, Origin, Output
from ._files import DIRECTORY, FILE, Files, opened, read_all, remove, write_file
from ._record import Record, Seal
from ._staging import staging_name, trim
from ._trust import OWN, Trust, open_folder, open_root

RECORD = "artifact.json"
TMP = "tmp"
ASIDE = "aside"
ASIDE_MOST = 8
LARGEST_OUTPUT = 256 << 20
LARGEST_RECORD = 16 << 20
_ENVIRONMENT = "KERNELS_ASYNC_CACHE_DIR"
_USED_SECONDS = 3600.0

logger = logging.getLogger("kernels_async")

_T = TypeVar("_T")


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


class DamagedEntry(ValueError):
    """An entry is not what the store would have written.

    Attributes:
        found: The directory that was looked at; `None` if it is something else.
    """

    def __init__(self, reason: str, found: os.stat_result | None = None) -> None:
        super().__init__(reason)
        self.found = found


class Store:
    """Artifacts on disk, by key.

    What it holds is loaded and run: a directory that others than its owner can change,
    or that belongs to another user, is not used. It does not promise that an entry
    stays: others may remove it, or the whole directory, at any time.

    Args:
        root: The directory; `~` is expanded and it is made absolute once, here. It is
            made when the first artifact is published, for its owner alone.
        filename: What the toolchain's output is called, such as `kernel.cubin`.
        seal: What vouches for the entries.
        trust: `LAYER` for a directory that is read and never changed.
        files: The file system.

    Attributes:
        root: The absolute path.
        seal: As given.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        filename: str,
        *,
        seal: Seal | None = None,
        trust: Trust = OWN,
        files: Files | None = None,
    ) -> None:
        self.root: Path = Path(root).expanduser().absolute()
        self.files: Files = files or Files()
        self._filename = filename
        self.seal: Seal = seal or Seal()
        self._trust = trust

    def path(self, key: str) -> Path:
        """Where the compiled bytes of that key lie, if they do."""
        return self._place(key, self._filename)

    def read(self, key: str) -> Artifact | None:
        """The verified artifact of that key, or `None`: it is missing or damaged.

        A damaged entry is put aside.

        Raises:
            OSError: The directory cannot be read, or must not be trusted.
        """
        return self.read_all([key])[0]

    def read_all(self, keys: Sequence[str]) -> list[Artifact | None]:
        """`read` of several keys, in their order, for which the directory is opened once.

        Raises:
            OSError: One of them cannot be read, or the directory must not be trusted.
        """
        return _once_more(self._read_all, keys)

    def publish(self, key: str, entries: Mapping[str, str], output: Output) -> Artifact:
        """Keep `output` under `key`, the key of `entries`; return it as it lies on disk.

        The entry appears whole, by one rename. If another process was faster, its
        entry is returned; a damaged one is put aside and replaced.

        Raises:
            OSError: The directory cannot be written, or must not be trusted.
        """
        record = Record.of(key, entries, output)
        encoded = record.encode(self.seal)
        if len(output.data) > LARGEST_OUTPUT or len(encoded) > LARGEST_RECORD:
            raise OSError(errno.EFBIG, f"{len(output.data)} bytes are more than it keeps")
        contents = {self._filename: output.data, RECORD: encoded}
        return _once_more(self._publish, key, contents) or record.artifact(
            output.data, self.path(key), "compiled"
        )

    def look(
        self, shard: int, key: str, origin: Origin, filename: str | None = None
    ) -> Artifact:
        """The verified artifact in an open directory.

        Args:
            shard: The open directory that holds the entry.
            key: The artifact's key.
            origin: Where the artifact shall say that it is from.
            filename: What its output is called, if it is looked at and not used.

        Raises:
            DamagedEntry: It is not what this store would have written.
            FileNotFoundError: There is none.
            BlockingIOError: Another process is about to remove it.
            OSError: It cannot be read.
        """
        try:
            entry = self.files.open(key[2:], DIRECTORY, shard)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise DamagedEntry("it is no directory") from error
            raise
        with opened(self.files, entry):
            found = self.files.stat(entry)
            self._hold(entry)
            try:
                artifact = self._verified(
                    entry, found, key, filename or self._filename, origin
                )
            except ValueError as error:
                raise DamagedEntry(str(error), found) from error
            if filename is None:
                self._use(entry, found)
        return artifact

    def contents(self, entry: int, name: str, most: int) -> bytes:
        """A file's bytes; what is no file that the store would have made is damage."""
        try:
            fd = self.files.open(name, FILE, entry)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                raise ValueError(f"{name} is missing or no file") from error
            raise
        with opened(self.files, fd):
            found = self.files.stat(fd)
            if reason := self._trust.objection_to_file(found):
                raise ValueError(f"{name} {reason}")
            if found.st_size > most:
                raise ValueError(f"{name} has {found.st_size} bytes")
            return read_all(self.files, fd, found.st_size)

    def set_aside(self, root: int, shard: int, key: str, damage: DamagedEntry) -> None:
        """Move a damaged entry out of the way, unless it was replaced meanwhile."""
        if damage.found is not None and not self._is_there(shard, key, damage.found):
            return
        logger.warning("artifact %s is damaged and not used: %s", self._place(key), damage)
        if self._trust.alone:
            with (
                contextlib.suppress(OSError),
                self.folder(ASIDE, root, create=True) as aside,
            ):
                name = f"{key}-{secrets.token_hex(8)}"
                self.files.rename(key[2:], shard, name, aside)
                trim(self.files, aside, ASIDE_MOST)

    def directory(self, *, create: bool = False) -> opened:
        """The store's open directory."""
        root = open_root(self.files, self.root, self._trust, create=create)
        return opened(self.files, root)

    def folder(self, name: str, dir_fd: int, *, create: bool = False) -> opened:
        """An open directory in another one of the store."""
        folder = open_folder(self.files, name, dir_fd, self._trust, create=create)
        return opened(self.files, folder)

    def shards(self, root: int, *, create: bool = False) -> opened:
        """The open directory of the entries that this store's seal vouches for."""
        return self.folder(self.seal.namespace, root, create=create)

    @contextlib.contextmanager
    def shard(self, prefix: str, *, create: bool = False) -> Iterator[tuple[int, int]]:
        """The store's open directory, and that of the keys which begin with `prefix`."""
        with (
            self.directory(create=create) as root,
            self.shards(root, create=create) as shards,
            self.folder(prefix, shards, create=create) as shard,
        ):
            yield root, shard

    def _take(self, root: int, shard: int, key: str, origin: Origin) -> Artifact | None:
        """The verified artifact, or `None`; a damaged one is put aside."""
        try:
            return self.look(shard, key, origin)
        except (FileNotFoundError, BlockingIOError):
            return None
        except DamagedEntry as damage:
            self.set_aside(root, shard, key, damage)
            return None

    def _place(self, key: str, *name: str) -> Path:
        return Path(f"{self.root}/{self.seal.namespace}/{key[:2]}/{key[2:]}", *name)

    def _read_all(self, keys: Sequence[str]) -> list[Artifact | None]:
        try:
            with self.directory() as root, self.shards(root) as shards:
                return [self._read(root, shards, key) for key in keys]
        except FileNotFoundError:
            return [None] * len(keys)

    def _read(self, root: int, shards: int, key: str) -> Artifact | None:
        try:
            with self.folder(key[:2], shards) as shard:
                return self._take(root, shard, key, "disk")
        except FileNotFoundError:
            return None

    def _verified(
        self, entry: int, found: os.stat_result, key: str, filename: str, origin: Origin
    ) -> Artifact:
        if reason := self._trust.objection_to_folder(found):
            raise ValueError(f"it {reason}")
        record = Record.decode(self.contents(entry, RECORD, LARGEST_RECORD), self.seal)
        if record.key != key:
            raise ValueError(f"it holds the artifact {record.key}")
        data = self.contents(entry, filename, LARGEST_OUTPUT)
        return record.artifact(data, self._place(key, filename), origin)

    def _hold(self, entry: int) -> None:
        """Keep others from evicting the entry while it is open."""
        if self._trust.alone:
            try:
                self.files.lock(entry, shared=True)
            except BlockingIOError:
                raise
            except OSError:  # a file system without locks
                return

    def _use(self, entry: int, found: os.stat_result) -> None:
        """Note that it was used, if that was not noted lately."""
        since = time.time() - found.st_mtime
        if self._trust.alone and not 0 <= since <= _USED_SECONDS:
            with contextlib.suppress(OSError):
                self.files.touch(entry)

    def _is_there(self, shard: int, key: str, found: os.stat_result) -> bool:
        """Whether the entry's name still means what was found there."""
        try:
            now = self.files.lstat(key[2:], shard)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (now.st_dev, now.st_ino)

    def _publish(self, key: str, contents: Mapping[str, bytes]) -> Artifact | None:
        """Make the entry; `None`, or what is there if another made it first."""
        with (
            self.shard(key[:2], create=True) as (root, shard),
            self.folder(TMP, root, create=True) as tmp,
        ):
            staged = staging_name()
            try:
                self._stage(staged, tmp, contents)
                return self._reveal(staged, tmp, root, shard, key)
            finally:
                with contextlib.suppress(OSError):
                    remove(self.files, staged, tmp)

    def _stage(self, staged: str, tmp: int, contents: Mapping[str, bytes]) -> None:
        """A finished directory of `contents`, on the disk."""
        with self.folder(staged, tmp, create=True) as staging:
            for name, data in contents.items():
                write_file(self.files, name, data, staging)
            self.files.sync(staging)

    def _reveal(
        self, staged: str, tmp: int, root: int, shard: int, key: str
    ) -> Artifact | None:
        try:
            self.files.rename(staged, tmp, key[2:], shard)
        except OSError as error:
            there = self._take(root, shard, key, "compiled")
            if there is not None:
                return there
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            self.files.rename(staged, tmp, key[2:], shard)
        self.files.sync(shard)
        return None


def _once_more(attempt: Callable[..., _T], *arguments: object) -> _T:
    """Try again once what fails because a directory was removed or replaced meanwhile."""
    try:
        return attempt(*arguments)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
    return attempt(*arguments)
