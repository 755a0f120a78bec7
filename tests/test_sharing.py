"""Tests of jobs that begin alike: they meet in few workers, and come out the same."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from kernels_async import (
    Artifact,
    CompileError,
    Compiler,
    SymbolNotFoundError,
    _plan,
)
from kernels_async._includes import leading_directives
from kernels_async._plan import Plans
from kernels_async._process import WorkerProcess
from kernels_async._sharing import Sharing
from kernels_async.toolchains import Toolchain
from tests.fake_worker import DIE_WITH_HEADERS, FakeWorker
from tests.jobs import job
from tests.processes import GOOD, in_child

HALF = """#include <cuda_fp16.h>
template <int N> __global__ void fill(__half* p) { *p = __float2half(N); }
"""


def images(folder: Path) -> list[Path]:
    """The precompiled headers beneath a folder."""
    return list(folder.rglob("*.pch"))


@pytest.mark.parametrize("options", [(), ("-G",), ("-lineinfo",), ("-std=c++20",)])
def test_precompiled_headers_change_no_byte(
    toolchain: Toolchain, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Neither the compile that makes them nor those that use them."""
    jobs = [job(HALF, f"fill<{n}>", options=options) for n in range(3)]
    plain = [toolchain.compile(one) for one in jobs]
    assert not images(tmp_path)

    shared = [toolchain.compile(one, toolchain.prefix(one)) for one in jobs]

    assert len(images(tmp_path)) == 1
    assert [o.data for o in shared] == [o.data for o in plain]
    assert [(o.entry, o.resources) for o in shared] == [
        (o.entry, o.resources) for o in plain
    ]


def test_a_header_of_another_text_is_another_header(toolchain: Toolchain) -> None:
    """NVRTC itself does not compare the text of headers that were given in memory."""
    text = '#include "v.h"\n__global__ void k(int* p) { *p = V; }\n'
    jobs = [job(text, "k", headers={"v.h": f"#define V {n}\n"}) for n in (1, 2, 1)]
    plain = [toolchain.compile(one).data for one in jobs]

    shared = [toolchain.compile(one, toolchain.prefix(one)).data for one in jobs]

    assert shared == plain
    assert shared[0] != shared[1]


def test_defines_and_options_are_part_of_what_is_shared(toolchain: Toolchain) -> None:
    """A header may mean something else under them."""
    text = "#include <cuda_fp16.h>\n__global__ void k(int* p) { *p = N; }\n"
    one = job(text, "k", defines={"N": 1})
    for other in (
        job(text, "k", defines={"N": 2}),
        job(text, "k", defines={"N": 1}, options=["--use_fast_math"]),
        job("#define M 1\n" + text, "k", defines={"N": 1}),
    ):
        assert toolchain.prefix(one) != toolchain.prefix(other)
    assert toolchain.prefix(one) == toolchain.prefix(
        job(text.replace("= N", "= 2 * N"), "k", defines={"N": 1})
    )


def test_nothing_is_shared_where_nothing_is_included(toolchain: Toolchain) -> None:
    """An include after the first declaration is none that others begin with."""
    assert toolchain.prefix(job(GOOD, "good<1>")) == ""
    late = "__device__ int v;\n#include <cuda_fp16.h>\n__global__ void k() {}\n"
    assert toolchain.prefix(job(late, "k")) == ""
    hidden = "// #include <cuda_fp16.h>\n__global__ void k() {}\n"
    assert toolchain.prefix(job(hidden, "k")) == ""


def test_nothing_is_shared_by_a_job_whose_worker_does_not_stay(
    toolchain: Toolchain,
) -> None:
    """NVRTC does not forget its option, so nobody comes after it."""
    assert toolchain.prefix(job(HALF, "fill<1>", options=["-restrict"])) == ""
    assert toolchain.prefix(job(HALF, "fill<1>")) != ""


