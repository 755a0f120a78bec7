"""All that is known of one artifact."""

from __future__ import annotations

from .._artifact import Artifact
from .._diagnostics import printable
from .._inventory import inspect
from .._resources import Resources
from .._store import DamagedEntry, Store
from ._command import Answer, NotFoundError
from ._screen import Screen
from ._words import line, seconds, shorten, size

_BLOCKS = (32, 64, 128, 256, 512, 1024)
_ENTRIES_ELSEWHERE = {"symbol", "target", "toolchain", "schema"}


def show(store: Store, key: str) -> Answer:
    """The answer about the artifact of that key.

    Raises:
        NotFoundError: It is not there, or damaged.
    """
    try:
        artifact = inspect(store, key)
    except FileNotFoundError:
        raise NotFoundError(f"the artifact {key} has just gone") from None
    except DamagedEntry as damage:
        raise NotFoundError(
            f"the artifact {key} is damaged: {damage}: kernels-async cache verify puts "
            "it aside"
        ) from damage
    return Answer(_document(artifact), lambda screen: _show(screen, artifact))


def _document(artifact: Artifact) -> dict[str, object]:
    resources = artifact.resources
    return {
        "key": artifact.digest,
        "path": str(artifact.path),
        "symbol": artifact.symbol,
        "entry": artifact.entry,
        "target": artifact.target,
        "toolchain": artifact.compiler_identity,
        "bytes": len(artifact.bytes),
        "output_digest": artifact.output_digest,
        "compile_seconds": artifact.compile_seconds,
        "entries": dict(artifact.entries),
        "resources": None if resources is None else resources.to_record(),
        "max_threads_per_block": artifact.max_threads_per_block,
        "occupancy": {str(threads): blocks for threads, blocks in _occupancy(artifact)},
        "diagnostics": [diagnostic.to_record() for diagnostic in artifact.diagnostics],
    }


def _occupancy(artifact: Artifact) -> list[tuple[int, int]]:
    """Blocks of so many threads that a multiprocessor runs at once, if that is known."""
    counts = [(threads, artifact.occupancy(threads)) for threads in _BLOCKS]
    return [(threads, blocks) for threads, blocks in counts if blocks is not None]


def _show(screen: Screen, artifact: Artifact) -> None:
    rows = [
        ("key", artifact.digest),
        ("symbol", artifact.symbol),
        ("entry", artifact.entry),
        ("target", artifact.target),
        ("file", str(artifact.path)),
        ("size", size(len(artifact.bytes))),
        ("compiled in", seconds(artifact.compile_seconds)),
        ("toolchain", shorten(artifact.compiler_identity)),
    ]
    rows += [
        (name, shorten(text) if text else "(none)")
        for name, text in artifact.entries.items()
        if name not in _ENTRIES_ELSEWHERE
    ]
    if artifact.resources is not None:
        rows += _resources(artifact.resources)
        rows.append(("threads of a block", f"at most {artifact.max_threads_per_block}"))
    counts = _occupancy(artifact)
    if counts:
        at_once = ", ".join(f"{blocks} of {threads}" for threads, blocks in counts)
        rows.append(("blocks at once", f"{at_once} threads, on a multiprocessor"))
    screen.table(("", ""), [(line(name), text) for name, text in rows])
    for diagnostic in artifact.diagnostics:
        screen.print()
        screen.print(printable(str(diagnostic)), "yellow")


def _resources(resources: Resources) -> list[tuple[str, str]]:
    spills = f"{resources.spill_stores} B stored, {resources.spill_loads} B loaded"
    return [
        ("registers", str(resources.registers)),
        ("spills", spills if resources.spills else "none"),
        ("stack", f"{resources.stack} B"),
        ("shared memory", f"{resources.shared} B"),
        ("constants", f"{resources.constant} B"),
        ("barriers", str(resources.barriers)),
    ]
