"""Tests of what Prometheus is told, by its own client library."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.openmetrics import exposition
from prometheus_client.parser import text_string_to_metric_families

from kernels_async import (
    CompileError,
    Compiler,
    Kernels,
    Manifest,
    ManifestKernel,
    OverloadedError,
    Source,
    Specialization,
)
from kernels_async.adapters.prometheus import KernelsCollector
from tests.processes import held_worker, until

SOURCE = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"
CPU = {"device": "cpu", "target": "cpu"}


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample of a scrape as Prometheus reads it, such as `name{label="value"}`."""
    return parsed(generate_latest(registry).decode())


def parsed(text: str) -> dict[str, float]:
    """Every sample of an exposition; no series is in it twice."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if (k, v) not in CPU.items()}
            told = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            name = sample.name.removeprefix("kernels_async_")
            series = f"{name}{{{told}}}" if told else name
            assert series not in samples
            samples[series] = sample.value
    return samples


async def test_a_scrape_tells_requests_artifacts_and_failures(cache_dir: Path) -> None:
    """Each by what became of it; every series is there before its first event."""
    async with Compiler("cpu", workers=1) as compiler:
        await compiler.compile(SOURCE, "add<1>")
    registry = CollectorRegistry()
    async with Kernels.open("cpu", workers=1, max_outstanding=2) as kernels:
        registry.register(KernelsCollector(kernels))
        before = scrape(registry)
        await asyncio.gather(*(kernels.get(SOURCE, "add<1>") for _ in range(3)))
        await kernels.get(SOURCE, "add<2>")
        for _ in range(6):
            await kernels.get(SOURCE, "add<1>")
        with pytest.raises(CompileError):
            await kernels.get("int x = ;", "f")
        with held_worker():
            waiters = [
                asyncio.create_task(kernels.get(SOURCE, f"add<{n}>")) for n in (3, 4)
            ]
            await until(lambda: kernels.stats().compiling)
            await until(lambda: kernels.stats().queued == 1)
            with pytest.raises(OverloadedError):
                await kernels.get(SOURCE, "add<5>")
            during = scrape(registry)
            waiters[1].cancel()
            await until(lambda: kernels.stats().building == 1)
        await waiters[0]
        after = scrape(registry)
        stats = kernels.stats()
    assert before["requests_total{result=hit}"] == 0
    assert before["failures_total{error=CompileError}"] == 0
    assert after.keys() == before.keys()
    assert after["requests_total{result=hit}"] == 6
    assert after["requests_total{result=coalesced}"] == 2
    assert after["requests_total{result=miss}"] == 5
    assert after["artifacts_total{origin=disk}"] == 1
    assert after["artifacts_total{origin=compiled}"] == 2
    assert after["artifacts_total{origin=remote}"] == 0
    assert after["failures_total{error=CompileError}"] == 1
    assert after["dropped_builds_total"] == stats.dropped == 1
    assert after["refused_requests_total{reason=overloaded}"] == stats.overloaded == 1
    assert after["refused_requests_total{reason=frozen}"] == 0
    assert after["saved_seconds_total"] == stats.seconds_saved > 0
    assert after["loop_delay_samples_total"] == stats.loop_delay_samples > 0
    assert after["loop_delay_seconds_total"] == stats.loop_delay_seconds
    assert after["longest_loop_delay_seconds"] == stats.longest_loop_delay
    busy = {"building_requests": 2, "running_compiles": 1, "queued_compiles": 1}
    assert {name: during[name] for name in busy} == busy
    assert {after[name] for name in busy} == {0}
    assert (during["loaded_kernels"], during["workers"]) == (2, 1)


async def test_histograms_tell_how_long_compiles_loads_and_builds_took(
    cache_dir: Path,
) -> None:
    """Each kernel falls into the bucket of its time; what failed is in none of loads."""
    registry = CollectorRegistry()
    async with Kernels.open("cpu", workers=1) as kernels:
        registry.register(KernelsCollector(kernels))
        one, other = [await kernels.get(SOURCE, f"add<{n}>") for n in (1, 2)]
        with pytest.raises(CompileError):
            await kernels.get("int x = ;", "f")
        samples = scrape(registry)
    took = {
        "compile": [kernel.artifact.compile_seconds for kernel in (one, other)],
        "load": [kernel.load_seconds for kernel in (one, other)],
    }
    for name, seconds in took.items():
        assert samples[f"{name}_duration_seconds_count"] == 2
        assert samples[f"{name}_duration_seconds_sum"] == pytest.approx(sum(seconds))
        buckets = {
            float(series.partition("le=")[2].rstrip("}")): count
            for series, count in samples.items()
            if series.startswith(f"{name}_duration_seconds_bucket")
        }
        for bound, count in buckets.items():
            assert count == sum(value <= bound for value in seconds)
    assert samples["build_duration_seconds_count"] == 2
    assert samples["build_duration_seconds_sum"] > sum(took["compile"] + took["load"])


async def test_a_scrape_tells_how_far_the_warm_up_is(warm_dir: Path) -> None:
    """The states of its kernels add up to all of them."""
    broken = Source("__global__ void broken(int* p) { *p = absent; }\n")
    manifest = Manifest(
        (
            *(
                ManifestKernel(Source(SOURCE), Specialization(f"add<{n}>"))
                for n in range(3)
            ),
            ManifestKernel(broken, Specialization("broken")),
        )
    )
    registry = CollectorRegistry()
    told: list[dict[str, float]] = []
    async with Kernels.open("cpu", cache_dir=warm_dir, workers=2) as kernels:
        registry.register(KernelsCollector(kernels))
        assert "warm_up_remaining_seconds" not in scrape(registry)
        await kernels.warm(manifest, lambda _: told.append(scrape(registry)))
        told.append(scrape(registry))
    states = [
        [samples[f"warm_up_kernels{{state={state}}}"] for samples in told]
        for state in ("loaded", "failed", "waiting")
    ]
    assert [sum(each) for each in zip(*states, strict=True)] == [4] * 5
    assert [each[-1] for each in states] == [3, 1, 0]
    assert [samples["warm_ups_running"] for samples in told] == [1, 1, 1, 1, 0]
    assert told[-1]["warm_up_remaining_seconds"] == 0
    assert told[-1]["warm_up_seconds"] > 0


def test_registering_a_collector_collects_nothing() -> None:
    """It is described instead, so that two collectors of one name are refused."""

    class Counting(KernelsCollector):
        collected = 0

        def collect(self):  # type: ignore[no-untyped-def]
            self.collected += 1
            return super().collect()

    registry = CollectorRegistry(auto_describe=True)
    collector = Counting()
    registry.register(collector)
    assert collector.collected == 0
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(KernelsCollector())
    described = {family.name for family in collector.describe()}
    assert described == {family.name for family in registry.collect()}


async def test_caches_that_share_labels_and_a_compiler_are_told_once(
    warm_dir: Path,
) -> None:
    """Their counts add up, and the compiler's do not; a clone is no other cache."""
    registry = CollectorRegistry()
    async with (
        Compiler("cpu", cache_dir=warm_dir, workers=2) as compiler,
        Kernels(compiler) as first,
        Kernels(compiler) as second,
        Kernels.open("cpu", cache_dir=warm_dir) as left,
    ):
        collector = KernelsCollector(first, second, left)
        registry.register(collector)
        await compiler.compile(SOURCE, f"add<{time.time_ns() % (1 << 31)}>")
        for number, kernels in enumerate((first, second, left)):
            for n in range(number + 1):
                await kernels.get(SOURCE, f"add<{n}>")
        collector.add(first.clone())
        collector.remove(left.clone())
        samples = scrape(registry)
        workers = first.stats().workers
    assert samples["loaded_kernels"] == 1 + 2
    assert samples["load_duration_seconds_count"] == 1 + 2
    assert samples["workers"] == workers > 0


