"""Which workers know which headers, and when it pays to keep them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ._process import WorkerProcess

_OFTEN = 2


class Sharing:
    """What the workers of one pool know, so that jobs which begin alike meet there.

    To keep a job's headers takes a third of a compile, and then each that begins like it
    takes a third: it pays if another follows.

    Args:
        most: How many workers there may be.
        workers: All workers, whenever that is asked.
        idle: Those that have nothing to do, the last to be busy last.
    """

    def __init__(
        self,
        most: int,
        workers: Collection[WorkerProcess],
        idle: Sequence[WorkerProcess],
    ) -> None:
        self._most = most
        self._workers = workers
        self._idle = idle
        self._distrusted: set[str] = set()

    def known(self) -> Iterable[Iterable[str]]:
        """The prefixes that each idle worker knows, first those of the last to be busy."""
        return [worker.prefixes for worker in reversed(self._idle)]

    def keepers(self, prefix: str) -> int:
        """How many workers keep the headers of a prefix."""
        return sum(prefix in worker.kept for worker in self._workers)

    def keep(self, worker: WorkerProcess, prefix: str, more: int) -> str:
        """The prefix, if a worker is to keep its headers or begin with them; else empty.

        Headers are kept if there are more jobs of the prefix than free workers, which
        would be done with one each before, or if this worker has had it often.

        Args:
            worker: The worker that has the job, and is not idle.
            prefix: The job's.
            more: How many other jobs of that prefix wait.
        """
        if not prefix or prefix in self._distrusted:
            return ""
        free = self._most - len(self._workers) + len(self._idle)
        pays = more > free or worker.prefixes[prefix] >= _OFTEN
        worker.prefixes[prefix] += 1
        if prefix not in worker.kept and not pays:
            return ""
        worker.kept.add(prefix)
        return prefix

    def distrust(self, prefix: str) -> None:
        """Have no worker keep these headers any more: one died of it."""
        self._distrusted.add(prefix)
