"""The cuda device: `cupy.RawModule` on the right GPU, off the event loop.

All loads of a device run on one thread of its own, which has the device as its current
one for good: CuPy's current device is per thread, and going back to another device
would create a context there, as CuPy's own `Device.compute_capability` does.

A module load waits for running kernels and holds back launches of other threads meanwhile.
So small modules that are ready go back to back, behind one kernel. Large ones do not: each
holds the driver's lock for milliseconds and the next takes it again before a launch can, so
there is a pause between them, in which launches go on; it makes the loads no longer.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .._artifact import Artifact
from .._errors import DeviceError, LoadError
from .._private import copies
from .._types import Arguments, GlobalVariable, StreamLike
from ._arguments import Converter, CupyMemory
from ._base import BoundKernel, Kernel, refused, timed
from ._bound import CudaBound
from ._parameters import check, import_driver, parameter_sizes
from ._streams import Streams

_LARGE_BYTES = 32 << 10
_PAUSE_SECONDS = 200e-6  # half of it was not always enough on an H200, more was no better
_COMPUTE_CAPABILITY = (75, 76)  # cudaDevAttrComputeCapabilityMajor, -Minor


class CudaKernel(Kernel):
    """A kernel of a CUDA module; see `Kernel`.

    Args:
        device: The device that it is loaded on.
        artifact: What was loaded.
        module: The `cupy.RawModule`.
        raw: Its `cupy.RawKernel`.
        sizes: The bytes of each parameter; `None` if they are not known.

    Attributes:
        function: CuPy's own function, which checks and converts nothing.
    """

    __slots__ = (
        *("_cupy", "_device", "_get_device", "_launch", "_module", "_ordinal"),
        *("_shared", "_sizes", "function"),
    )

    raw: Any

    def __init__(
        self,
        device: CudaDevice,
        artifact: Artifact,
        module: Any,
        raw: Any,
        sizes: tuple[int, ...] | None,
    ) -> None:
        attributes: Mapping[str, int] = raw.attributes
        super().__init__(artifact, device.name, attributes, raw)
        self._device = device
        self._cupy = device.cupy
        self._get_device = device.cupy.cuda.runtime.getDevice
        self._ordinal = device.ordinal
        self._module = module
        self.function = raw.kernel
        self._shared = attributes["max_dynamic_shared_size_bytes"]
        self._sizes = sizes
        self._launch = self._first_launch

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Arguments,
        shared_mem: int = 0,
        stream: StreamLike | None = None,
        *,
        checked: bool = False,
    ) -> None:
        """Launch the kernel; see `Kernel.__call__`."""
        if self._get_device() != self._ordinal:
            with self._cupy.cuda.Device(self._ordinal):
                self(grid, block, args, shared_mem, stream, checked=checked)
            return
        taken = None if stream is None else self._device.streams.take(stream)
        if shared_mem > self._shared:
            self._allow(shared_mem)
        launch = self._first_launch if checked else self._launch
        try:
            launch(grid, block, args, shared_mem, taken)
        except TypeError:
            if launch is not self.function:
                raise
            self._converting_launch(grid, block, args, shared_mem, taken)
            self._launch = self._converting_launch  # it meets such arguments again

    def _first_launch(
        self, grid: Any, block: Any, args: Arguments, shared_mem: int, stream: object
    ) -> None:
        """Launch it after a check; CuPy's own launch, which makes none, does the rest."""
        self.function(grid, block, self._fit(args, stream), shared_mem, stream)
        self._launch = self.function

    def _converting_launch(
        self, grid: Any, block: Any, args: Arguments, shared_mem: int, stream: object
    ) -> None:
        """Launch it with arguments that CuPy's own launch may not take."""
        converted = self._device.arguments.convert(args, stream)
        self.function(grid, block, converted, shared_mem, stream)

    def _fit(self, args: Arguments, stream: object) -> list[object]:
        """What CuPy's launch takes for arguments that fit the parameters."""
        converted = self._device.arguments.convert(args, stream)
        if self._sizes is not None:
            check(self, self._sizes, converted)
        return converted

    def _allow(self, shared_mem: int) -> None:
        self.raw.max_dynamic_shared_size_bytes = shared_mem
        self._shared = shared_mem

    def bind(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Arguments,
        shared_mem: int = 0,
        stream: StreamLike | None = None,
    ) -> BoundKernel:
        """Fix a launch; see `Kernel.bind`."""
        with self._cupy.cuda.Device(self._ordinal):
            taken = None if stream is None else self._device.streams.take(stream)
            fitting = self._fit(args, taken)
            if shared_mem > self._shared:
                self._allow(shared_mem)
        extent = (grid, block)
        return CudaBound(self, self._device, extent, args, fitting, shared_mem, taken)

    def get_global(self, name: str) -> GlobalVariable:
        """The variable of that name; see `Kernel.get_global`."""
        with self._cupy.cuda.Device(self._ordinal):
            try:
                variable: GlobalVariable = self._module.get_global(name)
            except self._cupy.cuda.driver.CUDADriverError as error:
                raise KeyError(f"{self!r} has no global {name!r}: {error}") from error
        return variable


