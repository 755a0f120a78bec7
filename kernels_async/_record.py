"""The record that lies beside an artifact's bytes, and the seal that vouches for it.

A record is accepted only if it is, byte for byte, what would be written for the artifact
that it describes: nothing in it is executed, becomes a path, or is there unread.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from blake3 import blake3

from ._artifact import Artifact, Origin, Output
from ._diagnostics import Diagnostic
from ._errors import SpecificationError
from ._resources import Resources
from ._value import LONGEST_SECONDS, digest

LAYOUT = "v1"
_ENVIRONMENT = "KERNELS_ASYNC_CACHE_KEY"


class Seal:
    """What vouches for a record: its digest or, with a key, that a holder wrote it.

    Entries that are sealed with a key have a place of their own, so that processes with
    and without it, or with several, share a directory.

    Args:
        key: What the writers and the readers of a shared cache know and others do not;
            `None` for the digest alone, which shows damage and not forgery.

    Attributes:
        namespace: The directory of its entries in the cache.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.namespace: str = LAYOUT
        self._key: bytes | None = None
        if key is not None:
            self.namespace = f"{LAYOUT}-{_derive(key, 'name').hex()[:16]}"
            self._key = _derive(key, "seal")

    def of(self, record: Mapping[str, Any]) -> str:
        """The seal of a record."""
        data = json.dumps(record, sort_keys=True).encode()
        return (
            digest(data) if self._key is None else blake3(data, key=self._key).hexdigest()
        )


def chosen_key(key: bytes | str | None) -> bytes | None:
    """The bytes of a key, by default of `KERNELS_ASYNC_CACHE_KEY`, if it is set.

    Raises:
        SpecificationError: It is no key, or an empty one.
    """
    chosen = os.environ.get(_ENVIRONMENT) if key is None else key
    if chosen is not None and (not isinstance(chosen, str | bytes) or not chosen):
        raise SpecificationError("the cache's key is text or bytes, and not empty")
    return os.fsencode(chosen) if isinstance(chosen, str) else chosen


def _derive(secret: bytes, purpose: str) -> bytes:
    context = f"kernels_async 2026-01 artifact store {purpose}"
    return blake3(secret, derive_key_context=context).digest()


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of an artifact apart from its bytes.

    Attributes:
        key: The artifact's key.
        entries: What entered it.
        entry: The kernel's lowered name.
        output: The digest of the bytes.
        diagnostics: What the compiler said.
        resources: What ptxas said.
        compile_seconds: How long it took.
    """

    key: str
    entries: Mapping[str, str]
    entry: str
    output: str
    diagnostics: tuple[Diagnostic, ...]
    resources: Resources | None
    compile_seconds: float

    @classmethod
    def of(cls, key: str, entries: Mapping[str, str], output: Output) -> Record:
        """The record of what was compiled."""
        return cls(
            key=key,
            entries=dict(entries),
            entry=output.entry,
            output=digest(output.data),
            diagnostics=output.diagnostics,
            resources=output.resources,
            compile_seconds=output.compile_seconds,
        )

    def encode(self, seal: Seal) -> bytes:
        """Its one written form."""
        record = {
            "key": self.key,
            "entries": dict(self.entries),
            "entry": self.entry,
            "output": self.output,
            "diagnostics": [d.to_record() for d in self.diagnostics],
            "resources": self.resources and self.resources.to_record(),
            "compile_seconds": self.compile_seconds,
        }
        return json.dumps(record | {"seal": seal.of(record)}).encode()

    @classmethod
    def decode(cls, data: bytes, seal: Seal) -> Record:
        """Read one back.

        Raises:
            ValueError: It is not what `encode` writes with that seal.
        """
        try:
            found = json.loads(data, parse_constant=_refuse)
            resources = found["resources"]
            record = cls(
                key=_text(found["key"]),
                entries={name: _text(text) for name, text in found["entries"].items()},
                entry=_text(found["entry"]),
                output=_text(found["output"]),
                diagnostics=tuple(map(Diagnostic.from_record, found["diagnostics"])),
                resources=None if resources is None else Resources.from_record(resources),
                compile_seconds=_seconds(found["compile_seconds"]),
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"its record is incomplete: {error}") from error
        if not hmac.compare_digest(record.encode(seal), data):
            raise ValueError("its record is damaged, or sealed by another")
        if not {"symbol", "target", "toolchain"} <= record.entries.keys():
            raise ValueError("its record does not say what it was compiled from")
        return record

    def artifact(self, data: bytes, path: Path, origin: Origin) -> Artifact:
        """The artifact of the record and its bytes.

        Raises:
            ValueError: They are the bytes of another.
        """
        if digest(data) != self.output:
            raise ValueError(f"{path.name} is damaged")
        return Artifact(
            digest=self.key,
            bytes=data,
            path=path,
            symbol=self.entries["symbol"],
            entry=self.entry,
            target=self.entries["target"],
            compiler_identity=self.entries["toolchain"],
            diagnostics=self.diagnostics,
            resources=self.resources,
            origin=origin,
            compile_seconds=self.compile_seconds,
            output_digest=self.output,
            entries=self.entries,
        )


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of a record")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("a time is missing")
    if not 0 <= value <= LONGEST_SECONDS:
        raise ValueError("a time is out of range")
    return value
