"""`kernels-async cache`: what a cache directory has, and care of it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from .._errors import SpecificationError
from .._inventory import Listed, keys, listed
from .._store import Store
from .._upkeep import Pruned, clear, prune, verify
from ._command import Answer, CacheDir, NotFoundError, command, existing_store
from ._ends import GOOD, PROBLEMS
from ._screen import Screen
from ._show import show
from ._words import ago, count, parse_size, seconds, shorten, size

T = TypeVar("T")

app = typer.Typer(name="cache", help="Looks after a cache directory.", no_args_is_help=True)

_PREFIX = re.compile("[0-9a-f]{1,64}")
_MOST_CANDIDATES = 10
_SHOWN = 12


class Sort(StrEnum):
    """What the list of artifacts is sorted by."""

    symbol = "symbol"
    target = "target"
    size = "size"
    time = "time"
    used = "used"
    age = "age"


_ORDER: Mapping[Sort, Callable[[dict[str, object]], tuple[object, ...]]] = {
    Sort.symbol: lambda row: (str(row["symbol"]), str(row["target"])),
    Sort.target: lambda row: (str(row["target"]), str(row["symbol"])),
    Sort.size: lambda row: (-_number(row["size"]),),
    Sort.time: lambda row: (-_number(row["compile_seconds"]),),
    Sort.used: lambda row: (-_number(row["used"]),),
    Sort.age: lambda row: (-_number(row["made"]),),
}

KeyPrefix = Annotated[
    str, typer.Argument(metavar="KEY", help="An artifact's key, or how it begins.")
]


@command(app, "ls")
def ls(
    screen: Screen,
    cache_dir: CacheDir = None,
    sort: Annotated[
        Sort,
        typer.Option(
            help="Sort by symbol or target, or with the largest, the slowest to compile, "
            "the last used or the newest first."
        ),
    ] = Sort.symbol,
    target: Annotated[
        str | None, typer.Option(help="Only those for this target, such as sm_90.")
    ] = None,
    symbol: Annotated[
        str | None, typer.Option(help="Only those whose symbol contains this text.")
    ] = None,
) -> Answer:
    """List the artifacts."""
    store = existing_store(cache_dir)
    found = _working(screen, f"reading {store.root}", lambda: list(listed(store)))
    rows = [
        row
        for item in found
        if (row := _row(item)) is not None
        and target in (None, row["target"])
        and (symbol is None or symbol in str(row["symbol"]))
    ]
    rows.sort(key=_ORDER[sort])
    damaged = [item.entry.key for item in found if item.record is None]
    total = sum(_number(row["size"]) for row in rows)
    document = {
        "directory": str(store.root),
        "artifacts": rows,
        "bytes": int(total),
        "damaged": damaged,
    }

    def show_list(screen: Screen) -> None:
        if rows:
            _show_rows(screen, rows)
        screen.tell(f"{count(len(rows), 'artifact')}, {size(total)}, in {store.root}")
        if damaged:
            screen.tell(
                f"{len(damaged)} damaged: kernels-async cache verify puts them aside",
                "yellow",
            )

    return Answer(document, show_list)


def _row(item: Listed) -> dict[str, object] | None:
    if item.record is None:
        return None
    entries = item.record.entries
    return {
        "key": item.entry.key,
        "symbol": entries["symbol"],
        "defines": defines(entries),
        "target": entries["target"],
        "source": entries.get("source name", ""),
        "size": item.entry.size,
        "compile_seconds": item.record.compile_seconds,
        "made": item.made,
        "used": item.entry.used,
        "toolchain": entries["toolchain"],
    }


def _show_rows(screen: Screen, rows: list[dict[str, object]]) -> None:
    now = time.time()
    names = ("KEY", "KERNEL", "TARGET", "SIZE", "COMPILED IN", "AGE", "USED", "TOOLCHAIN")
    screen.table(
        names,
        [
            (
                str(row["key"])[:_SHOWN],
                " ".join((str(row["symbol"]), *_flags(row["defines"]))),
                str(row["target"]),
                size(_number(row["size"])),
                seconds(_number(row["compile_seconds"])),
                ago(now - _number(row["made"])),
                ago(now - _number(row["used"])),
                toolchain_name(str(row["toolchain"])),
            )
            for row in rows
        ],
        right=("SIZE", "COMPILED IN", "AGE", "USED"),
    )


def defines(entries: Mapping[str, str]) -> dict[str, str]:
    """The macros among what entered a key."""
    name = "define "
    return {k.removeprefix(name): v for k, v in entries.items() if k.startswith(name)}


def _flags(macros: object) -> list[str]:
    assert isinstance(macros, dict)  # noqa: S101 - it is the row's own
    return [f"-D{name}={text}" for name, text in macros.items()]


def toolchain_name(identity: str) -> str:
    """The name and version that a toolchain's identity begins with."""
    found = re.match(r"(nvrtc [\d.]+)|c\+\+ \[(\S+)[^\]]*? (\d+[\d.]+\d)", identity)
    name = identity.partition(" ")[0]
    if found is not None:
        name = found[1] or f"{found[2]} {found[3]}"
    return shorten(f"{name} slim" if " nvjitlink " in identity else name)


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


