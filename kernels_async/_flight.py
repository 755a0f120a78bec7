"""One artifact in the making."""

from __future__ import annotations

import time
from typing import Protocol

import anyio

from ._artifact import Artifact
from ._outcome import Outcome
from .toolchains import Job

_FIRST_LOOK_SECONDS = 0.005
_LONGEST_LOOK_SECONDS = 0.25


class Flight(Outcome[Artifact]):
    """One artifact in the making, for all who wait for it.

    Args:
        owner: Makes it.
        key: The artifact's key.
        job: What to compile.
        background: Whether it may wait for those that are not.

    Attributes:
        key: The artifact's key.
        job: What to compile.
        background: Whether it may wait for those that are not.
        prefix: What its job shares with others, if it is to be compiled.
        begun: Whether a worker has the job: from then on it is made, wanted or not.
        worker: The number of the worker that has it, or had it last.
        patience: How long it waits for another process that has its lock.
    """

    __slots__ = (
        "_owner",
        "background",
        "begun",
        "job",
        "key",
        "patience",
        "prefix",
        "worker",
    )

    def __init__(self, owner: Owner, key: str, job: Job, background: bool) -> None:
        super().__init__()
        self._owner = owner
        self.key: str = key
        self.job: Job = job
        self.background: bool = background
        self.prefix: str = ""
        self.begun: bool = False
        self.worker: int | None = None
        self.patience: Patience | None = None

    def abandon(self) -> None:
        """Be dropped, if no worker has the job."""
        self._owner.drop(self)

    def hurry(self) -> None:
        """Wait no longer for those that are not in the background: somebody waits."""
        if self.background:
            self._owner.hurry(self)


class Owner(Protocol):
    """Whoever makes flights; see `Maker`."""

    def drop(self, flight: Flight) -> None:
        """Do not make what nobody waits for, unless a worker has begun."""

    def hurry(self, flight: Flight) -> None:
        """Make it before those that may wait."""


class Patience:
    """Waits for another process, at first often, and not for ever.

    Args:
        seconds: For how long.
    """

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._pause = _FIRST_LOOK_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether it has waited long enough."""
        return time.monotonic() > self._ends

    async def pause(self) -> None:
        """Wait a little, and the next time longer."""
        await anyio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_LOOK_SECONDS)
