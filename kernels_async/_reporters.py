"""Ready-made reporters, for `Kernels.reporting`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from ._artifact import Artifact
from ._errors import SpillError
from ._events import Event, Hub
from ._report import Reporter, invoke

_logger = logging.getLogger("kernels_async")


class LoggingReporter:
    """Writes a line for each artifact to `logging`, and one for each of its warnings.

    It exists so that a server's log says what was built, from where, and what the
    compiler thought of it. It does not configure logging.

    Args:
        logger: Where to; by default the logger `kernels_async`.
        level: The level of an artifact's line; its warnings are warnings.
    """

    def __init__(self, logger: logging.Logger = _logger, level: int = logging.INFO) -> None:
        self._logger = logger
        self._level = level

    def __call__(self, artifact: Artifact) -> None:
        """Write the artifact's lines."""
        used = artifact.resources
        compiled = artifact.origin == "compiled"
        made = "compiled in" if compiled else f"from {artifact.origin}, which saved"
        needs = (
            f", {used.registers} registers, {used.spills} bytes spilled, "
            f"{used.shared} bytes shared"
            if used
            else ""
        )
        self._logger.log(
            self._level,
            "%s for %s: %s %.2f s%s",
            artifact.symbol,
            artifact.target,
            made,
            artifact.compile_seconds,
            needs,
        )
        for warning in artifact.warnings:
            self._logger.warning("%s: %s", artifact.symbol, warning)


class SpillPolicy:
    """Warns of kernels that spill registers, or refuses them.

    A spill is silent otherwise: the kernel is right, and slow. A refused kernel is not
    loaded, and whoever awaits it gets a `SpillError`. The cpu device has no registers.

    Args:
        warn: Bytes spilled by a thread, stores and loads together, from which to log a
            warning; `None` for never.
        reject: The same, from which to refuse the kernel.
        logger: Where the warning goes; by default the logger `kernels_async`.
    """

    def __init__(
        self,
        warn: int | None = 1,
        reject: int | None = None,
        logger: logging.Logger = _logger,
    ) -> None:
        self._warn = warn
        self._reject = reject
        self._logger = logger

    def __call__(self, artifact: Artifact) -> None:
        """Look at the artifact's spills.

        Raises:
            SpillError: It spills as much as is refused.
        """
        used = artifact.resources
        if used is None:
            return
        text = (
            f"{artifact.symbol} for {artifact.target} spills {used.spill_stores} bytes of "
            f"stores and {used.spill_loads} of loads with {used.registers} registers"
        )
        if self._reject is not None and used.spills >= self._reject:
            raise SpillError(f"{text}; {self._reject} are refused")
        if self._warn is not None and used.spills >= self._warn:
            self._logger.warning("%s", text)


class Reporters:
    """Calls several reporters, one after the other; the first that raises ends it.

    Those that have a method `event` are told each event, those that have a method
    `aclose` are closed, whatever the others do.

    Args:
        reporters: In the order in which they are called.
    """

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters: Sequence[Reporter] = reporters
        self._hub = Hub()
        for reporter in reporters:
            listener = getattr(reporter, "event", None)
            if listener is not None:
                self._hub.add(listener)

    async def __call__(self, artifact: Artifact) -> None:
        """Call each of them."""
        for reporter in self._reporters:
            await invoke(reporter, artifact)

    def event(self, event: Event) -> None:
        """Tell it to each of them that listens."""
        self._hub.tell(event)

    async def aclose(self) -> None:
        """Close each of them that can be closed; the last error is raised."""
        async with AsyncExitStack() as stack:
            for reporter in reversed(self._reporters):
                close = getattr(reporter, "aclose", None)
                if close is not None:
                    stack.push_async_callback(close)
