"""`kernels-async cache export` and `import`: artifacts in one file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from .._bundle import Imported, read_bundle, write_bundle
from .._errors import SpecificationError
from .._inventory import listed
from .._replacing import replacing
from ._cache import find_key
from ._command import Answer, CacheDir, command, existing_store, open_store, told
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
    store = existing_store(cache_dir)
    chosen = {find_key(store, prefix) for prefix in keys or []}
    if not keys:
        chosen = {item.entry.key for item in listed(store)}
    with _written(file) as stream:
        written = write_bundle(store, sorted(chosen), stream)
    document = {
        "directory": str(store.root),
        "file": str(file),
        "exported": written.keys,
        "bytes": written.size,
        "damaged": written.lost,
    }

    def show(screen: Screen) -> None:
        say = screen.tell if str(file) == _STREAM else screen.print
        artifacts = count(len(written.keys), "artifact")
        say(f"exported {artifacts}, {size(written.size)}, to {file}")
        if written.lost:
            text = f"{count(len(written.lost), 'damaged artifact')} left out"
            screen.tell(f"{text}: see kernels-async cache verify", "yellow")

    return Answer(document, show, PROBLEMS if written.lost else GOOD)


@contextlib.contextmanager
def _written(file: Path) -> Iterator[BinaryIO]:
    """A stream whose content appears under the file's name once it is whole."""
    if str(file) == _STREAM:
        if sys.stdout.isatty():
            raise SpecificationError("a bundle is no text for a terminal: name a file")
        yield sys.stdout.buffer
        return
    with contextlib.ExitStack() as stack:
        with told("write", file):
            stream = stack.enter_context(replacing(file))
        yield stream


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
    with told("read", file):
        opened = file.open("rb")
    with opened as stream:
        yield stream
