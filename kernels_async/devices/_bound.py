"""Launches on a CUDA device whose arguments are laid out once."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING, Any

from .._types import Arguments, StreamLike
from ._base import BoundKernel

if TYPE_CHECKING:
    from ._cuda import CudaDevice, CudaKernel


class CudaBound(BoundKernel):
    """A launch of a `CudaKernel`; see `BoundKernel`.

    Args:
        kernel: The kernel.
        device: Its device.
        extent: Grid and block.
        args: The arguments, which are kept.
        fitting: What CuPy's launch takes for them, checked.
        shared_mem: Bytes that the kernel is already allowed.
        stream: One that CuPy's launch takes; `None` is the current one at each launch.
    """

    __slots__ = (
        *("_block", "_cupy", "_function", "_get_device", "_grid", "_kept", "_ordinal"),
        *("_pointers", "_shared", "_stream", "_take"),
    )

    def __init__(
        self,
        kernel: CudaKernel,
        device: CudaDevice,
        extent: tuple[tuple[int, ...], tuple[int, ...]],
        args: Arguments,
        fitting: list[object],
        shared_mem: int,
        stream: object,
    ) -> None:
        super().__init__(kernel)
        self._grid, self._block = (tuple(map(index, sizes)) for sizes in extent)
        self._cupy = device.cupy
        self._function = kernel.function
        self._get_device = device.cupy.cuda.runtime.getDevice
        self._ordinal = device.ordinal
        self._pointers, values = lay_out(fitting, device.cupy.cuda.function.CPointer)
        self._kept = (tuple(args), fitting, values)
        self._shared = shared_mem
        self._stream = stream
        self._take = device.streams.take

    def __call__(self, stream: StreamLike | None = None) -> None:
        """Launch it; see `BoundKernel.__call__`."""
        if self._get_device() != self._ordinal:
            with self._cupy.cuda.Device(self._ordinal):
                self(stream)
            return
        taken = self._stream if stream is None else self._take(stream)
        self._function(self._grid, self._block, self._pointers, self._shared, taken)


def lay_out(args: Iterable[object], pointer: Any) -> tuple[tuple[Any, ...], list[object]]:
    """Arguments in memory, as the driver's launch reads them.

    Args:
        args: What CuPy's launch takes.
        pointer: CuPy's class for an address of a value, which its launch passes on.

    Returns:
        A pointer for each, and the values, which must live as long.
    """
    import numpy as np

    pointers: list[Any] = []
    values: list[object] = []
    for argument in args:
        if not isinstance(argument, pointer):
            value = np.array(_passed(argument))
            values.append(value)
            argument = pointer(value.ctypes.data)
        pointers.append(argument)
    return tuple(pointers), values


def _passed(argument: Any) -> Any:
    """The scalar that is passed: an array's address, or the argument itself."""
    memory = getattr(argument, "data", None)  # a CuPy array's
    for holder in (argument, memory):
        address = getattr(holder, "ptr", None)
        if address is not None:
            return address
    return 0 if argument is None else argument
