"""Tests of the pages and traces that the command line writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernels_async import Manifest, ManifestKernel, Source, Specialization, read_build
from kernels_async._manifest import write_manifest
from tests.commands import Run, put, runner

TEXT = "template <class T> __global__ void scale(T* x) { *x *= FACTOR; }\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process."""
    return runner(capsys)


def manifest(path: Path, *names: str, text: str = TEXT) -> Path:
    """A manifest of `scale` for some types, in a file."""
    source = Source(text, name="scale.cu")
    kernels = [
        ManifestKernel(source, Specialization(f"scale<{name}>", {"FACTOR": 2}))
        for name in names
    ]
    write_manifest(path, Manifest(tuple(kernels)))
    return path


def test_a_build_writes_its_page_and_its_trace(
    run: Run, tmp_path: Path, cache_dir: Path
) -> None:
    """Of every kernel: compiled, found and failed, with the times of the workers."""
    file = manifest(tmp_path / "m.json", "float", "nonsense")
    page, trace = tmp_path / "build.html", tmp_path / "trace.json"
    files = ("--report", page, "--trace", trace)
    ran = run("build", file, "--target", "sm_90", *files, "--json")
    kernels = {kernel.symbol: kernel for kernel in read_build(page).kernels}

    assert ran.code == 1
    assert kernels["scale<nonsense>"].state == "failed"
    assert kernels["scale<float>"].origin == "compiled"
    assert kernels["scale<float>"].seconds("compiling")
    events = json.loads(trace.read_text())["traceEvents"]
    assert "scale<float>" in {event["name"] for event in events if event["ph"] == "X"}
    again = run("build", file, "--target", "sm_90", *files)
    assert again.code == 1
    assert again.out.endswith(f"\n1 artifact in {cache_dir}; wrote {page}, {trace}\n")
    assert {k.origin for k in read_build(page).kernels} == {"disk", None}


def test_a_file_without_a_folder_is_refused_before_the_build(
    run: Run, tmp_path: Path, cache_dir: Path
) -> None:
    """Nothing was compiled in vain."""
    file = manifest(tmp_path / "m.json", "float")
    page = tmp_path / "none" / "build.html"

    assert run("build", file, "--target", "sm_90", "--report", page).code == 2
    assert not cache_dir.exists()


def test_a_report_of_two_builds_says_what_changed(run: Run, tmp_path: Path) -> None:
    """As a table, as JSON and as a page, which holds the later one."""
    first, second, diff = (tmp_path / f"{n}.html" for n in ("first", "second", "diff"))
    edited = TEXT.replace(
        "*x *=", "__shared__ T t[64]; t[threadIdx.x] = 1; __syncthreads(); *x *= t[0] *"
    )
    for page, text, names in ((first, TEXT, ["float", "int"]), (second, edited, ["float"])):
        file = manifest(tmp_path / "m.json", *names, text=text)
        run("build", file, "--target", "sm_90", "--report", page)
    ran = run("report", first, second, "--output", diff)
    document = run("report", first, second, "--output", diff, "--json").document

    changes = {one["symbol"]: one for one in document["changes"]["kernels"]}
    assert changes["scale<int>"]["verdict"] == "removed"
    assert changes["scale<float>"]["entries"] == ["source text"]
    assert document["changes"]["counts"]["removed"] == 1
    assert re.search(r"\nremoved +scale<int> -DFACTOR=2 +sm_90 ", ran.out)
    assert [kernel.symbol for kernel in read_build(diff).kernels] == ["scale<float>"]
    assert "What changed" in diff.read_text()


def test_a_report_of_nothing_is_of_the_cache(
    run: Run, cache_dir: Path, tmp_path: Path
) -> None:
    """All artifacts but the damaged ones; a page of that page is the same build."""
    keys = [put(cache_dir, f"k{number}") for number in range(3)]
    (cache_dir / "v1" / keys[0][:2] / keys[0][2:] / "kernel.cubin").write_bytes(b"")
    page, again = tmp_path / "cache.html", tmp_path / "again.html"
    ran = run("report", "-o", page, "--trace", tmp_path / "t.json")
    run("report", page, "-o", again)

    assert {kernel.key for kernel in read_build(page).kernels} == set(keys[1:])
    assert read_build(again) == read_build(page)
    assert f"wrote {page} and {tmp_path / 't.json'}: 2 kernels" in ran.out


def test_a_report_does_not_replace_what_it_is_made_of(run: Run, tmp_path: Path) -> None:
    """And is of no more than two builds, which are builds."""
    page, other = tmp_path / "build.html", tmp_path / "other.html"
    run("report", "-o", page)
    before = page.read_bytes()
    (tmp_path / "no.html").write_text("<p>hello")
    (tmp_path / "link.html").symlink_to(page)

    assert run("report", page, "-o", page).code == 2
    assert run("report", page, "-o", tmp_path / "link.html").code == 2
    assert run("report", tmp_path / "link.html", "-o", page).code == 2
    assert run("report", page, "-o", other, "--trace", page).code == 2
    assert run("report", page, page, page, "-o", other).code == 2
    assert run("report", tmp_path / "no.html", "-o", other).code == 3
    assert run("report", tmp_path / "none.html", "-o", other).code == 3
    assert page.read_bytes() == before
    assert not other.exists()


def test_nothing_is_replaced_that_the_program_did_not_write(
    run: Run, tmp_path: Path, cache_dir: Path
) -> None:
    """Told in a line before anything is compiled; one's own page or trace may go."""
    file = manifest(tmp_path / "m.json", "float")
    page, trace, notes = (tmp_path / n for n in ("p.html", "t.json", "notes.html"))
    link = tmp_path / "link.html"
    run("report", "-o", page, "--trace", trace)
    notes.write_text("<!doctype html><p>kernels_async")
    link.symlink_to(file)
    before = {path: path.read_bytes() for path in (file, page, trace, notes)}
    build = ("build", file, "--target", "sm_90")

    for wrong in (
        *((option, path) for option in ("--report", "--trace") for path in (file, notes)),
        ("--report", trace),
        ("--report", link),
        ("--report", tmp_path),
        ("--trace", page),
        ("--report", tmp_path / "new", "--trace", tmp_path / "new"),
    ):
        ran = run(*build, *wrong)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert run("report", "-o", notes).code == 2
    assert run("report", page, "-o", tmp_path / "new", "--trace", notes).code == 2
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "new").exists()
    assert not cache_dir.exists()
    assert run(*build, "--report", page, "--trace", trace).code == 0
    assert run("report", "-o", page, "--trace", trace).code == 0
    assert len(read_build(page).kernels) == 1


def test_a_page_that_nobody_named_is_called_by_what_it_shows(
    run: Run, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is new: the one that is there is kept."""
    monkeypatch.chdir(tmp_path)
    put(cache_dir, "k")
    for name, given in (
        ("cache.html", ()),
        ("build.html", ("cache.html",)),
        ("changes.html", ("cache.html", "build.html")),
    ):
        assert run("report", *given, "--json").document["output"] == name
        Path(name).write_bytes(before := Path(name).read_bytes() + b"\n")
        again = run("report", *given)
        assert again.code == 2
        told = f"kernels-async: {name} is there: name the page to write by --output\n"
        assert again.err == told
        assert Path(name).read_bytes() == before
    assert "What changed" in Path("changes.html").read_text()
    assert run("report", "build.html").code == 2
