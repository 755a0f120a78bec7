"""Which requests wait, and which are being built; decides, and never awaits."""

from __future__ import annotations

from collections.abc import Callable

from ._outcome import Outcome
from ._pending import Pending
from ._source import Source
from ._specialization import Specialization
from .devices import Kernel

Pair = tuple[Source | str, Specialization | str]


class Batch:
    """The requests of one cache, by key.

    A request is outstanding until something takes it, then it is being built, and then
    it is built, or outstanding again if it failed and was asked for by `request`. One
    that only `get` asked for is forgotten when it fails.

    Attributes:
        by_pair: Every known request by what it was asked as: the hit path's index.
        outstanding: Requests that nothing builds yet, in the order of asking.
        building: Requests that are being built.
    """

    def __init__(self) -> None:
        self.by_pair: dict[Pair, Pending] = {}
        self.outstanding: dict[str, Pending] = {}
        self.building: dict[str, Pending] = {}
        self._by_key: dict[str, Pending] = {}

    def find(self, key: str) -> Pending | None:
        """The request of that key, if there is one."""
        return self._by_key.get(key)

    def add(self, pair: Pair, key: str, make: Callable[[], Pending]) -> Pending:
        """The request of that key, now also known as `pair`; made if it is new."""
        pending = self._by_key.get(key)
        if pending is None:
            pending = self._by_key[key] = make()
        pending.pairs.append(pair)
        self.by_pair[pair] = pending
        return pending

    def request(self, pending: Pending) -> None:
        """Ask for `pending` to stay asked for until it is built."""
        pending.requested = True
        if pending.kernel is None and pending.key not in self.building:
            self.outstanding[pending.key] = pending

    def claim(self, pending: Pending) -> Outcome[Kernel]:
        """The attempt at `pending`, for someone to wait for; it need not have begun."""
        if pending.attempt is None:
            pending.attempt = Outcome()
        return pending.attempt

    def take(self, pending: Pending) -> Outcome[Kernel]:
        """Begin the attempt at `pending`: it is being built from now on."""
        self.outstanding.pop(pending.key, None)
        self.building[pending.key] = pending
        pending.failed = False
        return self.claim(pending)

    def waiting(self) -> list[Pending]:
        """Everything outstanding, in the order of asking."""
        return list(self.outstanding.values())

    def succeed(self, pending: Pending, kernel: Kernel) -> None:
        """`pending` is built; whoever waits for it gets the kernel."""
        attempt = self._end(pending)
        pending.kernel = kernel
        attempt.succeed(kernel)

    def fail(self, pending: Pending, error: Exception) -> None:
        """The attempt failed; whoever waits for it gets the error."""
        attempt = self._end(pending)
        pending.failed = True
        if pending.requested:
            self.outstanding[pending.key] = pending
        else:
            self._forget(pending)
        attempt.fail(error)

    def clear(self, error: Exception) -> None:
        """Forget every request; whoever still waits gets the error."""
        waiting = [p.attempt for p in self._by_key.values() if p.attempt is not None]
        for requests in (self.by_pair, self.outstanding, self.building, self._by_key):
            requests.clear()
        for attempt in waiting:
            attempt.fail(error)

    def _end(self, pending: Pending) -> Outcome[Kernel]:
        self.building.pop(pending.key, None)
        attempt, pending.attempt = self.claim(pending), None
        return attempt

    def _forget(self, pending: Pending) -> None:
        self._by_key.pop(pending.key, None)
        for pair in pending.pairs:
            self.by_pair.pop(pair, None)
