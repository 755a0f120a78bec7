"""`kernels-async explain`: in what two artifacts, or an artifact and a request, differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from .._artifact import Artifact
from .._compiler import Compiler
from .._digest import Difference, artifact_key, differences
from .._errors import SpecificationError
from .._inventory import inspect
from .._source import Source
from .._specialization import Specialization
from .._store import DamagedEntry, Store
from ._cache import find_key
from ._command import Answer, CacheDir, NotFoundError, command, existing_store, told
from ._ends import run
from ._screen import Screen
from ._words import shorten


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "explain")(explain)


def explain(
    _: Screen,
    first: Annotated[
        str, typer.Argument(metavar="KEY", help="An artifact's key, or how it begins.")
    ],
    second: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="Another one's.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Instead of another key: the source file of a request."),
    ] = None,
    symbol: Annotated[str | None, typer.Option(help="The request's kernel.")] = None,
    define: Annotated[
        list[str] | None,
        typer.Option("--define", "-D", metavar="NAME=TEXT", help="A macro of the request."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-O", help="A compiler option, such as -O=--std=c++20."),
    ] = None,
    include_dir: Annotated[
        list[Path] | None,
        typer.Option("--include-dir", "-I", help="A folder of the source's headers."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The request's target; by default the artifact's."),
    ] = None,
    slim: Annotated[bool, typer.Option("--slim", help="The request is slim.")] = False,
    cache_dir: CacheDir = None,
) -> Answer:
    """Say in what artifacts or requests differ.

    Of an artifact and a request that is why the request would miss it. The request is
    compared as this machine would make it: with its toolchain. Nothing is compiled.
    """
    store = existing_store(cache_dir)
    if (second is None) == (source is None):
        raise SpecificationError("explain takes two keys, or one key and --source")
    artifact = _artifact(store, first)
    if second is not None:
        other: Mapping[str, str] = _artifact(store, second).entries
    elif symbol is None:
        raise SpecificationError("a request has a --symbol")
    else:
        assert source is not None  # noqa: S101 - one of both is there
        words = [f"-D{text}" for text in define or []] + (option or [])
        request = _Request(source, symbol, words, include_dir or [])
        other = run(request.entries(target or artifact.target, slim))
    found = differences(artifact.entries, other)
    document = {
        "first": artifact.digest,
        "second": artifact_key(other),
        "same": not found,
        "differences": [
            {"entry": one.entry, "first": one.first, "second": one.second} for one in found
        ],
    }
    return Answer(document, lambda screen: _show(screen, found, is_request=second is None))


class _Request:
    def __init__(
        self, path: Path, symbol: str, options: Sequence[str], include_dirs: Sequence[Path]
    ) -> None:
        self._path = path
        self._include_dirs = include_dirs
        self._specialization = Specialization(symbol, options=options)

    async def entries(self, target: str, slim: bool) -> Mapping[str, str]:
        """What would enter its key on this machine."""
        defines = self._specialization.defines.items()
        with told("read", self._path):
            source = await Source.load(
                self._path,
                self._include_dirs,
                {name: str(text) for name, text in defines},
            )
        async with Compiler(target, slim=slim) as compiler:
            return compiler.entries(source, self._specialization)


def _artifact(store: Store, prefix: str) -> Artifact:
    try:
        return inspect(store, find_key(store, prefix))
    except (DamagedEntry, FileNotFoundError) as error:
        raise NotFoundError(f"the artifact {prefix} cannot be read: {error}") from error


def _show(screen: Screen, found: Sequence[Difference], *, is_request: bool) -> None:
    if not found:
        hit = "the request would hit it" if is_request else "they are the same artifact"
        screen.print(f"nothing differs: {hit}")
        return
    names = ("DIFFERS", "ARTIFACT", "REQUEST" if is_request else "OTHER ARTIFACT")
    screen.table(names, [_row(one) for one in found])
    if is_request and any(_is_linked(one) for one in found):
        screen.tell("one of them is slim: see --slim")


def _row(one: Difference) -> tuple[str, str, str]:
    first, second = _changed(one.first, one.second)
    return one.entry, first, second


def _changed(first: str | None, second: str | None) -> tuple[str, str]:
    """Both, of long ones the words that are not in the other."""
    if first is None or second is None or " " not in first + second:
        return _text(first), _text(second)
    words, others = first.split(), second.split()
    texts = (
        [word for word in words if word not in others],
        [word for word in others if word not in words],
    )
    if not all(texts):
        return _text(first), _text(second)
    return _text(" ".join(texts[0])), _text(" ".join(texts[1]))


def _text(value: str | None) -> str:
    return "(absent)" if value is None else shorten(value) or "(none)"


def _is_linked(one: Difference) -> bool:
    texts = (one.first or "", one.second or "")
    return one.entry == "toolchain" and len({" nvjitlink " in t for t in texts}) == 2
