"""Streams of a CUDA device, whoever made them."""

from __future__ import annotations

from typing import Any

from .._errors import DeviceMismatchError

_ANY_DEVICE = -1
_PROTOCOL = 0


class Handle:
    """A stream's address, as CuPy's launch reads it.

    Attributes:
        ptr: The address.
        stream: Whose it is, which must not go before.
    """

    __slots__ = ("ptr", "stream")

    def __init__(self, ptr: int, stream: object) -> None:
        self.ptr = ptr
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return _PROTOCOL, self.ptr


class Streams:
    """Gives CuPy's launch the streams of one device, and refuses another's.

    Args:
        ordinal: The device's number.
        native: The classes that CuPy's launch takes as they are.
    """

    __slots__ = ("_native", "_ordinal")

    def __init__(self, ordinal: int, native: tuple[type, ...]) -> None:
        self._ordinal = ordinal
        self._native = native

    def take(self, stream: Any) -> object:
        """The stream itself if it is CuPy's, else its `Handle`.

        CuPy's, PyTorch's and cuda.core's streams tell their device; an address, or what
        tells nothing but its address, passes.

        Raises:
            DeviceMismatchError: It tells that it is of another device.
            TypeError: It is no stream.
        """
        native = isinstance(stream, self._native)
        other = stream.device_id if native else _ordinal(stream)
        if other not in (self._ordinal, _ANY_DEVICE, None):
            raise DeviceMismatchError(
                f"the stream belongs to cuda:{other}, the kernel to cuda:{self._ordinal}"
            )
        return stream if native else Handle(_ptr(stream), stream)


def _ordinal(stream: object) -> int | None:
    """The number of the stream's device, if it tells."""
    found: int | None = getattr(stream, "device_id", None)
    device = None if found is not None else getattr(stream, "device", None)
    if device is not None:
        found = getattr(device, "index", None)
        if not isinstance(found, int):
            found = getattr(device, "device_id", None)
    return found


def _ptr(stream: object) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        version, ptr = protocol()
        if version != _PROTOCOL:
            raise TypeError(
                f"{stream!r} follows version {version} of __cuda_stream__, not {_PROTOCOL}"
            )
        return int(ptr)
    if hasattr(stream, "synchronize"):
        for name in ("cuda_stream", "ptr"):  # PyTorch's, CuPy's
            found = getattr(stream, name, None)
            if isinstance(found, int):
                return found
    raise TypeError(
        "a stream is CuPy's, PyTorch's, an object with __cuda_stream__ or an address, "
        f"not {stream!r}"
    )
