"""Who may own, and who may change, a directory whose content is loaded and run.

Whoever can write an entry runs code as the server. So everything on the way is opened
without following links that others made, and what was opened is looked at, not its path.
Nothing that was found is ever made to fit by changing its mode or its owner.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from ._files import DIRECTORY, PLACE, Files, make_private, opened

_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Trust:
    """What is asked of a store's directory.

    Attributes:
        alone: It belongs to this user, who alone can read it. Else it may be root's too,
            and readable by all, as what is baked into a container image.
        way: What leads to it is looked at too. Not for a folder that this process made
            for itself, which has to do wherever temporary files lie.
    """

    alone: bool
    way: bool = True

    def objection_to_folder(self, found: os.stat_result) -> str | None:
        """Why a directory inside the store is not trusted, if so."""
        if not stat.S_ISDIR(found.st_mode):
            return "is no directory"
        return self._owner(found) or _loose(found, 0o022)

    def objection_to_file(self, found: os.stat_result) -> str | None:
        """Why a file inside the store is not trusted, if so."""
        if not stat.S_ISREG(found.st_mode):
            return "is no file"
        if self.alone and found.st_nlink != 1:
            return f"has {found.st_nlink} names"
        return self._owner(found) or _loose(found, 0o022)

    def check_root(self, path: Path, found: os.stat_result) -> None:
        """Raise `PermissionError` if the store's own directory is not trusted."""
        refused, remedy = (0o077, "700") if self.alone else (0o022, "go-w")
        if owner := self._owner(found):
            raise PermissionError(f"{path} {owner}")
        if loose := _loose(found, refused):
            raise PermissionError(f"{path} {loose}: chmod {remedy} {path}")

    def _owner(self, found: os.stat_result) -> str | None:
        if found.st_uid == os.geteuid() or (not self.alone and found.st_uid == 0):
            return None
        return f"belongs to user {found.st_uid}"


OWN = Trust(alone=True)
PRIVATE = Trust(alone=True, way=False)
LAYER = Trust(alone=False)


def _loose(found: os.stat_result, refused: int) -> str | None:
    mode = stat.S_IMODE(found.st_mode)
    if not mode & refused:
        return None
    return f"may be {'written' if mode & 0o022 else 'read'} by others (mode {mode:o})"


def open_root(files: Files, path: Path, trust: Trust, *, create: bool = False) -> int:
    """Open a store's directory, as a place to open others from.

    Each directory on the way, and each symbolic link, has to belong to root or to this
    user, and nobody else can exchange what is in it.

    Args:
        files: The file system.
        path: An absolute path.
        trust: What is asked of the directory.
        create: Make what is missing of the path.

    Raises:
        PermissionError: It must not be trusted; the text says why, and what to do.
        OSError: It is missing or cannot be opened.
    """
    left, passed, links = deque(path.parts[1:]), ["/"], 0
    place = files.open("/", PLACE)
    try:
        standing = files.stat(place)
        while left:
            if trust.way:
                _check_ancestor(passed, standing)
            name = left.popleft()
            found = _open_place(files, name, place, create=create)
            try:
                kind = files.stat(found)
                if stat.S_ISLNK(kind.st_mode):
                    links += 1
                    target = _follow(files, found, [*passed, name], kind, links)
                    left.extendleft(reversed(target.parts))
                    continue
                if not stat.S_ISDIR(kind.st_mode):
                    raise PermissionError(f"{_path([*passed, name])} is no directory")
                passed.append(name)
                place, found, standing = found, place, kind
            finally:
                files.close(found)
        trust.check_root(path, standing)
    except BaseException:
        files.close(place)
        raise
    return place


def _open_place(files: Files, name: str, place: int, *, create: bool) -> int:
    try:
        return files.open(name, PLACE, place)
    except FileNotFoundError:
        if not create:
            raise
    _make(files, name, place)
    return files.open(name, PLACE, place)


def _follow(
    files: Files, link: int, passed: list[str], found: os.stat_result, links: int
) -> Path:
    if found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{_path(passed)} is a symbolic link of user {found.st_uid}")
    if links > _MOST_LINKS:
        raise OSError(errno.ELOOP, f"{_path(passed)} leads through too many links")
    return Path(files.readlink(link))


def _check_ancestor(passed: list[str], found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{_path(passed)} belongs to user {found.st_uid}")
    loose = _loose(found, 0o022)
    if loose and not found.st_mode & stat.S_ISVTX:
        path = _path(passed)
        raise PermissionError(f"{path} {loose}: chmod go-w {path}")


def _path(passed: list[str]) -> Path:
    return Path(*passed)


def open_folder(
    files: Files, name: str, dir_fd: int, trust: Trust, *, create: bool = False
) -> int:
    """Open a directory in the store.

    Raises:
        PermissionError: It is something else, or must not be trusted.
        OSError: It is missing or cannot be opened.
    """
    try:
        fd = files.open(name, DIRECTORY, dir_fd)
    except FileNotFoundError:
        if not create:
            raise
        _make(files, name, dir_fd)
        fd = files.open(name, DIRECTORY, dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise PermissionError(f"{name} in the cache is no directory") from error
        raise
    try:
        reason = trust.objection_to_folder(files.stat(fd))
        if reason is not None:
            raise PermissionError(f"{name} in the cache {reason}")
    except BaseException:
        files.close(fd)
        raise
    return fd


def _make(files: Files, name: str, dir_fd: int) -> None:
    try:
        files.mkdir(name, dir_fd)
    except FileExistsError:
        return
    with opened(files, files.open(name, PLACE | os.O_DIRECTORY, dir_fd)) as made:
        make_private(files, made, 0o700)