@command(app, "show")
def show_artifact(_: Screen, key: KeyPrefix, cache_dir: CacheDir = None) -> Answer:
    """Show all of one artifact: what it was compiled from, what it takes, what was said."""
    store = existing_store(cache_dir)
    return show(store, find_key(store, key))


def find_key(store: Store, prefix: str) -> str:
    """The one key of the store that begins so.

    Raises:
        NotFoundError: There is none.
        SpecificationError: There are several, which the text lists, or it is no key.
    """
    lowered = prefix.lower()
    if not _PREFIX.fullmatch(lowered):
        raise SpecificationError(f"a key is hexadecimal digits, not {prefix!r}")
    found = keys(store, lowered)
    if not found:
        raise NotFoundError(f"no artifact in {store.root} has a key that begins {prefix}")
    if len(found) > 1:
        more = len(found) - _MOST_CANDIDATES
        listing = "".join(f"\n  {key}" for key in found[:_MOST_CANDIDATES])
        rest = f"\n  and {more} more" if more > 0 else ""
        raise SpecificationError(f"{len(found)} keys begin {prefix}:{listing}{rest}")
    return found[0]


@command(app, "verify")
def verify_all(screen: Screen, cache_dir: CacheDir = None) -> Answer:
    """Read every artifact, and put aside what is damaged."""
    store = existing_store(cache_dir)
    found = _working(screen, f"reading {store.root}", lambda: verify(store))
    document = {
        "directory": str(store.root),
        "sound": found.sound,
        "damaged": found.damaged,
        "unreadable": found.unreadable,
    }

    def show_counts(screen: Screen) -> None:
        screen.print(f"{count(found.sound, 'artifact')} sound")
        if found.damaged:
            screen.print(
                f"{found.damaged} damaged and put aside in {store.root / 'aside'}", "yellow"
            )
        if found.unreadable:
            screen.print(f"{found.unreadable} could not be read, and were left", "yellow")

    code = PROBLEMS if found.damaged or found.unreadable else GOOD
    return Answer(document, show_counts, code)


@command(app, "prune")
def prune_to(
    screen: Screen,
    max_bytes: Annotated[
        str,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            help="What those that stay may have together, such as 500M, 2G or 1GiB.",
            show_default=False,
        ),
    ],
    cache_dir: CacheDir = None,
) -> Answer:
    """Remove the artifacts that were not used for longest; none that is being read."""
    store, most = existing_store(cache_dir), parse_size(max_bytes)
    work = _working(screen, f"pruning {store.root}", lambda: prune(store, most))
    return _pruned(store, work)


@command(app, "clear")
def clear_all(
    screen: Screen,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    cache_dir: CacheDir = None,
) -> Answer:
    """Remove every artifact that is not being read."""
    store = existing_store(cache_dir)
    if not yes:
        _ask(screen, f"Remove every artifact in {store.root}?")
    return _pruned(store, _working(screen, f"clearing {store.root}", lambda: clear(store)))


def _ask(screen: Screen, question: str) -> None:
    if screen.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SpecificationError("nobody can be asked here: give --yes")
    if not typer.confirm(question, err=True):
        raise NotFoundError("nothing was removed")


def _pruned(store: Store, done: Pruned) -> Answer:
    document = {
        "directory": str(store.root),
        "removed": done.removed,
        "freed_bytes": done.freed,
        "left_bytes": done.left,
    }
    text = (
        f"removed {count(done.removed, 'artifact')}, {size(done.freed)}; "
        f"{size(done.left)} left in {store.root}"
    )
    return Answer(document, lambda screen: screen.print(text))


def _working(screen: Screen, text: str, work: Callable[[], T]) -> T:
    """Do what may take long, and say so where somebody watches."""
    if not screen.err.is_terminal:
        return work()
    with screen.err.status(text):
        return work()
