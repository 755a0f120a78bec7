"""One lock per key and machine: who compiles an artifact, while others wait for it.

A lock is one byte of one file, and belongs to an open file: the kernel lets go of it when
its process ends, however it ends. It is a courtesy, not a safeguard: where none can be
had, everybody compiles, and publishing twice does no harm.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ._files import Files, make_private, opened
from ._outside import disown_in_children
from ._private import user_folder
from ._trust import OWN, open_root
from ._value import digest

_NAME = "locks"
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NETWORK = {
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3",
    "smbfs", "virtiofs", "wekafs",
}  # fmt: skip
_MOUNTS = Path("/proc/self/mountinfo")


class Lock:
    """A key that is held until `release`, or until the process ends.

    Args:
        let_go: What lets go of it; `None` where there are no locks.
    """

    def __init__(self, let_go: Callable[[], None] | None = None) -> None:
        self._let_go = let_go

    @property
    def is_held(self) -> bool:
        """Whether others are kept out."""
        return self._let_go is not None

    def release(self) -> None:
        """Let go of it; again has no effect."""
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()


class Hold:
    """Takes a lock in a thread, and lets go of it at the end of `with`.

    A task that ends while its thread still takes the lock leaves nothing locked.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._lock: Lock | None = None
        self._over = False

    def take(self, acquire: Callable[[], Lock | None]) -> bool:
        """Hold what `acquire` gives; whether that is a lock."""
        lock = acquire()
        with self._changing:
            if lock is None or not self._over:
                self._lock = lock
                return lock is not None
        lock.release()
        return True

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changing:
            self._over = True
        if self._lock is not None:
            self._lock.release()


class _LockFile:
    """An open lock file, and the bytes of it that are locked."""

    def __init__(self, fd: int, identity: tuple[int, int]) -> None:
        self.fd = fd
        self.identity = identity
        self.offsets: set[int] = set()


class KeyLocks:
    """The locks of a cache directory, one for each key.

    Two of them exclude each other, in one process as in two. A file on another machine's
    disk is not locked, since such locks can hang: then the file is in a private directory
    on this machine. A process that was forked holds none of its parent's.

    Args:
        root: The cache directory.
        files: The file system.
        mounts: The system's list of mounts.
    """

    def __init__(
        self, root: Path, files: Files | None = None, mounts: Path = _MOUNTS
    ) -> None:
        self._root = root
        self._files = files or Files()
        self._mounts = mounts
        self._network: dict[int, bool] = {}
        self._locked: list[_LockFile] = []
        self._changing = threading.Lock()
        disown_in_children(self)

    def try_acquire(self, key: str) -> Lock | None:
        """The lock of `key`, without waiting; `None`: somebody else holds it.

        Where there are no locks, it is one that holds nothing.
        """
        offset = int(key[:16], 16) >> 2
        with self._changing:
            try:
                file = self._open()
            except (OSError, ValueError):
                return Lock()
            try:
                if offset in file.offsets:
                    return None
                self._files.lock_byte(file.fd, offset)
                file.offsets.add(offset)
            except BlockingIOError:
                return None
            except OSError:
                return Lock()
            finally:
                self._close_if_unused(file)
        return Lock(partial(self._release, file, offset))

    def _release(self, file: _LockFile, offset: int) -> None:
        """Let go of one byte; what a fork took over is not this process's to let go."""
        with self._changing:
            if file in self._locked:
                file.offsets.discard(offset)
                with contextlib.suppress(OSError):
                    self._files.unlock_byte(file.fd, offset)
                self._close_if_unused(file)

    def disown(self) -> None:
        """In a forked child: close the files, so that the parent alone has the locks."""
        self._changing = threading.Lock()
        locked, self._locked = self._locked, []
        for file in locked:
            with contextlib.suppress(OSError):
                os.close(file.fd)

    def _open(self) -> _LockFile:
        """The lock file as its name has it now: the directory may have been replaced."""
        fd = self._open_file()
        try:
            found = self._files.stat(fd)
            if reason := OWN.objection_to_file(found):
                raise PermissionError(f"the lock file {reason}")
        except BaseException:
            self._files.close(fd)
            raise
        identity = (found.st_dev, found.st_ino)
        for file in self._locked:
            if file.identity == identity:
                self._files.close(fd)
                return file
        file = _LockFile(fd, identity)
        self._locked.append(file)
        return file

    def _close_if_unused(self, file: _LockFile) -> None:
        if not file.offsets:
            self._locked.remove(file)
            with contextlib.suppress(OSError):
                self._files.close(file.fd)

    def _open_file(self) -> int:
        files = self._files
        with opened(files, open_root(files, self._root, OWN, create=True)) as root:
            if not self._is_network(files.stat(root).st_dev):
                return _open_in(files, root, _NAME)
        name = digest(os.fsencode(self._root))[:32]
        with opened(files, open_root(files, user_folder(), OWN, create=True)) as local:
            return _open_in(files, local, name)

    def _is_network(self, device: int) -> bool:
        known = self._network.get(device)
        if known is None:
            known = self._network[device] = is_network(device, self._mounts)
        return known


def is_network(device: int, mounts: Path = _MOUNTS) -> bool:
    """Whether a file system may be on another machine, where locks can hang."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        place, _, kind = line.partition(" - ")
        if place.split()[2:3] == [wanted]:
            name = kind.split()[0]
            return name in _NETWORK or name.startswith("fuse")
    return False


def _open_in(files: Files, dir_fd: int, name: str) -> int:
    """Open the lock file, made if it is not there; what is there is not changed."""
    with contextlib.suppress(FileNotFoundError):
        return files.open(name, _OPEN, dir_fd)
    try:
        fd = files.open(name, _OPEN | os.O_CREAT | os.O_EXCL, dir_fd)
    except FileExistsError:
        return files.open(name, _OPEN, dir_fd)
    try:
        make_private(files, fd, 0o600)
    except BaseException:
        files.close(fd)
        raise
    return fd
