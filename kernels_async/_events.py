"""What happens to kernels, told as it happens."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal, NamedTuple, TypedDict, Unpack

from ._artifact import Artifact
from ._diagnostics import shortened

Kind = Literal[
    "requested",
    "joined",
    "found",
    "compiling",
    "compiled",
    "kept",
    "loading",
    "loaded",
    "failed",
]
"""What happened to a kernel; see `Event`."""

Listener = Callable[["Event"], None]
"""What `Kernels.listen` takes: a function of an event."""

LIMIT = 10_000

logger = logging.getLogger("kernels_async")


class Event(NamedTuple):
    """One thing that happened to one kernel.

    A kernel's events come in this order, with `found` or else the next three, and at
    the end `loaded` or `failed`; a memory hit is no event:

        requested -> found | compiling -> compiled -> kept -> loading -> loaded | failed

    A `Compiler` tells `found` to `kept`, and `failed`; a `Kernels` tells all of them, of
    the kernels that it was asked for.

    Attributes:
        kind: `requested`: somebody waits for it, and it is not loaded; `joined`: one more
            waits; `found`: it was read from disk or a remote store; `compiling`: a worker
            has it; `compiled`: the worker is done; `kept`: its artifact is there;
            `loading`, `loaded`; `failed`: whatever was done ended in `error`.
        time: When, in seconds of `time.monotonic()`.
        key: The digest of the artifact.
        symbol: The kernel as it was asked for.
        target: What it is compiled for.
        worker: Which worker compiles it, counted from 1.
        device: The name of the device that loads it.
        seconds: How long it took, of `found`, `compiled`, `kept` and `loaded`.
        artifact: What was `found`, `kept`, is `loading` or `loaded`.
        error: Why it `failed`.
        entries: What enters its key, of what is `requested` of a cache or `failed` in a
            compiler: an artifact, which knows its own, may never be there.
    """

    kind: Kind
    time: float
    key: str
    symbol: str
    target: str
    worker: int | None = None
    device: str | None = None
    seconds: float | None = None
    artifact: Artifact | None = None
    error: Exception | None = None
    entries: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        where = self.target if self.device is None else self.device
        took = "" if self.seconds is None else f" in {self.seconds:.6f} s"
        why = "" if self.error is None else f": {type(self.error).__name__}"
        return f"<Event {self.kind} {shortened(self.symbol)} on {where}{took}{why}>"


class Details(TypedDict, total=False):
    """What some events tell and others do not; see `Event`."""

    worker: int | None
    device: str | None
    seconds: float | None
    artifact: Artifact | None
    error: Exception | None
    entries: Mapping[str, str] | None


def event(
    kind: Kind,
    key: str,
    symbol: str,
    target: str,
    at: float | None = None,
    **details: Unpack[Details],
) -> Event:
    """The event that happens now, or happened at another time; see `Event`."""
    return Event(
        kind, time.monotonic() if at is None else at, key, symbol, target, **details
    )


class Hub:
    """Tells each event to every listener, at once and in the task in which it happens.

    Whoever has something to tell asks first whether there are `listeners`: an event that
    nobody hears is not made.
    """

    __slots__ = ("_streams", "listeners")

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self._streams: weakref.WeakSet[Events] = weakref.WeakSet()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` from now on, until what this returns is called."""
        self.listeners = (*self.listeners, listener)
        is_told = True

        def remove() -> None:
            nonlocal is_told
            if is_told:
                is_told = False
                others = list(self.listeners)
                others.remove(listener)
                self.listeners = tuple(others)

        return remove

    def stream(self, limit: int) -> Events:
        """The events from now on; it is told nothing more once nobody holds it."""
        events = Events(limit)
        reference = weakref.ref(events, lambda _: remove())

        def put(told: Event) -> None:
            stream = reference()
            if stream is not None:
                stream.put(told)

        remove = self.add(put)
        self._streams.add(events)
        return events

    def close(self) -> None:
        """End every stream."""
        for events in list(self._streams):
            events.close()

    def tell(self, told: Event) -> None:
        """Tell it; a listener that raises is logged, and harms nobody."""
        for listener in self.listeners:
            try:
                listener(told)
            except Exception:
                logger.exception("a listener of kernels_async raised on %s", told.kind)


class Events(AsyncIterator[Event]):
    """The events of a cache from now on, for `async for`.

    It ends when the cache closes, or with `close`. Events wait until they are taken; of
    more than `limit` that wait, the oldest are dropped. It is for one task.

    Args:
        limit: How many wait at most.

    Attributes:
        dropped: How many were dropped.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.dropped: int = 0
        self._waiting: deque[Event] = deque(maxlen=limit)
        self._ended = False
        self._news = asyncio.Event()

    def put(self, told: Event) -> None:
        """Have it taken later."""
        self.dropped += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(told)
        self._news.set()

    def close(self) -> None:
        """End, once the events that wait are taken."""
        self._ended = True
        self._news.set()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()
