"""One server of the soak: it uses the library as a server does, and as none should.

It is started by the soak, tells it what happened as lines of JSON, and ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from kernels_async import (
    Artifact,
    BuildError,
    ClosedError,
    Compiler,
    Kernel,
    Kernels,
    KernelsError,
    ReentryError,
)
from tests.processes import children
from tests.soak.workload import (
    BROKEN,
    CRASHING,
    ENDLESS,
    fingerprint,
    good,
    is_right,
    known,
    left_in,
)

DEADLINE = 90.0
COMPILE_SECONDS = 5.0
CLIENTS = 6
EXCUSED = {
    "CompileMemoryError",
    "CompileTimeout",
    "OverloadedError",
    "QuarantinedError",
    "ReentryError",
    "ReporterError",
    "ToolchainError",
    "WorkerCrashed",
}
"""Failures of a good source that the soak itself causes."""


class Server:
    """Its sessions, and what it has not told yet."""

    def __init__(self, cache_dir: str, seed: int) -> None:
        self.cache_dir = cache_dir
        self.chance = random.Random(seed)
        self.delivered = 0
        self.faults: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.compiled: list[str] = []
        self.seen: dict[str, str] = {}
        self.wrong: list[str] = []
        self.hung: list[str] = []
        self.leaked: Counter[str] = Counter()
        self.leaving = False
        self.stop = asyncio.Event()
        self._baseline: dict[str, int] | None = None

    def tell(self) -> None:
        """One line of what happened since the last."""
        line = {
            "delivered": self.delivered,
            "faults": self.faults,
            "failures": self.failures,
            "compiled": self.compiled,
            "seen": self.seen,
            "wrong": self.wrong,
            "hung": self.hung,
            "leaked": self.leaked,
        }
        print(json.dumps(line), flush=True)
        self.delivered = 0
        for told in (self.faults, self.failures, self.seen, self.leaked):
            told.clear()
        for listed in (self.compiled, self.wrong, self.hung):
            listed.clear()

    async def tell_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            self.tell()

    async def serve(self) -> None:
        """One session after another, until it is told to stop."""
        telling = asyncio.ensure_future(self.tell_now_and_then())
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.wrong.append(f"the loop was told {context}")
        )
        while not self.stop.is_set():
            await self.session()
            await self.check_nothing_is_left()
        telling.cancel()
        self.tell()

    async def session(self) -> None:
        """Open, use, and close in the middle of it."""
        self.leaving = False
        clients: list[asyncio.Task[None]] = []
        async with (
            Compiler(
                "sm_90", cache_dir=self.cache_dir, workers=1, timeout=COMPILE_SECONDS
            ) as compiler,
            Kernels.open(
                "cpu", cache_dir=self.cache_dir, workers=2, timeout=COMPILE_SECONDS
            ) as kernels,
        ):
            kernels.reporting(self.report)
            session = Session(self, kernels, compiler)
            clients = [asyncio.ensure_future(session.client()) for _ in range(CLIENTS)]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), self.chance.uniform(2, 12))
            self.leaving = True
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.uniform(0, 1))
            self.faults["closed in use"] += 1
        _, late = await asyncio.wait(clients, timeout=10)
        for client in late:
            self.hung.append(f"after the close: {client!r}")
            client.cancel()

    def report(self, artifact: Artifact) -> None:
        """The reporter, when it is in order."""
        if artifact.origin == "compiled":
            self.compiled.append(artifact.digest)

    async def check_nothing_is_left(self) -> None:
        """Between sessions there is no process, descriptor, thread, task or folder."""
        for _ in range(100):
            found = left()
            if self._baseline is None or all(
                found[kind] <= self._baseline[kind] for kind in found
            ):
                break
            await asyncio.sleep(0.05)
        if self._baseline is None:
            self._baseline = found | {"processes": 0, "folders": 0}
        for kind, count in found.items():
            if (more := count - self._baseline[kind]) > 0:
                print(f"{more} {kind} are left: {_what(kind)}", file=sys.stderr)
                self.leaked[kind] += more
                self._baseline[kind] = count


def left() -> dict[str, int]:
    """What there is of all that a closed cache must have let go of."""
    return {
        "processes": len(children()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": sum(not _pooled(thread) for thread in threading.enumerate()),
        "tasks": len(asyncio.all_tasks()),
        "folders": len(left_in(tempfile.gettempdir())),
    }


def _pooled(thread: threading.Thread) -> bool:
    """Whether it is one of the threads that anyio and the loops keep for a while."""
    return thread.name.startswith(("AnyIO", "asyncio_", "uvloop_"))


def _what(kind: str) -> object:
    if kind == "folders":
        return left_in(tempfile.gettempdir())
    if kind == "threads":
        return threading.enumerate()
    if kind == "tasks":
        return asyncio.all_tasks()
    return None


class Session:
    """The clients of one opened cache."""

    def __init__(self, server: Server, kernels: Kernels, compiler: Compiler) -> None:
        self.server = server
        self.chance = server.chance
        self.kernels = kernels
        self.compiler = compiler
        self.keyed = kernels.keyed()
        self.artifacts: set[int] = set()
        self.acts: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (12, self.get),
            (6, self.get_keyed),
            (6, self.await_many),
            (3, self.build),
            (8, self.compile_for_a_gpu),
            (8, self.cancel),
            (4, self.time_out),
            (4, self.drop),
            (1, self.send_endless),
            (1, self.send_crashing),
            (2, self.send_broken),
            (2, self.report_badly),
            (2, self.clone),
            (1, self.trim),
            (1, self.fork),
            (4, self.get_from_a_thread),
            (1, self.keep_up),
        ]

    async def client(self) -> None:
        """Do one thing after another until the session ends."""
        weights = [weight for weight, _ in self.acts]
        while not self.server.leaving:
            (_, act) = self.chance.choices(self.acts, weights)[0]
            await self.within_the_deadline(act)
            await asyncio.sleep(self.chance.uniform(0, 0.02))

    async def within_the_deadline(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do it; an error that it lets out is nobody's but the library's."""
        try:
            async with asyncio.timeout(DEADLINE) as limit:
                await act()
        except ClosedError as error:
            if not self.server.leaving:
                self.server.wrong.append(f"{act.__name__}: {error!r}")
        except Exception as error:  # noqa: BLE001 - it is told
            if limit.expired():
                self.server.hung.append(act.__name__)
            else:
                self.server.wrong.append(f"{act.__name__}: {error!r}"[:2000])

    def check(self, kernel: Kernel, number: int) -> None:
        """Run what was delivered."""
        self.server.delivered += 1
        if not is_right(kernel, number):
            self.server.wrong.append(f"good<{number}> computes something else")

    def excuse(self, error: BaseException, number: int | None) -> None:
        """Count a failure that is the soak's doing; raise any other."""
        kind = type(error).__name__
        if isinstance(error, BuildError):
            for each in error.exceptions:
                self.excuse(each, None)
            return
        if kind not in EXCUSED:
            raise error
        self.server.failures[kind] += 1
        if kind == "QuarantinedError" and number is not None:
            self.kernels.compiler.forget(*good(number))

    async def get(self) -> None:
        number = known(self.chance)
        try:
            self.check(await self.kernels.get(*good(number)), number)
        except ClosedError:
            raise
        except KernelsError as error:
            self.excuse(error, number)

    async def get_keyed(self) -> None:
        number = known(self.chance)
        try:
            self.check(await self.keyed.get(number, good), number)
        except ClosedError:
            raise
        except KernelsError as error:
            self.excuse(error, number)

    async def get_from_a_thread(self) -> None:
        number = known(self.chance)
        try:
            kernel = await asyncio.to_thread(
                lambda: self.kernels.from_thread(*good(number), timeout=60)
            )
            self.check(kernel, number)
        except ClosedError:
            raise
        except KernelsError as error:
            self.excuse(error, number)

    async def await_many(self) -> None:
        numbers = [known(self.chance) for _ in range(self.chance.randrange(2, 8))]
        pendings = [self.kernels.request(*good(number)) for number in numbers]
        found = await asyncio.gather(*pendings, return_exceptions=True)
        for number, outcome in zip(numbers, found, strict=True):
            if isinstance(outcome, ClosedError):
                raise outcome
            if isinstance(outcome, BaseException):
                self.excuse(outcome, number)
            else:
                self.check(outcome, number)

    async def build(self) -> None:
        for _ in range(3):
            self.kernels.request(*good(known(self.chance)))
        try:
            await self.kernels.build()
        except BuildError as error:
            for each in error.exceptions:
                if isinstance(each, ClosedError):
                    raise each from None
                self.excuse(each, None)

    async def compile_for_a_gpu(self) -> None:
        number = known(self.chance)
        try:
            artifact = await self.compiler.compile(*good(number))
        except ClosedError:
            raise
        except KernelsError as error:
            self.excuse(error, None)
            return
        self.server.delivered += 1
        self.server.seen[artifact.digest] = fingerprint(artifact)
        if artifact.origin == "compiled" and id(artifact) not in self.artifacts:
            self.artifacts.add(id(artifact))
            self.server.compiled.append(artifact.digest)

    async def cancel(self) -> None:
        waiter = asyncio.ensure_future(self.get())
        await asyncio.sleep(self.chance.choice([0, 0.0001, 0.001, 0.01, 0.1]))
        self.server.faults["waiters cancelled"] += waiter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiter

    async def time_out(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.chance.choice([0, 0.001, 0.01, 0.1])):
                await self.get()
                return
        self.server.faults["waits timed out"] += 1

    async def drop(self) -> None:
        self.kernels.request(*good(known(self.chance)))
        self.server.faults["requests dropped"] += 1

    async def send_endless(self) -> None:
        await self._send("endless sources", ENDLESS, "endless")

    async def send_crashing(self) -> None:
        await self._send("sources that crash the compiler", CRASHING, "crashing")

    async def send_broken(self) -> None:
        await self._send("sources that do not compile", BROKEN, "broken")

    async def _send(self, fault: str, source: Any, symbol: str) -> None:
        self.server.faults[fault] += 1
        try:
            await self.kernels.get(source, symbol)
        except ClosedError:
            raise
        except KernelsError as error:
            self.server.failures[type(error).__name__] += 1
        else:
            self.server.wrong.append(f"{symbol} was delivered")

    async def report_badly(self) -> None:
        """For a moment the reporter raises, blocks or asks its own cache."""

        def report(artifact: Artifact) -> None:
            self.server.report(artifact)
            self.server.faults["reporter faults"] += 1
            match self.chance.randrange(3):
                case 0:
                    raise ValueError("the sink is full")
                case 1:
                    threading.Event().wait(0.05)
                case 2:
                    with contextlib.suppress(ReentryError):
                        self.kernels.request(*good(-1))
                        self.server.wrong.append("a reporter was let in")

        self.kernels.reporting(report)
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        self.kernels.reporting(self.server.report)

    async def clone(self) -> None:
        self.server.faults["clones"] += 1
        self.kernels = self.kernels.clone()

    async def trim(self) -> None:
        self.server.faults["workers trimmed"] += await self.kernels.compiler.trim()

    async def keep_up(self) -> None:
        compiler = self.compiler
        works: dict[str, Callable[[], Awaitable[object]]] = {
            "pruned": lambda: compiler.prune(2_000_000),
            "verified": compiler.verify,
            "cleared": compiler.clear,
        }
        done, work = self.chance.choice(list(works.items()))
        try:
            await work()
            self.server.faults[done] += 1
        except OSError as error:  # it may be read-only, and whoever keeps it up is told
            self.server.failures[type(error).__name__] += 1

    async def fork(self) -> None:
        """A child that has the cache, and only ends."""
        child = os.fork()
        if child == 0:
            self.kernels.loaded(*good(0))
            os._exit(0)
        self.server.faults["forks"] += 1
        await asyncio.to_thread(os.waitpid, child, 0)


async def main(cache_dir: str, seed: int) -> None:
    """Serve until standard input ends."""
    server = Server(cache_dir, seed)
    loop = asyncio.get_running_loop()

    def watch() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(server.stop.set)

    threading.Thread(target=watch, daemon=True).start()
    await server.serve()


if __name__ == "__main__":
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    run = uvloop.run if number % 3 == 0 else asyncio.run
    run(main(str(folder), number))
