"""Bars of the pool: isolation, deadlines, poison, orphans, exit, and hostile sources."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import kernels_async
from kernels_async import (
    Artifact,
    CompileMemoryError,
    Compiler,
    CompileTimeout,
    QuarantinedError,
    Source,
    Specialization,
    WorkerCrashed,
)
from kernels_async._diagnostics import printable
from kernels_async._sandbox import Mode
from tests.fake_worker import FAULTS, FakeWorker
from tests.processes import GOOD, SLOW, at_work, descendants, is_alive, server, until

SEGV_OPTION = "-modify-stack-limit=false"


def parentheses(number: int = 0) -> str:
    """A source that overflows NVRTC's stack: a real segmentation fault."""
    nested = f"{'(' * 200_000}{number}{')' * 200_000}"
    return f'extern "C" __global__ void k(int* p) {{ *p = {nested}; }}\n'


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kernels_async-bar-") as name:
        yield Path(name)


def isolation(full: bool, seed: int) -> str:
    """B11: a job that ends its worker ends no other."""
    return asyncio.run(_isolation(full, seed))


async def _isolation(full: bool, seed: int) -> str:
    chance = random.Random(seed)
    kinds = list(FAULTS) if full else chance.sample(list(FAULTS), 10)
    good, waits = (103, []) if full else (10, [])
    failed = again = served = 0
    for kind in kinds:
        with scratch() as folder:
            fake = FakeWorker(folder)
            compiler = Compiler(
                "sm_90", cache_dir=folder / "c", workers=4, timeout=2, memory=300 << 20
            )
            with mock.patch.object(sys, "executable", fake.program):
                async with compiler:
                    requests = [(GOOD, f"good<{n}>") for n in range(good)]
                    requests.insert(chance.randrange(good), (f"{GOOD}//! {kind}\n", "bad"))
                    found = await compiler.compile_all(requests)
                    began = time.monotonic()
                    await compiler.compile(GOOD, "replacement")
                    waits.append(time.monotonic() - began)
            for (_, symbol), outcome in zip(requests, found, strict=True):
                if symbol == "bad":
                    expected = (WorkerCrashed, CompileTimeout, CompileMemoryError)
                    assert isinstance(outcome, expected), (kind, outcome)
                else:
                    failed += not isinstance(outcome, Artifact)
                    served += 1
            again += sum(times > 1 for times in fake.begun().values())
    real = await _real_crashes(good)
    assert (failed, again, real) == (0, 0, 0)
    return (
        f"{len(kinds)} kinds of fault and a crash of NVRTC, each amid {good} good jobs: "
        f"{served + good} good jobs, 0 failed, 0 compiled twice; the next job after "
        f"{statistics.median(waits) * 1000:.0f} ms"
    )


async def _real_crashes(good: int) -> int:
    """How many of the good jobs beside a crash of NVRTC's failed."""
    with scratch() as folder:
        async with Compiler("sm_90", cache_dir=folder, workers=2) as compiler:
            bomb = (parentheses(), Specialization("k", options=(SEGV_OPTION,)))
            crashed, *found = await compiler.compile_all(
                [bomb, *((GOOD, f"good<{n}>") for n in range(good))]
            )
    assert isinstance(crashed, WorkerCrashed), crashed
    assert crashed.returncode == -signal.SIGSEGV
    return sum(not isinstance(outcome, Artifact) for outcome in found)


def _doubled(name: str, first: str, times: int) -> str:
    """Macros of which each is the one before, four times over."""

    def line(number: int) -> str:
        text = " ".join([f"{name}{number - 1}"] * 4) if number else first
        return f"#define {name}{number} {text}\n"

    return "".join(map(line, range(times)))


_KERNEL = 'extern "C" __global__ void k(int* p)'


def _unrolled(times: int) -> str:
    """Kernels of which each takes a while, and `k`."""
    names = [*(f"other{number}" for number in range(times)), "k"]
    return "".join(SLOW.replace("slow(", f"{name}(") for name in names)


