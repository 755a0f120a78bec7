"""Tests of the spans and metrics of a cache, with the SDK of OpenTelemetry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint, Sum
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kernels_async import CompileError, Compiler, Event, Kernels
from kernels_async.adapters.opentelemetry import measure, trace
from tests.processes import held_worker, until

SOURCE = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"
COMPILED = ["queue", "compile", "keep", "load"]


class Traced:
    """A tracer provider, and the spans that it has ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    async def request(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do some work under a span, as an instrumented server does."""
        with self.provider.get_tracer("server").start_as_current_span(name):
            await work()

    def ended(self, name: str) -> list[ReadableSpan]:
        """The spans of that name."""
        return [s for s in self.exporter.get_finished_spans() if s.name == name]

    def parent(self, span: ReadableSpan) -> str:
        """The name of the span that it hangs under."""
        assert span.parent is not None
        return next(
            one.name
            for one in self.exporter.get_finished_spans()
            if one.context.span_id == span.parent.span_id
        )

    def children(self, span: ReadableSpan) -> list[ReadableSpan]:
        """The spans directly under it, in the order of their begin."""
        found = [
            one
            for one in self.exporter.get_finished_spans()
            if one.parent is not None and one.parent.span_id == span.context.span_id
        ]
        return sorted(found, key=lambda one: one.start_time or 0)

    def below(self, span: ReadableSpan) -> list[str]:
        """The short names of those."""
        return [one.name.removeprefix("kernels_async.") for one in self.children(span)]

    def builds(self) -> dict[str, ReadableSpan]:
        """The spans of builds, by symbol."""
        return {fact(one, "symbol"): one for one in self.ended("kernels_async.build")}


def fact(span: ReadableSpan, name: str) -> str:
    """An attribute of a span."""
    return str((span.attributes or {}).get(f"kernels_async.{name}"))


@pytest.fixture
def traced() -> Iterator[Traced]:
    """A tracer provider that keeps its spans."""
    traced = Traced()
    yield traced
    traced.provider.shutdown()


@contextmanager
def wall_clock() -> Iterator[Callable[[ReadableSpan], bool]]:
    """Whether a span lies within the block, by the wall clock."""
    began = time.time_ns()
    ended: list[int] = []

    def within(span: ReadableSpan) -> bool:
        assert span.start_time is not None
        assert span.end_time is not None
        return began <= span.start_time + 1e6 and span.end_time - 1e6 <= ended[0]

    yield within
    ended.append(time.time_ns())


async def test_a_compiled_kernel_has_a_span_with_its_phases_below(traced: Traced) -> None:
    """Under the request that asked; their times are those of the events."""
    told: dict[str, Event] = {}
    async with Kernels.open("cpu", workers=1) as kernels:
        kernels.listen(lambda event: told.update({event.kind: event}))
        trace(kernels, traced.provider)
        with wall_clock() as within:
            await traced.request("infer", lambda: kernels.get(SOURCE, "add<1>"))
        await traced.request("again", lambda: kernels.get(SOURCE, "add<1>"))
    (build,) = traced.ended("kernels_async.build")
    (infer,) = traced.ended("infer")
    assert traced.parent(build) == "infer"
    assert traced.below(build) == COMPILED
    assert dict(build.attributes or {}) == {
        "kernels_async.symbol": "add<1>",
        "kernels_async.key": told["loaded"].key,
        "kernels_async.target": "cpu",
        "kernels_async.device": "cpu",
        "kernels_async.origin": "compiled",
    }
    spans = traced.children(build)
    assert fact(spans[1], "worker") == "1"
    assert all(map(within, (infer, build, *spans)))
    expected = {
        "queue": ("requested", "compiling"),
        "compile": ("compiling", "compiled"),
        "keep": ("compiled", "kept"),
    }
    for name, span in zip(COMPILED, spans, strict=True):
        assert seconds(span) > 0
        if name in expected:
            first, last = (told[kind].time for kind in expected[name])
            assert seconds(span) == pytest.approx(last - first, abs=1e-6)
    assert seconds(spans[-1]) == pytest.approx(told["loaded"].seconds, abs=1e-6)
    whole = told["loaded"].time - told["requested"].time
    assert seconds(build) == pytest.approx(whole, abs=1e-6)
    assert {span.name for span in traced.children(traced.ended("again")[0])} == set()


def seconds(span: ReadableSpan) -> float:
    """How long a span is."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


async def test_two_requests_of_one_batch_have_their_own_builds(
    traced: Traced, kernels: Kernels
) -> None:
    """Each awaits others of the kernels that are built together."""
    trace(kernels, traced.provider)
    for n in range(4):
        kernels.request(SOURCE, f"add<{n}>")

    async def infer(*numbers: int) -> None:
        await asyncio.gather(*(kernels.request(SOURCE, f"add<{n}>") for n in numbers))

    await asyncio.gather(
        traced.request("first", lambda: infer(0, 3)),
        traced.request("second", lambda: infer(1, 2)),
    )
    parents = {symbol: traced.parent(span) for symbol, span in traced.builds().items()}
    assert parents == {
        "add<0>": "first",
        "add<1>": "second",
        "add<2>": "second",
        "add<3>": "first",
    }


async def test_every_way_to_ask_hangs_under_its_request(
    traced: Traced, kernels: Kernels
) -> None:
    """`get`, an index, a fallback, a batch, and a thread."""
    trace(kernels, traced.provider)
    keyed = kernels.keyed()

    async def build() -> None:
        kernels.request(SOURCE, "add<4>")
        await kernels.build()

    async def fall_back() -> None:
        handle = kernels.request(SOURCE, "add<2>", fallback="add<3>")
        await handle
        await handle.special

    async def from_thread() -> None:
        await asyncio.to_thread(kernels.from_thread, SOURCE, "add<5>")

    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: kernels.get(SOURCE, "add<0>"),
        "keyed": lambda: keyed.get(1, lambda _: (SOURCE, "add<1>")),
        "fallback": fall_back,
        "build": build,
        "thread": from_thread,
    }
    await asyncio.gather(*(traced.request(name, way) for name, way in ways.items()))
    await until(lambda: not kernels.stats().building)
    parents = {symbol: traced.parent(span) for symbol, span in traced.builds().items()}
    assert parents == {
        "add<0>": "get",
        "add<1>": "keyed",
        "add<2>": "fallback",
        "add<3>": "fallback",
        "add<4>": "build",
        "add<5>": "thread",
    }


