"""Kills workers that hold more memory than a compile may."""

from __future__ import annotations

from collections.abc import Collection

import anyio

from ._machine import resident_bytes
from ._process import WorkerProcess
from ._scope import Scope
from ._threads import in_thread

SAMPLE_SECONDS = 0.05


class MemoryGuard:
    """Looks again and again at what busy workers hold, while any is busy.

    It exists because a limit of the kernel's is one of addresses, of which compilers
    reserve far more than they use.

    Args:
        scope: Owns the task that looks.
        limit: Bytes of resident memory above which a worker is killed.
        busy: The workers that are busy, whenever that is asked.
    """

    def __init__(self, scope: Scope, limit: int, busy: Collection[WorkerProcess]) -> None:
        self._scope = scope
        self._limit = limit
        self._busy = busy
        self._looking = False

    def watch(self) -> None:
        """Begin to look, unless that is done already."""
        if not self._looking:
            self._looking = True
            self._scope.start_soon(self._look)

    async def _look(self) -> None:
        try:
            while self._busy:
                await anyio.sleep(SAMPLE_SECONDS)
                for worker, held in await in_thread(_holdings, set(self._busy)):
                    if held > self._limit and worker in self._busy:
                        worker.over_memory = True
                        worker.stop()
        finally:
            self._looking = False


def _holdings(workers: set[WorkerProcess]) -> list[tuple[WorkerProcess, int]]:
    return [(worker, resident_bytes(worker.pid)) for worker in workers]
