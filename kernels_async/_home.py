"""Where a cache lives: its device, its scope and its loop, from opening to end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from ._compiler import Compiler
from ._errors import ClosedError, DeviceMismatchError, WrongLoopError
from ._loader import Loader
from ._maker import Maker
from ._outcome import Outcome
from ._scope import Scope
from ._threads import in_thread
from .devices import Device, open_device

_CLOSE_SECONDS = 1.0


@dataclass(frozen=True)
class Parts:
    """What an open cache has.

    Attributes:
        maker: Makes the artifacts, in this event loop.
        device: Loads artifacts into kernels.
        scope: Owns the cache's tasks.
        loader: The loaded kernels.
    """

    maker: Maker
    device: Device
    scope: Scope
    loader: Loader


class Home:
    """The parts of one cache, while it is open.

    It opens at the first await that needs it, inside the scope of the compiler, and ends
    when it is closed or the compiler is.

    Args:
        compiler: Makes the artifacts.
        device: An open device, or what `open_device` takes.
        opened: Called with the parts before anybody is served.
        ending: Called when it ends, before anything else happens.
        farewell: Awaited when all tasks of its scope have ended.

    Attributes:
        loop: The loop that owns it; `None` before it opens.
        ended: Why it takes no work any more; `None` while it does.
    """

    def __init__(
        self,
        compiler: Compiler,
        device: Any,
        *,
        opened: Callable[[Parts], None],
        ending: Callable[[], None],
        farewell: Callable[[], Awaitable[None]],
    ) -> None:
        self._compiler = compiler
        self._wanted_device = device
        self._opened = opened
        self._ending = ending
        self._farewell = farewell
        self._parts: Parts | None = None
        self._opening: Outcome[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ended: str | None = None

    @property
    def parts(self) -> Parts:
        """The parts.

        Raises:
            ClosedError: It is not open.
        """
        if self.ended is not None or self._parts is None:
            raise ClosedError(self.ended or "the cache is not open")
        return self._parts

    @property
    def is_open(self) -> bool:
        """Whether there are parts."""
        return self.ended is None and self._parts is not None

    @property
    def device_name(self) -> str:
        """Such as `cuda:0`; before it is open, what was asked for."""
        if self._parts is not None:
            return self._parts.device.name
        wanted = self._wanted_device
        return self._compiler.target if wanted is None else str(wanted)

    def __len__(self) -> int:
        return 0 if self._parts is None else len(self._parts.loader.executables)

    async def open(self) -> None:
        """Open the device and the scope, if they are not open, and wait for that.

        A task of the compiler's scope opens them, so that a waiter that is cancelled
        takes nothing from the others.
        """
        if self._opening is None:
            opening: Outcome[None] = Outcome()
            ended = ClosedError("the compiler closed while the cache opened")
            self._compiler._scope.start_soon(
                self._open, opening, dropped=partial(opening.fail, ended)
            )
            self._opening, self.loop = opening, asyncio.get_running_loop()
        elif self.loop is not asyncio.get_running_loop():
            raise WrongLoopError("the cache was opened in another event loop")
        await self._opening.wait()

    async def _open(self, opening: Outcome[None]) -> None:
        try:
            await self._open_parts()
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait get it
            self._opening = self.loop = None
            opening.fail(error)
        else:
            opening.succeed(None)
        finally:
            opening.fail(ClosedError("the compiler closed while the cache opened"))

    async def _open_parts(self) -> None:
        maker = self._compiler._maker()
        device = await self._open_device()
        scope = Scope(maker.scope, lambda: self._end(device))
        try:
            if not device.accepts(self._compiler.target):
                raise DeviceMismatchError(
                    f"{device.name} ({device.target}) does not run code for "
                    f"{self._compiler.target}"
                )
            await scope.open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await in_thread(device.close)
            raise
        if self.ended is not None:
            await scope.aclose()
            raise ClosedError("the cache closed while it opened")
        self._parts = Parts(maker, device, scope, Loader(device, scope))
        self._opened(self._parts)

    async def _open_device(self) -> Device:
        wanted = self._wanted_device
        if isinstance(wanted, Device):
            return wanted
        if wanted is None:
            wanted = "cpu" if self._compiler.target == "cpu" else "cuda"
        return await in_thread(open_device, wanted)

    async def _end(self, device: Device) -> None:
        """Settle everything and let go of the device, whoever ended the scope.

        A load that waits for a running kernel is not waited for.
        """
        self._close()
        try:
            await self._farewell()
        finally:
            with anyio.move_on_after(_CLOSE_SECONDS):
                await in_thread(device.close, abandon=True)

    def _close(self) -> None:
        self.ended = self.ended or "the cache is closed"
        self._ending()

    def disown(self) -> None:
        """Let go of everything, in a forked child: it is the parent's."""
        self.ended = self.ended or (
            f"the cache was opened by process {os.getppid()}, of which this one is a "
            "fork: open one here"
        )
        self._parts = None

    async def aclose(self) -> None:
        """End all work and let go of the device; idempotent."""
        if self.loop not in (None, asyncio.get_running_loop()) and self.ended is None:
            if not self.loop.is_closed():
                raise WrongLoopError("the cache was opened in another event loop")
            self._parts = self._opening = None
        self._close()
        if self._opening is not None:
            await self._opening.error()
        if self._parts is not None:
            await self._parts.scope.aclose()
