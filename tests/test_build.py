"""Tests of the record of a build: what is made of events, written down and read back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kernels_async import Build, BuildCollector, Compiler, Kernels, Specialization
from tests.builds import (
    ERROR,
    WARNING,
    artifact,
    build,
    built,
    compiled,
    event,
    failure,
    large,
)


def spans(found: Build) -> list[tuple[str, float, float, str]]:
    """The spans of a build's only kernel."""
    (kernel,) = found.kernels
    return [(s.kind, round(s.begin, 3), round(s.end, 3), s.lane) for s in kernel.spans]


def test_a_compiled_kernel_has_a_span_for_everything_that_took_time() -> None:
    """It waits, is compiled, kept, waits again, and is loaded."""
    found = build(*compiled(artifact(), worker=3))

    assert spans(found) == [
        ("waiting", 0.0, 0.5, ""),
        ("compiling", 0.5, 1.5, "worker 3"),
        ("keeping", 1.5, 1.6, "store"),
        ("waiting", 1.6, 1.8, ""),
        ("loading", 1.8, 2.0, "cuda:0"),
    ]
    (kernel,) = found.kernels
    assert (kernel.state, kernel.device, kernel.origin) == ("loaded", "cuda:0", "compiled")
    assert (kernel.requests, kernel.size) == (1, 3000)


def test_a_kernel_that_is_found_was_read() -> None:
    """For as long as the event says, and was not compiled."""
    made = artifact(origin="disk")
    found = build(
        event("requested", 0, made),
        event("joined", 0.1, made),
        event("found", 0.5, made, seconds=0.2),
        event("loaded", 0.8, made, device="cpu", seconds=0.3),
    )

    assert spans(found) == [
        ("waiting", 0.0, 0.3, ""),
        ("reading", 0.3, 0.5, "store"),
        ("loading", 0.5, 0.8, "cpu"),
    ]
    assert found.kernels[0].requests == 2
    assert (found.saved_seconds, found.compile_seconds) == (0.5, 0.0)


def test_a_kernel_with_the_bytes_of_another_is_shared() -> None:
    """It was not loaded again: it came from memory."""
    made = artifact()
    told = [*compiled(made)[:-1], event("loaded", 2, made, device="cuda:0")]
    found = build(*told)

    assert found.kernels[0].state == "shared"
    assert "loading" not in {kind for kind, *_ in spans(found)}


def test_a_failure_keeps_its_error_and_what_the_compiler_said() -> None:
    """What was being done ends with it."""
    made = artifact()
    found = build(*compiled(made)[:2], event("failed", 1.2, made, error=failure()))

    (kernel,) = found.kernels
    assert kernel.state == "failed"
    assert kernel.error.startswith("CompileError: kernels.cu:31:14")
    assert kernel.diagnostics == (ERROR,)
    assert spans(found)[-1] == ("compiling", 0.5, 1.2, "worker 1")


def test_a_kernel_that_is_tried_again_is_one_kernel() -> None:
    """With the spans of both, and the last word."""
    made = artifact()
    failed = [*compiled(made)[:2], event("failed", 1.2, made, error=failure())]
    found = build(*failed, *compiled(made, at=10))

    (kernel,) = found.kernels
    assert (kernel.state, kernel.error, kernel.requests) == ("loaded", "", 2)
    assert [kind for kind, *_ in spans(found)].count("compiling") == 2
    assert found.seconds == pytest.approx(1.2 + 2.0)


def test_what_is_outstanding_is_counted_until_it_ends() -> None:
    """Of a cache to `loaded` or `failed`, of a compiler to `kept`."""
    collector = BuildCollector()
    counts = []
    for one in compiled(artifact()):
        collector(one)
        counts.append(collector.outstanding)
    assert counts == [1, 1, 1, 1, 1, 0]

    alone = BuildCollector()
    for one in compiled(artifact())[1:4]:
        alone(one)
    assert alone.outstanding == 0
    assert alone.build().kernels[0].state == "kept"


def test_only_the_newest_kernels_are_kept() -> None:
    """A server runs for weeks; what is outstanding is never dropped."""
    collector = BuildCollector(limit=3)
    collector(event("requested", 0, artifact("waits")))
    for n in range(10):
        for one in compiled(artifact(f"k<{n}>"), at=n):
            collector(one)
    found = collector.build()

    assert [k.symbol for k in found.kernels] == ["k<7>", "k<8>", "k<9>", "waits"]
    assert found.dropped == 7


def test_the_spans_of_a_kernel_that_fails_for_ever_do_not_pile_up() -> None:
    """The last ones are kept."""
    made = artifact()
    collector = BuildCollector()
    for n in range(100):
        for one in compiled(made, at=n * 3)[:2]:
            collector(one)
        collector(event("failed", n * 3 + 1, made, error=failure()))

    (kernel,) = collector.build().kernels
    assert len(kernel.spans) == 32
    assert kernel.spans[-1].end == pytest.approx(298)


def test_the_first_of_many_diagnostics_are_kept() -> None:
    """A header that warns in every line fills no server's memory."""
    (kernel,) = built(artifact(warnings=(WARNING,) * 60)).kernels

    assert (len(kernel.diagnostics), kernel.unsaid) == (50, 10)


