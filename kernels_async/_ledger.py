"""What happens in one cache: counted always, and told to whoever listens."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import Unpack

from ._artifact import Artifact
from ._batch import Batch
from ._compiler import Compiler
from ._errors import ClosedError
from ._events import Details, Event, Events, Hub, Kind, Listener, event
from ._home import Home
from ._pending import Pending
from ._stats import LoopDelay, Stats
from .devices import Kernel


class Ledger:
    """The numbers and the events of one cache.

    Args:
        compiler: Makes the artifacts; it tells what happens to them before they are there.
        batch: The requests.
        home: Where the cache lives.
    """

    def __init__(self, compiler: Compiler, batch: Batch, home: Home) -> None:
        self._compiler = compiler
        self._batch = batch
        self._home = home
        self._hub = Hub()
        self._follows = False
        self._delay = LoopDelay(lambda: bool(batch.building))
        self._misses = self._coalesced = self._dropped = self._refused = 0
        self._origins: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._compile_seconds = self._seconds_saved = 0.0
        self._load_seconds = self._longest_load_seconds = 0.0

    def requested(self, pending: Pending) -> None:
        """Somebody waits for what is not loaded; called in the task of who does."""
        self._misses += 1
        self._tell("requested", pending)

    def joined(self, pending: Pending) -> None:
        """One more waits for what is being built; called in that one's task."""
        self._coalesced += 1
        self._tell("joined", pending)

    def started(self) -> None:
        """Something is being built."""
        self._delay.watch(self._home.parts.scope)

    def refused(self) -> None:
        """A frozen cache was asked for what it has not."""
        self._refused += 1

    def made(self, pending: Pending, artifact: Artifact) -> None:
        """The artifact is there, and loaded next."""
        self._origins[artifact.origin] += 1
        if artifact.origin == "compiled":
            self._compile_seconds += artifact.compile_seconds
        else:
            self._seconds_saved += artifact.compile_seconds
        self._tell("loading", pending, artifact=artifact)

    def loaded(self, pending: Pending, artifact: Artifact, kernel: Kernel) -> None:
        """The kernel is there; it is loaded already if another has the same bytes."""
        if kernel.artifact is artifact:
            seconds = kernel.load_seconds
            self._load_seconds += seconds
            self._longest_load_seconds = max(self._longest_load_seconds, seconds)
            self._tell(
                "loaded", pending, kernel.loaded_at, seconds=seconds, artifact=artifact
            )
        else:
            self._tell("loaded", pending, artifact=artifact)

    def failed(self, pending: Pending, error: Exception) -> None:
        """A build failed."""
        self._failures[type(error).__name__] += 1
        self._tell("failed", pending, error=error)

    def dropped(self, pending: Pending, error: Exception) -> None:
        """A build ended with nobody's doing, or was refused; that is no failure."""
        self._dropped += 1
        self._tell("failed", pending, error=error)

    @property
    def device(self) -> str:
        """The name of the device; see `Home.device_name`."""
        return self._home.device_name

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` what happens; calling what this returns ends that."""
        remove = self._hub.add(listener)
        self.follow()
        return remove

    def events(self, limit: int) -> Events:
        """What happens from now on, to be taken when there is time."""
        if self._home.ended is not None:
            raise ClosedError(self._home.ended)
        events = self._hub.stream(limit)
        self.follow()
        return events

    def follow(self) -> None:
        """Once somebody listens, and the cache is open, pass on what the compiler tells."""
        if self._hub.listeners and self._home.is_open and not self._follows:
            self._follows = True
            self._stop_following = self._home.parts.maker.hub.add(self._pass_on)

    def close(self) -> None:
        """End every stream of events."""
        if self._follows:
            self._stop_following()
        self._hub.close()

    def _pass_on(self, told: Event) -> None:
        if told.kind != "failed" and self._batch.waits_for(told.key):
            self._hub.tell(told)

    def _tell(
        self,
        kind: Kind,
        pending: Pending,
        at: float | None = None,
        **details: Unpack[Details],
    ) -> None:
        if self._hub.listeners:
            if kind == "requested":
                details["entries"] = pending.entries
            details["device"] = self.device
            symbol, target = pending.specialization.symbol, self._compiler.target
            self._hub.tell(event(kind, pending.key, symbol, target, at, **details))

    def stats(self) -> Stats:
        """The numbers as they are now."""
        queues: dict[str, int] = {}
        with contextlib.suppress(ClosedError):  # nothing is queued
            queues = self._home.parts.maker.queues()
        return Stats(
            memory_hits=self._batch.hits,
            misses=self._misses,
            coalesced=self._coalesced,
            disk_hits=self._origins["disk"],
            remote_hits=self._origins["remote"],
            compiles=self._origins["compiled"],
            compile_seconds=self._compile_seconds,
            seconds_saved=self._seconds_saved,
            failures=MappingProxyType(dict(self._failures)),
            dropped=self._dropped,
            refused=self._refused,
            overloaded=self._batch.refused,
            loaded=len(self._home),
            load_seconds=self._load_seconds,
            longest_load_seconds=self._longest_load_seconds,
            outstanding=len(self._batch.outstanding),
            building=len(self._batch.building),
            longest_loop_delay=self._delay.longest,
            loop_delay_seconds=self._delay.seconds,
            loop_delay_samples=self._delay.samples,
            **queues,
        )