async def test_the_http_server_of_the_client_is_scraped_while_kernels_are_built(
    warm_dir: Path,
) -> None:
    """From its own thread, again and again, and after the close; counts never fall."""
    registry = CollectorRegistry()
    scrapes: list[dict[str, float]] = []
    over = threading.Event()

    def look(port: int) -> None:
        with httpx.Client() as client:
            while True:
                last = over.is_set()
                answer = client.get(f"http://127.0.0.1:{port}/metrics").raise_for_status()
                scrapes.append(parsed(answer.text))
                if last:
                    return

    server, serving = start_http_server(0, "127.0.0.1", registry)
    looking = threading.Thread(target=look, args=(server.server_port,))
    try:
        async with Kernels.open("cpu", cache_dir=warm_dir, workers=2) as kernels:
            registry.register(KernelsCollector(kernels))
            looking.start()
            pendings = [kernels.request(SOURCE, f"add<{n}>") for n in range(8)]
            for n in range(300):
                kernels.request(SOURCE, f"never<{n}, {time.time_ns()}>")
                await asyncio.sleep(0)
            for pending in pendings:
                await kernels.get(pending.source, pending.specialization)
            await until(lambda: len(scrapes) > 3)
    finally:
        over.set()
        for end in (looking.join, server.shutdown, serving.join):
            await asyncio.to_thread(end)
        server.server_close()
    assert scrapes[-1]["requests_total{result=miss}"] == 8
    assert scrapes[-1]["load_duration_seconds_count"] == 8
    for series in scrapes[-1]:
        if "_total" in series or "_bucket" in series:
            counts = [samples[series] for samples in scrapes if series in samples]
            assert counts == sorted(counts), series


async def test_the_metrics_are_openmetrics_with_units(kernels: Kernels) -> None:
    """Every name has the library's prefix and, of a time, the unit."""
    registry = CollectorRegistry()
    registry.register(KernelsCollector(kernels))
    text = exposition.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    families = list(KernelsCollector().describe())
    assert all(family.name.startswith("kernels_async_") for family in families)
    assert all(family.documentation.endswith(".") for family in families)
    assert "# UNIT kernels_async_load_duration_seconds seconds" in text
    assert (
        'kernels_async_requests_total{device="cpu",result="hit",target="cpu"} 0.0' in text
    )
