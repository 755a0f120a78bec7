"""Tests of IPython and Jupyter: top-level await, and what is worth reading there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import kernels_async._notebook  # noqa: F401 - else it is imported in the loop
from kernels_async import (
    Artifact,
    CompileError,
    Diagnostic,
    Event,
    Kernels,
    Manifest,
    ManifestKernel,
    Progress,
    Resources,
    Severity,
    Source,
    Specialization,
    Stats,
    SymbolNotFoundError,
)
from kernels_async.page._markup import NOTHING
from tests.builds import artifact
from tests.processes import children, until

SOURCE = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N * M; }\n"
HOSTILE = "</td></pre><script>alert(1)</script>\x1b[2J\u202e"


class Page(HTMLParser):
    """What a browser makes of it: rows of cells, and texts and elements by name."""

    def __init__(self, told: object) -> None:
        super().__init__()
        show: Callable[[], str | None] = told._repr_html_  # type: ignore[attr-defined]
        text = show()
        assert text is not None
        self.rows: list[list[str]] = []
        self.texts: dict[str, str] = {}
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []
        assert self.attributes <= {"title", "style"}
        assert "color" not in text
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self._open.append(tag)
        self.texts.setdefault(tag, "")
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """A text, which is in every element that is open."""
        for tag in set(self._open):
            self.texts[tag] += data
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Any]:
    """An IPython shell without a history."""
    config = Config()
    config.HistoryManager.enabled = False
    make: Any = InteractiveShell
    shell = make(config=config, ipython_dir=str(tmp_path / "ipython"))
    yield shell
    shell.restore_sys_module_state()


async def cell(shell: Any, text: str) -> Any:
    """Run a cell in a task of its own, in the loop that runs already; its value."""
    code = shell.transform_cell(text)
    work = shell.run_cell_async(text, transformed_cell=code, store_history=False)
    outcome = await asyncio.create_task(work)
    outcome.raise_error()
    return outcome.result


async def test_a_cache_may_be_opened_in_one_cell_and_closed_in_another(
    shell: Any, warm_dir: Path
) -> None:
    """With `await` at the top level; nothing is left then."""
    before = set(children())
    shell.user_ns.update(SOURCE=SOURCE, folder=warm_dir)
    await cell(
        shell,
        "from contextlib import AsyncExitStack\n"
        "from kernels_async import *\n"
        "stack = AsyncExitStack()\n"
        "opening = Kernels.open('cpu', cache_dir=folder, workers=1)\n"
        "kernels = await stack.enter_async_context(opening)",
    )
    asked = "Specialization('add<1>', {'M': 2})"
    pending = await cell(shell, f"kernels.request(SOURCE, {asked})")
    assert "outstanding" in repr(pending)
    kernel = await cell(shell, f"await kernels.request(SOURCE, {asked})")
    assert repr(kernel) == "<Kernel add<1> on cpu>"
    assert await cell(shell, f"await kernels.get(SOURCE, {asked})") is kernel
    kernels = await cell(shell, "kernels")
    shown, _ = shell.display_formatter.format(kernels)
    assert shown["text/plain"] == "<Kernels cpu loaded=1 outstanding=0>"
    assert shown["text/html"] == kernels._repr_html_()
    await cell(shell, "await stack.aclose()")
    await until(lambda: set(children()) == before)


async def test_a_cache_shows_a_table_of_its_kernels(kernels: Kernels) -> None:
    """Those with the most hits first, with what tells them apart."""
    assert Page(kernels).rows == []
    for m, hits in ((2, 1), (3, 3)):
        for _ in range(hits + 1):
            await kernels.get(SOURCE, Specialization("add<1>", {"M": m}))
    kernels.request(SOURCE, "never<1>")
    page = Page(kernels)
    head, first, second = page.rows
    assert head[:4] == ["kernel", "registers", "spills", "occupancy"]
    assert [row[0].strip() for row in (first, second)] == ["add<1> M=3", "add<1> M=2"]
    assert [row[-1] for row in (first, second)] == ["3", "1"]
    assert first[1:4] == [NOTHING] * 3
    assert first[4] in ("compiled", "disk")
    assert "cpu: 2 kernels loaded, 1 outstanding" in page.texts["p"]


async def test_kernels_that_share_their_bytes_are_shown_as_they_were_asked_for(
    warm_dir: Path,
) -> None:
    """Also when the cache is closed."""
    source = "__global__ void k(int* p) { *p = M > 1; }\n"
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        for m in (2, 3):
            await kernels.get(source, Specialization("k", {"M": m}, ["--use_fast_math"]))
        assert len(kernels) == 1
    _, *rows = Page(kernels).rows
    assert [row[0] for row in rows] == [f"k M={m} --use_fast_math" for m in (2, 3)]


async def test_a_cache_shows_no_more_than_a_hundred_kernels(warm_dir: Path) -> None:
    """And how many more there are."""
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        kernel = await kernels.get(SOURCE, Specialization("add<1>", {"M": 2}))
        for n in range(102):
            kernels.request(SOURCE, f"add<{n}>").serve(kernel)
        page = Page(kernels)
    assert len(page.rows) == 1 + 100
    assert page.texts["p"].endswith("3 more kernels with fewer hits")


def test_an_artifact_shows_its_facts_and_what_the_compiler_said() -> None:
    """Those of a GPU too."""
    warned = Diagnostic(Severity.WARNING, "unused", "177-D", "k.cu", 3, 9, "int a;\n    ^")
    page = Page(artifact("add<1>", registers=40, spill_loads=12, warnings=(warned,)))
    facts = dict(page.rows)
    assert facts["registers"] == "40"
    assert facts["spills"] == "0 B stored, 12 B loaded back"
    assert facts["occupancy"].endswith(" threads")
    assert "k.cu:3:9: warning: unused [177-D]\nint a;\n    ^" in page.texts["pre"]
    assert "registers" not in dict(Page(artifact("add<1>", target="cpu")).rows)


@pytest.mark.parametrize("kind", [CompileError, SymbolNotFoundError])
def test_a_compile_error_shows_its_first_error_and_folds_the_rest(
    kind: type[CompileError],
) -> None:
    """With its source line and caret."""
    errors = [
        Diagnostic(Severity.ERROR, f"wrong {n}", "", "k.cu", n, 5, "x y;\n  ^")
        for n in range(60)
    ]
    page = Page(kind(f"{errors[0]}\n(and 59 more errors)", diagnostics=errors))
    folded = page.texts["details"]
    shown = page.texts["div"].removesuffix(folded)
    assert shown.startswith(f"{kind.__name__}k.cu:5: error: wrong 0\nx y;\n  ^")
    assert "wrong 1" not in shown
    assert "k.cu:1:5: error: wrong 1\nx y;\n  ^" in folded
    assert page.texts["summary"] == "59 more messages"
    assert folded.endswith("(and 9 more messages)")
    assert "details" not in Page(kind("wrong", diagnostics=errors[:1])).texts


def test_what_is_shown_is_escaped() -> None:
    """Whatever a source, a compiler or a file said."""
    said = Diagnostic(Severity.ERROR, HOSTILE, HOSTILE, HOSTILE, 1, 1, HOSTILE)
    hostile = replace(
        artifact(HOSTILE, warnings=(said,)),
        entry=HOSTILE,
        digest=HOSTILE,
        target=HOSTILE,
        path=Path(HOSTILE),
    )
    for told in (hostile, CompileError(HOSTILE, diagnostics=[said, said, said])):
        page = Page(told)
        assert "script" not in page.texts
        assert "<script>alert(1)</script>\\u001b[2J\\u202e" in page.texts["div"]


def test_what_cannot_be_shown_raises_nothing() -> None:
    """A notebook takes its plain `repr` then."""
    broken = replace(artifact("add<1>"), diagnostics=None)  # type: ignore[arg-type]
    error = CompileError("wrong")
    error.diagnostics = None  # type: ignore[assignment]
    assert broken._repr_html_() is error._repr_html_() is None


async def test_plain_reprs_are_short(kernels: Kernels) -> None:
    """No bytes, no texts, no kilobytes of a mangled name."""
    long = "f<" + "x" * 3000 + ">"
    resources = Resources(40, 0, 0, 0, 0, 0, 0)
    made: Artifact = replace(artifact(long, size=1 << 20), entry=long, resources=resources)
    one = ManifestKernel(Source(SOURCE * 1000), Specialization("add<1>"))
    told: list[Event] = []
    kernels.listen(told.append)
    await kernels.get(SOURCE, Specialization("add<1>", {"M": 2}))
    assert all(len(repr(thing)) < 300 for thing in (made, *told))
    assert f"{1 << 20} bytes, 40 registers" in repr(made)
    assert repr(Manifest((one, one))) == "<Manifest kernels=2>"
    assert re.fullmatch(r"<Event loaded add<1> on cpu in 0\.\d{6} s>", repr(told[-1]))


def test_stats_say_what_is_not_nothing() -> None:
    """As an expression for equal ones."""
    stats = Stats(memory_hits=3, failures={"LoadError": 1}, load_seconds=0.5)
    assert repr(stats) == (
        "Stats(memory_hits=3, failures={'LoadError': 1}, load_seconds=0.5)"
    )
    assert eval(repr(stats)) == stats  # noqa: S307 - it is what the test is of
    assert repr(Stats()) == "Stats()"


def test_progress_is_a_sentence() -> None:
    """For a log."""
    running = Progress(5, 2, 1, running=True, seconds=3.14, seconds_left=1.96)
    assert str(running) == "2 of 5 kernels loaded, 1 failed, after 3.1 s, about 2.0 s left"
    assert str(Progress(5, 5, seconds=3.14)) == "5 of 5 kernels loaded, after 3.1 s"
    assert str(Progress()) == "0 of 0 kernels loaded"
