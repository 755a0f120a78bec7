"""What several test modules need to watch processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernels_async import Compiler

ROOT = Path(__file__).parents[1]

GOOD = "template <int N> __global__ void good(int* p) { *p = N; }\n"
SLOW = """
extern "C" __global__ void slow(float* p) {
  float v[64];
  for (int i = 0; i < 64; i++) v[i] = p[i];
#pragma unroll
  for (int r = 0; r < 1000; r++) {
#pragma unroll
    for (int i = 0; i < 64; i++) v[i] = sinf(v[i]) * v[(i + r) % 64];
  }
  for (int i = 0; i < 64; i++) p[i] = v[i];
}
"""

CPU_SLOW = (
    "template <int N> struct F { static const int value = F<N - 1>::value + 1; };\n"
    "template <> struct F<0> { static const int value = 0; };\n"
    + "".join(f"template <> struct F<{n * 800}> {{ static const int value = {n}; }};\n" for n in range(1, 240))
    + "__global__ void slow(int* p) { int s = 0;\n"
    + "".join(f"s += F<{n * 800 - 1}>::value;\n" for n in range(1, 240))
    + "*p = s; }\n"
)  # fmt: skip


def children(process: int | None = None) -> list[int]:
    """The process numbers of a process's children, whichever thread started them.

    By default of this one's.
    """
    found: list[int] = []
    number = os.getpid() if process is None else process
    for thread in Path(f"/proc/{number}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found += map(int, (thread / "children").read_text().split())
    return found


async def until(condition: Callable[[], Any]) -> Any:
    """Wait for `condition` to hold; its value."""
    async with asyncio.timeout(20):
        while not (value := condition()):
            await asyncio.sleep(0.002)
        return value


def descendants(process: int) -> list[int]:
    """The process numbers of everything below a process."""
    with contextlib.suppress(OSError):  # it has ended
        return [n for child in children(process) for n in (child, *descendants(child))]
    return []


def is_alive(process: int) -> bool:
    """Whether a process runs: it is there, and no zombie."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


@contextmanager
def server(program: str, *arguments: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that has the library and this package, killed if it is left."""
    modules = [str(ROOT), *filter(None, sys.path)]
    process = subprocess.Popen(
        [sys.executable, *more.pop("options", ()), "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(modules)} | more.pop("env", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def output(environment: dict[str, str], *command: str) -> str:
    """What a Python program prints that ends well and says nothing more."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert err.decode() == ""
    assert process.returncode == 0
    return out.decode()


def in_child(*calls: Callable[[], object]) -> list[str]:
    """What each call gives or raises in a forked child, which must not hang."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)
        told = []
        for call in calls:
            try:
                told.append(repr(call()))
            except BaseException as error:  # noqa: BLE001 - the parent looks at it
                told.append(repr(error))
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    outcomes: list[str] = json.loads(text)
    return outcomes


@contextmanager
def held_worker() -> Iterator[None]:
    """The one worker of this process stands still meanwhile."""
    (worker,) = children()
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def at_work(compiler: Compiler) -> list[int]:
    """The process numbers of the workers that compile now."""
    return [worker.pid for worker in compiler._maker().pool.crew.busy if worker.began]
