"""The store of a compiler: its directory, layers below it, and a private one beside it.

::

    read    the directory -> layers, in their order -> the private folder -> a miss
    keep    the directory -> else the private folder -> else memory alone

A server goes on whatever happens to a disk: here trouble becomes a miss or an artifact
that is kept elsewhere. It is told once for each cause and period, not for each kernel,
and writing is tried again later.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ._artifact import Artifact, Output
from ._files import Files
from ._locks import KeyLocks, Lock
from ._record import Record, Seal
from ._store import Store
from ._trust import LAYER, PRIVATE
from ._upkeep import Upkeep

TELL_AGAIN_SECONDS = 3600.0
_FIRST_DELAY_SECONDS = 1.0
_LONGEST_DELAY_SECONDS = 60.0

logger = logging.getLogger("kernels_async")


class TieredStore:
    """Artifacts by key, in every tier; its calls block, and raise for no trouble of a disk.

    Args:
        root: The cache directory; `None` if there is no place.
        filename: What the toolchain's output is called.
        private: A folder for what the directory cannot keep; its owner removes it.
        layers: Directories to read from that are never changed, the first one first.
        seal: What vouches for the entries.
        max_bytes: What the directory's entries may have together; `None` for no limit.
        files: The file system of the directory and the layers.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        root: Path | None,
        filename: str,
        private: Path,
        *,
        layers: Sequence[str | os.PathLike[str]] = (),
        seal: Seal | None = None,
        max_bytes: int | None = None,
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.main = None
        if root is not None:
            self.main = Store(root, filename, seal=seal, files=files)
        lower = [
            Store(layer, filename, seal=seal, trust=LAYER, files=files) for layer in layers
        ]
        self._private = Store(private, filename, seal=seal, trust=PRIVATE)
        above = [] if self.main is None else [_Tier(self.main, max_bytes, clock)]
        below = _Tier(self._private, None, clock)
        self._readable = [*above, *(_Tier(store, None, clock) for store in lower), below]
        self._writable = [*above, below]
        self._locks = None if self.main is None else KeyLocks(self.main.root, files)

    def read(self, key: str) -> Artifact | None:
        """The verified artifact of that key, or `None`."""
        return next(filter(None, (tier.read(key) for tier in self._readable)), None)

    def keep(self, key: str, entries: Mapping[str, str], output: Output) -> Artifact:
        """Keep what was compiled where it can be kept; return it in every case.

        Args:
            key: The artifact's key.
            entries: The entries of the key.
            output: What was compiled.
        """
        for tier in self._writable:
            artifact = tier.publish(key, entries, output)
            if artifact is not None:
                return artifact
        path = self._private.path(key)
        return Record.of(key, entries, output).artifact(output.data, path, "compiled")

    def try_lock(self, key: str) -> Lock | None:
        """The lock under which `key` is compiled; `None`: somebody else compiles it."""
        return Lock() if self._locks is None else self._locks.try_acquire(key)


class _Tier:
    """A store whose trouble is told and not raised."""

    def __init__(
        self, store: Store, max_bytes: int | None, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._upkeep = Upkeep(store, max_bytes, clock)
        self._trouble = _Trouble(clock)

    def read(self, key: str) -> Artifact | None:
        try:
            return self._store.read(key)
        except (OSError, ValueError) as error:
            self._tell("artifacts cannot be read in %s: %s", error)
            return None

    def publish(
        self, key: str, entries: Mapping[str, str], output: Output
    ) -> Artifact | None:
        """Keep it; `None` if the store cannot, or did not lately."""
        too_large = self._max_bytes is not None and len(output.data) > self._max_bytes
        if too_large or self._trouble.is_recent():
            return None
        try:
            artifact = self._store.publish(key, entries, output)
        except (OSError, ValueError) as error:
            self._trouble.put_off()
            self._tell("artifacts are not kept in %s: %s", error)
            return None
        self._trouble.is_over()
        try:
            self._upkeep.published(key)
        except OSError as error:
            self._tell("old artifacts are not removed from %s: %s", error)
        return artifact

    def _tell(self, text: str, error: Exception) -> None:
        if self._trouble.is_news(text, error):
            logger.warning(text, self._store.root, error)


class _Trouble:
    """What to tell of a store's trouble, and when to try writing again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changing = threading.Lock()
        self._told: dict[tuple[str, type[Exception], int | None], float] = {}
        self._delay = 0.0
        self._until = clock()

    def is_news(self, text: str, error: Exception) -> bool:
        """Whether that was not told in the last hour."""
        cause = (text, type(error), getattr(error, "errno", None))
        with self._changing:
            now = self._clock()
            last = self._told.get(cause)
            if last is not None and now - last < TELL_AGAIN_SECONDS:
                return False
            self._told[cause] = now
            return True

    def is_recent(self) -> bool:
        """Whether it is too early to try again."""
        with self._changing:
            return self._clock() < self._until

    def put_off(self) -> None:
        """Try again later, and each time twice as late."""
        with self._changing:
            if self._clock() < self._until:
                return
            doubled = max(2 * self._delay, _FIRST_DELAY_SECONDS)
            self._delay = min(doubled, _LONGEST_DELAY_SECONDS)
            self._until = self._clock() + self._delay

    def is_over(self) -> None:
        """It works again."""
        with self._changing:
            self._delay = 0.0
