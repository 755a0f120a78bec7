"""Artifacts in one file, to carry to other machines: written, and read with suspicion.

A bundle is a plain tar of these files, in this order::

    kernels_async.json      the layout, and the name of the key that sealed the records
    <key>/artifact.json     the record, byte for byte as the store has it
    <key>/kernel.cubin      the output; `kernel.so` for the target `cpu`

Equal artifacts make equal bytes: members are sorted, and have no times, owners or modes of
their own. Of tar only what is written here is read: plain files of bounded size with these
names. Nothing that is read becomes a path; what is kept is verified and published by the
store. An artifact is native code all the same: a bundle is as trusted as who made it, or
as the key that seals it.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from . import toolchains
from ._artifact import Output
from ._digest import artifact_key
from ._errors import KernelsError
from ._inventory import inspect
from ._record import Record, Seal
from ._store import LARGEST_OUTPUT, LARGEST_RECORD, RECORD, DamagedEntry, Store

_TITLE = "kernels_async.json"
_LARGEST_TITLE = 4096
_BLOCK = tarfile.BLOCKSIZE
_MEMBER = re.compile(r"([0-9a-f]{64})/(artifact\.json|kernel\.[a-z]{1,8})")


class BundleError(KernelsError):
    """A file that is no bundle, is cut off, or was sealed with another key."""


class Reader(Protocol):
    """What a bundle is read from."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, fewer at the end."""


class Writer(Protocol):
    """What a bundle is written to."""

    def write(self, data: bytes, /) -> object:
        """Write all of it."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one artifact of a bundle.

    Attributes:
        key: Its key, as the bundle has it.
        outcome: `imported`; `present`: the store had it, and it was left alone; `refused`.
        symbol: The kernel, if it is not refused.
        reason: Why it was refused, or "".
    """

    key: str
    outcome: Literal["imported", "present", "refused"]
    symbol: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written to a bundle.

    Attributes:
        size: Bytes.
        keys: The artifacts that are in it.
        lost: The keys of those that are not, as they are damaged or have gone.
    """

    size: int
    keys: tuple[str, ...]
    lost: tuple[str, ...]


def write_bundle(store: Store, keys: Sequence[str], stream: Writer) -> Written:
    """Write the artifacts of these keys, as far as they are there and sound.

    Raises:
        OSError: The store cannot be read, or the bundle cannot be written.
    """
    title = json.dumps({"layout": 1, "sealed": store.seal.namespace}).encode()
    size, written, lost = _write(stream, _TITLE, title), [], []
    for key in sorted(keys):
        try:
            artifact = inspect(store, key)
        except (DamagedEntry, FileNotFoundError):
            lost.append(key)
            continue
        written.append(key)
        output = Output(
            artifact.bytes,
            artifact.entry,
            artifact.diagnostics,
            artifact.resources,
            artifact.compile_seconds,
        )
        record = Record.of(key, artifact.entries, output).encode(store.seal)
        size += _write(stream, f"{key}/{RECORD}", record)
        size += _write(stream, f"{key}/{artifact.path.name}", artifact.bytes)
    end = b"\0" * (2 * _BLOCK)
    stream.write(end)
    return Written(size + len(end), tuple(written), tuple(lost))


def read_bundle(stream: Reader, store: Store) -> Iterator[Imported]:
    """Publish each artifact of a bundle in the store, as it is taken from this.

    Args:
        stream: The bundle.
        store: Where to; its seal must be the bundle's.

    Raises:
        BundleError: It is no bundle of this seal, or is cut off: what came before is kept.
        OSError: It cannot be read, or the store cannot be written.
    """
    _check_title(stream, store.seal)
    while (member := _next(stream, LARGEST_RECORD)) is not None:
        key, record = _named(member, RECORD)
        member = _next(stream, LARGEST_OUTPUT)
        if member is None:
            raise BundleError(f"the bundle ends within the artifact {key}")
        other, output = _named(member, None)
        if other != key:
            raise BundleError(f"the bundle has no output of the artifact {key}")
        yield _publish(store, key, record, output, member[0])


def _publish(store: Store, key: str, record: bytes, data: bytes, member: str) -> Imported:
    try:
        found = Record.decode(record, store.seal)
        target = toolchains.check_target(found.entries["target"])
        filename = toolchains.output_name(target)
        place = Store(store.root, filename, seal=store.seal, files=store.files)
        if member != f"{key}/{filename}":
            raise ValueError(f"its output is not called {filename}")
        if key != found.key or key != artifact_key(found.entries):
            raise ValueError("its key is not that of what it was compiled from")
        artifact = found.artifact(data, place.path(key), "disk")
    except ValueError as error:
        return Imported(key, "refused", reason=str(error))
    if place.read(key) is not None:
        return Imported(key, "present", artifact.symbol)
    output = Output(
        data, found.entry, found.diagnostics, found.resources, found.compile_seconds
    )
    place.publish(key, found.entries, output)
    return Imported(key, "imported", artifact.symbol)


def _check_title(stream: Reader, seal: Seal) -> None:
    member = _next(stream, _LARGEST_TITLE)
    try:
        if member is None or member[0] != _TITLE:
            raise ValueError
        title = json.loads(member[1])
        layout, sealed = title["layout"], title["sealed"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BundleError("this file is no bundle of kernels_async") from None
    if layout != 1:
        raise BundleError("the bundle was written by another version of kernels_async")
    if sealed != seal.namespace:
        raise BundleError(
            "the bundle was sealed with another cache key, or with none: "
            "set KERNELS_ASYNC_CACHE_KEY to that of the cache it is from"
        )


def _write(stream: Writer, name: str, data: bytes) -> int:
    """Write one member; how many bytes it takes."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    parts = (info.tobuf(tarfile.USTAR_FORMAT), data, b"\0" * (-len(data) % _BLOCK))
    for part in parts:
        stream.write(part)
    return sum(map(len, parts))


def _next(stream: Reader, most: int) -> tuple[str, bytes] | None:
    """Name and content of the next member; `None` at the end."""
    header = stream.read(_BLOCK)
    if header == b"\0" * _BLOCK:
        return None
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise BundleError(f"this file is no bundle, or is cut off: {error}") from error
    if info.type != tarfile.REGTYPE or not 0 <= info.size <= most:
        raise BundleError(f"{info.name!r} in the bundle is no plain file of bounded size")
    data = _exactly(stream, info.size)
    _exactly(stream, -info.size % _BLOCK)
    return info.name, data


def _exactly(stream: Reader, size: int) -> bytes:
    parts = []
    while size:
        part = stream.read(min(size, 1 << 20))
        if not part:
            raise BundleError("the bundle is cut off")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _named(member: tuple[str, bytes], filename: str | None) -> tuple[str, bytes]:
    """The key and the content of a member, which is called so, or is an output."""
    name, data = member
    match = _MEMBER.fullmatch(name)
    if match is None or (match[2] == RECORD) != (filename == RECORD):
        raise BundleError(f"{name!r} does not belong into a bundle at that place")
    return match[1], data
