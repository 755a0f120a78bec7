"""Tests of the reporter that writes a page, and of several reporters as one."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from kernels_async import Artifact, BuildError, HtmlReporter, Kernels, Reporters, read_build
from kernels_async._events import Event
from tests.builds import artifact, compiled

TEXT = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the package warned of."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "kernels_async" and record.levelno >= logging.WARNING
    ]


async def written(path: Path, count: int) -> None:
    """Wait until a page of so many kernels is there."""
    async with asyncio.timeout(20):
        while not path.exists() or len(read_build(path).kernels) != count:
            await asyncio.sleep(0.01)


async def test_a_cache_writes_its_page_when_it_rests_and_when_it_closes(
    warm_dir: Path, tmp_path: Path
) -> None:
    """Real kernels on the cpu device; one of them fails."""
    path = tmp_path / "build.html"
    reporter = HtmlReporter(path, rest=0.05)
    async with Kernels.open("cpu", cache_dir=warm_dir, workers=2) as kernels:
        kernels.reporting(reporter)
        for symbol in ("add<0>", "add<1>", "add<nope>"):
            kernels.request(TEXT, symbol)
        with pytest.raises(BuildError):
            await kernels.build()
        await written(path, 3)
        await kernels.get(TEXT, "add<2>")

    found = read_build(path)
    states = {kernel.symbol: kernel.state for kernel in found.kernels}
    assert states.pop("add<nope>") == "failed"
    assert states == dict.fromkeys(("add<0>", "add<1>", "add<2>"), "loaded")
    assert all(kernel.seconds("loading") for kernel in found.kernels if not kernel.error)
    assert sorted(os.listdir(tmp_path)) == [
        "build.html",
        *(["cache"] * (tmp_path / "cache").exists()),
    ]


async def test_nothing_is_written_while_something_is_outstanding(tmp_path: Path) -> None:
    """The last kernel of a batch is what the page waits for."""
    path = tmp_path / "build.html"
    reporter = HtmlReporter(path, rest=0.01)
    first, second = compiled(artifact("a")), compiled(artifact("b"))
    for one in [*first, *second[:-1]]:
        reporter.event(one)
    await asyncio.sleep(0.1)
    assert not path.exists()

    reporter.event(second[-1])
    await written(path, 2)
    await reporter.aclose()


async def test_an_artifact_alone_is_enough_for_a_row(tmp_path: Path) -> None:
    """Where nobody tells events; `write` does not wait for a rest."""
    path = tmp_path / "build.html"
    reporter = HtmlReporter(path, rest=60)
    await reporter(artifact("alone"))
    await reporter.write()

    (kernel,) = read_build(path).kernels
    assert (kernel.symbol, kernel.state, kernel.spans) == ("alone", "kept", ())
    path.unlink()
    await reporter.aclose()
    assert not path.exists()


async def test_a_page_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And again only if it could be in between; who asks for it gets the error."""
    folder = tmp_path / "later"
    reporter = HtmlReporter(folder / "build.html", rest=60)
    for n in range(3):
        await reporter(artifact(f"k<{n}>"))
        await reporter.aclose()
    (told,) = messages(caplog)
    assert "build.html cannot be written" in told
    with pytest.raises(FileNotFoundError):
        await reporter.write()

    folder.mkdir()
    await reporter.aclose()
    assert len(read_build(folder / "build.html").kernels) == 3
    assert len(messages(caplog)) == 1


async def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    """Who has the old one open reads on in it."""
    path = tmp_path / "build.html"
    path.write_text("old")
    with path.open() as old:
        reporter = HtmlReporter(path, rest=60)
        await reporter(artifact())
        await reporter.aclose()
        assert old.read() == "old"
    assert len(read_build(path).kernels) == 1
    assert os.listdir(tmp_path) == ["build.html"]


async def test_several_reporters_pass_events_on_and_close(tmp_path: Path) -> None:
    """To those that want them; one that raises robs nobody."""
    seen: list[str] = []

    class Raises:
        async def __call__(self, made: Artifact) -> None:
            seen.append(made.symbol)

        def event(self, event: Event) -> None:
            seen.append(event.kind)
            raise RuntimeError("no")

        async def aclose(self) -> None:
            seen.append("closed")
            raise RuntimeError("no")

    path = tmp_path / "build.html"
    several = Reporters(print, Raises(), HtmlReporter(path, rest=60))
    for one in compiled(artifact("k")):
        several.event(one)
    await several(artifact("k"))
    with pytest.raises(RuntimeError):
        await several.aclose()

    assert seen == [
        *("requested", "compiling", "compiled", "kept", "loading", "loaded"),
        *("k", "closed"),
    ]
    (kernel,) = read_build(path).kernels
    assert kernel.state == "loaded"
