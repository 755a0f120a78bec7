"""Tests of what a build says of itself while it goes on."""

from __future__ import annotations

from pathlib import Path

from kernels_async import (
    Artifact,
    Compiler,
    Manifest,
    ManifestKernel,
    Source,
    Specialization,
)
from kernels_async._artifact import Output
from kernels_async._store import Store
from kernels_async.cli._building import Building, Running, TargetBuild
from tests.commands import entries_of

SOURCE = Source("__global__ void k() {}")


def building(*times: float | None) -> TargetBuild:
    """A build of kernels that took so long before, as a manifest has it."""
    kernels = [
        ManifestKernel(
            SOURCE, Specialization(f"k{n}"), 1, {} if t is None else {"sm_90": t}
        )
        for n, t in enumerate(times)
    ]
    return TargetBuild("sm_90", kernels, 0)


def compiled(root: Path, seconds: float) -> Artifact:
    """An artifact whose compile took so long now."""
    output = Output(b"code", "k", (), None, seconds)
    return Store(root, "kernel.cubin").publish("ab" * 32, entries_of("k"), output)


def test_the_time_left_is_that_of_the_manifest_over_the_workers() -> None:
    """Less what those have had that are compiled now; never less than nothing."""
    build = building(4.0, 2.0, 2.0)

    assert build.seconds_left(2, 0.0) == 4.0
    build.running = {1: Running(0, 10.0), 2: Running(1, 11.0)}
    assert build.seconds_left(2, 12.0) == 2.5
    assert build.seconds_left(2, 99.0) == 0.0


def test_few_kernels_do_not_occupy_all_workers() -> None:
    """The last one takes as long as it takes."""
    assert building(4.0).seconds_left(8, 0.0) == 4.0


def test_what_was_slower_than_before_makes_the_rest_slower(tmp_path: Path) -> None:
    """What came from disk says nothing; one whose time nobody knows is like the others."""
    build = building(1.0, 2.0, None, 5.0)
    build.artifacts[0] = compiled(tmp_path, 3.0)
    stored = Store(tmp_path, "kernel.cubin").read("ab" * 32)
    assert stored is not None
    build.artifacts[3] = stored

    assert build.seconds_left(1, 0.0) == 3 * 2.0 + 3.0
    assert [kernel.specialization.symbol for kernel in build.waiting()] == ["k1", "k2"]
    assert (build.compile_seconds, build.saved_seconds) == (3.0, 3.0)


def test_nobody_knows_how_long_it_takes_the_first_time() -> None:
    """Then nothing is said of it."""
    assert building(None, 1.0).seconds_left(1, 0.0) is None
    assert building().seconds_left(1, 0.0) == 0.0


async def test_an_error_of_any_kind_is_that_kernels(tmp_path: Path) -> None:
    """Such as that no thread can start: the others are built."""

    class Broken(Compiler):
        async def compile(
            self, source: Source | str, specialization: Specialization | str
        ) -> Artifact:
            if specialization == Specialization("k"):
                raise RuntimeError("no thread")
            return await super().compile(source, specialization)

    kernels = (
        ManifestKernel(SOURCE, Specialization("k")),
        ManifestKernel(SOURCE, Specialization("k", {"N": 1})),
    )
    compiler = Broken("cpu", cache_dir=tmp_path, workers=1)
    build = Building(Manifest(kernels), [compiler], lambda *_: None)
    await build.run(lambda _: None)
    (done,) = build.targets
    assert [str(error) for error in done.failures.values()] == ["no thread"]
    assert len(done.artifacts) == 1