_COUNT = (
    "template <int N, long M> struct F {{ static const int v = F<N - 1, M * 2>::v + "
    "F<N - 1, M * 2 + 1>::v; }};\n"
    "template <long M> struct F<0, M> {{ static const int v = 1; }};\n"
    f"{_KERNEL} {{{{ *p = F<{{}}, 1>::v; }}}}\n"
)
BOMBS: dict[str, str] = {
    "unrolled": _unrolled(3),
    "unrolled more": _unrolled(8),
    "macros": _doubled("A", "x +", 16) + f"{_KERNEL} {{ int x = 0; *p = A15 0; }}\n",
    "macros of text": _doubled("T", '"text"', 16) + f"{_KERNEL} {{ *p = sizeof(T15); }}\n",
    "macros of nothing": _doubled("E", "", 18) + f"E17\n{_KERNEL} {{}}\n",
    "macros of declarations": _doubled("D", "__device__ int *q(int);", 16)
    + f"D15\n{_KERNEL} {{}}\n",
    "statements": _doubled("S", "x = x * 3 + p[x];", 9)
    + f"{_KERNEL} {{ int x = 0; S8 *p = x; }}\n",
    "templates": _COUNT.format(26),
    "templates of long names": (
        "template <class... T> struct L {};\n"
        "template <int N, class... T> struct G : G<N - 1, L<T...>, L<T..., int>> {};\n"
        "template <class... T> struct G<0, T...> { static const int v = sizeof...(T); };\n"
        f"{_KERNEL} {{ *p = G<60>::v; }}\n"
    ),
    "constant expression": (
        "__device__ constexpr int f(int n, int m) { return n < 2 ? m : f(n - 1, m) + f(n - 2, m); }\n"
        "template <int N> struct R { static const int v = f(21, N) + f(21, -N) + f(21, N + 999) + f(21, -N - 999) + R<N - 1>::v; };\n"
        "template <> struct R<0> { static const int v = 0; };\n"
        f"{_KERNEL} {{ *p = R<180>::v; }}\n"
    ),
    "includes": '#include "a.h"\n' * 12 + f"{_KERNEL} {{}}\n",
    "array": f"__device__ char a[1500u << 20] = {{1}};\n{_KERNEL} {{ *p = a[*p]; }}\n",
}
HEADERS = {f"{this}.h": f'#include "{that}.h"\n' * 12 for this, that in pairwise("abcdefg")}
HEADERS["g.h"] = "\n"


def deadlines(full: bool, seed: int) -> str:
    """B12: real compiles that never end, or eat memory, are killed in time."""
    return asyncio.run(_deadlines(full, seed))


async def _deadlines(full: bool, seed: int) -> str:
    chance = random.Random(seed)
    timeout = 3.0 if full else 1.0
    names = list(BOMBS) if full else chance.sample(list(BOMBS), 2)
    with scratch() as folder:
        async with asyncio.TaskGroup() as tasks:
            lanes = [
                tasks.create_task(_explode(names[start::2], folder, timeout))
                for start in (0, 1)
            ]
    found = [end for lane in lanes for end in lane.result()]
    ended = Counter(kind for kind, _, _ in found)
    late = max(seconds for _, seconds, _ in found)
    grown = max(growth for _, _, growth in found)
    assert ended.keys() <= {"CompileTimeout", "CompileMemoryError"}, found
    assert late < timeout + 1, found
    assert grown < 50 << 20, found
    return (
        f"{len(names)} bombs, ended by a time-out of {timeout:g} s or a limit of memory: "
        f"{dict(ended)}, the last after {late:.2f} s; as many workers after; the server "
        f"grew by {grown >> 20} MiB"
    )