def test_the_figures_leave_out_rests() -> None:
    """Two workers, one second each in a second and a half; then a rest of a day."""
    found = build(
        *compiled(artifact("a"), worker=1),
        *compiled(artifact("b"), worker=2),
        *compiled(artifact("c"), at=86_400, worker=1),
    )

    assert found.seconds == pytest.approx(4.0)
    assert found.compile_seconds == pytest.approx(3.0)
    assert found.workers == 2
    assert found.efficiency == pytest.approx(3.0 / (2 * (1.5 + 1.5)))


def test_occupancy_is_a_share_of_the_multiprocessors_warps() -> None:
    """32 registers fill an sm_90 but for the smallest blocks; the CPU has none."""
    found = built(artifact("a", registers=32), artifact("b", target="cpu"))

    assert [found.kernels[0].occupancy(n) for n in (32, 256, 768)] == [0.5, 1.0, 0.75]
    assert found.kernels[1].occupancy(256) is None


@pytest.mark.parametrize("found", [large(), built(artifact(target="cpu")), build()])
def test_a_build_survives_json(found: Build) -> None:
    """But for the last digits of its times."""
    record = json.loads(json.dumps(found.to_record()))
    again = Build.from_record(record)

    assert again.to_record() == record
    assert [k.symbol for k in again.kernels] == [k.symbol for k in found.kernels]
    assert [k.diagnostics for k in again.kernels] == [k.diagnostics for k in found.kernels]


def damaged(path: list[str | int], value: Any) -> Any:
    """The record of a build in which one thing is another."""
    record: Any = json.loads(json.dumps(large(6).to_record()))
    inner = record
    for step in path[:-1]:
        inner = inner[step]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return record


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema"], "kernels_async build 2"),
        (["schema"], None),
        (["more"], 1),
        (["began"], -1),
        (["began"], 1e300),
        (["began"], 1e12),
        (["kernels", 0, "spans", 0], ["waiting", 0, 1e12, ""]),
        (["dropped"], True),
        (["kernels"], {}),
        (["kernels", 0], "k"),
        (["kernels", 0, "state"], "fine"),
        (["kernels", 0, "origin"], "moon"),
        (["kernels", 0, "symbol"], 3),
        (["kernels", 0, "entries", "symbol"], 3),
        (["kernels", 0, "size"], -1),
        (["kernels", 0, "unsaid"], 1 << 60),
        (["kernels", 0, "resources", "registers"], "many"),
        (["kernels", 0, "resources"], [1]),
        (["kernels", 0, "resources", "shared"], -1),
        (["kernels", 0, "resources", "registers"], 10**400),
        (["kernels", 1, "diagnostics", 0, "line"], "1"),
        (["kernels", 1, "diagnostics", 0], "no"),
        (["kernels", 0, "spans", 0], ["resting", 0, 1, ""]),
        (["kernels", 0, "spans", 0], ["waiting", 2, 1, ""]),
        (["kernels", 0, "spans", 0], ["waiting", 0, float("nan"), ""]),
        (["kernels", 0, "spans", 0], ["waiting", 0]),
    ],
)
def test_a_record_that_is_not_one_is_refused(path: list[str | int], value: Any) -> None:
    """It may come from anywhere."""
    with pytest.raises(ValueError, match=r"."):
        Build.from_record(damaged(path, value))


async def test_real_kernels_tell_what_becomes_of_them(kernels: Kernels) -> None:
    """On the cpu device: compiled, failed, found."""
    collector = BuildCollector()
    kernels.listen(collector)
    text = "template <class T> __global__ void put(T* p) { *p = VALUE; }\n"
    good = Specialization("put<int>", {"VALUE": 41})
    await kernels.get(text, good)
    with pytest.raises(Exception, match="nope"):
        await kernels.get(text, Specialization("put<nope>", {"VALUE": 41}))
    found = collector.build()

    states = {k.symbol: k.state for k in found.kernels}
    assert states == {"put<int>": "loaded", "put<nope>": "failed"}
    loaded = next(k for k in found.kernels if k.state == "loaded")
    assert {tuple(k.defines.items()) for k in found.kernels} == {(("VALUE", "41"),)}
    kinds = [s.kind for s in loaded.spans]
    assert {"waiting", "loading"} <= set(kinds)
    assert collector.outstanding == 0


async def test_a_real_compiler_tells_of_its_kernels(compiler: Compiler) -> None:
    """For sm_90, with NVRTC; from disk the second time."""
    first, second = BuildCollector(), BuildCollector()
    text = "__global__ void k(int* p) { int unused; *p = 1; }\n"
    remove = compiler.listen(first)
    await compiler.compile(text, "k")
    remove()
    compiler.listen(second)
    await compiler.compile(text, "k")

    (new,), (read,) = first.build().kernels, second.build().kernels
    assert [s.kind for s in new.spans] == ["compiling", "keeping"]
    assert new.spans[0].lane.startswith("worker ")
    assert [s.kind for s in read.spans] == ["reading"]
    assert (new.origin, read.origin) == ("compiled", "disk")
    assert [d.code for d in read.warnings] == [WARNING.code]
    assert read.resources is not None
    assert first.build().began == pytest.approx(second.build().began, abs=60)
    assert first.build().began == pytest.approx(time.time(), abs=60)