def test_warnings_of_headers_are_told_each_time(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    """NVRTC itself tells them once for all who use the precompiled ones."""
    text = '#include "w.h"\ntemplate <int N> __global__ void k(int* p) { *p = f(); }\n'
    header = "static inline __device__ int f() { int unused; return 1; }\n"
    jobs = [job(text, f"k<{n}>", headers={"w.h": header}) for n in range(3)]

    told = [toolchain.compile(o, toolchain.prefix(o)).diagnostics for o in jobs]

    assert told == [toolchain.compile(one).diagnostics for one in jobs]
    assert all("unused" in diagnostics[0].message for diagnostics in told)
    assert not images(tmp_path)


def test_headers_that_only_warn_when_they_are_used_are_kept(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    """A template of theirs warns in each compile that instantiates it, kept or not."""
    text = '#include "w.h"\ntemplate <int N> __global__ void k(int* p) { *p = f<N>(); }\n'
    header = "template <int N> __device__ int f() { int unused; return N; }\n"
    jobs = [job(text, f"k<{n}>", headers={"w.h": header}) for n in range(3)]

    told = [toolchain.compile(o, toolchain.prefix(o)).diagnostics for o in jobs]

    assert told == [toolchain.compile(one).diagnostics for one in jobs]
    assert len(told[0]) == len(told[2]) > 0
    assert len(images(tmp_path)) == 1


def test_warnings_of_headers_are_told_after_an_error(toolchain: Toolchain) -> None:
    """The compile that failed told them, and made an image which would not."""
    text = '#include "w.h"\n__global__ void k(int* p) { *p = f(); }\n'
    header = {"w.h": "static inline __device__ int f() { int unused; return 1; }\n"}
    good = job(text, "k", headers=header)
    shared = toolchain.prefix(good)
    with pytest.raises(CompileError):
        toolchain.compile(job(text.replace("*p =", "*q ="), "k", headers=header), shared)

    told = toolchain.compile(good, shared).diagnostics

    assert "unused" in told[0].message
    assert told == toolchain.compile(good).diagnostics


def test_warnings_of_the_source_itself_do_not_keep_headers_from_being_shared(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    """They come after the headers, and are told each time."""
    jobs = [job(HALF.replace("{ *p", "{ int u; *p"), f"fill<{n}>") for n in range(2)]

    told = [toolchain.compile(o, toolchain.prefix(o)).diagnostics for o in jobs]

    assert told == [toolchain.compile(one).diagnostics for one in jobs]
    assert all('"u"' in diagnostics[0].message for diagnostics in told)
    assert len(images(tmp_path)) == 1


@pytest.mark.parametrize(
    ("line", "header"),
    [
        ('#line 500 "kernel.cu"\n#warning told', ""),
        ("", '#line 500 "kernel.cu"\nstatic __device__ int f() { int told; return 1; }'),
    ],
)
def test_a_warning_of_a_header_is_told_each_time_whatever_its_line_is_called(
    toolchain: Toolchain, line: str, header: str
) -> None:
    """`#line` puts it behind the headers."""
    text = f'#include "w.h"\n{line}\n__global__ void k(int* p) {{ *p = 1; }}\n'
    one = job(text, "k", headers={"w.h": f"{header}\n"})
    plain = toolchain.compile(one).diagnostics
    assert "told" in str(plain[0])

    for _ in range(2):
        assert toolchain.compile(one, toolchain.prefix(one)).diagnostics == plain


def test_errors_are_those_of_a_compile_without(toolchain: Toolchain) -> None:
    """And those that come after it share the headers all the same."""
    broken = job(HALF.replace("*p =", "*q ="), "fill<1>")
    missing = job(HALF, "none<1>")
    shared = toolchain.prefix(missing)
    for wrong, kind in ((broken, CompileError), (missing, SymbolNotFoundError)):
        with pytest.raises(kind) as plain:
            toolchain.compile(wrong)
        for _ in range(2):
            with pytest.raises(kind) as with_headers:
                toolchain.compile(wrong, shared)
            assert str(with_headers.value) == str(plain.value)
    good = job(HALF, "fill<1>")
    assert toolchain.compile(good, shared).data == toolchain.compile(good).data
    assert images(Path.cwd())


def test_a_full_disk_costs_only_time(toolchain: Toolchain) -> None:
    """What the headers' image does not fit is compiled without."""
    good = job(HALF, "fill<1>")
    plain = toolchain.compile(good).data

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    def compile_twice() -> str:
        shared = [toolchain.compile(good, toolchain.prefix(good)).data for _ in range(2)]
        return f"{shared == [plain, plain]} {images(Path.cwd())}"

    assert in_child(fill, compile_twice)[-1] == repr("True []")


def test_nothing_is_kept_where_there_is_no_room(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk that fills up while an image is written kills the worker."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    good = job(HALF, "fill<1>")
    assert toolchain.compile(good, toolchain.prefix(good)).entry
    assert not images(tmp_path)


def test_images_that_were_not_used_for_longest_go(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that lives long does not fill the disk."""
    monkeypatch.setattr("kernels_async.toolchains._pch._KEPT_BYTES", 0)
    for n in range(3):
        one = job(f"#define M{n}\n{HALF}", "fill<1>")
        toolchain.compile(one, toolchain.prefix(one))
        assert len(images(tmp_path)) == 1


@pytest.mark.parametrize(
    ("text", "leading"),
    [
        ("#include <a>\nint v;", "#include <a>\n"),
        ("// c\n/* d\n e */ #define A \\\n 1\n\n#if A\nint v;", "// c\n/* d\n e */ #def"),
        ("#define A /* x\n y */ 1\n#include <b>\nint v;", "#define A /* x\n y */ 1\n#incl"),
        ("int v;\n#include <a>\n", ""),
        ("#pragma once", "#pragma once"),
        ("/* never closed", ""),
    ],
)
def test_directives_end_at_the_first_declaration(text: str, leading: str) -> None:
    """Whatever comments and continued lines stand among them."""
    found = leading_directives(text)
    assert text.startswith(found)
    assert found.startswith(leading)
    assert "int v" not in found


def test_a_long_comment_is_read_in_no_time() -> None:
    """Megabytes of license, or of one line, before the first declaration."""
    for comment in ("/*" + "*/ /*" * 300_000 + "*/", "#" + " /" * 300_000, "// " * 300_000):
        assert leading_directives(f"{comment}\nint v;") == f"{comment}\n"


@dataclass(eq=False)
class Waiting:
    """A job that waits, for a plan."""

    name: str
    prefix: str = ""
    background: bool = False


@dataclass(eq=False)
class Worker:
    """What a worker knows, for a plan."""

    prefixes: Counter[str] = field(default_factory=Counter)
    kept: set[str] = field(default_factory=set)


class Workers:
    """Some workers, the plan of their jobs, and the time."""

    def __init__(self, count: int) -> None:
        self.all = [Worker() for _ in range(count)]
        self.idle = list(self.all)
        self.now = 0.0
        pretended = (cast("list[WorkerProcess]", each) for each in (self.all, self.idle))
        self.sharing = Sharing(count, *pretended)
        self.plan: Plans[Waiting] = Plans(self.sharing, lambda: self.now)

    def put(self, count: int, prefix: str) -> None:
        """Jobs of one prefix that wait."""
        for number in range(count):
            self.plan.put(Waiting(f"{prefix}{number}", prefix))

    def start(self, number: int) -> tuple[str, str] | None:
        """The next job of a worker that is free: its name, and what the worker keeps."""
        worker = self.all[number]
        others = [other for other in self.idle if other is not worker]
        self.idle[:] = [worker]
        taken = self.plan.take()
        self.idle[:] = others
        if taken is None:
            self.idle.append(worker)
            return None
        more = self.plan.waiting(taken.prefix)
        kept = self.sharing.keep(cast("WorkerProcess", worker), taken.prefix, more)
        return taken.name, kept

    def end(self, number: int) -> None:
        """Its job is done."""
        self.idle.append(self.all[number])


def test_a_worker_goes_on_with_what_it_knows() -> None:
    """And one that knows nothing begins where the most work waits for each."""
    workers = Workers(3)
    workers.put(5, "a")
    workers.put(9, "b")
    names = [workers.start(number) for number in (0, 1, 0, 2, 1, 2)]
    assert names == [
        ("b0", "b"), ("a0", "a"), ("b1", "b"), ("b2", "b"), ("a1", "a"), ("b3", "b")
    ]  # fmt: skip


def test_long_jobs_begin_first_and_none_is_passed_over_for_ever() -> None:
    """A job without headers came first, and waits for sixteen that are longer."""
    workers = Workers(1)
    workers.put(1, "")
    workers.put(40, "a")
    started = [workers.start(0) for _ in range(41)]
    names = [each[0] for each in started if each]
    assert names[0] == "a0"
    assert names.index("0") == 16


@pytest.mark.parametrize(
    ("jobs", "count", "keepers", "others"),
    [(16, 16, 0, 16), (17, 16, 6, 0), (32, 16, 11, 0), (64, 16, 16, 0), (3, 2, 2, 0),
     (2, 2, 0, 2), (2, 1, 1, 0), (1, 1, 0, 1)],
)  # fmt: skip
def test_as_many_workers_keep_headers_as_pay_off(
    jobs: int, count: int, keepers: int, others: int
) -> None:
    """One each is fastest if there are enough workers, else three for each and more."""
    workers = Workers(count)
    workers.put(jobs, "a")
    started = [workers.start(number) for number in range(count)]
    kept = [each[1] for each in started if each]
    assert (kept.count("a"), kept.count("")) == (keepers, others)
    assert workers.plan.waiting("a") == jobs - keepers - others


def test_a_job_that_is_left_to_others_is_not_left_for_ever() -> None:
    """Those who keep its headers may hang, or have a longer one first."""
    workers = Workers(2)
    workers.put(3, "a")
    assert workers.start(0) == ("a0", "a")
    workers.end(0)
    assert workers.start(0) == ("a1", "a")
    assert workers.start(1) is None
    workers.now += _plan.PATIENCE_SECONDS + 0.1
    assert workers.start(1) == ("a2", "")


def test_a_free_worker_finds_its_job_behind_many_that_are_left_to_others() -> None:
    """However many prefixes a busy worker keeps."""
    workers = Workers(2)
    for n in range(40):
        workers.all[0].kept.add(f"a{n}-")
        workers.put(1, f"a{n}-")
    workers.put(1, "")
    assert workers.start(1) == ("0", "")
    assert workers.start(1) is None


def test_a_job_that_somebody_waits_for_overtakes_those_in_the_background() -> None:
    """Also one that was in the background before."""
    plan = Workers(1).plan
    jobs = [Waiting(f"{n}", "a", background=n != 2) for n in range(4)]
    for waiting in jobs:
        plan.put(waiting)
    jobs[3].background = False
    plan.hurry(jobs[3])
    assert plan.waiting("a") == len(plan) == 4
    assert [plan.take() for _ in range(4)] == [jobs[2], jobs[3], jobs[0], jobs[1]]


def test_a_job_that_is_not_there_any_more_does_not_overtake() -> None:
    """It has been taken, or dropped."""
    plan = Workers(1).plan
    taken = Waiting("0", background=True)
    plan.put(taken)
    assert plan.take() is taken
    plan.hurry(taken)
    assert plan.take() is None
    assert len(plan) == 0


async def test_who_waits_for_a_plan_hears_of_each_change() -> None:
    """Or looks again, if nothing is heard."""
    plan = Workers(1).plan
    waiting = [asyncio.create_task(plan.changed()) for _ in range(2)]
    await asyncio.sleep(0)
    plan.put(Waiting("0"))
    await asyncio.wait_for(asyncio.gather(*waiting), 0.2)
    await plan.changed()


def test_one_request_after_another_keeps_headers_at_last() -> None:
    """Nobody knows whether more will come, until some have."""
    workers = Workers(2)
    kept = []
    for _ in range(4):
        workers.put(1, "a")
        started = workers.start(0)
        kept.append(started and started[1])
        workers.end(0)
    assert kept == ["", "", "a", "a"]


def test_what_is_dropped_is_not_planned() -> None:
    """Nor counted."""
    plan = Workers(1).plan
    dropped, other = Waiting("0", "a"), Waiting("1", "a")
    plan.put(dropped)
    plan.put(other)
    plan.discard(dropped)
    plan.discard(dropped)
    assert (len(plan), plan.waiting("a")) == (1, 1)
    assert plan.take() is other


@pytest.fixture
def confined(tmp_path: Path) -> Compiler:
    """A compiler with one worker in the sandbox."""
    return Compiler("sm_90", cache_dir=tmp_path / "cache", workers=1, sandbox="auto")


async def test_a_batch_of_one_source_shares_its_headers(confined: Compiler) -> None:
    """In the sandbox too; they go with their worker."""
    async with confined as compiler:
        made = await compiler.compile_all([(HALF, f"fill<{n}>") for n in range(4)])
        assert all(isinstance(artifact, Artifact) for artifact in made), made
        (worker,) = compiler._maker().pool.crew.workers
        (image,) = images(Path(worker.folder))
        assert len(worker.kept) == 1
        assert image.stat().st_size > 1 << 20
        await compiler.trim()
        assert not image.exists()


async def test_headers_that_were_removed_underneath_kill_no_worker(
    confined: Compiler,
) -> None:
    """As a cleaner of the temporary directory does; they are kept again."""
    async with confined as compiler:
        pool = compiler._maker().pool
        for first in (0, 4, 8):
            requests = [(HALF, f"fill<{n}>") for n in range(first, first + 4)]
            made = await compiler.compile_all(requests)
            assert all(isinstance(artifact, Artifact) for artifact in made), made
            (worker,) = pool.crew.workers
            assert worker.jobs == first + 4
            (image,) = images(Path(worker.folder))
            shutil.rmtree(image.parents[1])
        shutil.rmtree(worker.folder)
        await compiler.compile(HALF, "fill<12>")
        assert worker.jobs == 13


async def test_a_single_job_keeps_no_headers(confined: Compiler) -> None:
    """It would wait for nothing."""
    async with confined as compiler:
        await compiler.compile(HALF, "fill<1>")
        (worker,) = compiler._maker().pool.crew.workers
        assert not images(Path(worker.folder))


async def test_a_worker_that_dies_of_kept_headers_fails_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job is compiled again without, and so are all that begin like it."""
    fake = FakeWorker(tmp_path)
    monkeypatch.setattr(sys, "executable", fake.program)
    text = f"#include <cuda_fp16.h>\n//! {DIE_WITH_HEADERS}\n{GOOD}"
    async with Compiler("sm_90", cache_dir=tmp_path / "cache", workers=1) as compiler:
        requests = [(text, f"good<{n}>") for n in range(5)]
        outcomes = await asyncio.wait_for(compiler.compile_all(requests), 30)
    assert all(isinstance(outcome, Artifact) for outcome in outcomes), outcomes
    assert sorted(fake.begun().values()) == [1, 1, 1, 1, 2]


async def test_jobs_are_not_left_to_workers_that_cannot_keep_their_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say so, for want of room or trust; then any worker is as good."""
    fake = FakeWorker(tmp_path)
    monkeypatch.setattr(sys, "executable", fake.program)
    async with Compiler("sm_90", cache_dir=tmp_path / "cache", workers=1) as compiler:
        sharing = compiler._maker().pool.sharing
        made = await compiler.compile_all([(HALF, f"fill<{n}>") for n in range(5)])
        assert all(isinstance(artifact, Artifact) for artifact in made), made
        (prefixes,) = sharing.known()
        assert [sharing.keepers(prefix) for prefix in prefixes] == [0]
