"""Which job is next: those that share their headers meet in as few workers as pay off."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from ._sharing import Sharing

_PASSED_OVER = 16
_WITH_HEADERS = 16
"""How much longer a job with headers takes than one without, for all that is known."""


class Planned(Hashable, Protocol):
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
    helps where the most work waits for each worker: the longest jobs begin first. No
    worker is idle while a job waits, and no job is passed over for ever.

    Args:
        sharing: What the workers know.
    """

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._in_order: dict[T, None] = {}
        self._groups: dict[str, dict[T, None]] = {}
        self._passed_over = 0

    def put(self, job: T) -> None:
        """Add one."""
        self._in_order[job] = None
        self._groups.setdefault(job.prefix, {})[job] = None

    def discard(self, job: T) -> None:
        """Remove one, if it is there."""
        if job in self._in_order:
            self._remove(job)

    def waiting(self, prefix: str) -> int:
        """How many of that prefix wait."""
        return len(self._groups.get(prefix, ()))

    def take(self) -> T | None:
        """Remove and return the next; `None` if there is none."""
        if not self._in_order:
            return None
        oldest = next(iter(self._in_order))
        job = oldest
        if self._passed_over < _PASSED_OVER:
            job = next(iter(self._groups[self._prefix()]))
        self._passed_over = 0 if job is oldest else self._passed_over + 1
        self._remove(job)
        return job

    def __len__(self) -> int:
        return len(self._in_order)

    def _prefix(self) -> str:
        """The prefix of the job that is next."""
        for prefixes in self._sharing.known():
            for prefix in prefixes:
                if prefix in self._groups:
                    return prefix
        return max(self._groups, key=self._work_for_each)

    def _work_for_each(self, prefix: str) -> float:
        """How much work of that prefix waits for each worker that would do it."""
        weight = _WITH_HEADERS if prefix else 1
        return weight * len(self._groups[prefix]) / (1 + self._sharing.sharers(prefix))

    def _remove(self, job: T) -> None:
        del self._in_order[job]
        group = self._groups[job.prefix]
        del group[job]
        if not group:
            del self._groups[job.prefix]
