"""The page of a build: one file, which needs no other, and holds the build itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from .._build import Build
from .._errors import SpecificationError
from ._axis import Axis
from ._changes import changes, headline
from ._details import facts
from ._diff import compare_builds
from ._findings import findings
from ._markup import Content, Html, code, counted, html, percent, seconds, tag
from ._table import table
from ._timeline import PATTERNS, legend, timeline

_DATA = '<script type="application/json" id="build">'
_LARGEST = 256 << 20
_MADE_BY = b'<meta name="generator" content="kernels_async">'
_HEAD = 4096


def render_page(build: Build, before: Build | None = None) -> str:
    """The page of a build, as HTML.

    It needs neither another file nor the network, nor JavaScript to be read. It holds
    the build, so that `read_build` reads it back.

    Args:
        build: The build.
        before: An earlier build; the page then leads with what changed since.
    """
    build = Build(build.began, tuple(sorted(build.kernels, key=_begin)), build.dropped)
    comparison = None if before is None else compare_builds(before, build)
    axis = Axis(build)
    common = _common(build)
    title = _headline(build) if comparison is None else headline(comparison)
    changed = None
    if comparison is not None:
        changed = tag(
            "section", tag("h2", "What changed"), changes(comparison), id="changes"
        )
    style, script = _asset("page.css"), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        title=html(f"{title} · kernel build of {_date(build.began)}"),
        headline=html(title),
        lede=_lede(build),
        totals=_totals(build),
        patterns=PATTERNS,
        changes=html(changed),
        findings=findings(build),
        timeline=timeline(build, axis),
        legend=legend(),
        table=table(build, axis, frozenset(common)),
        shared=facts({name: code(text) for name, text in common.items() if text}),
        footer=_footer(build),
        build=_embedded(build),
    )


def read_build(path: str | os.PathLike[str]) -> Build:
    """The build in a page, or in a JSON file of `Build.to_record`.

    It blocks while it reads. What the file holds is not trusted.

    Args:
        path: The file.

    Raises:
        SpecificationError: It holds no build.
        OSError: It cannot be read.
    """
    with Path(path).open("rb") as file:
        data = file.read(_LARGEST + 1)
    try:
        if len(data) > _LARGEST:
            raise ValueError("it is too large")
        text = data.decode()
        _, page, rest = text.partition(_DATA)
        text = rest.partition("</script>")[0] if page else text
        return Build.from_record(json.loads(text))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        reason = "it is neither a page of one nor JSON"
        raise SpecificationError(f"{os.fspath(path)!r} holds no build: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise SpecificationError(f"{os.fspath(path)!r} holds no build: {error}") from error


def is_page(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a page of `render_page`, as far as its head says so.

    Raises:
        OSError: It cannot be read.
    """
    with Path(path).open("rb") as file:
        return _MADE_BY in file.read(_HEAD)


def _embedded(build: Build) -> str:
    """The build as JSON that no HTML can be in."""
    text = json.dumps(build.to_record(), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _begin(kernel: object) -> float:
    spans = getattr(kernel, "spans", ())
    return spans[0].begin if spans else 0.0


def _common(build: Build) -> dict[str, str]:
    """The entries that all kernels share; one kernel has its own."""
    known = [kernel.entries for kernel in build.kernels if kernel.entries]
    if len(known) < 2:
        return {}
    first, *others = known
    return {
        name: text
        for name, text in first.items()
        if all(entries.get(name) == text for entries in others)
    }


def _headline(build: Build) -> str:
    count, failed = len(build.kernels), len(build.failed)
    kernels = counted(count, "kernel")
    if failed:
        return f"{failed:,} of {kernels} failed"
    return f"{kernels} built in {seconds(build.seconds)}" if build.busy else kernels


def _date(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%d %B %Y, %H:%M:%S} UTC"


def _lede(build: Build) -> Html:
    targets = ", ".join(dict.fromkeys(k.target for k in build.kernels)) or "no target"
    devices = ", ".join(dict.fromkeys(k.device for k in build.kernels if k.device))
    began = datetime.fromtimestamp(build.began, UTC).isoformat()
    toolchains = [
        tag("details", tag("summary", f"compiled by {_short(name)}"), code(name))
        for name in build.distinct("toolchain")
    ]
    return html(
        tag("time", _date(build.began), datetime=began),
        f" · for {targets}",
        f" · on {devices}" if devices else None,
        *toolchains,
    )


def _short(toolchain: str) -> str:
    """Its name and its version, of all that identifies it."""
    version = re.search(r"\d+(\.\d+)+", toolchain)
    return f"{toolchain.split(' ')[0]} {version[0] if version else ''}".strip()


def _totals(build: Build) -> Html:
    origins = [kernel.origin for kernel in build.kernels]
    workers = counted(build.workers, "worker")
    cells: dict[str, tuple[Content, Content]] = {
        "Kernels": (f"{len(build.kernels):,}", None),
        "Compiled": (f"{origins.count('compiled'):,}", None),
        "From disk": (f"{origins.count('disk'):,}", None),
        "Remote": (f"{origins.count('remote'):,}", None),
        "Failed": (f"{len(build.failed):,}", None),
        "Wall time": (seconds(build.seconds), "rests not counted"),
        "Compile time": (seconds(build.compile_seconds), "all workers"),
        "Saved": (seconds(build.saved_seconds), "compiles not repeated"),
        "Parallel efficiency": (percent(build.efficiency), f"of {workers}"),
    }
    if not origins.count("remote"):
        del cells["Remote"]
    return tag(
        "dl",
        *(
            tag(
                "div",
                tag("dt", name),
                tag("dd", value, tag("small", note) if note else None),
                class_="bad" if name == "Failed" and build.failed else None,
            )
            for name, (value, note) in cells.items()
        ),
        class_="totals",
    )


def _footer(build: Build) -> Html:
    dropped = counted(build.dropped, "older kernel is", "older kernels are")
    return html(
        tag("p", f"{dropped} not kept: this page has the newest.")
        if build.dropped
        else None,
        tag("p", "Made by kernels_async. The page holds the build as JSON."),
    )
