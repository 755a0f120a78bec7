"""Source text and its headers, by content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from ._errors import SpecificationError

_NAME = re.compile(r"[\w+-][\w.+-]*(/[\w+-][\w.+-]*)*")


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """CUDA C++ source text and the headers that it includes, all by content.

    It exists so that nothing outside it and the toolchain changes what a compile
    gives: `#include "tile.h"` finds `headers["tile.h"]`, then the toolkit's own
    headers, and never a file of the host's. It does not promise that the text compiles.

    Args:
        text: The source. A leading byte-order mark is dropped; a NUL character is
            refused, since NVRTC would silently stop at it.
        headers: Header text by the name that an `#include` gives it.
        name: What diagnostics and debug information call the source; a bare file name.

    Raises:
        TypeError: A text or name is not a string.
        SpecificationError: The source is empty or has a NUL character, a name is a path
            out of the source, or text holds lone surrogates.
    """

    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    name: str = "kernel.cu"

    def __post_init__(self) -> None:
        text = _checked("the source", self.text)
        if not text.strip():
            raise SpecificationError("the source is empty")
        headers = {
            _header_name(name): _checked(f"header {name!r}", header)
            for name, header in sorted(self.headers.items())
        }
        if not isinstance(self.name, str):
            raise TypeError(f"a source's name is a string, not {self.name!r}")
        if "/" in self.name or not _is_name(self.name):
            raise SpecificationError(
                f"a source's name is a bare file name such as 'reduce.cu', "
                f"not {self.name!r}"
            )
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "headers", MappingProxyType(headers))

    @cached_property
    def _values(self) -> tuple[object, ...]:
        return (self.name, self.text, tuple(self.headers.items()))

    @cached_property
    def _hash(self) -> int:
        return hash(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Source):
            return NotImplemented
        return self._values == other._values

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.text, dict(self.headers), self.name))

    def __repr__(self) -> str:
        more = f", {len(self.headers)} headers" if self.headers else ""
        return f"<Source {self.name} {len(self.text)} characters{more}>"


def _checked(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} is a string, not {type(text).__name__}")
    if "\0" in text:
        raise SpecificationError(f"{what} has a NUL character, where NVRTC would stop")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecificationError(f"{what} cannot be written as UTF-8: {error}") from None
    return text.removeprefix("\ufeff")


def _is_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name))


def _header_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header's name is a string, not {name!r}")
    if not _is_name(name):
        raise SpecificationError(
            f"a header's name is what its #include says, such as 'tile.h' or "
            f"'detail/tile.h', not {name!r}"
        )
    return name
