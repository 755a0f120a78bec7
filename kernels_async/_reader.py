"""Reads a source file and every header of the user's that it includes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ._errors import SpecificationError
from ._includes import (
    Include,
    includes,
    is_header_name,
    plain_defines,
    relative,
    rename,
)

_TOOLKIT = re.compile(
    r"(cub|thrust|nv|cuda|cooperative_groups|crt)/.*|cooperative_groups\.h|mma\.h"
    r"|cuda(_\w+)?\.h(pp)?|cu(Complex|rand\w*)\.h|math_(constants|functions)\.h"
    r"|(vector|device|driver|texture|surface)_\w+\.h(pp)?|sm_\d+_\w+\.h(pp)?"
)


def read_source(
    path: Path, include_dirs: Sequence[Path], defines: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """The text of a source file, and its headers by the names that includes give them.

    Raises:
        SpecificationError: A header is missing, hidden behind a macro or not UTF-8.
        OSError: A file cannot be read.
    """
    reader = _Reader(include_dirs, defines)
    source = reader.read(path)
    names = reader.choose_names(source)
    headers = {names[file.name]: file.written(names) for file in reader.files}
    return source.written(names), headers


@dataclass(eq=False)
class _File:
    """A file as it was read.

    Attributes:
        name: A key of its own, which is not the name that it gets.
        path: Where it lies, links not followed: what is beside it is beside the link.
        spelled: The name that the first include gave it.
        text: Its text.
        found: For each include the file that it means, by the include's place.
        unfound: The names of includes that mean no file of the user's.
        fixed: A macro names it, so it must keep the spelled name.
    """

    name: str
    path: Path
    spelled: str
    text: str
    found: dict[tuple[int, int], _File] = field(default_factory=dict)
    unfound: set[str] = field(default_factory=set)
    fixed: bool = False

    def written(self, names: dict[str, str]) -> str:
        """Its text, each include that means a file of the user's with that one's name."""

        def choose(include: Include) -> str | None:
            file = self.found.get(include.span)
            return None if file is None else names[file.name]

        return rename(self.text, choose)


class _Reader:
    """Finds what each include means, file by file.

    Attributes:
        files: The headers, in the order in which they were met.
    """

    def __init__(self, include_dirs: Sequence[Path], defines: dict[str, str]) -> None:
        self._include_dirs = include_dirs
        self._defines = {name: {value} for name, value in defines.items()}
        self._known: dict[tuple[str, str], _File] = {}
        self.files: list[_File] = []

    def read(self, path: Path) -> _File:
        """The source file, after everything that it includes has been read."""
        source = self._read_file(path, path.name)
        todo = [source]
        while todo:
            file = todo.pop()
            before = len(self.files)
            for value in plain_defines(file.text):
                self._defines.setdefault(value[0], set()).add(value[1])
            for include in includes(file.text):
                self._follow(file, include)
            todo += self.files[before:]
        return source

    def choose_names(self, source: _File) -> dict[str, str]:
        """A name for each header that no include can take for another's.

        A header keeps the name by which it was included first, unless that is another's
        name, the source's, the toolkit's, what an include that found nothing says, or
        what an include of another header would find beside the including one.
        """
        unfound = set().union(source.unfound, *(file.unfound for file in self.files))
        names = {source.name: source.path.name}
        for file in self.files:
            taken = {*names.values(), *unfound}
            plain = is_header_name(file.spelled) and not _TOOLKIT.fullmatch(file.spelled)
            if file.fixed or (plain and file.spelled not in taken):
                names[file.name] = file.spelled
            else:
                names[file.name] = self._unused(file, names)
        while (mistaken := self._mistaken(source, names)) is not None:
            names[mistaken.name] = self._unused(mistaken, names)
        return names

    def _mistaken(self, source: _File, names: dict[str, str]) -> _File | None:
        """A header that an include would take for another; its name must change."""
        by_name = {names[file.name]: file for file in self.files}
        for file in (source, *self.files):
            folder = "" if file is source else names[file.name]
            wanted: list[tuple[str, _File | None]] = [
                (names[other.name], other) for other in file.found.values()
            ]
            wanted += [(name, None) for name in file.unfound]
            for name, other in wanted:
                beside = by_name.get(relative(folder, name))
                if beside is not None and beside is not other:
                    if beside.fixed:
                        raise SpecificationError(
                            f"{beside.path} is included by a macro, and its name "
                            f"{beside.spelled!r} means another file elsewhere: pass the "
                            "headers in Source(headers={...})"
                        )
                    return beside
        return None

    def _unused(self, file: _File, names: dict[str, str]) -> str:
        plain = re.sub(r"[^\w.+-]", "_", file.path.name).lstrip(".") or "header"
        number = 0
        while f"file{number}/{plain}" in names.values():
            number += 1
        return f"file{number}/{plain}"

    def _follow(self, file: _File, include: Include) -> None:
        """Find what one include means, and read it if it is new."""
        if not include.macro:
            self._take(file, include)
            return
        values = self._defines.get(include.name)
        if not values:
            raise SpecificationError(
                f"{file.path}:{include.line} includes the macro {include.name}, which is "
                "not plainly defined as a header's name: pass the header in "
                "Source(headers={...})"
            )
        for value in sorted(values):
            named = replace(include, name=value[1:-1], quoted=value[0] == '"', macro=False)
            found = self._take(file, replace(named, needed=False))
            if found is not None:
                if found.spelled != named.name:
                    raise SpecificationError(
                        f"{file.path}:{include.line} includes {value} by a macro, and the "
                        "file has another name elsewhere: pass the header in "
                        "Source(headers={...})"
                    )
                found.fixed = True
                file.found.pop(include.span, None)

    def _take(self, file: _File, include: Include) -> _File | None:
        path = self._find(file.path, include)
        if path is not None:
            key = (str(path.parent), os.path.realpath(path))
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._read_file(path, include.name)
                self.files.append(found)
            file.found[include.span] = found
            return found
        if include.needed and include.quoted and not _TOOLKIT.fullmatch(include.name):
            raise SpecificationError(
                f"{file.path}:{include.line} includes {include.name!r}, which is not "
                "beside it nor in include_dirs"
            )
        file.unfound.add(include.name)
        return None

    def _find(self, path: Path, include: Include) -> Path | None:
        folders = [path.parent] if include.quoted else []
        for folder in [*folders, *self._include_dirs]:
            found = _absolute(folder / include.name)
            if found.is_file():
                return found
        return None

    def _read_file(self, path: Path, spelled: str) -> _File:
        path = _absolute(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise SpecificationError(f"{path} is not UTF-8: {error}") from None
        return _File(f"{len(self.files)} {path}", path, spelled, text)


def _absolute(path: Path) -> Path:
    """`path` without dots, its links not followed: what is beside a link is beside it."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - `resolve` follows links
