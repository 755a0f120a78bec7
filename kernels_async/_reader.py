"""Reads a source file and every header of the user's that it includes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ._errors import SpecificationError
from ._includes import (
    Include,
    includes,
    is_header_literal,
    is_header_name,
    plain_defines,
    rename,
)

_TOOLKIT = re.compile(r"cuda|cub/|thrust/|cooperative_groups|nv/|mma\.h|cu[A-Z]|crt/|math_")


def read_source(
    path: Path, include_dirs: Sequence[Path], defines: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """The text of a source file, and its headers by the names that includes give them.

    Raises:
        SpecificationError: A header is missing, or hidden behind a macro.
        OSError: A file cannot be read.
    """
    reader = _Reader(include_dirs, [path.parent, *include_dirs], defines)
    return reader.read(path), reader.headers


class _Reader:
    """Reads files and what they include; each file becomes one header.

    Attributes:
        headers: The text of each header, by the name that includes give it here.
    """

    def __init__(
        self,
        include_dirs: Sequence[Path],
        folders: Sequence[Path],
        defines: dict[str, str],
    ) -> None:
        self._include_dirs = include_dirs
        self._folders = [folder.resolve() for folder in folders]
        self._names: dict[Path, str] = {}
        self._defines = defines
        self.headers: dict[str, str] = {}

    def read(self, path: Path) -> str:
        """The text of a file, after reading everything that it includes."""
        text = path.read_text(encoding="utf-8-sig")
        self._defines |= plain_defines(text)
        renamed = rename(text, lambda include: self._name(path, include))
        for include in includes(text):
            if include.macro:
                self._read_macro(path, include)
        return renamed

    def _read_macro(self, path: Path, include: Include) -> None:
        value = self._defines.get(include.name, "")
        if not is_header_literal(value):
            raise SpecificationError(
                f"{path}:{include.line} includes the macro {include.name}, which is not "
                "plainly defined as a header's name: pass the header in "
                "Source(headers={...})"
            )
        named = replace(include, name=value[1:-1], quoted=value[0] == '"', macro=False)
        name = self._name(path, named)
        if name is not None and name != named.name:
            raise SpecificationError(
                f"{path}:{include.line} includes {value} by a macro, and another file "
                "has that name: pass the header in Source(headers={...})"
            )

    def _name(self, path: Path, include: Include) -> str | None:
        """The name of the included file here, read if it is new; `None` if not found."""
        found = self._find(path, include)
        if found is None:
            if include.needed and include.quoted and not _TOOLKIT.match(include.name):
                raise SpecificationError(
                    f"{path}:{include.line} includes {include.name!r}, which is not "
                    "beside it nor in include_dirs"
                )
            return None
        name = self._names.get(found)
        if name is None:
            name = self._names[found] = self._unused(found, include.name)
            self.headers[name] = ""
            self.headers[name] = self.read(found)
        return name

    def _find(self, path: Path, include: Include) -> Path | None:
        folders = [path.parent] if include.quoted else []
        for folder in [*folders, *self._include_dirs]:
            if (folder / include.name).is_file():
                return (folder / include.name).resolve()
        return None

    def _unused(self, file: Path, spelled: str) -> str:
        """A name that no other file has: the spelled one if it can be, or a longer."""
        within = [f for f in self._folders if file.is_relative_to(f)]
        candidates = [spelled, *(file.relative_to(f).as_posix() for f in within)]
        names = (c for c in candidates if is_header_name(c) and c not in self.headers)
        numbers = (f"file{number}/{file.name}" for number in range(len(self.headers) + 1))
        numbered = (name for name in numbers if name not in self.headers)
        return next(names, None) or next(numbered)
