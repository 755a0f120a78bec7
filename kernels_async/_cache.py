"""What all clones of one `Kernels` share: its state, and the path of a kernel."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from ._batch import Batch
from ._compiler import Compiler
from ._errors import BuildError, ClosedError, DeviceMismatchError, WrongLoopError
from ._lane import Lane
from ._loader import Loader
from ._maker import Flight
from ._outcome import Outcome
from ._outside import disown_in_children, wait_from_thread
from ._pending import Attempt, Pending
from ._report import Reporting
from ._scope import Scope
from ._source import Source, as_source
from ._specialization import Specialization, as_specialization
from ._threads import in_thread
from .devices import Device, Kernel, open_device

_CLOSE_SECONDS = 1.0
_LANE_WIDTH = 64


class Cache:
    """The kernels of one device: requested, being built and loaded.

    It opens itself at the first await that needs more than it has, inside the scope of
    its compiler, and ends when it is closed or its compiler is.

    Args:
        compiler: Makes the artifacts.
        device: An open device, or what `open_device` takes.
        max_outstanding: How many requests may be not loaded yet; `None` for any number.

    Raises:
        SpecificationError: `max_outstanding` cannot be right.
    """

    def __init__(
        self, compiler: Compiler, device: Any, max_outstanding: int | None
    ) -> None:
        self.compiler = compiler
        self.batch = Batch(max_outstanding)
        self.reporting = Reporting(compiler)
        self._parts: _Parts | None = None
        self._wanted_device = device
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: Outcome[None] | None = None
        self._building = anyio.Lock()
        self._flushing = False
        self._ended: str | None = None
        disown_in_children(self)

    async def _make(self) -> None:
        """The path of one kernel, from its request to the settled `Pending`.

        It runs in a task of the cache's scope, once its artifact is there: callers only
        wait for what it settles.
        """
        made = None if self._parts is None else self._parts.lane.take()
        if made is None:
            return
        pending, attempt, flight = made
        try:
            # store.read, or else pool.compile and store.publish: see `Maker`
            artifact = await flight.wait()
            if not pending.reported:
                pending.reported = await self.reporting.report(artifact)
            kernel = await self._open_parts().loader.load(artifact)
        except Exception as error:  # noqa: BLE001 - whatever it is, its waiters get it
            self.batch.fail(pending, attempt, error)
        else:
            self.batch.succeed(pending, attempt, kernel)

    def pending(
        self, source: Source | str, specialization: Specialization | str
    ) -> Pending:
        """The request of that source and specialization; nothing starts."""
        pair = (source, specialization)
        found = self.batch.by_pair.get(pair)
        if found is not None:
            return found
        self._refuse()
        source, specialization = as_source(source), as_specialization(specialization)
        key = self.compiler.key(source, specialization)
        return self.batch.add(pair, key, lambda: Pending(self, key, source, specialization))

    def request(
        self, source: Source | str, specialization: Specialization | str
    ) -> Pending:
        """The request, outstanding until it is built."""
        self._refuse()
        pending = self.pending(source, specialization)
        self.batch.request(pending)
        return pending

    def loaded(
        self, source: Source | str, specialization: Specialization | str
    ) -> Kernel | None:
        """The kernel if it is loaded; never waits."""
        found = self.batch.by_pair.get((source, specialization))
        if found is None and self._ended is None:
            with contextlib.suppress(ClosedError):  # a compiler that is not open
                found = self.batch.find(self.compiler.key(source, specialization))
        return None if found is None else found.kernel

    async def get(
        self,
        source: Source | str,
        specialization: Specialization | str,
        stream: Any = None,
    ) -> Kernel:
        """The kernel of that source and specialization, built alone if it is not loaded."""
        await self.ready(stream)
        return await self.obtain(self.pending(source, specialization))

    async def obtain(self, pending: Pending) -> Kernel:
        """Build `pending` alone, if it is not loaded."""
        if pending.kernel is not None:
            return pending.kernel
        attempt = pending.attempt
        if attempt is None:
            (attempt,) = self._start([pending])
        return await attempt.wait()

    def from_thread(
        self,
        source: Source | str,
        specialization: Specialization | str,
        stream: Any,
        timeout: float | None,
    ) -> Kernel:
        """`get`, blocking a thread that runs no event loop."""
        self._refuse()
        return wait_from_thread(
            self._loop, lambda: self.get(source, specialization, stream), timeout
        )

    async def resolve(self, pending: Pending, stream: Any = None) -> Kernel:
        """Build `pending` with everything outstanding, at the end of the loop's turn."""
        if pending.kernel is not None and stream is None:
            return pending.kernel
        await self.ready(stream)
        if pending.kernel is not None:
            return pending.kernel
        attempt = pending.attempt
        if attempt is None:
            self._schedule()
            attempt = self.batch.claim(pending)
        return await attempt.wait()

    async def build(self, stream: Any = None) -> None:
        """Build everything outstanding in one batch, after the one that is active."""
        await self.ready(stream)
        async with self._building:
            for active in self.batch.attempts():
                await active.error()
            self._start(self.batch.waiting())
            batch = self.batch.attempts(requested=True)
            failures = [e for e in [await a.error() for a in batch] if e is not None]
        if self._ended is not None:
            raise ClosedError("the cache closed while it was building")
        if failures:
            raise BuildError(f"{len(failures)} of {len(batch)} kernels failed", failures)

    def _start(self, pendings: list[Pending]) -> list[Attempt]:
        """Have the artifacts of `pendings` made; `_make` goes on with each that arrives."""
        self._open_parts()
        attempts = [self.batch.take(pending) for pending in pendings]
        for pending, attempt in zip(pendings, attempts, strict=True):
            try:
                flight = self.compiler._flight(
                    pending.key, pending.source, pending.specialization
                )
            except ClosedError as error:
                self.batch.fail(pending, attempt, error)
            else:
                attempt.follow(flight, partial(self._arrive, pending, attempt, flight))
        return attempts

    def _arrive(self, pending: Pending, attempt: Attempt, flight: Flight) -> None:
        with contextlib.suppress(ClosedError):  # the end settles everything
            self._open_parts().lane.put((pending, attempt, flight))

    def _schedule(self) -> None:
        """Start everything outstanding once the tasks that are ready now have run."""
        if not self._flushing:
            scope = self._open_parts().scope
            self._flushing = True
            scope.start_soon(self._flush)

    async def _flush(self) -> None:
        self._flushing = False
        if self._ended is None:
            self._start(self.batch.waiting())

    def _refuse(self) -> None:
        """Raise if the cache takes no more work, or not from here."""
        if self._ended is not None:
            raise ClosedError(self._ended)
        self.reporting.refuse_reentry()

    async def ready(self, stream: Any) -> None:
        """Check that the caller may wait here; open the cache if it is not yet."""
        self._refuse()
        await self.open()
        parts = self._open_parts()
        if stream is not None:
            parts.device.check_stream(stream)

    def _open_parts(self) -> _Parts:
        if self._ended is not None or self._parts is None:
            raise ClosedError(self._ended or "the cache is not open")
        return self._parts

    async def open(self) -> None:
        """Open the device and the scope, if they are not open, and wait for that.

        A task of the compiler's scope opens them, so that a waiter that is cancelled
        takes nothing from the others.
        """
        self._refuse()
        if self._opening is None:
            opening: Outcome[None] = Outcome()
            ended = ClosedError("the compiler closed while the cache opened")
            self.compiler._scope.start_soon(
                self._open, opening, dropped=partial(opening.fail, ended)
            )
            self._opening, self._loop = opening, asyncio.get_running_loop()
        elif self._loop is not asyncio.get_running_loop():
            raise WrongLoopError("the cache was opened in another event loop")
        await self._opening.wait()

    async def _open(self, opening: Outcome[None]) -> None:
        try:
            await self._open_scope_and_device()
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait get it
            self._opening = self._loop = None
            opening.fail(error)
        else:
            opening.succeed(None)
        finally:
            opening.fail(ClosedError("the compiler closed while the cache opened"))

    async def _open_scope_and_device(self) -> None:
        parent = self.compiler._scope
        device = await self._open_device()
        scope = Scope(parent, lambda: self._end(device))
        try:
            if not device.accepts(self.compiler.target):
                raise DeviceMismatchError(
                    f"{device.name} ({device.target}) does not run code for "
                    f"{self.compiler.target}"
                )
            await scope.open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await in_thread(device.close)
            raise
        if self._ended is not None:
            await scope.aclose()
            raise ClosedError("the cache closed while it opened")
        self._parts = _Parts(
            device, scope, Loader(device, scope), Lane(scope, _LANE_WIDTH, self._make)
        )

    async def _open_device(self) -> Device:
        wanted = self._wanted_device
        if isinstance(wanted, Device):
            return wanted
        if wanted is None:
            wanted = "cpu" if self.compiler.target == "cpu" else "cuda"
        return await in_thread(open_device, wanted)

    async def _end(self, device: Device) -> None:
        """Settle everything and let go of the device, whoever ended the scope.

        A load that waits for a running kernel is not waited for.
        """
        self._close()
        with anyio.move_on_after(_CLOSE_SECONDS):
            await in_thread(device.close, abandon=True)

    def _close(self) -> None:
        self._ended = self._ended or "the cache is closed"
        self.batch.clear(ClosedError("the cache closed"))

    def disown(self) -> None:
        """Refuse all work, in a forked child of the process that opened it."""
        self._ended = self._ended or (
            f"the cache was opened by process {os.getppid()}, of which this one is a "
            "fork: open one here"
        )
        self._parts = None
        self.batch.disown()

    async def aclose(self) -> None:
        """End all work, settle every request, let go of the device; idempotent."""
        self.reporting.refuse_reentry()
        loop = self._loop
        if loop not in (None, asyncio.get_running_loop()) and self._ended is None:
            if not loop.is_closed():
                raise WrongLoopError("the cache was opened in another event loop")
            self._parts = self._opening = None
        self._close()
        if self._opening is not None:
            await self._opening.error()
        if self._parts is not None:
            await self._parts.scope.aclose()

    def __len__(self) -> int:
        return 0 if self._parts is None else len(self._parts.loader.executables)

    def __repr__(self) -> str:
        if self._parts is not None:
            device = self._parts.device.name
        else:
            wanted = self._wanted_device
            device = self.compiler.target if wanted is None else str(wanted)
        outstanding = len(self.batch.outstanding)
        return f"<Kernels {device} loaded={len(self)} outstanding={outstanding}>"


@dataclass(frozen=True)
class _Parts:
    """What an open cache has."""

    device: Device
    scope: Scope
    loader: Loader
    lane: Lane[tuple[Pending, Attempt, Flight]]
