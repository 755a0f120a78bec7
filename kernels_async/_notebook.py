"""How a notebook shows a cache, an artifact and a compile error.

It is HTML without a colour or a style sheet of its own, so that it can be read in a dark
notebook too; what a source or a compiler said is escaped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from heapq import nlargest
from typing import TypeVar

from ._artifact import Artifact
from ._build import BuiltKernel
from ._cache import Cache
from ._collector import BuildCollector
from ._diagnostics import Diagnostic, Severity, printable, shortened
from ._errors import CompileError
from ._pending import Pending
from .devices import Kernel
from .page._markup import (
    NOTHING,
    Content,
    Html,
    code,
    counted,
    html,
    percent,
    seconds,
    size,
    tag,
)
from .page._occupancy_plot import occupancy

_ROWS = 100
_DIAGNOSTICS = 50
_TEXT = 8_000
_COLUMNS = {
    "kernel": "as it was asked for",
    "registers": "of each thread",
    "spills": "bytes of registers that each thread stores to local memory and loads back",
    "occupancy": "the highest that it can have, and the smallest block with that",
    "origin": "where its artifact came from",
    "compile": "how long its compile took, whenever that was",
    "load": "how long its load took",
    "hits": "how often it was asked for since it is loaded",
}

T = TypeVar("T")

logger = logging.getLogger("kernels_async")


def _shown(show: Callable[[T], Html]) -> Callable[[T], str | None]:
    """`show`, with `None` where it raises: a notebook takes the plain `repr` then."""

    @wraps(show)
    def shown(thing: T) -> str | None:
        try:
            return show(thing)
        except Exception:
            logger.debug("it cannot be shown in a notebook", exc_info=True)
            return None

    return shown


@_shown
def show_cache(cache: Cache) -> Html:
    """The kernels that are loaded, those with the most hits first."""
    known = [(p, p.kernel) for p in cache.batch.known() if p.kernel is not None]
    rows = nlargest(_ROWS, known, key=lambda pair: pair[0].hits)
    stats = cache.ledger.stats()
    told = (
        f"{cache.ledger.device}: {counted(len(known), 'kernel')} loaded, "
        f"{stats.outstanding:,} outstanding, {stats.building:,} being built, "
        f"{counted(stats.memory_hits, 'hit')}, {counted(stats.misses, 'miss', 'misses')}"
    )
    heads = [tag("th", name, title=about) for name, about in _COLUMNS.items()]
    rest = len(known) - len(rows)
    table = tag(
        "table",
        tag("thead", tag("tr", *heads)),
        tag("tbody", *(_row(pending, kernel) for pending, kernel in rows)),
    )
    return tag(
        "div",
        tag("p", tag("b", "Kernels"), " ", told),
        table if rows else None,
        tag("p", counted(rest, "more kernel"), " with fewer hits") if rest else None,
    )


@_shown
def show_artifact(artifact: Artifact) -> Html:
    """What is known of it, and what the compiler said."""
    kernel = _built(artifact)
    facts: dict[str, Content] = {
        "target": artifact.target,
        "origin": artifact.origin,
        "compile": seconds(artifact.compile_seconds),
        "size": size(len(artifact.bytes)),
    }
    if used := artifact.resources:
        facts |= {
            "registers": used.registers,
            "spills": f"{used.spill_stores:,} B stored, {used.spill_loads:,} B loaded back",
            "stack": size(used.stack),
            "shared memory": size(used.shared),
            "constant memory": size(used.constant),
        }
    if at_best := occupancy(kernel):
        threads, share = at_best.best
        facts["occupancy"] = f"{percent(share)} with {threads} threads"
    facts |= {
        "entry": code(shortened(artifact.entry)),
        "key": code(artifact.digest),
        "file": code(str(artifact.path)),
    }
    rows = (tag("tr", tag("th", name), _left(value)) for name, value in facts.items())
    return tag(
        "div",
        tag(
            "p",
            tag("b", "Artifact"),
            " ",
            _name(kernel.symbol, f"{kernel.configuration} {kernel.options}"),
        ),
        tag("table", *rows),
        _said(artifact.diagnostics) if artifact.diagnostics else None,
    )


@_shown
def show_error(error: CompileError) -> Html:
    """Its text, which leads with the first error; the rest of the messages folded."""
    errors = [one for one in error.diagnostics if one.severity is Severity.ERROR]
    rest = [one for one in error.diagnostics if one not in errors[:1]]
    folded = tag("summary", counted(len(rest), "more message"))
    return tag(
        "div",
        tag("p", tag("b", type(error).__name__)),
        tag("pre", printable(str(error), _TEXT)),
        tag("details", folded, _said(rest)) if rest else None,
    )


def _said(diagnostics: Sequence[Diagnostic]) -> Html:
    """Messages as a compiler writes them, each with its source line."""
    texts = [str(one) for one in diagnostics[:_DIAGNOSTICS]]
    more = len(diagnostics) - len(texts)
    if more:
        texts.append(f"(and {counted(more, 'more message')})")
    return tag("pre", printable("\n".join(texts), _DIAGNOSTICS * _TEXT))


def _row(pending: Pending, kernel: Kernel) -> Html:
    """A request; another with the same bytes may have been loaded for it."""
    artifact = kernel.artifact
    used = artifact.resources
    at_best = occupancy(_built(artifact))
    symbol, defines, options = pending.specialization.arguments
    macros = [f"{name}={text}" for name, text in defines.items()]
    cells = (
        used.registers if used else NOTHING,
        used.spills if used else NOTHING,
        f"{percent(at_best.best[1])} at {at_best.best[0]}" if at_best else NOTHING,
        artifact.origin,
        seconds(artifact.compile_seconds),
        seconds(kernel.load_seconds),
        f"{pending.hits:,}",
    )
    name = _name(symbol, " ".join([*macros, *options]))
    return tag("tr", _left(name), *(tag("td", cell) for cell in cells))


def _left(value: Content) -> Html:
    """A cell of text; notebooks align to the right."""
    return tag("td", value, style="text-align: left")


def _name(symbol: str, configuration: str) -> Html:
    return html(code(shortened(symbol)), " ", shortened(configuration))


def _built(artifact: Artifact) -> BuiltKernel:
    """Its facts, as a page of a build has them."""
    collector = BuildCollector()
    collector.add(artifact)
    (kernel,) = collector.build().kernels
    return kernel