async def test_a_kernel_that_is_on_disk_has_a_span_of_its_read(
    traced: Traced, cache_dir: Path
) -> None:
    """And none of a compile."""
    async with Compiler("cpu", workers=1) as compiler:
        await compiler.compile(SOURCE, "add<1>")
    async with Kernels.open("cpu", workers=1) as kernels:
        trace(kernels, traced.provider)
        await kernels.get(SOURCE, "add<1>")
    (build,) = traced.ended("kernels_async.build")
    assert traced.below(build) == ["queue", "read", "load"]
    assert fact(build, "origin") == "disk"


async def test_a_kernel_with_the_bytes_of_another_has_no_load(
    traced: Traced, kernels: Kernels
) -> None:
    """They share what is loaded."""
    trace(kernels, traced.provider)
    await kernels.get(SOURCE, "add<1>")
    await kernels.get(SOURCE + "// the same\n", "add<1>")
    first, second = traced.ended("kernels_async.build")
    assert traced.below(first)[-1] == "load"
    assert "load" not in traced.below(second)


async def test_who_joins_has_a_span_that_is_linked_to_the_build(traced: Traced) -> None:
    """In their own trace; it ends with the build, or when who waits is cancelled."""
    async with Kernels.open("cpu", workers=1) as kernels:
        await kernels.get(SOURCE, "add<0>")
        trace(kernels, traced.provider)
        with held_worker():
            tasks = [
                asyncio.create_task(
                    traced.request(name, lambda: kernels.get(SOURCE, "add<1>"))
                )
                for name in ("first", "patient", "cancelled")
            ]
            await until(lambda: kernels.stats().coalesced == 2)
            tasks[2].cancel()
            await asyncio.wait(tasks[2:])
            await until(lambda: traced.ended("kernels_async.wait"))
            assert traced.ended("kernels_async.build") == []
        await asyncio.gather(*tasks[:2])
    (build,) = traced.ended("kernels_async.build")
    left, stayed = traced.ended("kernels_async.wait")
    assert traced.parent(build) == "first"
    assert [traced.parent(left), traced.parent(stayed)] == ["cancelled", "patient"]
    for wait in (left, stayed):
        assert [link.context.span_id for link in wait.links] == [build.context.span_id]
        assert wait.context.trace_id != build.context.trace_id
        assert fact(wait, "symbol") == "add<1>"
    assert stayed.end_time == build.end_time
    assert left.status.status_code is stayed.status.status_code is StatusCode.UNSET


