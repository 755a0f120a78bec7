"""The identity of an artifact: blake3 over labelled, length-prefixed fields.

No absolute path, no time and no environment enters it, so that another host gets the
same key for the same request. The algorithm is that of the BLAKE3 specification
(https://github.com/BLAKE3-team/BLAKE3-specs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from ._source import Source
from ._specialization import Specialization
from ._value import digest

SCHEMA = "kernels_async artifact 1, blake3"


def entries(
    identity: str, target: str, source: Source, specialization: Specialization
) -> dict[str, str]:
    """Everything that enters the key, by name; texts by their digest.

    Args:
        identity: The toolchain's identity.
        target: The target, such as `sm_90`.
        source: The source; its text, its headers and its name are entries.
        specialization: Symbol, defines and options are entries.
    """
    return {
        "schema": SCHEMA,
        "toolchain": identity,
        "target": target,
        "source name": source.name,
        **source.digests,
        "symbol": specialization.symbol,
        **{f"define {name}": str(text) for name, text in specialization.defines.items()},
        "options": " ".join(specialization.options),
    }


def artifact_key(named: Mapping[str, str]) -> str:
    """The digest that names what a request compiles to, of its `entries`.

    Each name and each value is preceded by its length, so that nothing can be shifted
    from one into another.
    """
    fields = [text.encode() for text in chain.from_iterable(named.items())]
    return digest(b"".join(len(data).to_bytes(8, "little") + data for data in fields))


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry of the key in which two requests differ.

    Attributes:
        entry: What differs, such as `header tile.h`, `define N`, `options`, `toolchain`.
        first: Its value in the first request, a digest for a text, or `None` if absent.
        second: The same of the second.
    """

    entry: str
    first: str | None
    second: str | None

    def __str__(self) -> str:
        first, second = (
            "(absent)" if value is None else value for value in (self.first, self.second)
        )
        return f"{self.entry}: {first} -> {second}"


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    """The entries in which two requests differ, in their order."""
    return [
        Difference(name, first.get(name), second.get(name))
        for name in {**first, **second}
        if first.get(name) != second.get(name)
    ]