class CudaDevice:
    """One CUDA device of this process.

    Attributes:
        cupy: CuPy.
        ordinal: The device's number.
        streams: Which streams its launches take.
        arguments: Which arguments its launches take.
    """

    def __init__(self, cupy: Any, ordinal: int) -> None:
        self.cupy = cupy
        self.ordinal = ordinal
        self.streams = Streams(ordinal, (cupy.cuda.Stream, cupy.cuda.ExternalStream))
        self.arguments = Converter(ordinal, CupyMemory(cupy))
        self._driver = import_driver()
        self._thread = ThreadPoolExecutor(1, f"kernels_async-cuda:{ordinal}")
        self.name = f"cuda:{ordinal}"
        major, minor = (
            cupy.cuda.runtime.deviceGetAttribute(attribute, ordinal)
            for attribute in _COMPUTE_CAPABILITY
        )
        self.target = f"sm_{major}{minor}"

    def accepts(self, target: str) -> bool:
        """Whether a cubin for `target` runs here: one for this architecture does.

        A cubin also runs on a later minor revision of its own major one, unless its
        target ends in `a`, which is for one revision alone.
        """
        match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", target)
        own = re.fullmatch(r"sm_(\d+)(\d)", self.target)
        if match is None or own is None or match[1] != own[1]:
            return False
        return match[2] == own[2] or (match[3] != "a" and match[2] < own[2])

    def check_stream(self, stream: object) -> None:
        """Raise `DeviceMismatchError` if `stream` belongs to another device.

        Raises:
            TypeError: It is no stream.
        """
        if stream is not None:
            self.streams.take(stream)

    async def load(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        """Load all of them in one hop to the loading thread; outcomes in order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._load_all, artifacts)

    def _load_all(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        self.cupy.cuda.Device(self.ordinal).use()
        outcomes = []
        for artifact in artifacts:
            outcomes.append(timed(self._load, artifact))
            if len(artifact.bytes) > _LARGE_BYTES:
                time.sleep(_PAUSE_SECONDS)
        return outcomes

    def _load(self, artifact: Artifact) -> Kernel | LoadError:
        try:
            name = f"{artifact.output_digest}.cubin"
            path = copies.on_disk(name, artifact.bytes)
            module = self.cupy.RawModule(path=str(path))
            raw = module.get_function(artifact.entry)
            sizes = parameter_sizes(self._driver, raw.kernel.ptr)
            return CudaKernel(self, artifact, module, raw, sizes)
        except Exception as error:  # noqa: BLE001 - CuPy raises what it likes
            return refused(self.name, artifact, error)

    def close(self) -> None:
        """End the loading thread."""
        self._thread.shutdown()


def import_cupy() -> Any:
    """CuPy, or a `DeviceError` that says why there is none."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            "CuPy is not installed: pip install 'kernels_async[cuda13]' (or [cuda12])"
        ) from error
    except OSError as error:
        raise DeviceError(
            f"CuPy cannot be imported, set CUPY_CACHE_DIR to a writable folder: {error}"
        ) from error
    return cupy


def count_devices(cupy: Any) -> int:
    """How many CUDA devices there are; none without a driver."""
    try:
        count: int = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0
    return count


def open_cuda(ordinal: int) -> CudaDevice:
    """The CUDA device of that number, as CUDA_VISIBLE_DEVICES counts them."""
    cupy = import_cupy()
    count = count_devices(cupy)
    if not 0 <= ordinal < count:
        has = f"there are {count}" if count else "there is no CUDA device or no driver"
        raise DeviceError(f"there is no device cuda:{ordinal}: {has}")
    return CudaDevice(cupy, ordinal)
