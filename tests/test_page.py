"""Tests of the page of a build, of what changed between two, and of its trace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kernels_async import (
    Build,
    BuildCollector,
    Diagnostic,
    Severity,
    SpecificationError,
    compare_builds,
    read_build,
    render_page,
    trace_build,
)
from kernels_async.page._axis import Axis
from tests.builds import (
    WARNING,
    artifact,
    build,
    built,
    compiled,
    event,
    failure,
    large,
)

HOSTILE = "k</script><img src=x onerror=alert(1)>\x1b[31m\u202e\ud800\"'&"


class Parsed(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of the elements of one name."""
        return [attributes for name, attributes in self.elements if name == tag]


def hostile() -> Build:
    """A build in which everything that can be text is an attack."""
    bad = Diagnostic(Severity.WARNING, HOSTILE, HOSTILE, HOSTILE, 1, 1, HOSTILE)
    made = artifact(HOSTILE, key=HOSTILE, defines={HOSTILE: HOSTILE}, warnings=(bad,))
    other = artifact(f"{HOSTILE}2", target=HOSTILE)
    return build(
        *(one._replace(device=HOSTILE) for one in compiled(made)),
        *compiled(other)[:2],
        event("failed", 1.2, other, error=ValueError(HOSTILE)),
    )


def test_a_page_needs_nothing_else() -> None:
    """No link leads out of it, no attribute fetches or runs anything."""
    page = Parsed(render_page(large(), large(8)))

    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert not {"src", "style", "srcset", "data"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(http" not in render_page(large())


@pytest.mark.parametrize("before", [None, hostile()])
def test_what_a_kernel_is_called_is_only_text(before: Build | None) -> None:
    """Whatever it is; control characters are made visible."""
    page = render_page(hostile(), before)
    parsed = Parsed(page)
    plain = Parsed(render_page(build(*compiled(artifact()))))

    page.encode()
    data = page.partition('id="build">')[2].partition("</script>")[0]
    assert not {*"<>&"} & {*data}
    assert {tag for tag, _ in parsed.elements} - {tag for tag, _ in plain.elements} <= {
        "pre", "h3", "a", "section", "b", "ul", "p", "small", "table", "caption", "i", "th",
        "path", "div", "rect", "li",
    }  # fmt: skip
    assert len(parsed.of("script")) == 2
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800]", page)
    assert HOSTILE[:20] in "".join(parsed.texts)


def test_a_page_holds_its_build(tmp_path: Path) -> None:
    """And so does a JSON file."""
    page, plain = tmp_path / "b.html", tmp_path / "b.json"
    found = large()
    page.write_text(render_page(found))
    plain.write_text(json.dumps(found.to_record()))

    assert read_build(page).to_record() == read_build(str(plain)).to_record()
    assert {k.key for k in read_build(page).kernels} == {k.key for k in found.kernels}


def test_a_hostile_build_reads_back_as_it_was(tmp_path: Path) -> None:
    """Nothing in it ends the data early."""
    page = tmp_path / "b.html"
    page.write_text(render_page(hostile()))

    assert HOSTILE in {k.symbol for k in read_build(page).kernels}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'<script type="application/json" id="build">{}</script>',
        b'{"schema": "kernels_async build 1", "began": NaN, "dropped": 0, "kernels": []}',
    ],
)
def test_a_file_that_holds_no_build_is_refused(tmp_path: Path, data: bytes) -> None:
    """With its name."""
    path = tmp_path / "b.html"
    path.write_bytes(data)

    with pytest.raises(SpecificationError, match=r"b\.html' holds no build"):
        read_build(path)


def test_every_kernel_is_a_row_with_its_figures() -> None:
    """Also one that failed, and one for the CPU."""
    failed = artifact("fails")
    page = Parsed(
        render_page(
            build(
                *compiled(artifact("spills", registers=41, spill_stores=48, shared=4096)),
                *compiled(artifact("on_cpu", target="cpu")),
                *compiled(failed)[:2],
                event("failed", 1.0, failed, error=failure()),
            )
        )
    )
    text = "".join(page.texts)

    rows = [a for a in page.of("tbody") if (a.get("id") or "").startswith("k")]
    assert {row["data-s"] for row in rows} == {"spills compiled", "compiled", "failed"}
    for figure in ("41", "48", "4,096", 'identifier "tile" is undefined', "3 kB"):
        assert figure in text
    assert "1 of 3 kernels failed" in text


def test_a_warning_of_many_kernels_is_told_once() -> None:
    """It is one finding, however many instances of a template have it."""
    found = built(
        *(
            artifact(f"k<{n}>", warnings=(replace(WARNING, excerpt=f"int unused; // {n}"),))
            for n in range(5)
        )
    )
    page = render_page(found)
    section = page[page.index('id="findings"') : page.index('id="time"')]

    assert section.count("never referenced") == 1
    assert "1 warning in 5 kernels" in section
    assert section.count("<a ") == 4
    assert "and 1 more" in section
    assert "int unused;" in section


def test_a_failure_of_many_kernels_is_told_once() -> None:
    """What is wrong in a header fails all of them."""
    events = [event("failed", 1.0, artifact(f"k<{n}>"), error=failure()) for n in range(3)]
    page = render_page(build(*events))
    section = page[page.index('id="findings"') : page.index('id="time"')]

    assert "3 kernels failed" in section
    assert section.count("is undefined") == 1
    assert section.count("<a ") == 3


def test_a_page_of_nothing_is_a_page() -> None:
    """Nothing was built yet."""
    assert "0 kernels" in render_page(build())


def test_what_is_not_kept_is_said() -> None:
    """A reader must not take the newest kernels for all."""
    collector = BuildCollector(limit=1)
    for n in range(3):
        collector.add(artifact(f"k<{n}>"))

    assert "2 older kernels are not kept" in render_page(collector.build())


