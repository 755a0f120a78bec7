"""Tests of the benchmarks: each runs as its docstring says, whatever it measures here."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernels_async import Artifact, Compiler, Kernels

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
PROMISED = {
    "batch": (
        "kernels_async, compiled",
        "kernels_async, compiled, workers started",
        "CuPy",
        "NVRTC in threads",
        "NVRTC in a ProcessPoolExecutor",
        "ideal",
    ),
    "hit": (
        "coroutine: pairs[source, spec]",
        "await kernels.get(source, spec)",
        "await kernels.get(source, spec), a listener",
        "KernelsCollector",
        "OpenTelemetry's spans",
        "functools.lru_cache",
        "cupy.RawModule",
        "await keyed.get(key, make)",
        "kernels.loaded(source, spec)",
        "keyed.loaded(key)",
    ),
    "launch": ("kernel(grid, block, args)", "cupy.RawKernel"),
    "loop": (
        "nothing",
        "2 endless processes",
        "kernels_async, compiled",
        "CuPy in asyncio.to_thread",
        "CuPy in the loop",
    ),
    "restart": ("Store.read", "compile_all", "Kernels", "CuPy", "cuda.core"),
    "scale": ("outstanding requests", "waiters of one kernel"),
    "start": ("kernels_async", "ProcessPoolExecutor", "anyio.to_process"),
}
Runs = dict[str, Future[subprocess.CompletedProcess[str]]]


def run(script: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a benchmark from the repository's root."""
    modules = [str(ROOT), *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{script}.py"), *arguments, "--quick"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(modules), "CUPY_CACHE_DIR": str(folder)},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(
    scope="module", params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
)
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    """Every benchmark on a device, two at a time."""
    folder = tmp_path_factory.mktemp("cupy")
    arguments = (request.param, "--workers=2", "--json")
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run, name, *arguments, folder=folder) for name in PROMISED}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("script", PROMISED)
def test_a_benchmark_prints_the_rows_that_it_promises(script: str, runs: Runs) -> None:
    """As JSON, with what it excludes and the machine; every figure is one."""
    process = runs[script].result()
    assert (process.returncode, process.stderr) == (0, "")
    found: dict[str, Any] = json.loads(process.stdout)
    texts = "\n".join(
        " ".join(cell for cell in row.values() if isinstance(cell, str))
        for row in found["rows"]
    )
    figures = [
        cell
        for row in found["rows"]
        for cell in row.values()
        if isinstance(cell, int | float)
    ]

    assert [name for name in PROMISED[script] if name not in texts] == []
    assert all(list(row) == found["columns"] for row in found["rows"])
    assert figures
    assert found["excludes"]
    assert found["title"].startswith(f"{script}: ")
    assert found["machine"]["cpus"] >= 1
    assert found["quick"] is True


def test_a_benchmark_prints_one_table_and_writes_json(tmp_path: Path) -> None:
    """The table says what it excludes; with a path, JSON goes there instead."""
    table = run("hit", "cpu", folder=tmp_path)
    path = tmp_path / "hit.json"
    written = run("hit", "cpu", "--json", str(path), folder=tmp_path)

    assert (
        (table.returncode, table.stderr) == (written.returncode, written.stderr) == (0, "")
    )
    lines = table.stdout.splitlines()
    assert lines[0].startswith("hit: ")
    assert [line.partition(":")[0] for line in lines[2:5]] == ["machine", "run", "excludes"]
    rows = json.loads(path.read_text())["rows"]
    assert len(lines) == 7 + len(rows)
    assert written.stdout == ""


async def test_the_sources_of_the_benchmarks_are_right(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CUB source compiles as everybody compiles it; all requests are different."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    sources = importlib.import_module("_sources")
    requests = [sources.cub(32)[31], *sources.small(4)]

    made: list[Artifact] = await sources.artifacts(compiler, requests)
    assert [artifact.symbol for artifact in made] == [symbol for _, symbol in requests]
    assert len(set(sources.cub(32))) == 32
    assert len({text for text, _ in sources.small(64)}) == 64


async def test_the_small_sources_run_on_the_cpu_device(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no GPU they are what is loaded."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    sources = importlib.import_module("_sources")
    for request in sources.specialized(sources.small(4)):
        await kernels.get(*request)

    assert len(kernels) == 4