async def _explode(
    names: list[str], folder: Path, timeout: float
) -> list[tuple[str, float, int]]:
    """How each bomb ended, how long after it had begun, how much the server grew."""
    found = []
    compiler = Compiler(
        "sm_90", cache_dir=folder, workers=1, timeout=timeout, memory=700 << 20
    )
    async with compiler:
        await compiler.compile(GOOD, "good<0>")
        before = _resident()
        for name in names:
            source = Source(BOMBS[name], HEADERS if name == "includes" else {})
            task = asyncio.create_task(compiler.compile_all([(source, "k")]))
            await until(lambda: at_work(compiler))
            began = time.monotonic()
            (outcome,) = await task
            grown = _resident() - before
            found.append((type(outcome).__name__, time.monotonic() - began, grown))
            after = await compiler.compile(f"{GOOD}// {name}", "good<1>")
            assert isinstance(after, Artifact)
            assert len(compiler._maker().pool.crew.workers) == 1
    return found


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def poison(full: bool, seed: int) -> str:
    """B13: a request that kills workers kills two."""
    return asyncio.run(_poison(1000 if full else 20))


async def _poison(count: int) -> str:
    spec = Specialization("k", options=(SEGV_OPTION,))
    bomb = Source(parentheses())
    found: Counter[str] = Counter()
    with scratch() as folder:
        async with Compiler("sm_90", cache_dir=folder, workers=2) as compiler:
            for _ in range(count):
                (outcome,) = await compiler.compile_all([(bomb, spec)])
                found[type(outcome).__name__] += 1
            assert isinstance(outcome, QuarantinedError)
            assert len(outcome.history) == found["WorkerCrashed"] == 2
    assert found.total() == count
    return f"{count} gets of a request that kills workers: {dict(found)}"


BUSY_SERVER = """
import asyncio, os, sys
from kernels_async import Compiler
from tests.processes import CPU_SLOW, SLOW
target, folder = sys.argv[1:]
async def main():
    async with Compiler(target, workers=2, cache_dir=folder) as compiler:
        text = CPU_SLOW if target == "cpu" else SLOW
        await compiler.compile_all([(f"{text}// {n}", "slow") for n in range(2)])
asyncio.run(main())
"""


def orphans(full: bool, seed: int) -> str:
    """B14: no worker, and no compiler that it runs, outlives its server by a second."""
    count = 100 if full else 4
    most = 0
    for number in range(count):
        target = ("sm_90", "cpu")[number % 2]
        with scratch() as folder, server(BUSY_SERVER, target, str(folder)) as process:
            busy = {"sm_90": 2, "cpu": 6}[target]
            deadline = time.monotonic() + 120
            while len(below := descendants(process.pid)) < busy:
                assert time.monotonic() < deadline, below
                time.sleep(0.01)
            time.sleep(random.Random(seed + number).random() / 4)
            below = descendants(process.pid)
            process.kill()
            killed = time.monotonic()
            while left := [number for number in below if is_alive(number)]:
                assert time.monotonic() - killed < 1, left
                time.sleep(0.005)
            most = max(most, round((time.monotonic() - killed) * 1000))
    return f"{count} servers killed with busy workers: 0 alive after 1 s, the last after {most} ms"


LEAVING = {
    "close": """
async def main():
    asyncio.get_running_loop().slow_callback_duration = 9  # the machine may be busy
    async with Compiler(target, workers=2, cache_dir=folder) as compiler:
        tasks = [asyncio.create_task(compiler.compile(f"{text}// {n}", "slow")) for n in (1, 2)]
        await running()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, ClosedError), outcome
""",
    "exit": """
async def main():
    asyncio.get_running_loop().slow_callback_duration = 9
    compiler = await Compiler(target, workers=2, cache_dir=folder).__aenter__()
    tasks = [asyncio.create_task(compiler.compile(f"{text}// {n}", "slow")) for n in (1, 2)]
    await running()
    sys.exit(0)
""",
}


