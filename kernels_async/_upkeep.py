"""Keeps a store's directory small and sound: prune, verify, clear, sweep.

Each may run while other processes read and publish. An entry that is being read is left
alone; one that goes is renamed into the staging directory first, so that a process which
is killed here leaves no half of it.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ._files import DIRECTORY, opened, remove
from ._inventory import Entry, entries, measure, names, output_name, prefixes
from ._staging import DEAD_SECONDS, staging_name, sweep
from ._store import ASIDE, TMP, DamagedEntry, Store

_MOST_NAMES = 1000
_MOST_ENTRIES = 2000
_PERIOD_SECONDS = 600.0
_ROOM = 0.9


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` or `clear` did.

    Attributes:
        removed: Entries that went.
        freed: Their bytes.
        left: Bytes of the entries that stay.
    """

    removed: int
    freed: int
    left: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found.

    Attributes:
        sound: Entries that are whole.
        damaged: Entries that were not, and were put aside.
        unreadable: Entries that the system could not read, or that another process was
            about to remove; nothing was done to them.
    """

    sound: int
    damaged: int
    unreadable: int


def prune(store: Store, max_bytes: int) -> Pruned:
    """Remove the least recently used entries until the rest has at most `max_bytes`.

    Args:
        store: The store.
        max_bytes: Bytes of the entries together; 0 removes all that nobody reads.

    Raises:
        OSError: The directory cannot be read or written.
    """
    found = [entry for prefix in prefixes(store) for entry in _entries(store, prefix)]
    return _prune(store, found, max_bytes)


def clear(store: Store) -> Pruned:
    """Remove every entry that nobody reads, what was put aside, and old staging.

    Raises:
        OSError: The directory cannot be read or written.
    """
    pruned = prune(store, 0)
    sweep_staging(store)
    with (
        contextlib.suppress(FileNotFoundError),
        store.directory() as root,
        store.folder(ASIDE, root) as aside,
    ):
        for name in store.files.list(aside):
            remove(store.files, name, aside)
    return pruned


def verify(store: Store) -> Verified:
    """Read every entry of every toolchain, and put aside what is damaged.

    Raises:
        OSError: The directory cannot be read.
    """
    counts: Counter[str] = Counter()
    for prefix in prefixes(store):
        with contextlib.suppress(FileNotFoundError), store.shard(prefix) as (root, shard):
            there = names(store, shard)
            counts.update(_check(store, root, shard, prefix + name) for name in there)
    return Verified(counts["sound"], counts["damaged"], counts["unreadable"])


def sweep_staging(store: Store, age: float = DEAD_SECONDS) -> int:
    """Remove what dead processes left half made; how many, at most 1000 a call.

    Args:
        store: The store.
        age: Seconds for which it is left alone.

    Raises:
        OSError: The directory cannot be read or written.
    """
    try:
        with store.directory() as root, store.folder(TMP, root) as tmp:
            return sweep(store.files, tmp, age=age, most=_MOST_NAMES)
    except FileNotFoundError:
        return 0


class Upkeep:
    """Keeps a store below a number of bytes while it is filled.

    It looks at the directory when something was first published, and then now and
    then, since other processes fill it too. Of a directory with very many entries it
    looks at some at a time, and removes the least recently used of those.

    Args:
        store: The store.
        max_bytes: What its entries may have together; `None` for no limit.
        clock: Seconds that never go back.
    """

    def __init__(
        self, store: Store, max_bytes: int | None, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._clock = clock
        self._working = threading.Lock()
        self._looked: float | None = None
        self._bytes = 0

    def published(self, key: str) -> None:
        """Do what is due, now that the entry of that key was published.

        Raises:
            OSError: The directory cannot be read or written.
        """
        if not self._working.acquire(blocking=False):
            return
        try:
            due = self._looked is None or self._clock() - self._looked > _PERIOD_SECONDS
            if due:
                self._looked = self._clock()
                sweep_staging(self._store)
            if self._max_bytes is not None:
                self._bytes += _size(self._store, key)
                if due or self._bytes > self._max_bytes:
                    self._bytes = _keep_below(self._store, self._max_bytes)
        finally:
            self._working.release()


def _keep_below(store: Store, max_bytes: int) -> int:
    """Prune if it has more, to a little less; about how many bytes it then has.

    Of very many entries only some are looked at, and those of them go which would go if
    the others were like them: it takes several calls, of which each is short.
    """
    begun = prefixes(store)
    random.shuffle(begun)
    found: list[Entry] = []
    part = 1.0
    for number, prefix in enumerate(begun, 1):
        found += _entries(store, prefix)
        if len(found) >= _MOST_ENTRIES:
            part = number / len(begun)
            break
    size = int(sum(entry.size for entry in found) / part)
    if size > max_bytes:
        size -= _prune(store, found, int(max_bytes * part * _ROOM)).freed
    return size


def _prune(store: Store, found: list[Entry], max_bytes: int) -> Pruned:
    removed = freed = 0
    left = sum(entry.size for entry in found)
    for entry in sorted(found, key=lambda entry: entry.used):
        if left <= max_bytes:
            break
        try:
            if not _evict(store, entry):
                continue
            removed += 1
            freed += entry.size
        except FileNotFoundError:  # another process removed it
            pass
        left -= entry.size
    return Pruned(removed, freed, left)


def _evict(store: Store, entry: Entry) -> bool:
    """Remove one entry, if nobody reads it or has used it since it was looked at."""
    name = entry.key[2:]
    with (
        store.shard(entry.key[:2]) as (root, shard),
        store.folder(TMP, root, create=True) as tmp,
        contextlib.ExitStack() as closing,
    ):
        with contextlib.suppress(NotADirectoryError):
            fd = store.files.open(name, DIRECTORY, shard)
            closing.enter_context(opened(store.files, fd))
            if store.files.stat(fd).st_mtime > entry.used or not _claim(store, fd):
                return False
        leaving = staging_name()
        store.files.rename(name, shard, leaving, tmp)
        remove(store.files, leaving, tmp)
    return True


def _claim(store: Store, fd: int) -> bool:
    """Keep others from reading an entry; `False` if one does."""
    try:
        store.files.lock(fd, shared=False)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _check(store: Store, root: int, shard: int, key: str) -> str:
    """Which of the counts of `Verified` an entry belongs to; "" if it has gone."""
    try:
        store.look(shard, key, "disk", output_name(store, shard, key))
    except DamagedEntry as damage:
        store.set_aside(root, shard, key, damage)
        return "damaged"
    except FileNotFoundError:
        return ""
    except OSError:
        return "unreadable"
    return "sound"


def _entries(store: Store, prefix: str) -> list[Entry]:
    """The entries; one that was used in the future, by its time, is used now."""
    found = entries(store, prefix)
    for entry in found:
        if entry.used > time.time():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _touch(store, entry.key)
    return found


def _touch(store: Store, key: str) -> None:
    with store.shard(key[:2]) as (_, shard):
        fd = store.files.open(key[2:], DIRECTORY, shard)
        with opened(store.files, fd):
            store.files.touch(fd)


def _size(store: Store, key: str) -> int:
    try:
        with store.shard(key[:2]) as (_, shard):
            return measure(store, shard, key).size
    except FileNotFoundError:  # another process removed it
        return 0
