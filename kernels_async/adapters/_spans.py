"""The spans of one build and of those who wait for it, made of its events."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import Attributes

from .._errors import ClosedError
from .._events import Event

PREFIX = "kernels_async."


class _Phase(NamedTuple):
    """What goes on in a build; it becomes a span when it is over."""

    name: str
    began: float
    attributes: Attributes = None


class BuildSpan:
    """The span of one build, under the span of who asked first, and those below it.

    While it goes on, it and the spans of its waiters are all that is open.

    Args:
        tracer: Makes the spans.
        event: `requested`, told in the task of who asks.
    """

    def __init__(self, tracer: Tracer, event: Event) -> None:
        self._tracer = tracer
        self._wall_zero = time.time_ns() - time.monotonic_ns()
        self._attributes = _attributes(event)
        self._span = tracer.start_span(
            PREFIX + "build",
            attributes=self._attributes,
            start_time=self._wall(event.time),
        )
        self._below = set_span_in_context(self._span)
        self._phase: _Phase | None = _Phase("queue", event.time)
        self._waits: list[_Wait] = []

    def join(self, event: Event) -> None:
        """One more waits; told in that one's task."""
        span = self._tracer.start_span(
            PREFIX + "wait",
            attributes=self._attributes,
            links=[Link(self._span.get_span_context())],
            start_time=self._wall(event.time),
        )
        self._waits.append(_Wait(span))

    def follow(self, event: Event) -> None:
        """What happens to it between `requested` and its end."""
        match event.kind:
            case "found" if event.seconds is not None:
                self._next(event.time - event.seconds, "read")
                self._next(event.time)
            case "found" | "kept":
                self._next(event.time)
            case "compiling":
                self._next(event.time, "compile", {PREFIX + "worker": event.worker or 1})
            case "compiled":
                self._next(event.time, "keep")
            case "loading":
                self._next(event.time, "load")
        if event.artifact is not None:
            self._span.set_attribute(PREFIX + "origin", event.artifact.origin)

    def succeed(self, event: Event) -> None:
        """The kernel is loaded; its load is no span if one of the same bytes served."""
        if event.seconds is not None:
            self._phase = _Phase("load", event.time - event.seconds)
            self._next(event.time)
        self.end(event.time)

    def fail(self, event: Event) -> None:
        """It failed; or it ended with nobody's doing, which is no failure."""
        error = None if isinstance(event.error, ClosedError) else event.error
        if error is None:
            self._span.add_event(
                "dropped", {"reason": str(event.error)}, self._wall(event.time)
            )
        self._next(event.time, error=error)
        self.end(event.time, error)

    def end(self, at: float, error: Exception | None = None) -> None:
        """End it, and the spans of all who wait."""
        ended = self._wall(at)
        for wait in self._waits:
            wait.end(ended, error)
        _end(self._span, ended, error)

    def _next(
        self,
        at: float,
        name: str | None = None,
        attributes: Attributes = None,
        error: Exception | None = None,
    ) -> None:
        """End the phase as a span, and begin that of `name`."""
        if self._phase is not None:
            began = self._phase.began
            at = max(began, at)
            span = self._tracer.start_span(
                PREFIX + self._phase.name,
                self._below,
                attributes=self._phase.attributes,
                start_time=self._wall(began),
            )
            _end(span, self._wall(at), error)
        self._phase = None if name is None else _Phase(name, at, attributes)

    def _wall(self, at: float) -> int:
        """A time of `time.monotonic()` as nanoseconds of the wall clock."""
        return self._wall_zero + round(at * 1e9)


class _Wait:
    """The span of one more who waits: until the build ends, or the task that waits."""

    def __init__(self, span: Span) -> None:
        self._span: Span | None = span
        self._task = asyncio.current_task()
        if self._task is not None:
            self._task.add_done_callback(self._leave)

    def _leave(self, _: asyncio.Task[object]) -> None:
        self.end(time.time_ns())

    def end(self, at: int, error: Exception | None = None) -> None:
        """End it, once."""
        span, self._span = self._span, None
        if span is not None:
            _end(span, at, error)
        if self._task is not None:
            self._task.remove_done_callback(self._leave)


def _end(span: Span, at: int, error: Exception | None) -> None:
    if error is not None:
        span.record_exception(error, timestamp=at)
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error).partition("\n")[0]))
    span.end(at)


def _attributes(event: Event) -> dict[str, str]:
    attributes = {"symbol": event.symbol, "key": event.key, "target": event.target}
    if event.device is not None:
        attributes["device"] = event.device
    return {PREFIX + name: value for name, value in attributes.items()}
