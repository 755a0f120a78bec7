"""Arguments of a CUDA kernel, whoever's arrays they are, without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .._errors import DeviceMismatchError
from ._foreign import address, is_tensor, viewed

_CUDA, _MANAGED = 2, 13  # DLDeviceType: kDLCUDA, kDLCUDAManaged
_NATIVE = frozenset((type(None), bool, int, float, complex))
_UNREGISTERED, _ON_DEVICE = 0, 2  # cudaMemoryType


class Memory(Protocol):
    """What a device's driver and CuPy do for arguments that CuPy's launch refuses."""

    def takes(self, argument: object) -> bool:
        """Whether CuPy's launch takes it as it is."""

    def lies_on(self, address: int) -> int | None:
        """The only device that the memory is of; `None` if any may use it.

        Raises:
            ValueError: It is memory that CUDA does not know.
        """

    def order(self, producer: int, stream: object) -> None:
        """Have `stream`, or else the current one, wait for what `producer` has now."""

    def from_dlpack(self, array: object, stream: object) -> object:
        """A CuPy array of the same memory, ready on `stream`, or else the current one."""


class Converter:
    """Makes of any library's arrays what CuPy's launch takes.

    It exists because CuPy's takes CuPy's own arrays alone. Only the address of an array
    is passed: no copy is made, and neither type nor strides are looked at. An array of
    PyTorch's tells it as `data_ptr`, whatever its type is, and whether or not it requires
    a gradient; others as `__cuda_array_interface__`, or else by DLPack.

    What it does not promise: that an array which is read-only is not written. Nor that
    its owner's work is over: PyTorch's, say, is in order with the launch only on the same
    stream. Where an array names its producer's stream (`__cuda_array_interface__`), or
    takes the consumer's (DLPack), the launch is ordered behind what was there before.

    Args:
        ordinal: The kernel's device.
        memory: How to ask CUDA and CuPy.
    """

    __slots__ = ("_memory", "_ordinal")

    def __init__(self, ordinal: int, memory: Memory) -> None:
        self._ordinal = ordinal
        self._memory = memory

    def convert(self, args: Sequence[object], stream: object) -> list[object]:
        """What to pass for each, to be kept until the launch.

        Args:
            args: The arguments.
            stream: A stream of the kernel's device; `None` is the current one.

        Raises:
            DeviceMismatchError: An array lies on another device.
            TypeError: An argument is no scalar and no array on a GPU.
        """
        takes = self._memory.takes
        return [
            argument if takes(argument) else self._convert(index, argument, stream)
            for index, argument in enumerate(args)
        ]

    def _convert(self, index: int, argument: Any, stream: object) -> object:
        what = f"argument {index}"
        if is_tensor(argument):
            return self._tensor(what, argument)
        interface = getattr(argument, "__cuda_array_interface__", None)
        if isinstance(interface, Mapping):
            return self._array(what, interface, stream)
        if hasattr(argument, "__dlpack_device__"):
            kind, ordinal = argument.__dlpack_device__()
            if kind not in (_CUDA, _MANAGED):
                raise TypeError(_on_host(what, argument))
            self._check(what, None if kind == _MANAGED else ordinal)
            return viewed(what, lambda: self._memory.from_dlpack(argument, stream))
        if isinstance(argument, int):  # a subclass, such as an IntEnum
            return int(argument)
        raise TypeError(
            f"{what} is a scalar or an array on a GPU, not {type(argument).__name__}"
        )

    def _tensor(self, what: str, tensor: Any) -> int:
        if tensor.device.type != "cuda":
            raise TypeError(_on_host(what, tensor))
        self._check(what, tensor.device.index)
        return address(what, tensor)

    def _array(self, what: str, interface: Mapping[str, Any], stream: object) -> int:
        if interface.get("mask") is not None:
            raise TypeError(f"{what} is an array with a mask, which a pointer has not")
        found: int = interface["data"][0] or 0
        if found:
            try:
                self._check(what, self._memory.lies_on(found))
            except ValueError as error:
                raise TypeError(f"{what}: {error}") from None
        producer = interface.get("stream")
        if producer is not None:
            self._memory.order(producer, stream)
        return found

    def _check(self, what: str, ordinal: int | None) -> None:
        if ordinal not in (None, self._ordinal):
            raise DeviceMismatchError(
                f"{what} lies on cuda:{ordinal}, the kernel on cuda:{self._ordinal}"
            )


def _on_host(what: str, argument: object) -> str:
    return (
        f"{what} is an array that lies on no GPU ({type(argument).__name__}): copy it to "
        "the kernel's device"
    )


class CupyMemory:
    """`Memory`, by CuPy."""

    __slots__ = ("_array", "_cupy", "_taken")

    def __init__(self, cupy: Any) -> None:
        import numpy as np

        self._cupy = cupy
        self._array = np.ndarray
        cuda = cupy.cuda
        self._taken = (
            *(np.generic, cupy.ndarray, cuda.MemoryPointer, cuda.function.CPointer),
            *(cuda.texture.TextureObject, cuda.texture.SurfaceObject),
        )

    def takes(self, argument: Any) -> bool:
        """Whether CuPy's launch takes it: of NumPy's arrays those of size one."""
        if isinstance(argument, self._array):
            return bool(argument.size == 1)
        return type(argument) in _NATIVE or isinstance(argument, self._taken)

    def lies_on(self, address: int) -> int | None:
        """By `cudaPointerGetAttributes`."""
        found = self._cupy.cuda.runtime.pointerGetAttributes(address)
        if found.type == _UNREGISTERED:
            raise ValueError("its memory is not a GPU's, nor known to CUDA")
        return int(found.device) if found.type == _ON_DEVICE else None

    def order(self, producer: int, stream: Any) -> None:
        """By an event, so that the host does not wait."""
        cuda = self._cupy.cuda
        consumer = (stream or cuda.get_current_stream()).ptr
        if producer != consumer:
            event = cuda.Event(disable_timing=True)
            cuda.runtime.eventRecord(event.ptr, producer)
            cuda.runtime.streamWaitEvent(consumer, event.ptr)

    def from_dlpack(self, array: Any, stream: Any) -> object:
        """By `cupy.from_dlpack`, which copies nothing."""
        if stream is None:
            return self._cupy.from_dlpack(array)
        with self._cupy.cuda.Stream.from_external(stream):
            return self._cupy.from_dlpack(array)
