"""Tests of the documentation: its programs run, its links lead somewhere, it fetches nothing."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import kernels_async
from kernels_async import Compiler, KernelsError, _errors
from tests.pages import (
    GPU,
    OUTPUT,
    PAGES,
    ROOT,
    SUCH_AS,
    Fence,
    fences,
    is_like,
    is_session,
    kernels,
    programs,
)

DOCS = ROOT / "docs"
Runs = dict[Path, Future[subprocess.CompletedProcess[str]]]
WITH_PROGRAMS = [
    p for p in PAGES if any(f.language == "python" for f in fences(p.read_text()))
]
ON_GPUS = [
    pytest.param(page, fence, id=f"{page.stem}:{fence.line}")
    for page in PAGES
    for fence, _ in programs(page.read_text(), gpu=True)
    if fence.title == GPU
]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, which has its cache too."""
    modules = [str(ROOT), *filter(None, sys.path)]
    environment = {
        "PYTHONPATH": os.pathsep.join(modules),
        "KERNELS_ASYNC_CACHE_DIR": str(folder / "cache"),
        "NO_MKDOCS_2_WARNING": "1",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All pages' programs, two pages at once."""
    with ThreadPoolExecutor(2) as threads:
        yield {
            page: threads.submit(
                run,
                tmp_path_factory.mktemp(page.stem),
                *("-Werror", "-m", "tests.pages", str(page)),
            )
            for page in WITH_PROGRAMS
        }


@pytest.mark.parametrize("page", WITH_PROGRAMS, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(runs: Runs, page: Path) -> None:
    """As they stand there, with warnings as errors, and print what the page says."""
    ran = runs[page].result()

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(("page", "fence"), ON_GPUS)
async def test_the_kernels_of_a_program_for_gpus_compile(
    compiler: Compiler, page: Path, fence: Fence
) -> None:
    """They are CUDA C++ for sm_90."""
    for source, specialization in kernels(fence.text):
        assert (await compiler.compile(source, specialization)).target == "sm_90"


@pytest.mark.parametrize(("page", "fence"), ON_GPUS)
def test_a_program_for_gpus_is_python(page: Path, fence: Fence) -> None:
    """And has every name that it uses, with those before it where a page is a session."""
    text = page.read_text()
    every = [f.text for f, _ in programs(text, gpu=True) if f.line <= fence.line]
    program = "".join(every if is_session(text) else every[-1:])
    compile(program, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "-"],
        input=program,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "All checks passed!\n")


@pytest.mark.gpu
@pytest.mark.parametrize("page", dict.fromkeys(param.values[0] for param in ON_GPUS))
def test_the_programs_of_a_page_run_on_a_gpu(tmp_path: Path, page: Path) -> None:
    """As they stand there, and print what the page says."""
    for module in ("cupy", "torch"):
        pytest.importorskip(module)
    ran = run(tmp_path, "-m", "tests.pages", str(page), "gpu")
    assert ran.returncode == 0, ran.stderr


def test_a_page_has_no_fence_that_is_overlooked() -> None:
    """One that cannot be read is an error, not less to test."""
    for page in PAGES:
        fences(page.read_text())
    with pytest.raises(ValueError, match="indented"):
        fences("- a list\n\n  ```python\n  1 / 0\n  ```\n")


@pytest.mark.parametrize(
    ("title", "printed", "alike"),
    [
        (OUTPUT, "3 of 4 in /tmp/a: good\n", True),
        (OUTPUT, "3 of 5 in /tmp/a: good\n", False),
        (OUTPUT, "3 of 4 in /tmp/a: good\nand more\n", False),
        (SUCH_AS, "12 of 0.5 in x: good\n", True),
        (SUCH_AS, "12 of 0.5 in x: bad\n", False),
    ],
)
def test_what_a_program_prints_is_compared(title: str, printed: str, alike: bool) -> None:
    """Dots stand for anything, and a number for another where the title says so."""
    assert is_like(printed, Fence("text", title, "3 of 4 in ...: good\n", 0, True)) == alike


def slug(heading: str) -> str:
    """The anchor of a heading, as MkDocs and GitHub make it."""
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def test_relative_links_lead_to_files_and_headings() -> None:
    """Those of the README, and of the pages as GitHub shows them."""
    dead = []
    for page in PAGES:
        for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", page.read_text()):
            name, _, anchor = link.partition("#")
            to = page if not name else page.parent / name
            lines = to.read_text().splitlines() if to.is_file() else []
            headings = {slug(line.lstrip("# ")) for line in lines if line.startswith("#")}
            headings |= {line[4:] for line in lines if line.startswith("::: ")}
            known = any(anchor == h or anchor.startswith(f"{h}.") for h in headings)
            if not to.exists() or (anchor and not known):
                dead.append((page.name, link))
    assert dead == []


def test_commands_in_the_pages_are_commands() -> None:
    """With options that they have; each command is on the page of commands."""
    typer = pytest.importorskip("typer.main")
    app = typer.get_command(import_module("kernels_async.cli._app").app)
    seen = set()
    for page in PAGES:
        for line in re.findall(r"kernels-async ([^\n`|&<]*)", page.read_text()):
            words = line.split()
            found, path = app, []
            while words and words[0] in getattr(found, "commands", {}):
                path.append(words.pop(0))
                found = getattr(found, "commands", {})[path[-1]]
            options = {name for parameter in found.params for name in parameter.opts}
            options |= {"--install-completion", "--help"}
            used = {
                word.partition("=")[0] for word in words if re.match("--?[a-zA-Z]", word)
            }
            assert used - options == set(), f"{page.name}: {line}"
            seen.add((page.stem, *path))
    named = {path[1] for path in seen if path[0] == "command-line" and path[1:]}
    assert set(getattr(app, "commands", {})) <= named


def test_everything_public_is_documented() -> None:
    """Each name once: errors on their page, the rest in the reference."""
    listed = re.findall(
        r"^::: kernels_async\.(\w+)$", (DOCS / "pages/api.md").read_text(), re.MULTILINE
    )
    errors = re.findall(
        r"^### (\w+)$", (DOCS / "pages/errors.md").read_text(), re.MULTILINE
    )
    public = {name: getattr(kernels_async, name) for name in kernels_async.__all__}
    raised = {
        n for n, v in public.items() if isinstance(v, type) and issubclass(v, KernelsError)
    }

    assert sorted(listed) == sorted(public.keys() - raised)
    assert sorted(errors) == sorted(raised - {"KernelsError"})


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    """As it is drawn where they are defined."""
    told = inspect.getdoc(_errors) or ""
    tree = re.search(r"    KernelsError\n(?:    .+\n)+", told)
    assert tree is not None
    assert textwrap.dedent(tree[0]) in (DOCS / "pages/errors.md").read_text()


@pytest.mark.parametrize("name", ["Guarantees", "Speed"])
def test_the_readmes_figures_are_those_of_the_pages(name: str) -> None:
    """A figure that is measured again changes in both."""
    section = (ROOT / "README.md").read_text().partition(f"\n## {name}\n")[2]
    figures = set(re.findall(r"\d[\d,.]*\d", section.partition("\n## ")[0]))
    page = (DOCS / f"pages/{name.lower()}.md").read_text()
    assert len(figures) > 5
    assert [figure for figure in figures if figure not in page] == []


def build(site: Path, docs: Path = DOCS) -> subprocess.CompletedProcess[str]:
    """Build the site."""
    if find_spec("mkdocs") is None:
        if "CI" in os.environ:
            pytest.fail("CI has to build the site")
        pytest.skip("needs the extra docs")
    site.mkdir()
    where = ("-f", str(docs / "mkdocs.yml"), "-d", str(site))
    return run(site.parent, "-m", "mkdocs", "build", "--strict", *where)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as for readers."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = build(folder)
    assert built.returncode == 0, built.stderr
    return folder


class Fetched(HTMLParser):
    """What a page has a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag refers to, but for links that a reader follows."""
        for name, value in attrs:
            if name in {"src", "srcset", "poster", "data"} or (name, tag) == (
                "href",
                "link",
            ):
                self.found.append(value or "")


def test_the_site_is_whole_and_fetches_nothing(site: Path) -> None:
    """Every page is there, and a browser asks nobody else for anything."""
    for page in (DOCS / "pages").glob("*.md"):
        fetched = Fetched()
        fetched.feed((site / page.with_suffix(".html").name).read_text())
        assert fetched.found
        assert [url for url in fetched.found if re.match(r"(\w+:)?//", url)] == []
    styles = "".join(sheet.read_text() for sheet in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles) == []


def test_the_reference_has_arguments_and_errors(site: Path) -> None:
    """It is made of the docstrings, with their sections."""
    reference = (site / "api.html").read_text()

    assert 'id="kernels_async.Kernels.open"' in reference
    assert "How many requests may be not loaded yet." in reference
    assert 'id="kernels_async.Kernels.warm"' in reference
    assert 'id="kernels_async.Kernel.__call__"' in reference
    assert 'id="kernels_async.Pending.serve"' not in reference


def test_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    """Of a page, of a heading, and one that depends on where the site is."""
    docs = tmp_path / "docs"
    shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("site"))
    for page in (docs / "pages").glob("*.md"):
        page.write_text(f"# {page.stem}\n")
    (docs / "pages" / "index.md").write_text("[a](no.md) [b](limits.md#no) [c](/limits)\n")

    built = build(tmp_path / "site", docs)

    assert built.returncode == 1
    assert built.stderr.count("WARNING") == 3
