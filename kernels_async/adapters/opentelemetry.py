"""Spans and metrics of caches for OpenTelemetry; needs the extra `opentelemetry`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter,
)
from opentelemetry.trace import Tracer, TracerProvider, get_tracer

from .._events import Event
from .._kernels import Kernels
from ._numbers import NUMBERS, Number, numbers_of
from ._spans import PREFIX, BuildSpan

_NAME = "kernels_async"


def trace(
    kernels: Kernels, tracer_provider: TracerProvider | None = None
) -> Callable[[], None]:
    """Make spans of what happens in a cache, under the requests that cause it.

    It exists so that a slow request says that it waited for a kernel, and for what::

        the request's own span
        └── kernels_async.build             who asks first: until it is loaded, or failed
            ├── kernels_async.queue         until it is read, or a worker has it
            ├── kernels_async.read          it was there, on disk or at a remote store
            ├── kernels_async.compile       with the number of the worker
            ├── kernels_async.keep          written to disk
            └── kernels_async.load

    Whoever asks while it is built has a span `kernels_async.wait` of their own, linked to
    the build, which belongs to another trace; it ends with the build, or with the task
    that waits. Attributes `kernels_async.symbol`, `.key`, `.target`, `.device` and
    `.origin` say which kernel, and where from. A failure is recorded, with the status. A
    build that nobody waited for any more, or that the close of the cache ended, has an
    event `dropped`, and is no error.

    A hit makes no span, and costs nothing more. Spans are made in the event loop: export
    them in batches. Call it after a fork, as with everything of OpenTelemetry.

    Args:
        kernels: The cache, and all its clones.
        tracer_provider: By default the global one.

    Returns:
        What ends it, and every span that is open.
    """
    spans = _Spans(get_tracer(_NAME, tracer_provider=tracer_provider))
    stop = kernels.listen(spans.tell)

    def end() -> None:
        stop()
        spans.end()

    return end


def measure(
    *caches: Kernels, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Have the numbers of caches observed, at each export as they are then.

    They are those of `Kernels.stats` and `progress`, by the names that Prometheus has
    them under, such as `kernels_async.requests`. Name all caches of the process in one
    call: a meter has each instrument once.

    Args:
        caches: Of which to tell; they are held until it ends.
        meter_provider: By default the global one.

    Returns:
        What ends it.
    """
    meter = get_meter(_NAME, meter_provider=meter_provider)
    watched = list(caches)
    for number in NUMBERS:
        _instrument(meter, number, watched)
    return watched.clear


class _Spans:
    """The builds that are open, by the key of their artifact."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._builds: dict[str, BuildSpan] = {}

    def tell(self, event: Event) -> None:
        """Something happened; of a build that had begun before nothing is told."""
        build = self._builds.get(event.key)
        if event.kind == "requested":
            if build is not None:
                build.end(event.time)
            self._builds[event.key] = BuildSpan(self._tracer, event)
        elif build is not None:
            match event.kind:
                case "joined":
                    build.join(event)
                case "loaded":
                    del self._builds[event.key]
                    build.succeed(event)
                case "failed":
                    del self._builds[event.key]
                    build.fail(event)
                case _:
                    build.follow(event)

    def end(self) -> None:
        """End every span that is open."""
        while self._builds:
            _, build = self._builds.popitem()
            build.end(time.monotonic())


class _Create(Protocol):
    """Makes an instrument that is observed; see `Meter`."""

    def __call__(
        self,
        name: str,
        callbacks: list[Callable[[CallbackOptions], Iterable[Observation]]],
        unit: str,
        description: str,
    ) -> object: ...


def _instrument(meter: Meter, number: Number, caches: list[Kernels]) -> None:
    create: dict[str, _Create] = {
        "counter": meter.create_observable_counter,
        "level": meter.create_observable_up_down_counter,
        "longest": meter.create_observable_gauge,
    }

    def observe(_: CallbackOptions) -> list[Observation]:
        names = [PREFIX + label for label in number.labels]
        return [
            Observation(value, dict(zip(names, labels, strict=True)))
            for _, values in numbers_of(list(caches), [number])
            for labels, value in values.items()
        ]

    unit = "s" if number.unit else "1"
    create[number.kind](PREFIX + number.name, [observe], unit, number.help)
