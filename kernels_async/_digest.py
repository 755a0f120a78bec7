"""The identity of an artifact: blake3 over labelled, length-prefixed fields.

No absolute path, no time and no environment enters it, so that another host gets the
same key for the same request. The algorithm is that of the BLAKE3 specification
(https://github.com/BLAKE3-team/BLAKE3-specs).
"""

from __future__ import annotations

from collections.abc import Iterator

from blake3 import blake3

from ._source import Source
from ._specialization import Specialization

SCHEMA = "kernels_async artifact 1, blake3"


def digest(data: bytes) -> str:
    """The digest of some bytes, as 64 hexadecimal digits."""
    return blake3(data).hexdigest()


def artifact_key(
    identity: str, target: str, source: Source, specialization: Specialization
) -> str:
    """The digest that names what `specialization` of `source` compiles to.

    Args:
        identity: The toolchain's identity.
        target: The target, such as `sm_90`.
        source: The source; its text, its headers and its name enter the key.
        specialization: Symbol, defines and options enter the key.
    """
    hasher = blake3()
    for label, value in _fields(identity, target, source, specialization):
        for part in (label.encode(), value.encode()):
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
    return hasher.hexdigest()


def _fields(
    identity: str, target: str, source: Source, specialization: Specialization
) -> Iterator[tuple[str, str]]:
    yield "schema", SCHEMA
    yield "toolchain", identity
    yield "target", target
    yield "source name", source.name
    yield "source text", source.text
    for name, text in source.headers.items():
        yield "header name", name
        yield "header text", text
    yield "symbol", specialization.symbol
    for name, value in specialization.defines.items():
        yield "define name", name
        yield "define value", str(value)
    for option in specialization.options:
        yield "option", option