async def test_a_task_that_waits_again_and_again_keeps_nothing(
    traced: Traced, kernels: Kernels
) -> None:
    """What would end its span with it goes with the build."""
    trace(kernels, traced.provider)
    left: list[int] = []

    async def join() -> None:
        for n in range(3):
            symbol = f"add<{n}>"
            first = asyncio.create_task(kernels.get(SOURCE, symbol))
            await asyncio.sleep(0)
            await kernels.get(SOURCE, symbol)
            await first
        left.append(task.held)

    task = Counting(join(), loop=asyncio.get_running_loop())
    await asyncio.wait([task])
    waits = traced.ended("kernels_async.wait")
    assert len(waits) == 3
    assert left == [1]


class Counting(asyncio.Task[None]):
    """A task that counts what is to be called when it is done."""

    held = 0

    def add_done_callback(self, *arguments: Any, **named: Any) -> None:
        """Count it."""
        self.held += 1
        super().add_done_callback(*arguments, **named)

    def remove_done_callback(self, callback: Any, /) -> int:
        """Count it no more."""
        removed = super().remove_done_callback(callback)
        self.held -= removed
        return removed


async def test_a_failure_is_recorded_with_its_status(
    traced: Traced, kernels: Kernels
) -> None:
    """On the build, on what failed of it, and on who waited."""
    trace(kernels, traced.provider)

    async def ask() -> None:
        with pytest.raises(CompileError):
            await kernels.get("__global__ void broken() { this; }", "broken")

    await asyncio.gather(ask(), ask())
    (build,) = traced.ended("kernels_async.build")
    (wait,) = traced.ended("kernels_async.wait")
    *passed, failed = traced.children(build)
    assert failed.name == "kernels_async.compile"
    for span in (build, wait, failed):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description is not None
        assert "\n" not in span.status.description
        assert (span.attributes or {})["error.type"] == "CompileError"
        (recorded,) = span.events
        assert recorded.name == "exception"
        assert "broken" in str((recorded.attributes or {})["exception.message"])
    assert {span.status.status_code for span in passed} == {StatusCode.UNSET}


@pytest.mark.parametrize("how", ["its last waiter leaves", "the cache closes", "it stops"])
async def test_no_span_is_left_of_a_build_that_does_not_end(
    how: str, traced: Traced
) -> None:
    """It is dropped, and no error; nothing is told after that."""
    async with Kernels.open("cpu", workers=1) as kernels:
        await kernels.get(SOURCE, "add<0>")
        stop = trace(kernels, traced.provider)
        with held_worker():
            tasks = [
                asyncio.create_task(kernels.get(SOURCE, f"add<{n}>")) for n in (1, 2, 2)
            ]
            await until(lambda: kernels.stats().compiling)
            await until(lambda: kernels.stats().queued == 1)
            if how == "the cache closes":
                await kernels.aclose()
            elif how == "it stops":
                stop()
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks[1:], return_exceptions=True)
            await until(lambda: "add<2>" in traced.builds())
        await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(traced.builds()) == ["add<1>", "add<2>"]
    assert len(traced.ended("kernels_async.wait")) == 1
    build = traced.builds()["add<2>"]
    assert build.status.status_code is StatusCode.UNSET
    assert [e.name for e in build.events] == ["dropped"] * (how != "it stops")


