"""The public surface as a checker sees it: this file is checked, and never run.

What is right passes; what is wrong is an error, which the comments expect: a comment
without its error is one too, for mypy and for pyright.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_type

import numpy as np
import numpy.typing as npt

from kernels_async import (
    Artifact,
    BoundKernel,
    Compiler,
    Kernel,
    Kernels,
    KeyedKernels,
    Pending,
    Source,
    Specialization,
)

if TYPE_CHECKING:
    from kernels_async._types import DevicePointer

Shape = tuple[str, int]


class CupyDevice:
    """As a `cupy.cuda.Device`."""

    id: int = 0


class Stream:
    """As a `cupy.cuda.Stream`."""

    ptr: int = 0

    def synchronize(self) -> None:
        """Wait."""


class TorchStream:
    """As a `torch.cuda.Stream`."""

    @property
    def cuda_stream(self) -> int:
        """Its handle."""
        return 0

    def synchronize(self) -> None:
        """Wait."""


class CudaStream:
    """As cuda.core's."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0


class CudaArray:
    """As Numba's arrays."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {}


class TorchDevice:
    """As a `torch.device`."""

    type: str = "cuda"
    index: int = 0


class Tensor:
    """As a `torch.Tensor`."""

    device: TorchDevice

    def data_ptr(self) -> int:
        """Where it lies."""
        return 0


class Jax:
    """As JAX's arrays, by DLPack."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        return stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


async def devices(opened: CupyDevice) -> None:
    """Whatever names a device."""
    for device in (None, "cpu", "cuda:1", 1, opened):
        async with Kernels.open(device, workers=2, frozen="warn") as kernels:
            assert_type(kernels, Kernels)
    Kernels(Compiler("cpu"), opened)
    Compiler.for_device(opened)
    Kernels.open(1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Kernels.open("cpu", workres=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await Kernels.open().get("", "k")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def streams(kernels: Kernels, kernel: Kernel, pending: Pending) -> None:
    """Whoever made them."""
    for stream in (None, Stream(), TorchStream(), CudaStream(), 7):
        kernel((1,), (1,), (), stream=stream)
        assert_type(await kernels.get("", "k", stream), Kernel)
        assert_type(await pending.resolve(stream), Kernel)
        await kernels.build(stream)
    kernel((1,), (1,), (), stream="7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await kernels.get("", "k", CudaArray())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def arguments(
    kernel: Kernel, array: npt.NDArray[np.float32], pointer: DevicePointer, tensor: Tensor
) -> None:
    """Arrays, scalars, addresses."""
    kernel((1,), (1, 1, 1), (array, np.float32(1), np.int8(1), array[0]))
    kernel((1,), (1,), [1, 1.5, True, 1j, None], 1024, checked=True)
    kernel((1,), (1,), (CudaArray(), Jax(), tensor, pointer))
    kernel((1,), (1,), ("text",))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kernel((1,), (1,), (object(),))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kernel(1, (1,), ())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kernel((1,), (1,), (), 0, None, True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def bound(kernel: Kernel, array: npt.NDArray[np.float32]) -> None:
    """A launch, to be repeated."""
    launch = kernel.bind((1,), (1,), (array, np.int32(1)), stream=Stream())
    assert_type(launch, BoundKernel)
    assert_type(launch.kernel, Kernel)
    launch()
    launch(stream=TorchStream())
    launch((1,))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kernel.bind((1,), (1,))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def attributes(kernel: Kernel) -> None:
    """What a kernel tells."""
    assert_type(kernel.artifact, Artifact)
    assert_type(kernel.device, str)
    assert_type(kernel.attributes, Mapping[str, int])
    assert_type(kernel.raw, object)
    variable = kernel.get_global("table")
    if isinstance(variable, np.ndarray):
        variable.view(np.float32)[:] = 1
    else:
        assert_type(variable.ptr, int)
    kernel.device.id  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018


async def keys(kernels: Kernels) -> None:
    """Keys of one type, or of any."""

    def make(key: Shape) -> tuple[Source, Specialization]:
        return Source(""), Specialization(f"k<{key[0]}, {key[1]}>")

    index: KeyedKernels[Shape] = kernels.keyed()
    assert_type(await index.get(("float", 4), make), Kernel)
    assert_type(index.loaded(("float", 4)), Kernel | None)
    assert_type(index.request(("float", 4), make), Pending)
    await index.get("float", make)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await index.get(("float", 4), lambda key: ("", key))  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    await kernels.keyed().get(("float", 4), make)
    wrong: KeyedKernels[list[int]] = kernels.keyed()  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]
    del wrong


async def handles(kernels: Kernels) -> None:
    """Requests and what they give."""
    pending = kernels.request("", Specialization("k"))
    assert_type(pending, Pending)
    assert_type(await pending, Kernel)
    assert_type(pending.built(), Kernel | None)
    assert_type(kernels.loaded("", "k"), Kernel | None)
    kernels.reporting(print).reporting(None)
    kernels.request(1, "k")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
