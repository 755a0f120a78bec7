"""What a store's directory has: entries, their sizes and times, what is known of them.

Nothing here is changed or counts as used, and no toolchain is needed: any artifact is
listed, whatever compiled it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ._artifact import Artifact
from ._files import DIRECTORY, opened
from ._record import Record
from ._store import LARGEST_RECORD, RECORD, Store

NO_OUTPUT = "kernel"
"""What the output of an entry is called that has none."""

_PREFIX = re.compile("[0-9a-f]{2}")
_REST = re.compile("[0-9a-f]{62}")
_OUTPUT = re.compile(r"kernel\.[a-z]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a store, as its directory has it.

    Attributes:
        key: The artifact's key.
        size: Bytes of its files.
        used: When it was last used, to the hour.
    """

    key: str
    size: int
    used: float


@dataclass(frozen=True, slots=True)
class Listed:
    """What is known of an entry without reading its output.

    Attributes:
        entry: The entry.
        record: What is known of the artifact; `None` if it is damaged.
        made: When it was compiled or imported.
        damage: What is wrong with its record, or "".
    """

    entry: Entry
    record: Record | None
    made: float
    damage: str = ""


def prefixes(store: Store) -> list[str]:
    """The first two digits that keys of the store begin with.

    Raises:
        OSError: The directory cannot be read, or must not be trusted.
    """
    try:
        with store.directory() as root, store.shards(root) as shards:
            return [name for name in store.files.list(shards) if _PREFIX.fullmatch(name)]
    except FileNotFoundError:
        return []


def names(store: Store, shard: int) -> list[str]:
    """The rests of the keys in an open directory."""
    return [name for name in store.files.list(shard) if _REST.fullmatch(name)]


def entries(store: Store, prefix: str) -> list[Entry]:
    """The entries whose keys begin with `prefix`; those that go meanwhile are left out."""
    found = []
    with contextlib.suppress(FileNotFoundError), store.shard(prefix) as (_, shard):
        for name in names(store, shard):
            with contextlib.suppress(FileNotFoundError):
                found.append(measure(store, shard, prefix + name))
    return found


def measure(store: Store, shard: int, key: str) -> Entry:
    """Size and time of an entry in an open directory.

    Raises:
        FileNotFoundError: It has gone.
        OSError: It cannot be read.
    """
    files, name = store.files, key[2:]
    try:
        fd = files.open(name, DIRECTORY, shard)
    except NotADirectoryError:
        found = files.lstat(name, shard)
        return Entry(key, found.st_size, found.st_mtime)
    with opened(files, fd):
        used = files.stat(fd).st_mtime
        size = sum(files.lstat(child, fd).st_size for child in files.list(fd))
    return Entry(key, size, used)


def output_name(store: Store, shard: int, key: str) -> str:
    """What the output of an entry in an open directory is called."""
    try:
        fd = store.files.open(key[2:], DIRECTORY, shard)
    except NotADirectoryError:
        return NO_OUTPUT
    with opened(store.files, fd):
        return next(filter(_OUTPUT.fullmatch, store.files.list(fd)), NO_OUTPUT)


def listed(store: Store) -> Iterator[Listed]:
    """Every entry with what its record says, in the order of their keys.

    Raises:
        OSError: The directory cannot be read, or must not be trusted.
    """
    for prefix in sorted(prefixes(store)):
        for entry in sorted(entries(store, prefix), key=lambda entry: entry.key):
            with contextlib.suppress(FileNotFoundError):
                yield _listed(store, entry)


def _listed(store: Store, entry: Entry) -> Listed:
    files = store.files
    with store.shard(entry.key[:2]) as (_, shard):
        try:
            fd = files.open(entry.key[2:], DIRECTORY, shard)
        except OSError as error:
            return Listed(entry, None, entry.used, str(error))
        with opened(files, fd):
            try:
                record = Record.decode(
                    store.contents(fd, RECORD, LARGEST_RECORD), store.seal
                )
                if record.key != entry.key:
                    raise ValueError(f"it holds the artifact {record.key}")
                made = files.lstat(RECORD, fd).st_mtime
            except (OSError, ValueError) as error:
                return Listed(entry, None, entry.used, str(error))
    return Listed(entry, record, made)


def keys(store: Store, prefix: str) -> list[str]:
    """The keys that begin with `prefix`, sorted.

    Raises:
        OSError: The directory cannot be read, or must not be trusted.
    """
    shards = [p for p in prefixes(store) if p.startswith(prefix[:2])]
    found = [entry.key for shard in shards for entry in entries(store, shard)]
    return sorted(key for key in found if key.startswith(prefix))


def inspect(store: Store, key: str) -> Artifact:
    """The verified artifact of a key, whatever its output is called; it is not used.

    Raises:
        DamagedEntry: It is not what a store would have written.
        OSError: It is not there, or cannot be read.
    """
    with store.shard(key[:2]) as (_, shard):
        return store.look(shard, key, "disk", output_name(store, shard, key))
