"""A reporter that keeps a page of what is built."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

import anyio

from ._artifact import Artifact
from ._build import Build
from ._collector import KEPT, BuildCollector
from ._events import Event
from ._replacing import replacing
from ._threads import in_thread
from .page import render_page

_REST = 0.5
_PAUSES = 20  # times as long as it took to write

logger = logging.getLogger("kernels_async")


class HtmlReporter:
    """Writes one HTML page of everything that was built, for `Kernels.reporting`.

    It exists so that whoever runs a server sees at a glance what its kernels cost: when
    each was compiled and loaded and by whom, what it needs, what the compiler said. The
    page needs neither another file nor the network, and `read_build` reads it back.

    It is written whenever nothing has been outstanding for half a second, in a thread,
    to a temporary file beside it that then takes its name; and when the cache closes. A
    page that cannot be written is told once in the log `kernels_async`, and harms no
    kernel. It belongs to one event loop; several caches of it may share one.

    Args:
        path: The file. It quotes source lines, so mind who can read it.
        limit: How many finished kernels are kept: the newest.
        rest: Seconds for which nothing is outstanding before it is written.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, limit: int = KEPT, rest: float = _REST
    ) -> None:
        self._path = Path(path)
        self._rest = rest
        self._collector = BuildCollector(limit)
        self._lock = anyio.Lock()
        self._stale = False
        self._complained = False
        self._changed = self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing: asyncio.Task[None] | None = None

    @property
    def build(self) -> Build:
        """What is known now."""
        return self._collector.build()

    async def __call__(self, artifact: Artifact) -> None:
        """Remember the artifact; its times are known if the events are told too."""
        self._collector.add(artifact)
        self._change()

    def event(self, event: Event) -> None:
        """Remember what happened; `Kernels.reporting` has each event told to this."""
        self._collector(event)
        self._change()

    async def write(self) -> None:
        """Write the page now.

        Raises:
            OSError: It cannot be written.
        """
        async with self._lock:
            self._stale = False
            began = time.monotonic()
            try:
                await in_thread(_write, self._path, self.build)
            except BaseException:
                self._stale = True
                raise
            finally:
                ended = time.monotonic()
                self._not_before = ended + _PAUSES * (ended - began)

    async def aclose(self) -> None:
        """Write the page if something happened since; it may be used afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
        if self._stale:
            await self._try_to_write()

    def _change(self) -> None:
        self._stale = True
        self._changed = time.monotonic()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # it is written by `write` or `aclose`
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(self._rest, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the page if it is time; what is outstanding ends with an event."""
        self._timer = None
        if self._collector.outstanding or not self._stale:
            return
        due = max(self._changed + self._rest, self._not_before) - time.monotonic()
        if due > 0:
            self._timer = loop.call_later(due, self._look, loop)
        else:
            self._writing = loop.create_task(self._try_to_write())

    async def _try_to_write(self) -> None:
        try:
            await self.write()
        except Exception as error:  # noqa: BLE001 - a page is worth no server
            if not self._complained:
                logger.warning("the page %s cannot be written: %s", self._path, error)
            self._complained = True
        else:
            self._complained = False


def _write(path: Path, build: Build) -> None:
    page = render_page(build).encode()
    with replacing(path) as file:
        file.write(page)
