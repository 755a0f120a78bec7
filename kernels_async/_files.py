"""Every file-system call that the store makes, behind one small interface.

A test hands in a subclass that counts the calls, fails them, or kills the process
before, within or after one of them. Names are relative to an open directory, so that
nothing that happens to a path meanwhile leads elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process


class Files:
    """The system's own files. Each method is one call, and raises `OSError`."""

    def open(self, name: str, flags: int, dir_fd: int | None = None) -> int:
        """Open `name`, for its owner alone if that makes it."""
        return os.open(name, flags, 0o600, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def stat(self, fd: int) -> os.stat_result:
        """What an open descriptor is."""
        return os.fstat(fd)

    def lstat(self, name: str, dir_fd: int) -> os.stat_result:
        """What lies under a name; a symbolic link is not followed."""
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def list(self, fd: int) -> list[str]:
        """The names in an open directory."""
        return os.listdir(fd)

    def readlink(self, fd: int) -> str:
        """Where an open symbolic link leads."""
        return os.readlink("", dir_fd=fd)

    def read(self, fd: int, size: int) -> bytes:
        """At most `size` bytes."""
        return os.read(fd, size)

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of `data`; how much it was."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """Wait until it is on the disk."""
        os.fsync(fd)

    def chmod(self, fd: int, mode: int) -> None:
        """Set the mode of what is open, be it open for reading or as a place alone."""
        os.chmod(f"/proc/self/fd/{fd}", mode)  # noqa: PTH101 - an open file has no Path

    def touch(self, fd: int) -> None:
        """Set its times to now."""
        os.utime(fd)

    def mkdir(self, name: str, dir_fd: int) -> None:
        """Make a directory for its owner alone."""
        os.mkdir(name, 0o700, dir_fd=dir_fd)

    def rename(self, name: str, dir_fd: int, new: str, new_dir_fd: int) -> None:
        """Give it another name; a directory that is not empty is not replaced."""
        os.rename(name, new, src_dir_fd=dir_fd, dst_dir_fd=new_dir_fd)

    def unlink(self, name: str, dir_fd: int) -> None:
        """Remove what is no directory."""
        os.unlink(name, dir_fd=dir_fd)

    def rmdir(self, name: str, dir_fd: int) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=dir_fd)

    def lock(self, fd: int, *, shared: bool) -> None:
        """Lock what is open until it is closed; `BlockingIOError` if others hold it."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(fd, kind | fcntl.LOCK_NB)

    def lock_byte(self, fd: int, offset: int) -> None:
        """Lock one byte; `BlockingIOError` if another open file holds it."""
        self._set_lock(fd, fcntl.F_WRLCK, offset)

    def unlock_byte(self, fd: int, offset: int) -> None:
        """Let go of one byte."""
        self._set_lock(fd, fcntl.F_UNLCK, offset)

    def _set_lock(self, fd: int, kind: int, offset: int) -> None:
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)


class opened:  # noqa: N801 - it reads as a function, and is one that costs less
    """Close `fd` at the end."""

    __slots__ = ("_fd", "_files")

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        self._files.close(self._fd)


def read_all(files: Files, fd: int, size: int) -> bytes:
    """The first `size` bytes, or fewer if the file ends before."""
    parts = []
    while size and (part := files.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_file(files: Files, name: str, data: bytes, dir_fd: int) -> None:
    """Make a file of `data`, for its owner alone, and wait until it is on the disk."""
    with opened(files, files.open(name, NEW_FILE, dir_fd)) as fd:
        make_private(files, fd, 0o600)
        rest = memoryview(data)
        while rest:
            rest = rest[files.write(fd, rest) :]
        files.sync(fd)


def make_private(files: Files, fd: int, mode: int) -> None:
    """Give what was just made its mode, whatever the process's umask took from it."""
    if stat.S_IMODE(files.stat(fd).st_mode) & 0o777 != mode:
        files.chmod(fd, mode)


def remove(files: Files, name: str, dir_fd: int) -> None:
    """Remove what lies under a name with everything in it, following no link."""
    try:
        files.unlink(name, dir_fd)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    else:
        return
    with opened(files, files.open(name, DIRECTORY, dir_fd)) as fd:
        for child in files.list(fd):
            remove(files, child, fd)
    files.rmdir(name, dir_fd)
