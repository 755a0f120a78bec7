"""Which requests wait, and which are being built; decides, and never awaits."""

from __future__ import annotations

from collections.abc import Callable

from ._errors import ClosedError, OverloadedError, SpecificationError
from ._pending import Attempt, Pending
from ._source import Source
from ._specialization import Specialization
from .devices import Kernel

Pair = tuple[Source | str, Specialization | str]


class Batch:
    """The requests of one cache, by key.

    A request is outstanding until something takes it, then it is being built, and then
    it is built, or outstanding again if it failed and was asked for by `request`. One
    that only `get` asked for is forgotten when it fails, and when its last waiter leaves
    before a worker has it.

    Args:
        limit: How many requests may wait or be built, those that failed not counted;
            `None` for any number. It is the caller's `max_outstanding`.
        dropped: Told of each attempt that ends with nobody's doing: all who waited have
            left, or everything ends.

    Raises:
        SpecificationError: The limit cannot be right.

    Attributes:
        by_pair: Every known request by what it was asked as: the hit path's index.
        outstanding: Requests that nothing builds yet, in the order of asking.
        building: Requests that are being built.
        built: How many have been built.
        refused: How many were one too many.
    """

    def __init__(
        self, limit: int | None, dropped: Callable[[Pending, Exception], None]
    ) -> None:
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise SpecificationError(
                f"max_outstanding is a number from 1, or None, not {limit!r}"
            )
        self._limit = limit
        self._dropped = dropped
        self.by_pair: dict[Pair, Pending] = {}
        self.outstanding: dict[str, Pending] = {}
        self.building: dict[str, Pending] = {}
        self.built: int = 0
        self.refused: int = 0
        self._by_key: dict[str, Pending] = {}
        self._failed: set[str] = set()
        self._background: set[str] = set()

    def find(self, key: str) -> Pending | None:
        """The request of that key, if there is one."""
        return self._by_key.get(key)

    @property
    def hits(self) -> int:
        """How often a kernel that was loaded has been asked for."""
        return sum(pending.hits for pending in self.known())

    def waits_for(self, key: str) -> bool:
        """Whether the artifact of that key is in the making, and for one of these."""
        pending = self.building.get(key)
        attempt = None if pending is None else pending.attempt
        return attempt is not None and not attempt.is_there

    def known(self) -> list[Pending]:
        """Every request that is known, in the order of asking; from any thread."""
        return list(self._by_key.values())

    def add(self, pair: Pair, pending: Pending, *, limited: bool = True) -> Pending:
        """Know a request, new or not, as `pair`.

        Args:
            pair: What it was asked as.
            pending: The request.
            limited: Whether the limit holds for it.

        Raises:
            OverloadedError: It is new, and too many are not loaded yet.
        """
        if pending.key not in self._by_key:
            if limited:
                self._refuse_overload()
            self._by_key[pending.key] = pending
        pending.pairs.append(pair)
        self.by_pair[pair] = pending
        return pending

    def request(self, pending: Pending) -> None:
        """Ask for `pending` to stay asked for until it is built."""
        pending.requested = True
        if pending.kernel is None and pending.key not in self.building:
            self.outstanding[pending.key] = pending

    def _refuse_overload(self) -> None:
        unlimited = len(self._failed) + len(self._background)
        waiting = len(self.outstanding) + len(self.building) - unlimited
        if self._limit is not None and waiting >= self._limit:
            self.refused += 1
            raise OverloadedError(
                f"{waiting} requests are not loaded yet, and max_outstanding is "
                f"{self._limit}: try again later"
            )

    def claim(self, pending: Pending) -> Attempt:
        """The attempt at `pending`, for someone to wait for; it need not have begun."""
        if pending.attempt is None:
            pending.attempt = Attempt(self, pending)
        return pending.attempt

    def take(self, pending: Pending, *, background: bool = False) -> Attempt:
        """Begin the attempt at `pending`: it is being built from now on.

        Args:
            pending: The request.
            background: Whether nobody waits for it yet, so that the limit does not hold.
        """
        if background:
            self._background.add(pending.key)
        self.outstanding.pop(pending.key, None)
        self._failed.discard(pending.key)
        self.building[pending.key] = pending
        pending.failed = False
        return self.claim(pending)

    def hurry(self, pending: Pending) -> Attempt | None:
        """The attempt at `pending`, if there is one: somebody waits for it now."""
        self._background.discard(pending.key)
        if pending.attempt is not None:
            pending.attempt.hurry()
        return pending.attempt

    def attempts(self) -> list[Attempt]:
        """Those at what is being built and does not wait for others."""
        wanted = [p for p in self.building.values() if p.key not in self._background]
        return [p.attempt for p in wanted if p.attempt is not None]

    def hurry_requested(self) -> list[Attempt]:
        """The attempts at what was asked for by `request`: somebody waits for them now."""
        wanted = [self.hurry(p) for p in self.building.values() if p.requested]
        return [attempt for attempt in wanted if attempt is not None]

    def waiting(self) -> list[Pending]:
        """Everything outstanding, in the order of asking."""
        return list(self.outstanding.values())

    def succeed(self, pending: Pending, attempt: Attempt, kernel: Kernel) -> None:
        """`pending` is built; whoever waits for it gets the kernel."""
        self._end(pending)
        pending.serve(kernel)
        self.built += 1
        attempt.succeed(kernel)

    def fail(self, pending: Pending, attempt: Attempt, error: Exception) -> None:
        """The attempt failed; whoever waits for it gets the error."""
        if pending.attempt is attempt:
            self._end(pending)
            pending.failed = True
            if pending.requested:
                self.outstanding[pending.key] = pending
                self._failed.add(pending.key)
            else:
                self._forget(pending)
        attempt.fail(error)

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for `pending` any more: drop it, if only they wanted it."""
        attempt = pending.attempt
        if attempt is not None and not pending.requested and not attempt.begun:
            self._end(pending)
            pending.failed = True
            self._forget(pending)
            attempt.withdraw()
            self._drop(pending, attempt, ClosedError("nobody waited for it any more"))

    def clear(self, error: Exception) -> None:
        """Forget what every request was asked as; whoever still waits gets the error.

        The requests stay `known`, for those who count them.
        """
        waiting = [(p, p.attempt) for p in self.known() if p.attempt is not None]
        for pending in self.known():
            pending.attempt, pending.failed = None, pending.kernel is None
        self._clear()
        for pending, attempt in waiting:
            attempt.withdraw()
            self._drop(pending, attempt, error)

    def _drop(self, pending: Pending, attempt: Attempt, error: Exception) -> None:
        self._dropped(pending, error)
        attempt.fail(error)

    def disown(self) -> None:
        """Forget every request and kernel, and wake nobody: their tasks are not here."""
        for pending in self._by_key.values():
            pending.serve(None)
            pending.attempt = None
        self._clear()
        self._by_key.clear()

    def _clear(self) -> None:
        self._failed.clear()
        self._background.clear()
        for requests in (self.by_pair, self.outstanding, self.building):
            requests.clear()

    def _end(self, pending: Pending) -> None:
        self.building.pop(pending.key, None)
        self._background.discard(pending.key)
        pending.attempt = None

    def _forget(self, pending: Pending) -> None:
        self._by_key.pop(pending.key, None)
        for pair in pending.pairs:
            self.by_pair.pop(pair, None)
