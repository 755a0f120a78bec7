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
from dataclasses import dataclass, field
from pathlib import Path

from ._artifact import Artifact, Output
from ._errors import SpecificationError
from ._files import Files
from ._locks import KeyLocks, Lock
from ._record import Record, Seal, chosen_key
from ._store import Store, default_cache_dir
from ._trust import LAYER, PRIVATE
from ._upkeep import Upkeep

TELL_AGAIN_SECONDS = 3600.0
_FIRST_DELAY_SECONDS = 1.0
_LONGEST_DELAY_SECONDS = 60.0

logger = logging.getLogger("kernels_async")


@dataclass(frozen=True)
class Place:
    """Where artifacts are kept.

    Attributes:
        root: The cache directory; `None` if there is none.
        layers: Directories to read from that are never changed, the first one first.
        max_bytes: What the directory's entries may have together; `None` for no limit.
        key: What the writers and readers of a shared cache know and others do not.
    """

    root: Path | None
    layers: tuple[Path, ...] = ()
    max_bytes: int | None = None
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def choose(
        cls,
        root: str | os.PathLike[str] | None,
        layers: Sequence[str | os.PathLike[str]],
        max_bytes: int | None,
        key: bytes | str | None,
    ) -> Place:
        """The place that these arguments, and where they are `None` the environment, name.

        Raises:
            SpecificationError: An argument cannot be right.
        """
        if isinstance(layers, str | bytes | os.PathLike):
            raise SpecificationError(f"layers is a list of directories, not {layers!r}")
        if max_bytes is not None and (not isinstance(max_bytes, int) or max_bytes < 0):
            raise SpecificationError(f"max_bytes is in bytes, or None, not {max_bytes!r}")
        chosen = default_cache_dir() if root is None else Path(root)
        return cls(
            None if chosen is None else _absolute(chosen),
            tuple(map(_absolute, layers)),
            max_bytes,
            chosen_key(key),
        )


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(path).expanduser().absolute()


class TieredStore:
    """Artifacts by key, in every tier; its calls block, and raise for no trouble of a disk.

    Args:
        place: The cache directory and what is below it.
        filename: What the toolchain's output is called.
        private: A folder for what the directory cannot keep; its owner removes it.
        files: The file system of the directory and the layers.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        place: Place,
        filename: str,
        private: Path,
        *,
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        seal, max_bytes = Seal(place.key), place.max_bytes
        self.main: Store | None = None
        if place.root is not None:
            self.main = Store(place.root, filename, seal=seal, files=files)
        lower = [
            Store(layer, filename, seal=seal, trust=LAYER, files=files)
            for layer in place.layers
        ]
        self._private = Store(private, filename, seal=seal, trust=PRIVATE)
        above = [] if self.main is None else [_Tier(self.main, max_bytes, clock)]
        below = _Tier(self._private, None, clock)
        self._readable = [*above, *(_Tier(store, None, clock) for store in lower), below]
        self._writable = [*above, below]
        self._locks = None if self.main is None else KeyLocks(self.main.root, files)

    def read(self, key: str) -> Artifact | None:
        """The verified artifact of that key, or `None`."""
        return self.read_all([key])[0]

    def read_all(self, keys: Sequence[str]) -> list[Artifact | None]:
        """The verified artifacts of different keys, each or `None`, in their order."""
        found: dict[str, Artifact | None] = dict.fromkeys(keys)
        for tier in self._readable:
            missing = [key for key, artifact in found.items() if artifact is None]
            if missing:
                found.update(zip(missing, tier.read_all(missing), strict=True))
        return list(found.values())

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

    def read_all(self, keys: Sequence[str]) -> list[Artifact | None]:
        try:
            return self._store.read_all(keys)
        except (OSError, ValueError) as error:
            if len(keys) > 1:
                return [self.read_all([key])[0] for key in keys]
            self._tell("artifacts cannot be read in %s: %s", error)
            return [None]

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
