"""Fixtures that every test may use, and the watch over the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kernels_async import Compiler, DeviceError, Kernels
from kernels_async.devices._cuda import count_devices, import_cupy
from kernels_async.toolchains import Toolchain, find

BLOCKED_SECONDS = 0.1
ROOT = Path(__file__).parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests for which there are too few GPUs."""
    needed = {"gpu": 1, "gpus": 2}
    marked = [item for item in items if any(map(item.get_closest_marker, needed))]
    count = _count_gpus() if marked else 0
    for item in marked:
        least = max(n for mark, n in needed.items() if item.get_closest_marker(mark))
        if count < least:
            item.add_marker(pytest.mark.skip(f"needs {least} GPUs, there are {count}"))


def _count_gpus() -> int:
    try:
        return count_devices(import_cupy())
    except DeviceError:
        return 0


@pytest.fixture(autouse=True)
def _loop_is_never_blocked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Fail a test in which one callback holds the event loop for too long.

    What the thread waited for a processor does not count. Garbage is collected between
    tests: a collection takes as long as pytest has objects.
    """
    slow: list[str] = []
    run = asyncio.Handle._run

    def watched(handle: asyncio.Handle) -> None:
        began, waited = time.monotonic(), _waited_for_processor()
        run(handle)
        seconds = time.monotonic() - began
        if seconds > BLOCKED_SECONDS:
            seconds -= _waited_for_processor() - waited
            if seconds > BLOCKED_SECONDS:
                slow.append(f"{handle!r} took {seconds:.3f} s")

    monkeypatch.setattr(asyncio.Handle, "_run", watched)
    gc.disable()
    yield
    gc.enable()
    told = [
        record.getMessage()
        for phase in ("setup", "call")
        for record in caplog.get_records(phase)
        if record.name == "asyncio" and record.levelno >= logging.WARNING
    ]
    assert [*slow, *told] == []


def _waited_for_processor() -> float:
    """Seconds that this thread was ready to run and did not, since it began."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


@pytest.fixture(autouse=True)
def _own_cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a default cache directory of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KERNELS_ASYNC_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def child_environment() -> dict[str, str]:
    """The environment of a program that finds the package where the tests do."""
    modules = [str(ROOT), *filter(None, sys.path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(modules)}


@pytest.fixture
def cache_dir(_own_cache_dir: Path) -> Path:
    """The test's cache directory."""
    return _own_cache_dir


@pytest.fixture(scope="session")
def warm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that the tests share, for those that do not look at compiles."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture
async def compiler() -> AsyncIterator[Compiler]:
    """A compiler for sm_90 with a cache directory of its own."""
    async with Compiler("sm_90", workers=2) as compiler:
        yield compiler


@pytest.fixture
async def kernels(warm_dir: Path) -> AsyncIterator[Kernels]:
    """A cache on the cpu device."""
    async with Kernels.open("cpu", cache_dir=warm_dir, workers=2) as kernels:
        yield kernels


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    """The cuda toolchain in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    found = find("sm_90")
    found.load()
    return found
