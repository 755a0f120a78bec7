"""Who is to blame when workers die: a source that kills them, or the toolchain."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from ._errors import KernelsError, QuarantinedError, ToolchainError

DEATHS = 2
_KEYS = 10_000
_TEXT_LIMIT = 2_000

START_FAILURES = 3
BACK_OFF_SECONDS = 1.0
_LONGEST_BACK_OFF = 60.0


class Quarantine:
    """The requests whose compiles killed workers, by key, with what each death was.

    It outlives the pools that it serves, and may be used from any thread. Of very many
    such requests the oldest are forgotten.
    """

    def __init__(self) -> None:
        self._deaths: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, key: str, name: str) -> None:
        """Refuse a request that has killed enough workers.

        Args:
            key: The request's.
            name: What the message calls it.

        Raises:
            QuarantinedError: It has.
        """
        deaths = self._deaths.get(key, ())
        if len(deaths) >= DEATHS:
            raise QuarantinedError(
                f"{name} is not compiled again: it killed {len(deaths)} workers; the last: "
                f"{deaths[-1]}\nhint: Compiler.forget(source, specialization) allows it",
                history=deaths,
            )

    def blame(self, key: str, error: KernelsError) -> None:
        """Count one death."""
        with self._lock:
            self._deaths[key] = (*self._deaths.get(key, ()), str(error)[:_TEXT_LIMIT])
            self._deaths.move_to_end(key)
            if len(self._deaths) > _KEYS:
                self._deaths.popitem(last=False)

    def forget(self, key: str) -> None:
        """Drop what is known of a request."""
        with self._lock:
            self._deaths.pop(key, None)


class Circuit:
    """Whether to try to start a worker, after so many that did not start.

    It exists so that a broken installation costs each job an error at once, and not the
    start of a process.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._last = ""
        self._open_until = 0.0

    def check(self) -> None:
        """Refuse to start a worker while it is no use.

        Raises:
            ToolchainError: Too many did not start, one after the other.
        """
        left = self._open_until - time.monotonic()
        if left > 0:
            raise ToolchainError(
                f"{self._last} (so did {self._failures} workers, one after the other; the "
                f"next is tried in {left:.0f} s)"
            )

    def failed(self, error: ToolchainError) -> None:
        """Count one that did not start."""
        self._failures += 1
        self._last = str(error)
        beyond = self._failures - START_FAILURES
        if beyond >= 0:
            wait = min(BACK_OFF_SECONDS * 2 ** min(beyond, 16), _LONGEST_BACK_OFF)
            self._open_until = time.monotonic() + wait

    def succeeded(self) -> None:
        """One started."""
        self._failures = 0