async def test_a_build_that_began_before_is_not_traced(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes after it is."""
    async with Kernels.open("cpu", workers=1) as kernels:
        await kernels.get(SOURCE, "add<0>")
        with held_worker():
            waiter = asyncio.create_task(kernels.get(SOURCE, "add<1>"))
            await until(lambda: kernels.stats().compiling)
            trace(kernels, traced.provider)
            joined = asyncio.create_task(kernels.get(SOURCE, "add<1>"))
            await until(lambda: kernels.stats().coalesced)
        await asyncio.gather(waiter, joined)
        assert traced.exporter.get_finished_spans() == ()
        await kernels.get(SOURCE, "add<2>")
    assert list(traced.builds()) == ["add<2>"]
    assert caplog.text == ""


async def test_who_waits_for_a_fallback_that_is_being_built_has_spans_too(
    traced: Traced,
) -> None:
    """Of both kernels, the first of which serves."""
    async with Kernels.open("cpu", workers=1) as kernels:
        await kernels.get(SOURCE, "add<0>")
        trace(kernels, traced.provider)
        handle = kernels.request(SOURCE, "add<1>", fallback="add<2>")
        with held_worker():
            first = asyncio.create_task(traced.request("first", handle.resolve))
            await until(lambda: kernels.stats().compiling)
            second = asyncio.create_task(traced.request("second", handle.resolve))
            await until(lambda: kernels.stats().coalesced == 2)
        await asyncio.gather(first, second)
        await handle.special
    assert [traced.parent(one) for one in traced.builds().values()] == ["first"] * 2
    assert [traced.parent(one) for one in traced.ended("kernels_async.wait")] == [
        "second"
    ] * 2


async def test_metrics_are_observed_at_each_export(warm_dir: Path) -> None:
    """By the names and labels that Prometheus has too; of no cache once it ends."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    async with Kernels.open("cpu", cache_dir=warm_dir, workers=1) as kernels:
        stop = measure(kernels, meter_provider=provider)
        await kernels.get(SOURCE, "add<1>")
        await kernels.get(SOURCE, "add<1>")
        points = collected(reader)
        stop()
        ended = collected(reader)
    provider.shutdown()
    cache = {"kernels_async.device": "cpu", "kernels_async.target": "cpu"}
    requests = {
        str((point.attributes or {})["kernels_async.result"]): point.value
        for point in points["kernels_async.requests"]
    }
    assert requests == {"hit": 1, "coalesced": 0, "miss": 1}
    (loaded,) = points["kernels_async.loaded_kernels"]
    assert (loaded.value, loaded.attributes) == (1, cache)
    (workers,) = points["kernels_async.workers"]
    assert workers.attributes == {"kernels_async.target": "cpu"}
    assert ended == {}


def collected(reader: InMemoryMetricReader) -> dict[str, list[NumberDataPoint]]:
    """The points of each metric now."""
    data = reader.get_metrics_data()
    found: dict[str, list[NumberDataPoint]] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.data.data_points
                found[metric.name] = [p for p in points if isinstance(p, NumberDataPoint)]
                if isinstance(metric.data, Sum):
                    counts = metric.name not in LEVELS
                    assert metric.data.is_monotonic is counts
                assert metric.unit in ("1", "s")
    return found


LEVELS = {
    f"kernels_async.{name}"
    for name in (
        "loaded_kernels",
        "outstanding_requests",
        "building_requests",
        "reading_artifacts",
        "queued_compiles",
        "running_compiles",
        "workers",
        "warm_up_kernels",
        "warm_ups_running",
    )
}
