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
from .._errors import DeviceError, DeviceMismatchError, LoadError
from .._private import copies
from ._base import Kernel, refused, timed

_ANY_DEVICE = -1
_LARGE_BYTES = 32 << 10
_PAUSE_SECONDS = 200e-6  # half of it was not always enough on an H200, more was no better
_COMPUTE_CAPABILITY = (75, 76)  # cudaDevAttrComputeCapabilityMajor, -Minor


class CudaKernel(Kernel):
    """A kernel of a CUDA module; see `Kernel`."""

    __slots__ = ("_cupy", "_function", "_get_device", "_module", "_ordinal", "_shared")

    def __init__(
        self, cupy: Any, ordinal: int, artifact: Artifact, module: Any, raw: Any
    ) -> None:
        attributes: Mapping[str, int] = raw.attributes
        super().__init__(artifact, f"cuda:{ordinal}", attributes, raw)
        self._cupy = cupy
        self._get_device = cupy.cuda.runtime.getDevice
        self._ordinal = ordinal
        self._module = module
        self._function = raw.kernel
        self._shared = attributes["max_dynamic_shared_size_bytes"]

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        """Launch the kernel; see `Kernel.__call__`."""
        if self._get_device() != self._ordinal:
            with self._cupy.cuda.Device(self._ordinal):
                self(grid, block, args, shared_mem, stream)
            return
        if stream is not None:
            check_stream(stream, self._ordinal)
        if shared_mem > self._shared:
            self.raw.max_dynamic_shared_size_bytes = shared_mem
            self._shared = shared_mem
        self._function(grid, block, args, shared_mem, stream)

    def get_global(self, name: str) -> Any:
        """The variable of that name; see `Kernel.get_global`."""
        with self._cupy.cuda.Device(self._ordinal):
            try:
                return self._module.get_global(name)
            except self._cupy.cuda.driver.CUDADriverError as error:
                raise KeyError(f"{self!r} has no global {name!r}: {error}") from error


class CudaDevice:
    """One CUDA device of this process."""

    def __init__(self, cupy: Any, ordinal: int) -> None:
        self._cupy = cupy
        self._ordinal = ordinal
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
        """Raise `DeviceMismatchError` if `stream` belongs to another device."""
        check_stream(stream, self._ordinal)

    async def load(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        """Load all of them in one hop to the loading thread; outcomes in order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._load_all, artifacts)

    def _load_all(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        self._cupy.cuda.Device(self._ordinal).use()
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
            module = self._cupy.RawModule(path=str(path))
            raw = module.get_function(artifact.entry)
            return CudaKernel(self._cupy, self._ordinal, artifact, module, raw)
        except Exception as error:  # noqa: BLE001 - CuPy raises what it likes
            return refused(self.name, artifact, error)

    def close(self) -> None:
        """End the loading thread."""
        self._thread.shutdown()


def check_stream(stream: Any, ordinal: int) -> None:
    """Raise `DeviceMismatchError` if `stream` tells that it is of another device.

    CuPy's streams say it as `device_id`, PyTorch's as `device.index`; an address alone
    says nothing and passes.
    """
    other = getattr(stream, "device_id", None)
    if other is None:
        other = getattr(getattr(stream, "device", None), "index", None)
    if other not in (None, _ANY_DEVICE, ordinal):
        raise DeviceMismatchError(
            f"the stream belongs to cuda:{other}, the kernel to cuda:{ordinal}"
        )


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
