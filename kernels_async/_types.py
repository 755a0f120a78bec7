"""What the public calls take, as types for a checker; nothing looks at them at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class CupyDevice(Protocol):
    """A `cupy.cuda.Device`."""

    @property
    def id(self) -> int:
        """Its number."""


DeviceLike: TypeAlias = str | int | CupyDevice
"""A device: `"cuda:0"`, `0`, a `cupy.cuda.Device`, `"cpu"`."""


class CudaStream(Protocol):
    """A stream that follows cuda.core's protocol; CuPy's and cuda.core's own do."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, which is 0, and the stream's handle."""


class CupyStream(Protocol):
    """A `cupy.cuda.Stream` or `cupy.cuda.ExternalStream`."""

    @property
    def ptr(self) -> int:
        """The stream's handle."""

    def synchronize(self) -> None:
        """Wait for the stream."""


class TorchStream(Protocol):
    """A `torch.cuda.Stream`."""

    @property
    def cuda_stream(self) -> int:
        """The stream's handle."""

    def synchronize(self) -> None:
        """Wait for the stream."""


StreamLike: TypeAlias = CudaStream | CupyStream | TorchStream | int
"""A stream: one with `__cuda_stream__`, CuPy's, PyTorch's, an address."""


class CudaArray(Protocol):
    """An array in a GPU's memory, such as CuPy's, Numba's and JAX's."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]:
        """Its address, shape and type."""


class DLPackArray(Protocol):
    """An array that others may look into, such as NumPy's, JAX's and TensorFlow's."""

    def __dlpack__(self) -> object:
        """A capsule with its address, shape and type."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """The kind and the number of the device that it lies on."""


class TorchDevice(Protocol):
    """A `torch.device`."""

    @property
    def type(self) -> str:
        """Such as `"cuda"` or `"cpu"`."""

    @property
    def index(self) -> int | None:
        """Its number."""


class TorchTensor(Protocol):
    """A `torch.Tensor`."""

    @property
    def device(self) -> TorchDevice:
        """Where it lies."""

    def data_ptr(self) -> int:
        """Its address."""


class DevicePointer(Protocol):
    """A `cupy.cuda.MemoryPointer`, or a texture or surface object of CuPy's."""

    @property
    def ptr(self) -> int:
        """Its address."""


Array: TypeAlias = CudaArray | DLPackArray | TorchTensor
"""What a pointer takes: one with `__cuda_array_interface__`, DLPack's, PyTorch's."""

Scalar: TypeAlias = "bool | int | float | complex | np.generic"
"""What a number takes; a NumPy scalar has the size of its parameter."""

Argument: TypeAlias = "Array | Scalar | DevicePointer | None"
"""What one parameter takes."""

Arguments: TypeAlias = Sequence[Argument]
"""One for each parameter."""

GlobalVariable: TypeAlias = "DevicePointer | npt.NDArray[np.uint8]"
"""A variable of a kernel: CuPy's pointer, or its bytes on the cpu device."""
