"""Where entries are made before they appear, and whose that is.

A staging directory names the process that fills it, so that what a dead one left can be
told from what a slow one still writes.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path

from ._files import Files, remove
from ._value import digest

DEAD_SECONDS = 60.0
UNKNOWN_SECONDS = 86400.0

_NAME = re.compile(r"([0-9]+)-([0-9a-f]{16})-([0-9]+)-[0-9a-f]{16}")


def staging_name() -> str:
    """A new name: process, where that number means it, its start, and chance."""
    number = os.getpid()
    return f"{number}-{_here()}-{_started(number) or 0}-{secrets.token_hex(8)}"


def sweep(
    files: Files,
    tmp: int,
    *,
    age: float = DEAD_SECONDS,
    unknown: float = UNKNOWN_SECONDS,
    most: int,
) -> int:
    """Remove what dead processes left; how many.

    A process of this machine is known to be dead if its number is free or another's. Of
    others, in another container or on another host, only the age is known.

    Args:
        files: The file system.
        tmp: The open directory.
        age: Seconds for which what a dead process left is left alone.
        unknown: Seconds for which what a process may still use is left alone.
        most: How many names are looked at.
    """
    removed = 0
    for name in files.list(tmp)[:most]:
        try:
            removed += _sweep_one(files, name, tmp, age, unknown)
        except FileNotFoundError:
            continue
    return removed


def _sweep_one(files: Files, name: str, tmp: int, age: float, unknown: float) -> bool:
    match _owner(name):
        case True:
            return False
        case False:
            least = age
        case None:
            least = unknown
    since = abs(time.time() - files.lstat(name, tmp).st_mtime)
    if since < least:
        return False
    remove(files, name, tmp)
    return True


def trim(files: Files, folder: int, most: int) -> None:
    """Remove all but the newest `most` of what lies in an open directory."""
    names = files.list(folder)
    if len(names) > most:
        moved = {name: files.lstat(name, folder).st_ctime_ns for name in names}
        for name in sorted(names, key=moved.__getitem__)[:-most]:
            remove(files, name, folder)


def _owner(name: str) -> bool | None:
    """Whether the process that the name tells of is alive; `None`: who knows."""
    found = _NAME.fullmatch(name)
    if found is None or found[2] != _here() or found[3] == "0":
        return None
    return _started(int(found[1])) == int(found[3])


def _here() -> str:
    """This boot and this space of process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return digest(f"{boot}{Path('/proc/self/ns/pid').readlink()}".encode())[:16]
    except OSError:
        return digest(os.uname().nodename.encode())[:16]


def _started(number: int) -> int | None:
    """When a process started, in ticks of this boot; `None` if it does not run."""
    try:
        status = Path(f"/proc/{number}/stat").read_bytes()
    except OSError:
        return None
    state, *fields = status.rpartition(b")")[2].split()
    return None if state == b"Z" else int(fields[18])
