"""`kernels-async cache export` and `import`: artifacts in one file."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from .._bundle import Imported, read_bundle, write_bundle
from .._errors import SpecificationError
from .._inventory import listed
from .._store import DamagedEntry, Store
from ._cache import find_key
from ._command import Answer, CacheDir, NotFoundError, command, open_store
from ._ends import GOOD, PROBLEMS
from ._screen import Screen
from ._words import count, line, size

_STREAM = "-"


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "export")(export)
    command(app, "import")(import_bundle)


def export(
    screen: Screen,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The tar to write; - for standard output."),
    ],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]...", help="Which artifacts, by how their keys begin; or all."
        ),
    ] = None,
    cache_dir: CacheDir = None,
) -> Answer:
    """Write artifacts to one file; equal artifacts make equal bytes.

    It shows who wrote it only where `KERNELS_ASYNC_CACHE_KEY` is set.
    """
    if screen.as_json and str(file) == _STREAM:
        raise SpecificationError("standard output is for the bundle or for JSON: not both")
    store = open_store(cache_dir)
    chosen, damaged = _choose(store, keys or [])
    with _written(file) as stream:
        try:
            total = write_bundle(store, chosen, stream)
        except DamagedEntry as damage:
            raise NotFoundError(
                f"an artifact is damaged: {damage}: see kernels-async cache verify"
            ) from damage
    document = {
        "directory": str(store.root),
        "file": str(file),
        "exported": chosen,
        "bytes": total,
        "damaged": damaged,
    }

    def show(screen: Screen) -> None:
        say = screen.tell if str(file) == _STREAM else screen.print
        say(f"exported {count(len(chosen), 'artifact')}, {size(total)}, to {file}")
        if damaged:
            screen.tell(f"{count(len(damaged), 'damaged artifact')} left out", "yellow")

    return Answer(document, show, PROBLEMS if damaged else GOOD)


def _choose(store: Store, prefixes: list[str]) -> tuple[list[str], list[str]]:
    """The keys that are meant, and those of entries that are damaged."""
    if prefixes:
        return sorted({find_key(store, prefix) for prefix in prefixes}), []
    found = list(listed(store))
    return (
        [item.entry.key for item in found if item.record is not None],
        [item.entry.key for item in found if item.record is None],
    )


@contextlib.contextmanager
def _written(file: Path) -> Iterator[BinaryIO]:
    """A stream whose content appears under the file's name once it is whole."""
    if str(file) == _STREAM:
        if sys.stdout.isatty():
            raise SpecificationError("a bundle is no text for a terminal: name a file")
        yield sys.stdout.buffer
        return
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def import_bundle(
    screen: Screen,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The tar to read; - for standard input.")
    ],
    cache_dir: CacheDir = None,
) -> Answer:
    """Take artifacts from one file; those that are there already are left alone.

    Each is verified. It is native code all the same: import what you trust. Where
    `KERNELS_ASYNC_CACHE_KEY` is set, only what a holder of that key exported is taken.
    """
    store = open_store(cache_dir)
    with _read(file) as stream:
        outcomes = list(_noted(screen, read_bundle(stream, store)))
    by_outcome = {
        name: [imported for imported in outcomes if imported.outcome == name]
        for name in ("imported", "present", "refused")
    }
    refused = by_outcome["refused"]
    document = {
        "directory": str(store.root),
        "file": str(file),
        "imported": [imported.key for imported in by_outcome["imported"]],
        "present": [imported.key for imported in by_outcome["present"]],
        "refused": [{"key": one.key, "reason": one.reason} for one in refused],
    }

    def show(screen: Screen) -> None:
        screen.print(
            f"imported {count(len(by_outcome['imported']), 'artifact')} into {store.root}; "
            f"{len(by_outcome['present'])} were there already"
        )
        for one in refused:
            screen.print(f"refused {one.key}: {line(one.reason)}", "red")

    return Answer(document, show, PROBLEMS if refused else GOOD)


def _noted(screen: Screen, outcomes: Iterator[Imported]) -> Iterator[Imported]:
    """Each outcome as it comes, counted where somebody watches."""
    if not screen.err.is_terminal:
        yield from outcomes
        return
    with screen.err.status("reading the bundle") as status:
        for number, outcome in enumerate(outcomes, 1):
            status.update(f"reading the bundle: {count(number, 'artifact')}")
            yield outcome


@contextlib.contextmanager
def _read(file: Path) -> Iterator[BinaryIO]:
    if str(file) == _STREAM:
        yield sys.stdin.buffer
        return
    with file.open("rb") as stream:
        yield stream
