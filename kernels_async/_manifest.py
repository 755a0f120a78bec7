"""A file that names kernels by content, so that a start elsewhere can build them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from ._errors import ManifestError, SpecificationError
from ._replacing import replacing
from ._source import Source
from ._specialization import Specialization
from ._threads import in_thread
from ._value import LONGEST_SECONDS, digest

FORMAT = "kernels_async manifest 1"
_MOST_COUNTED = 1 << 53
_TARGET = re.compile(r"\w{1,64}", re.ASCII)
_DAMAGE = (KeyError, TypeError, AttributeError, RecursionError, SpecificationError)


@dataclass(frozen=True, slots=True)
class ManifestKernel:
    """One kernel of a manifest.

    Attributes:
        source: Its source.
        specialization: Its symbol and configuration.
        count: How often it was asked for.
        compile_seconds: How long it took to compile, by target.
    """

    source: Source
    specialization: Specialization
    count: int = 0
    compile_seconds: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def seconds(self, target: str) -> float | None:
        """What its compile for `target` takes, or at most for another; `None`: unknown."""
        known = self.compile_seconds
        return known.get(target, max(known.values(), default=None))


@dataclass(frozen=True, slots=True, repr=False)
class Manifest:
    """Kernels by content: sources, specializations, and how often and long.

    It exists so that what one server was asked for is compiled before the next serves:
    `Kernels.record` writes one, `Kernels.warm` and the command `build` read it. It holds
    no path, no host and no target, and what is compiled is not in it.

    Attributes:
        kernels: The kernels, each once.
    """

    kernels: tuple[ManifestKernel, ...] = ()

    def __repr__(self) -> str:
        return f"<Manifest kernels={len(self.kernels)}>"

    @classmethod
    async def load(cls, path: str | os.PathLike[str]) -> Manifest:
        """Read a file, in a thread.

        Raises:
            ManifestError: It is no manifest, or damaged.
            OSError: It cannot be read.
        """
        return await in_thread(read_manifest, Path(path))

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, in a thread: at once or not at all.

        Raises:
            OSError: It cannot be written.
        """
        await in_thread(write_manifest, Path(path), self)

    def merged(self, other: Manifest) -> Manifest:
        """The kernels of both; counts add up, times of the other are newer."""
        merged = {(one.source, one.specialization): one for one in self.kernels}
        for one in other.kernels:
            known = merged.get((one.source, one.specialization))
            if known is not None:
                seconds = {**known.compile_seconds, **one.compile_seconds}
                one = replace(known, count=known.count + one.count, compile_seconds=seconds)
            merged[one.source, one.specialization] = one
        return Manifest(tuple(merged.values()))

    def longest_first(self, target: str) -> list[ManifestKernel]:
        """The kernels for `target`, in the order in which to compile them.

        One whose time nobody knows comes first, as it may be the longest; one whose
        `-arch` is another target is left out.
        """

        def rank(kernel: ManifestKernel) -> float:
            seconds = kernel.seconds(target)
            return float("-inf") if seconds is None else -seconds

        fit = [k for k in self.kernels if k.specialization.architecture in (None, target)]
        return sorted(fit, key=rank)

    def encode(self) -> bytes:
        """Its one written form: JSON, each text once, and a digest of it all."""
        sources: dict[str, Any] = {}
        texts: dict[str, str] = {}
        kernels = []
        for kernel in self.kernels:
            source = kernel.source
            symbol, defines, options = kernel.specialization.arguments
            named = {
                "name": source.name,
                "text": _known(texts, source.text),
                "headers": {
                    name: _known(texts, text) for name, text in source.headers.items()
                },
            }
            identity = digest(json.dumps(named, sort_keys=True).encode())
            sources[identity] = named
            kernels.append(
                {
                    "source": identity,
                    "symbol": symbol,
                    "defines": defines,
                    "options": list(options),
                    "count": kernel.count,
                    "compile_seconds": dict(kernel.compile_seconds),
                }
            )
        content = {"kernels": kernels, "sources": sources, "texts": texts}
        record = {"format": FORMAT, "digest": _digest(content), **content}
        return json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read one back.

        Raises:
            ManifestError: It is no manifest, of another version, or damaged.
        """
        try:
            record = json.loads(data, parse_constant=_refuse)
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ManifestError("it is no manifest: it is not JSON") from None
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"it is no manifest: {error}") from None
        found = record.get("format") if isinstance(record, dict) else None
        if found != FORMAT:
            raise ManifestError(f"it is no {FORMAT!r}; its format is {found!r}")
        content = {name: record.get(name) for name in ("kernels", "sources", "texts")}
        try:
            if record.get("digest") != _digest(content):
                raise ManifestError("it is damaged, or was edited: its digest is another")
            return cls(_kernels(content))
        except _DAMAGE as error:
            raise ManifestError(f"it is damaged: {error!r}") from error


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file; see `Manifest.load`."""
    try:
        return Manifest.decode(path.read_bytes())
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from error.__cause__


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a file; see `Manifest.save`."""
    data = manifest.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(data)


def _kernels(content: Mapping[str, Any]) -> tuple[ManifestKernel, ...]:
    texts = content["texts"]
    sources = {
        identity: Source(
            texts[named["text"]],
            {name: texts[text] for name, text in named["headers"].items()},
            named["name"],
        )
        for identity, named in content["sources"].items()
    }
    return tuple(
        ManifestKernel(
            sources[kernel["source"]],
            Specialization(kernel["symbol"], kernel["defines"], kernel["options"]),
            _count(kernel["count"]),
            {_target(t): _seconds(s) for t, s in kernel["compile_seconds"].items()},
        )
        for kernel in content["kernels"]
    )


def _known(texts: dict[str, str], text: str) -> str:
    """The digest of a text, under which it is known from now on."""
    identity = digest(text.encode())
    texts[identity] = text
    return identity


def _digest(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of a manifest")


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no count")
    return min(value, _MOST_COUNTED)


def _target(value: str) -> str:
    if not _TARGET.fullmatch(value):
        raise TypeError(f"{value!r} is no target")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no time")
    if not 0 <= value <= LONGEST_SECONDS:
        raise TypeError("a time is out of range")
    return float(value)
