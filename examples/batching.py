"""Dynamic batching: what comes at about the same time and fits together is run together.

`server.py` gives each request's rows to a `Batcher`, which runs those of one row length as
one launch and gives each request its own rows back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
from anyio.abc import TaskGroup

from softmax import Array


class Overloaded(Exception):
    """More rows wait than may: the client is to come again later."""


class BatchFailed(Exception):
    """The run that these rows were part of failed; its error is the cause."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a request gets back.

    Attributes:
        rows: Its own rows of the result.
        served: What ran them, as `run` named it.
        batch: How many requests ran together.
    """

    rows: Array
    served: str
    batch: int


@dataclass(slots=True, eq=False)
class _Waiting:
    rows: Array
    result: asyncio.Future[Result] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


Run = Callable[[Array], Awaitable[tuple[Array, str]]]


class Batcher:
    """Runs rows of one length together, one batch of each length at a time.

    The first request for a length waits `window` for others to join it. What comes while
    a batch runs is the next one: the busier the server, the larger its batches. A run that
    fails fails its own batch only, and a request whose client has left is left out.

    Args:
        tasks: Where batches run; they end with it.
        run: Runs a batch; gives its results, row by row, and a name of what ran them.
        window: Seconds to wait for others.
        most_rows: How many rows run together; a request is never split.
        most_waiting: How many rows may wait or run; those of one request more are refused.

    Attributes:
        rows: How many rows wait or run.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        run: Run,
        *,
        window: float = 0.001,
        most_rows: int = 256,
        most_waiting: int = 4096,
    ) -> None:
        self.rows = 0
        self._tasks = tasks
        self._run = run
        self._window = window
        self._most_rows = most_rows
        self._most_waiting = most_waiting
        self._waiting: dict[int, deque[_Waiting]] = {}

    async def submit(self, rows: Array) -> Result:
        """Run the rows with others of their length.

        Raises:
            Overloaded: Too many rows wait.
            BatchFailed: The run failed.
        """
        if self.rows + len(rows) > self._most_waiting:
            raise Overloaded(f"{self.rows} rows wait")
        one, columns = _Waiting(rows), rows.shape[1]
        self.rows += len(rows)
        try:
            if columns in self._waiting:
                self._waiting[columns].append(one)
            else:
                self._waiting[columns] = deque([one])
                self._tasks.start_soon(self._serve, columns)
            return await one.result
        finally:
            self.rows -= len(rows)

    async def _serve(self, columns: int) -> None:
        """Run batch after batch of one length, until none waits."""
        waiting = self._waiting[columns]
        while waiting:
            if sum(len(one.rows) for one in waiting) < self._most_rows:
                await asyncio.sleep(self._window)
            batch = self._take(waiting)
            if batch:
                await self._run_batch(batch)
        del self._waiting[columns]

    def _take(self, waiting: deque[_Waiting]) -> list[_Waiting]:
        """The next batch, at least one request, without those that nobody awaits."""
        batch: list[_Waiting] = []
        rows = 0
        while waiting and (not batch or rows + len(waiting[0].rows) <= self._most_rows):
            one = waiting.popleft()
            if not one.result.done():
                batch.append(one)
                rows += len(one.rows)
        return batch

    async def _run_batch(self, batch: list[_Waiting]) -> None:
        try:
            results, served = await self._run(np.concatenate([one.rows for one in batch]))
        except Exception as error:  # noqa: BLE001 - whatever it is, its requests get it
            for one in batch:
                if not one.result.done():
                    failed = BatchFailed(str(error))
                    failed.__cause__ = error
                    one.result.set_exception(failed)
            return
        first = 0
        for one in batch:
            last = first + len(one.rows)
            if not one.result.done():
                one.result.set_result(Result(results[first:last], served, len(batch)))
            first = last
