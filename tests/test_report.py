"""Tests of the reporter: once per artifact, before it loads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kernels_async import (
    Artifact,
    BuildError,
    Kernel,
    Kernels,
    KernelsError,
    Pending,
    ReentryError,
    ReporterError,
    Source,
)

SOURCE = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")


def requests(kernels: Kernels, count: int = 3) -> list[Pending]:
    """Requests for some kernels."""
    return [kernels.request(SOURCE, f"add<{n}>") for n in range(count)]


async def test_each_artifact_is_reported_once_before_it_loads(kernels: Kernels) -> None:
    """Memory hits report nothing."""
    seen: list[str] = []
    pendings = requests(kernels)

    def report(artifact: Artifact) -> None:
        seen.append(artifact.symbol)
        assert kernels.loaded(SOURCE, artifact.symbol) is None

    assert kernels.reporting(report) is kernels
    await asyncio.gather(*pendings)
    await kernels.get(SOURCE, "add<0>")
    await pendings[1]
    assert sorted(seen) == ["add<0>", "add<1>", "add<2>"]


async def test_a_reporter_may_be_async(kernels: Kernels) -> None:
    """It is awaited before the kernel loads."""
    seen: list[str] = []

    async def report(artifact: Artifact) -> None:
        await asyncio.sleep(0.01)
        seen.append(artifact.symbol)

    kernels.reporting(report)
    await asyncio.gather(*requests(kernels))
    assert len(seen) == 3


async def test_an_object_with_an_async_call_is_a_reporter(kernels: Kernels) -> None:
    """Whatever returns an awaitable is awaited."""

    class Reporter:
        seen: list[str] = []  # noqa: RUF012

        async def __call__(self, artifact: Artifact) -> None:
            self.seen.append(artifact.symbol)

    kernels.reporting(Reporter())
    await asyncio.gather(*requests(kernels))
    assert len(Reporter.seen) == 3


async def test_a_plain_function_runs_off_the_loop_one_call_at_a_time(
    kernels: Kernels,
) -> None:
    """It may take its time and needs no lock."""
    running, most, threads = 0, 0, set()

    def report(_: Artifact) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threads.add(threading.current_thread())
        threading.Event().wait(0.1)
        running -= 1

    kernels.reporting(report)
    await asyncio.gather(*requests(kernels))
    assert most == 1
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError("no")])
async def test_an_exception_fails_that_kernel_and_no_other(
    kernels: Kernels, error: BaseException
) -> None:
    """Its cause is the reporter's exception; the next try reports again."""
    calls: list[str] = []

    def report(artifact: Artifact) -> None:
        calls.append(artifact.symbol)
        if artifact.symbol == "add<1>" and len(calls) <= 3:
            raise error

    kernels.reporting(report)
    pendings = requests(kernels)
    with pytest.raises(BuildError) as caught:
        await kernels.build()
    (failure,) = caught.value.exceptions
    assert isinstance(failure, ReporterError)
    assert failure.__cause__ is error
    assert [p.built() is None for p in pendings] == [False, True, False]

    assert isinstance(await pendings[1], Kernel)
    assert calls.count("add<1>") == 2


async def test_a_reporter_may_refuse_a_kernel_with_an_error_of_its_own(
    kernels: Kernels,
) -> None:
    """A `KernelsError` reaches whoever asked as it is."""

    class TooManySpills(KernelsError):
        pass

    def report(_: Artifact) -> None:
        raise TooManySpills("not with me")

    kernels.reporting(report)
    with pytest.raises(TooManySpills, match="not with me"):
        await kernels.get(SOURCE, "add<0>")


async def test_a_reporter_installed_later_serves_what_was_there_before(
    kernels: Kernels,
) -> None:
    """Every clone and every existing Pending; None takes it away."""
    seen: list[str] = []
    pendings, clone = requests(kernels), kernels.clone()
    clone.reporting(lambda artifact: seen.append(artifact.symbol))
    await asyncio.gather(*pendings)
    kernels.reporting(None)
    await kernels.get(SOURCE, "add<9>")

    assert sorted(seen) == ["add<0>", "add<1>", "add<2>"]


CALLS: list[Callable[[Kernels, Pending], Any]] = [
    lambda kernels, _: kernels.get(SOURCE, "add<5>"),
    lambda kernels, _: kernels.build(),
    lambda kernels, _: kernels.aclose(),
    lambda kernels, _: kernels.clone().get(SOURCE, "add<5>"),
    lambda _, pending: pending.resolve(),
    lambda kernels, _: kernels.keyed().get(1, lambda _: (SOURCE, "add<5>")),
]


@pytest.mark.parametrize("call", CALLS)
async def test_calling_back_from_inside_an_async_reporter_is_an_error(
    kernels: Kernels, call: Callable[[Kernels, Pending], Any]
) -> None:
    """The cache waits for its reporter: a call would wait for itself."""
    pending = kernels.request(SOURCE, "add<0>")

    async def report(_: Artifact) -> None:
        await call(kernels, pending)

    kernels.reporting(report)
    async with asyncio.timeout(20):
        with pytest.raises(ReentryError, match="reporter"):
            await pending


async def test_calling_back_from_inside_a_plain_reporter_is_an_error(
    kernels: Kernels,
) -> None:
    """It runs in a thread, and is refused there too."""
    kernels.reporting(lambda _: kernels.request(SOURCE, "add<5>"))

    with pytest.raises(ReentryError):
        await kernels.get(SOURCE, "add<0>")
    assert "outstanding=0" in repr(kernels)


async def test_a_task_that_a_reporter_started_may_ask_afterwards(kernels: Kernels) -> None:
    """What is refused is the call inside the report, not the task it left behind."""
    tasks: list[asyncio.Task[Kernel]] = []
    reported = asyncio.Event()

    async def later() -> Kernel:
        await reported.wait()
        return await kernels.get(SOURCE, "add<5>")

    async def report(_: Artifact) -> None:
        if not tasks:
            tasks.append(asyncio.create_task(later()))

    kernels.reporting(report)
    await kernels.get(SOURCE, "add<0>")
    reported.set()
    assert isinstance(await tasks[0], Kernel)


async def test_one_cache_may_be_asked_from_anothers_reporter(
    kernels: Kernels,
) -> None:
    """Only the reporter's own cache waits for it."""
    async with Kernels.open("cpu", workers=1) as other:

        async def report(_: Artifact) -> None:
            await other.get(SOURCE, "add<5>")

        kernels.reporting(report)
        await kernels.get(SOURCE, "add<0>")
        assert len(other) == 1