def test_the_axis_cuts_rests_short() -> None:
    """A batch of two seconds is seen beside one a week later."""
    week = 7 * 86_400
    found = build(*compiled(artifact("a")), *compiled(artifact("b"), at=week))
    axis = Axis(found)

    assert axis.at(0) == 0
    assert axis.at(2) == pytest.approx(49.25)
    assert axis.at(week) == pytest.approx(50.75)
    assert axis.at(week + 2) == pytest.approx(100)
    assert [tick.breaks for tick in axis.ticks()] == [False, True]


VARIED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "same"),
    ({}, {"spill_stores": 8, "registers": 40}, "spills"),
    ({}, {"registers": 33}, "registers"),
    ({}, {"seconds": 0.7}, "slower"),
    ({}, {"seconds": 0.54}, "same"),
    ({"seconds": 0.01}, {"seconds": 0.05}, "same"),
    ({}, {"size": 3001}, "larger"),
    ({"spill_loads": 8}, {}, "better"),
    ({"size": 4000}, {}, "better"),
    ({"seconds": 0.9}, {}, "better"),
    ({}, {"text": "blake3 bb"}, "differs"),
    ({}, {"defines": {"N": 2}}, "new"),
    ({}, {"target": "sm_80"}, "new"),
]


@pytest.mark.parametrize(("old", "now", "verdict"), VARIED)
def test_a_change_is_the_gravest_of_what_changed(
    old: dict[str, Any], now: dict[str, Any], verdict: str
) -> None:
    """A new key does not make a new kernel; other defines or another target do."""
    found = compare_builds(
        built(artifact(key="old", **old)), built(artifact(key="now", **now))
    )

    verdicts = [change.verdict for change in found.changes]
    assert verdicts == ([verdict, "removed"] if verdict == "new" else [verdict])


def test_a_comparison_leads_with_the_gravest() -> None:
    """What fails now, new spills and registers, then the rest."""
    names = ("same", "slower", "registers", "spills", "worse", "removed", "fails")
    now: dict[str, dict[str, Any]] = {
        "slower": {"seconds": 2.0},
        "registers": {"registers": 64},
        "spills": {"spill_loads": 8},
        "worse": {"spill_loads": 80},
    }
    kept = [n for n in names if n not in ("removed", "fails")]
    fails = artifact("fails", key="another")
    after = build(
        *(one for n in [*kept, "new"] for one in compiled(artifact(n, **now.get(n, {})))),
        event("failed", 3, fails, error=failure()),
    )
    found = compare_builds(built(*map(artifact, names)), after)

    assert [change.kernel.symbol for change in found.changes] == [
        *("fails", "worse", "spills", "registers", "new", "removed", "slower", "same")
    ]
    page = render_page(after, found.before)
    assert "1 fail now, 2 spill more, 1 need more registers, 1 new" in page
    text = "".join(Parsed(page).texts)
    assert text.index("Spill more registers") < text.index("Need more registers")
    assert "32 → 64" in text


def test_a_comparison_says_what_entries_differ() -> None:
    """What differs everywhere is said once."""
    old = built(artifact("a"), artifact("b"))

    def renewed(kernels: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(
            replace(k, key=f"new {k.key}", entries={**k.entries, "toolchain": "nvrtc 14"})
            for k in kernels
        )

    edited = built(artifact("a", text="blake3 bb"), artifact("b"))
    found = compare_builds(old, replace(edited, kernels=renewed(edited.kernels)))

    assert [one.entry for one in found.everywhere] == ["toolchain"]
    entries = {c.kernel.symbol: [e.entry for e in c.entries] for c in found.changes}
    assert entries == {"a": ["source text"], "b": []}
    assert [c.verdict for c in found.changes] == ["differs", "same"]


def test_twins_are_matched_one_to_one() -> None:
    """Two kernels of one name, of which one is new."""
    twin = artifact(text="blake3 bb", key="b")
    found = compare_builds(built(artifact(key="a")), built(twin, artifact(key="a")))

    assert [(c.verdict, c.kernel.key) for c in found.changes] == [
        ("new", "b"),
        ("same", "a"),
    ]


def test_a_trace_is_in_the_trace_event_format() -> None:
    """Complete events, none overlapping another of its thread, and names for threads."""
    found = large()
    trace = json.loads(json.dumps(trace_build(found)))
    threads: dict[int, list[tuple[float, float]]] = {}
    for one in trace["traceEvents"]:
        assert {"name", "ph", "pid"} <= one.keys()
        if one["ph"] == "X":
            assert {"ts", "dur", "tid", "cat", "args"} <= one.keys()
            assert one["dur"] >= 0
            threads.setdefault(one["tid"], []).append((one["ts"], one["ts"] + one["dur"]))
        else:
            assert one["ph"] in ("M", "C")
    for thread in threads.values():
        ends = [end for _, end in sorted(thread)]
        begins = [begin for begin, _ in sorted(thread)]
        assert all(
            end <= begin + 0.01 for end, begin in zip(ends, begins[1:], strict=False)
        )
    names = {
        one["tid"]: one["args"]["name"]
        for one in trace["traceEvents"]
        if one["name"] == "thread_name"
    }
    assert names.keys() == threads.keys()
    assert {"worker 1", "worker 4", "store", "cuda:0"} <= set(names.values())
    count = sum(1 for k in found.kernels for s in k.spans if s.kind != "waiting")
    assert sum(map(len, threads.values())) == count
    (failed,) = [e for e in trace["traceEvents"] if "failed" in e.get("cat", "")]
    assert "identifier" in failed["args"]["error"]
