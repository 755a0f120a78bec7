"""What all clones of one `Kernels` share: its state, and the path of a kernel."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio

from ._batch import Batch
from ._compiler import Compiler
from ._errors import BuildError, ClosedError, FrozenError
from ._flight import Flight
from ._frozen import Freeze, Frozen
from ._home import Home, Parts
from ._lane import Lane
from ._ledger import Ledger
from ._outside import disown_in_children, wait_from_thread
from ._pending import Attempt, Pending
from ._report import Reporter, Reporting
from ._source import Source, as_source
from ._specialization import Specialization, as_specialization
from .devices import Kernel

_LANE_WIDTH = 64
_FAREWELL_SECONDS = 5.0

logger = logging.getLogger("kernels_async")


class Cache:
    """The kernels of one device: requested, being built and loaded.

    It opens itself at the first await that needs more than it has, inside the scope of
    its compiler, and ends when it is closed or its compiler is.

    Args:
        compiler: Makes the artifacts.
        device: An open device, or what `open_device` takes.
        max_outstanding: How many requests may be not loaded yet; `None` for any number.
        frozen: What becomes of a miss after the warm-up.

    Raises:
        SpecificationError: `max_outstanding` or `frozen` cannot be right.
    """

    def __init__(
        self,
        compiler: Compiler,
        device: Any,
        max_outstanding: int | None,
        frozen: Frozen = False,
    ) -> None:
        self.compiler = compiler
        self.batch: Batch = Batch(
            max_outstanding, lambda *ended: self.ledger.dropped(*ended)
        )
        self.freeze: Freeze = Freeze(frozen)
        self.reporting: Reporting = Reporting(compiler)
        self._farewells: list[Callable[[], Awaitable[None]]] = []
        self._stop_telling = _nothing
        self._home = Home(
            compiler,
            device,
            opened=self._opened,
            ending=self._ending,
            farewell=self._farewell,
        )
        self.ledger: Ledger = Ledger(compiler, self.batch, self._home)
        self._lane: Lane[tuple[Pending, Attempt, Flight]] | None = None
        self._building = anyio.Lock()
        self._flushing = False
        disown_in_children(self)

    async def _make(self) -> None:
        """The path of one kernel, from its request to the settled `Pending`.

        It runs in a task of the cache's scope, once its artifact is there: callers only
        wait for what it settles.
        """
        made = None if self._lane is None else self._lane.take()
        if made is None:
            return
        pending, attempt, flight = made
        try:
            # store.read, or else pool.compile and store.publish: see `Maker`
            artifact = await flight.wait()
            if not pending.reported:
                pending.reported = await self.reporting.report(artifact)
            loader = self._home.parts.loader
            self.ledger.made(pending, artifact)
            kernel = await loader.load(artifact)
        except Exception as error:  # noqa: BLE001 - whatever it is, its waiters get it
            if not attempt.settled:  # else the cache closed, and told it
                self.ledger.failed(pending, error)
                self.batch.fail(pending, attempt, error)
        else:
            if not attempt.settled:
                self.ledger.loaded(pending, artifact, kernel)
                self.batch.succeed(pending, attempt, kernel)

    def pending(
        self,
        source: Source | str,
        specialization: Specialization | str,
        *,
        background: bool = False,
    ) -> Pending:
        """The request of that source and specialization; nothing starts.

        Args:
            source: The source, or its text.
            specialization: The specialization, or its symbol alone.
            background: Whether it is a warm-up's, which neither `max_outstanding` nor
                `frozen` refuses.
        """
        pair = (source, specialization)
        found = self.batch.by_pair.get(pair)
        if found is not None:
            return found
        self._refuse()
        source, specialization = as_source(source), as_specialization(specialization)
        key = self.compiler.key(source, specialization)
        made = self.batch.find(key)
        if made is None:
            made = Pending(self, key, source, specialization)
            if self.freeze.refuses and not background:
                self._look_whether_frozen(made)
        return self.batch.add(pair, made, limited=not background)

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
        if found is None and self._home.ended is None:
            with contextlib.suppress(ClosedError):  # a compiler that is not open
                found = self.batch.find(self.compiler.key(source, specialization))
        return None if found is None else found.built()

    async def get(
        self,
        source: Source | str,
        specialization: Specialization | str,
        stream: Any = None,
    ) -> Kernel:
        """The kernel of that source and specialization, built alone if it is not loaded."""
        await self.enter(stream)
        return await self.obtain(self.pending(source, specialization))

    async def obtain(self, pending: Pending, *, background: bool = False) -> Kernel:
        """Build `pending` alone, if it is not loaded.

        Args:
            pending: The request.
            background: Whether it may wait for those that are not.
        """
        kernel = pending.kernel if background else pending.built()
        if kernel is not None:
            return kernel
        attempt = pending.attempt
        if attempt is None:
            (attempt,) = self._start([pending], background=background)
        elif not background:
            self.join(pending)
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
            self._home.loop, lambda: self.get(source, specialization, stream), timeout
        )

    async def resolve(self, pending: Pending, stream: Any = None) -> Kernel:
        """Build `pending` with everything outstanding, at the end of the loop's turn."""
        if stream is None and (kernel := next(pending.served, None)) is not None:
            return kernel
        await self.enter(stream)
        if (kernel := pending.built()) is not None:
            return kernel
        attempt = pending.attempt
        if attempt is None:
            self._schedule()
            attempt = self._begin(pending)
        else:
            self.join(pending)
        return await attempt.wait()

    async def build(self, stream: Any = None) -> None:
        """Build everything outstanding in one batch, after the one that is active."""
        await self.enter(stream)
        async with self._building:
            for active in self.batch.attempts():
                await active.error()
            started = self._start(self.batch.waiting())
            batch = dict.fromkeys((*started, *self.batch.hurry_requested()))
            failures = [e for e in [await a.error() for a in batch] if e is not None]
        if self._home.ended is not None:
            raise ClosedError("the cache closed while it was building")
        if failures:
            raise BuildError(f"{len(failures)} of {len(batch)} kernels failed", failures)

    def start(self, pendings: list[Pending]) -> None:
        """Begin to build those of `pendings` that nothing builds, and hurry the others."""
        self._start([p for p in pendings if p.key in self.batch.outstanding])
        for pending in pendings:
            self.batch.hurry(pending)

    def _start(self, pendings: list[Pending], *, background: bool = False) -> list[Attempt]:
        """Have the artifacts of `pendings` made; `_make` goes on with each that arrives."""
        self.ledger.started()
        attempts = [p.attempt or self._begin(p, background=background) for p in pendings]
        for pending, attempt in zip(pendings, attempts, strict=True):
            self.batch.take(pending, background=background)
            try:
                if self.freeze.on and not background:
                    self._look_whether_frozen(pending)
                flight = self.compiler._flight(
                    pending.key, pending.source, pending.specialization, background
                )
            except (ClosedError, FrozenError) as error:
                self.ledger.dropped(pending, error)
                self.batch.fail(pending, attempt, error)
            else:
                attempt.follow(flight, partial(self._arrive, pending, attempt, flight))
        return attempts

    def _begin(self, pending: Pending, *, background: bool = False) -> Attempt:
        """The attempt at what nobody builds yet, in the task of who wants it."""
        pending.asked += not background
        self.ledger.requested(pending)
        return self.batch.claim(pending)

    def join(self, pending: Pending) -> None:
        """One more waits for what is being built, and not in the background."""
        pending.asked += 1
        self.ledger.joined(pending)
        self.batch.hurry(pending)

    def _arrive(self, pending: Pending, attempt: Attempt, flight: Flight) -> None:
        if self._lane is not None:
            with contextlib.suppress(ClosedError):  # the end settles everything
                self._lane.put((pending, attempt, flight))

    def _schedule(self) -> None:
        """Start everything outstanding once the tasks that are ready now have run."""
        if not self._flushing:
            scope = self._home.parts.scope
            self._flushing = True
            scope.start_soon(self._flush)

    async def _flush(self) -> None:
        self._flushing = False
        if self._home.ended is None:
            self._start(self.batch.waiting())

    def _look_whether_frozen(self, pending: Pending) -> None:
        """Report the miss, or refuse it."""
        self.ledger.refused()
        self.freeze.miss(pending, self.batch.known())

    def _refuse(self) -> None:
        """Raise if the cache takes no more work, or not from here."""
        if self._home.ended is not None:
            raise ClosedError(self._home.ended)
        self.reporting.refuse_reentry()

    async def enter(self, stream: Any = None) -> None:
        """Check that the caller may wait here; open the cache if it is not yet."""
        self._refuse()
        await self._home.open()
        parts = self._home.parts
        if stream is not None:
            parts.device.check_stream(stream)

    def _opened(self, parts: Parts) -> None:
        self._lane = Lane(parts.scope, _LANE_WIDTH, self._make)
        self.ledger.follow()

    def _ending(self) -> None:
        self.batch.clear(ClosedError("the cache closed"))
        self.ledger.close()

    async def _farewell(self) -> None:
        """Let those who keep what happened write it down, and wait no longer than that."""
        with anyio.move_on_after(_FAREWELL_SECONDS):
            for farewell in (*self._farewells, self.reporting.aclose):
                try:
                    await farewell()
                except Exception:
                    logger.exception("what a cache kept could not be written at its end")

    def disown(self) -> None:
        """Refuse all work, in a forked child of the process that opened it."""
        self._home.disown()
        self._lane = None
        self.batch.disown()

    async def aclose(self) -> None:
        """End all work, settle every request, let go of the device; idempotent."""
        self.reporting.refuse_reentry()
        await self._home.aclose()

    def keep_up(
        self,
        run: Callable[[], Coroutine[Any, Any, None]],
        finish: Callable[[], Awaitable[None]],
    ) -> None:
        """Have `run` run while the cache is open, and then `finish`."""
        self._home.parts.scope.start_soon(run)
        self._farewells.append(finish)

    def report_to(self, reporter: Reporter | None) -> None:
        """Replace the reporter; one that has a method `event` gets the events too."""
        self._stop_telling()
        self.reporting.reporter = reporter
        event = getattr(reporter, "event", None)
        self._stop_telling = self.ledger.listen(event) if callable(event) else _nothing

    def __len__(self) -> int:
        return len(self._home)

    def __repr__(self) -> str:
        device, outstanding = self._home.device_name, len(self.batch.outstanding)
        return f"<Kernels {device} loaded={len(self)} outstanding={outstanding}>"


def _nothing() -> None:
    """What ends nothing."""
