"""A restart: 32 kernels from a warm disk cache, in a new process.

On a GPU everybody loads 32 specializations of a CUB source. Without one those are only
read, by everybody up to the driver, and this library loads 32 small kernels on the cpu
device. Each figure is the least of several new processes, each of which does it once::

    python benchmarks/restart.py [cpu | cuda:0] [--json [PATH]] [--quick]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _fresh import fresh
from _peers import can_be_slim, core_key, cupy_maker, cupy_name
from _sources import Request, artifacts, heavy, loaded, small
from _table import Options, Row, main

from kernels_async import Compiler
from kernels_async._store import Store

TITLE = "restart: kernels from a warm disk cache, in a new process"
EXCLUDES = (
    "imports, the device's context and, where it does not say so, opening; the caches' "
    "files are in the page cache; for CuPy and cuda.core also what CUDA puts off to a "
    "kernel's first launch, as only this library loads kernels whole"
)
COLUMNS = {
    "what": "",
    "kernels": "d",
    "ms": ".2f",
    "us each": ".0f",
    "to ours": ".2f",
}
READ = "kernels_async, read: compile_all"
LOADED = "kernels_async, loaded: Kernels"


def measure(options: Options) -> list[Row]:
    """What this library and others take; to ours, doing as much."""
    requests = heavy(2 if options.quick else 32, options.quick)
    tries = 1 if options.quick else 5
    with tempfile.TemporaryDirectory(prefix="benchmark-") as caches:
        found = _times(requests, options, tries, caches)
    ours = found[LOADED if options.on_gpu else READ]
    return [
        (
            name,
            len(requests),
            seconds and 1e3 * seconds,
            seconds and 1e6 * seconds / len(requests),
            seconds and seconds / ours,
        )
        for name, seconds in found.items()
    ]


def _times(
    requests: list[Request], options: Options, tries: int, caches: str
) -> dict[str, Any]:
    """Seconds of each contender, whose caches are filled first; `None` if it is missing."""
    target, on_gpu = options.target, options.on_gpu
    load = (requests if on_gpu else small(len(requests)), options.device)
    core = str(Path(caches, "core"))

    def least(function: Callable[..., Any], *arguments: Any) -> Any:
        return min(fresh(function, *arguments, caches=caches) for _ in range(tries))

    keys = fresh(fill, requests, target, caches=caches)
    entries = fresh(fill_core, requests, target, core, caches=caches)
    fresh(loaded, *load, False, {}, caches=caches)
    slim = on_gpu and fresh(can_be_slim)
    if slim:
        fresh(loaded, *load, False, {"slim": slim}, caches=caches)
    fresh(by_cupy, requests, target, on_gpu, caches=caches)
    cpu = "" if on_gpu else ", small kernels on the cpu device"
    return {
        "kernels_async, read: Store.read alone": least(read_alone, *keys),
        READ: least(read, requests, target, False),
        f"{READ} with opening": least(read, requests, target, True),
        f"{LOADED}{cpu}": least(loaded, *load, False, {}),
        f"{LOADED} with opening{cpu}": least(loaded, *load, True, {}),
        f"{LOADED} with slim=True{'' if slim else ': not here'}": (
            least(loaded, *load, False, {"slim": slim}) if slim else None
        ),
        cupy_name("from its disk cache", on_gpu): least(by_cupy, requests, target, on_gpu),
        f"cuda.core FileStreamProgramCache{'' if entries else ': not there'}": (
            least(by_core, requests, entries, target, core, on_gpu) if entries else None
        ),
    }


async def fill(requests: list[Request], target: str) -> tuple[str, str, list[str]]:
    """Compile everything; the store's root, its files' name, and the keys in it."""
    async with Compiler(target) as compiler:
        made = await artifacts(compiler, requests)
    path = made[0].path
    return str(path.parents[3]), path.name, [artifact.digest for artifact in made]


def read_alone(root: str, filename: str, keys: list[str]) -> float:
    """Seconds to read and verify, one after the other, without a loop or a thread."""
    store = Store(root, filename)
    began = time.perf_counter()
    found = [store.read(key) for key in keys]
    seconds = time.perf_counter() - began
    if None in found:
        raise LookupError("an entry is missing")
    return seconds


async def read(requests: list[Request], target: str, opening: bool) -> float:
    """Seconds until a compiler has every artifact; nothing is loaded."""
    began = time.perf_counter()
    async with Compiler(target) as compiler:
        if not opening:
            began = time.perf_counter()
        made = await artifacts(compiler, requests)
        seconds = time.perf_counter() - began
    if {artifact.origin for artifact in made} != {"disk"}:
        raise LookupError("an artifact was compiled")
    return seconds


def by_cupy(requests: list[Request], target: str, on_gpu: bool) -> float:
    """Seconds of CuPy; the first time fills its cache."""
    make = cupy_maker(target, on_gpu)
    began = time.perf_counter()
    for request in requests:
        make(*request)
    return time.perf_counter() - began


async def fill_core(requests: list[Request], target: str, folder: str) -> list[str] | None:
    """Put what this library compiled into cuda.core's cache.

    Returns:
        The lowered names, which that cache does not keep; `None` where cuda.core is not
        installed.
    """
    try:
        from cuda.core.utils import FileStreamProgramCache
    except ImportError:
        return None
    key = core_key(target)
    async with Compiler(target) as compiler:
        made = await artifacts(compiler, requests)
    with FileStreamProgramCache(folder) as cache:
        for request, artifact in zip(requests, made, strict=True):
            cache[key(*request)] = artifact.bytes
    return [artifact.entry for artifact in made]


def by_core(
    requests: list[Request], entries: list[str], target: str, folder: str, on_gpu: bool
) -> float:
    """Seconds of cuda.core: key, read and, on a GPU, load."""
    from cuda.core import Device, ObjectCode
    from cuda.core.utils import FileStreamProgramCache

    key = core_key(target)
    if on_gpu:
        Device().set_current()
    with FileStreamProgramCache(folder) as cache:
        began = time.perf_counter()
        for request, entry in zip(requests, entries, strict=True):
            data = cache[key(*request)]
            if on_gpu:
                ObjectCode.from_cubin(data).get_kernel(entry)
        return time.perf_counter() - began


if __name__ == "__main__":
    main(__doc__, TITLE, EXCLUDES, COLUMNS, measure)