def leaving(full: bool, seed: int) -> str:
    """B15: closing, and the interpreter's end, do not wait for a compile."""
    count = 50 if full else 4
    most = 0.0
    for number in range(count):
        how, target = list(LEAVING)[number % 2], ("sm_90", "cpu")[number // 2 % 2]
        program = (
            "import asyncio, os, sys\nfrom kernels_async import *\n"
            "from tests.processes import CPU_SLOW, SLOW, descendants\n"
            "target, folder = sys.argv[1:]\n"
            "text, busy = (CPU_SLOW, 6) if target == 'cpu' else (SLOW, 2)\n"
            "async def running():\n"
            "    while len(descendants(os.getpid())) < busy:\n"
            "        await asyncio.sleep(0.01)\n"
            "    print('leaving', flush=True)\n"
            "    sys.stdin.readline()\n"
            f"{LEAVING[how]}\n"
            "asyncio.run(main())\n"
        )
        options = ("-X", "dev", "-W", "error")
        more: dict[str, Any] = {
            "env": {"PYTHONASYNCIODEBUG": "1"},
            "stdin": subprocess.PIPE,
        }
        with (
            scratch() as folder,
            server(program, target, str(folder), options=options, **more) as process,
        ):
            assert process.stdout is not None
            assert process.stdout.readline() == "leaving\n", process.stderr
            below, began = descendants(process.pid), time.monotonic()
            out, err = process.communicate("\n", timeout=20)
            most = max(most, time.monotonic() - began)
            assert (process.returncode, out, err) == (0, "", ""), (how, target, err)
            assert below, "nothing was running"
            assert not any(map(is_alive, below))
    assert most < 2, most
    return (
        f"{count} times left with two running compiles: quiet, the last after {most:.2f} s"
    )


def _forbidden(folder: Path, count: int) -> dict[Path, set[str]]:
    """Files that no source may show, each with its telling lines; some are made here."""
    found: dict[Path, set[str]] = {}
    known = (
        *("/etc/passwd", "/etc/shadow", "/etc/hostname", "/etc/hosts", "/etc/fstab"),
        *("/proc/self/environ", "/proc/self/maps", "/proc/cpuinfo", "/proc/version"),
        *(os.__file__, asyncio.__file__, kernels_async.__file__, __file__),
    )
    for name in known:
        if Path(name).resolve().is_relative_to("/usr"):
            continue  # a compiler's own place, which it may read
        try:
            text = Path(name).read_text(errors="replace").replace("\0", "\n")
        except OSError:
            continue
        told = {line.strip() for line in text.splitlines()}
        found[Path(name)] = {line for line in told if len(line) > 16}
    for number in range(max(1, count - len(found))):
        secret = f"secret{secrets.token_hex(8)}"
        path = folder / f"forbidden{number}.h"
        path.write_text(f"int {secret} = {secret}bad;\n")
        path.chmod(0o644)
        found[path] = {secret}
    return dict(list(found.items())[-count:])


_USE = f"{GOOD}template __global__ void good<1>(int*);\n"
_TEXT = "#define TEXT(x) #x\n#define ALSO(x) TEXT(x)\n"
PEEKS: dict[str, str] = {
    "quoted": '#include "{path}"\n',
    "angled": "#include <{path}>\n",
    "relative": '#include "{up}"\n',
    "dotted": '#include "./.{path}"\n',
    "macro": '#define F "{path}"\n#include F\n',
    "macro, angled": "#define F <{path}>\n#include F\n",
    "macro, relative": '#define F "{up}"\n#include F\n',
    "macro of a macro": '#define G "{path}"\n#define F G\n#include F\n',
    "macro with arguments": '#define F(x) "{path}"\n#include F(1)\n',
    "macro made text": f"{_TEXT}#include ALSO({{path}})\n",
    "spliced": '#inc\\\nlude "{path}"\n',
    "digraph": '%:include "{path}"\n',
    "trigraph": '??=include "{path}"\n',
    "import": '#define F "{path}"\n#import F\n',
    "next": '#include_next "{path}"\n',
    "asked": '#define F "{path}"\n#if __has_include(F)\n#include F\n#endif\n#error no\n',
    "line": '#line 1 "{path}"\n#error here\nwrong wrong;\n',
    "line, up": '#line 1 "{up}"\n#error here\nwrong wrong;\n',
    "raw text around": 'auto r = R"(\n)"; \n#define F "{path}"\n#include F\n',
    "assembler": 'asm(".incbin \\"{path}\\"");\n',
    "assembler, include": 'asm(".include \\"{path}\\"");\n',
    "embed": 'const unsigned char e[] = {{\n#embed "{path}"\n}};\n',
    "dependency": '#pragma GCC dependency "{path}"\n',
    "header": '#include "mine.h"\n',
    "compiled before": '#pragma GCC pch_preprocess "{path}"\n',
    "assertion": '#define F "{path}"\nstatic_assert(__has_include(F), F);\n',
}
FORGED = {
    "error": "#error \x1b[2J\x07forged\x85line\u202e\n",
    "line": '#line 1 "\x1b[31mfile\x07"\nint wrong = wrong;\n',
    "carriage": "#error one\rtwo\x9b\n",
    "pragma": '#pragma message "\x1b]0;title\x07"\n#warning \x1b[1m\nwrong\n',
    "name": "int \x1b[0m wrong;\n",
    "text": 'static_assert(false, "\x1b[5m \x08\x08\x08");\n',
}


def attacks(full: bool, seed: int) -> str:
    """B19, the workers' part: no source shows a file, or writes to a terminal."""
    tried, leaked, controls = asyncio.run(attack(20 if full else 1, seed))
    assert (leaked, controls) == (0, 0)
    return (
        f"{tried} hostile sources, of {len(PEEKS) + len(FORGED)} kinds: {leaked} lines of "
        f"{20 if full else 1} forbidden files shown, {controls} texts with control characters"
    )


async def attack(count: int, seed: int, sandbox: Mode = "require") -> tuple[int, int, int]:
    """Hostile sources compiled, lines of forbidden files shown, raw texts shown."""
    chance = random.Random(seed)
    tried = leaked = controls = 0
    with scratch() as folder:
        files = _forbidden(folder, 20)
        files = dict(chance.sample(list(files.items()), count))
        for target in ("sm_90", "cpu"):
            compiler = Compiler(
                target, cache_dir=folder / "cache", workers=2, sandbox=sandbox
            )
            async with compiler:
                for path, lines in files.items():
                    up = "../" * 12 + str(path).lstrip("/")
                    sources = []
                    for text in PEEKS.values():
                        filled = text.format(path=path, up=up)
                        mine = {"mine.h": PEEKS["macro"].format(path=path)}
                        sources.append(Source(filled + _USE, mine, "peek.cu"))
                    shown = await _shown(compiler, sources)
                    tried += len(sources)
                    leaked += sum(line in text for text in shown for line in lines)
                forged = [Source(text + _USE) for text in FORGED.values()]
                for text in await _shown(compiler, forged):
                    controls += printable(text) != text
                tried += len(forged)
    return tried, leaked, controls


async def _shown(compiler: Compiler, sources: list[Source]) -> list[str]:
    """Everything that compiles of these sources gave, as text."""
    shown = []
    for found in await compiler.compile_all((source, "good<1>") for source in sources):
        told = [str(found), getattr(found, "log", "")]
        told += map(str, getattr(found, "diagnostics", ()))
        if isinstance(found, Artifact):
            told.append(printable(found.bytes.decode("latin-1"), len(found.bytes) + 1))
        shown.append("\n".join(told))
    return shown


BARS: dict[str, Callable[[bool, int], str]] = {
    "B11": isolation,
    "B12": deadlines,
    "B13": poison,
    "B14": orphans,
    "B15": leaving,
    "B19-pool": attacks,
}
