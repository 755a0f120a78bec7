"""Source text and its headers, by content."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from weakref import WeakValueDictionary

from ._errors import SpecificationError
from ._includes import is_header_name
from ._reader import read_source
from ._threads import in_thread
from ._value import Value, digest

TEXT_LIMIT = 16 << 20
TOGETHER_LIMIT = 64 << 20


@dataclass(frozen=True, eq=False, repr=False)
class Source(Value):
    """CUDA C++ source text and the headers that it includes, all by content.

    It exists so that nothing outside it and the toolchain changes what a compile
    gives: `#include "tile.h"` finds `headers["tile.h"]`, then the toolkit's own
    headers, and never a file of the host's. `Source.load` makes one of files. It does
    not promise that the text compiles.

    Args:
        text: The source. A leading byte-order mark is dropped; a NUL character is
            refused, since NVRTC would silently stop at it.
        headers: Header text by the name that an `#include` gives it. In the header
            `detail/a.h`, `#include "b.h"` means `detail/b.h` if there is one.
        name: What diagnostics and debug information call the source; a bare file name.

    Raises:
        TypeError: A text or name is not a string.
        SpecificationError: The source is empty or has a NUL character, a name is a path
            out of the source, text holds lone surrogates, or it is too much to compile.
    """

    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    name: str = "kernel.cu"

    def __post_init__(self) -> None:
        if not isinstance(self.headers, Mapping):
            raise TypeError(f"headers is a mapping, such as a dict, not {self.headers!r}")
        text = _checked("the source", self.text)
        if not text.strip():
            raise SpecificationError("the source is empty")
        if re.fullmatch(r"\s*[\w./~-]+\.(cu|cuh|cpp|h)\s*", text):
            raise SpecificationError(
                f"a source is text, and {text!r} names a file: use Source.load"
            )
        headers = {
            _header_name(name): _checked(f"header {name!r}", header)
            for name, header in sorted(self.headers.items())
        }
        together = len(text) + sum(map(len, headers.values()))
        if together > TOGETHER_LIMIT:
            raise SpecificationError(
                f"source and headers have {together} characters, of {TOGETHER_LIMIT}"
            )
        for name in headers:
            if any(str(parent) in headers for parent in PurePosixPath(name).parents):
                raise SpecificationError(f"header {name!r} has a header as its folder")
        if not isinstance(self.name, str):
            raise TypeError(f"a source's name is a string, not {self.name!r}")
        if "/" in self.name or not is_header_name(self.name):
            raise SpecificationError(
                f"a source's name is a bare file name such as 'reduce.cu', "
                f"not {self.name!r}"
            )
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "headers", MappingProxyType(headers))

    @classmethod
    async def load(
        cls,
        path: str | os.PathLike[str],
        include_dirs: Sequence[str | os.PathLike[str]] = (),
        defines: Mapping[str, str] = MappingProxyType({}),
    ) -> Source:
        """Read a file and, again and again, every header of the user's it includes.

        From then on the source is content: an edited header is another source. A
        quoted header is looked for beside the file that includes it, then in
        `include_dirs` in their order; an angled one only there. One file is one header,
        by whichever name it is included; two files of one name are two. Names that are
        found nowhere are left to the toolkit if they are angled or look like its own.
        Conditions are not evaluated: a header under one is taken if it is there.

        Args:
            path: The source file; its name becomes the source's.
            include_dirs: Folders of headers.
            defines: Macros of the specialization that an `#include` names, such as
                `{"CONFIG": '"small.h"'}`; they do not become part of the source.

        Raises:
            SpecificationError: A quoted header that stands under no condition is found
                nowhere, or a name is a macro that is not plainly defined as a header's
                name; the text names the including file and its line.
            OSError: A file cannot be read.
        """
        folders = [Path(folder) for folder in include_dirs]
        text, headers = await in_thread(read_source, Path(path), folders, dict(defines))
        return cls(text, headers, re.sub(r"[^\w.+-]", "_", Path(path).name))

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """The digest of each text, by the name of its entry in an artifact's key."""
        texts = {"source text": self.text}
        texts |= {f"header {name}": text for name, text in self.headers.items()}
        return {name: f"blake3 {digest(text.encode())}" for name, text in texts.items()}

    @property
    def _parts(self) -> tuple[object, ...]:
        return (self.name, self.text, tuple(self.headers.items()))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.text, dict(self.headers), self.name))

    def __repr__(self) -> str:
        more = f", {len(self.headers)} headers" if self.headers else ""
        return f"<Source {self.name} {len(self.text)} characters{more}>"


_of_texts: WeakValueDictionary[str, Source] = WeakValueDictionary()


def as_source(source: Source | str) -> Source:
    """`source`, or the `Source` of that text, which all who have one share."""
    if isinstance(source, Source):
        return source
    made = _of_texts.get(source) if isinstance(source, str) else None
    if made is None:
        made = Source(source)
        _of_texts[source] = made
    return made


def _checked(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} is a string, not {type(text).__name__}")
    if "\0" in text:
        raise SpecificationError(f"{what} has a NUL character, where NVRTC would stop")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecificationError(f"{what} cannot be written as UTF-8: {error}") from None
    if len(text) > TEXT_LIMIT:
        raise SpecificationError(f"{what} has {len(text)} characters, of {TEXT_LIMIT}")
    return str.__str__(text).removeprefix("\ufeff")


def _header_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header's name is a string, not {name!r}")
    if not is_header_name(name):
        raise SpecificationError(
            f"a header's name is what its #include says, such as 'tile.h' or "
            f"'detail/tile.h', not {name!r}"
        )
    return name
