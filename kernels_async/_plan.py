"""Which job is next: those that share their headers meet in as few workers as pay off."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Generic, Protocol, TypeVar

import anyio

from ._lane import Overtaking, Waiting
from ._sharing import Sharing

_EACH = 2
_COMPARED = 32
_PASSED_OVER = 16
_WITH_HEADERS = 16
"""How much longer a job with headers takes than one without, for all that is known."""

PATIENCE_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.5


class Planned(Waiting, Protocol):
    """A job that waits.

    Attributes:
        prefix: What it shares with others that one worker compiles faster than many;
            empty if nothing.
    """

    @property
    def prefix(self) -> str: ...


T = TypeVar("T", bound=Planned)


class Plan(Generic[T]):
    """Jobs that wait for a worker; gives each worker what it is fastest at.

    A worker that is free goes on with the prefix that it knows. If none of that waits it
    helps where the most work waits for each worker: the longest jobs begin first. Jobs
    whose headers some workers keep are left to those, unless there are so many that
    another worker pays, or they do not get on. No job is passed over for ever.

    Args:
        sharing: What the workers know.
        clock: Seconds that never go back.
    """

    def __init__(self, sharing: Sharing, clock: Callable[[], float]) -> None:
        self._sharing = sharing
        self._clock = clock
        self._in_order: dict[T, None] = {}
        self._groups: dict[str, dict[T, None]] = {}
        self._got_on: dict[str, float] = {}
        self._passed_over = 0

    def put(self, job: T) -> None:
        """Add one."""
        self._in_order[job] = None
        self._groups.setdefault(job.prefix, {})[job] = None
        self._got_on.setdefault(job.prefix, self._clock())

    def discard(self, job: T) -> None:
        """Remove one, if it is there."""
        if job in self._in_order:
            self._remove(job)

    def waiting(self, prefix: str) -> int:
        """How many of that prefix wait."""
        return len(self._groups.get(prefix, ()))

    def take(self) -> T | None:
        """Remove and return the next; `None` if there is none for another worker."""
        prefix = self._prefix()
        if prefix is None:
            return None
        oldest = next(iter(self._in_order))
        job = oldest
        if self._passed_over < _PASSED_OVER:
            job = next(iter(self._groups[prefix]))
        self._passed_over = 0 if job is oldest else self._passed_over + 1
        self._got_on[job.prefix] = self._clock()
        self._remove(job)
        return job

    def __contains__(self, job: object) -> bool:
        return job in self._in_order

    def __len__(self) -> int:
        return len(self._in_order)

    def _prefix(self) -> str | None:
        """The prefix of the job that is next."""
        for prefixes in self._sharing.known():
            for prefix in prefixes:
                if prefix in self._groups:
                    return prefix
        first = islice(filter(self._pays_another, self._groups), _COMPARED)
        return max(first, key=self._work_for_each, default=None)

    def _pays_another(self, prefix: str) -> bool:
        """Whether one worker more is to have jobs of that prefix."""
        keepers = self._sharing.keepers(prefix)
        many = len(self._groups[prefix]) >= _EACH * keepers
        return many or self._clock() - self._got_on[prefix] > PATIENCE_SECONDS

    def _work_for_each(self, prefix: str) -> float:
        """How much work of that prefix waits for each worker that would do it."""
        weight = _WITH_HEADERS if prefix else 1
        return weight * len(self._groups[prefix]) / (1 + self._sharing.keepers(prefix))

    def _remove(self, job: T) -> None:
        del self._in_order[job]
        group = self._groups[job.prefix]
        del group[job]
        if not group:
            del self._groups[job.prefix]
            del self._got_on[job.prefix]


class Plans(Overtaking[T]):
    """The plan of the jobs that somebody waits for, and of those that may wait for them.

    Args:
        sharing: What the workers know.
        clock: Seconds that never go back.
    """

    def __init__(
        self, sharing: Sharing, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plans: tuple[Plan[T], Plan[T]] = (Plan(sharing, clock), Plan(sharing, clock))
        self._changed: anyio.Event | None = None
        super().__init__(*self._plans)

    def put(self, job: T) -> None:
        """Add one."""
        super().put(job)
        self.notice()

    def hurry(self, job: T) -> None:
        """Have one overtake, if it is there."""
        super().hurry(job)
        self.notice()

    def waiting(self, prefix: str) -> int:
        """How many of that prefix wait."""
        return sum(plan.waiting(prefix) for plan in self._plans)

    def notice(self) -> None:
        """Look again what is next: a job has come, or a worker is free."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self) -> None:
        """Wait until what is next may be another."""
        if self._changed is None:
            self._changed = anyio.Event()
        with anyio.move_on_after(_LOOK_AGAIN_SECONDS):
            await self._changed.wait()
