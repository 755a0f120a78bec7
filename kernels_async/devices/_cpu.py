"""The cpu device: kernels of the cpu toolchain on the host's threads.

A reference device: it gives the numbers that a GPU gives, not its speed. Blocks run over
a pool of threads; a call returns when the kernel has run, so a server calls it as
`await asyncio.to_thread(kernel, ...)`. The kernel runs inside this process: a stray
pointer of its source is this process's segmentation fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import numbers
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .._artifact import Artifact
from .._errors import DeviceMismatchError, LaunchError, LoadError
from .._threads import in_thread
from .._types import Arguments, StreamLike
from ..toolchains._cpu import DYNAMIC_SHARED, DYNAMIC_SHARED_LIMIT
from ._base import BoundKernel, Kernel, refused, timed
from ._cpu_arguments import value_of
from ._library import exports, load_address, load_library, variable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ABI = 1
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)
_BLOCK_LIMIT = 1024
_WORKER_LIMIT = 16  # a block of fibers is 2048 mappings, of 65530 that Linux allows


class _Parameter(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("kind", ctypes.c_uint32))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("arguments", ctypes.c_void_p),
        ("next_block", ctypes.c_uint64),
        ("failed", ctypes.c_int32),
        ("message", ctypes.c_char * 1024),
    )


class _Entry(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("parameter_count", ctypes.c_uint32),
        ("kernel", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(_Parameter)),
        ("run", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Launch))),
    )


class CpuKernel(Kernel):
    """A kernel of a shared library; see `Kernel`.

    Attributes:
        cpu: The device.
        parameters: Kind and size of each parameter.
        run: Runs blocks of a launch, until there are none left.
    """

    raw: ctypes.CDLL

    __slots__ = ("_dynamic", "cpu", "parameters", "run")

    def __init__(self, cpu: CpuDevice, artifact: Artifact) -> None:
        library = load_library(artifact)
        entry = _Entry.in_dll(library, "kernels_async_entry")
        if entry.abi != ABI:
            raise OSError(f"its interface is {entry.abi}, this library's is {ABI}")
        attributes = {
            "max_threads_per_block": _BLOCK_LIMIT,
            "max_dynamic_shared_size_bytes": DYNAMIC_SHARED_LIMIT,
        }
        super().__init__(artifact, cpu.name, attributes, library)
        self.cpu = cpu
        self.run = entry.run
        self._dynamic = exports(library, DYNAMIC_SHARED)
        self.parameters = [
            (parameter.kind, parameter.size)
            for parameter in entry.parameters[: entry.parameter_count]
        ]

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Arguments,
        shared_mem: int = 0,
        stream: StreamLike | None = None,
        *,
        checked: bool = False,  # noqa: ARG002 - it always is
    ) -> None:
        """Run the kernel and return; see `Kernel.__call__`."""
        self.bind(grid, block, args, shared_mem, stream)()

    def bind(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Arguments,
        shared_mem: int = 0,
        stream: StreamLike | None = None,
    ) -> BoundKernel:
        """Fix a launch; see `Kernel.bind`."""
        self.cpu.check_stream(stream)
        launch = _Launch(
            grid=_extent("grid", grid, _GRID_LIMITS),
            block=_extent("block", block, _BLOCK_LIMITS),
            shared_bytes=_within("shared_mem", shared_mem, 0, DYNAMIC_SHARED_LIMIT),
        )
        _within(
            "the number of threads in a block", math.prod(launch.block), 1, _BLOCK_LIMIT
        )
        if self._dynamic and not shared_mem:
            raise LaunchError(
                f"{self!r} has an extern __shared__ array: give its size as shared_mem"
            )
        return CpuBound(self, launch, self._values(args), args)

    def _values(self, args: Arguments) -> list[Any]:
        if len(args) != len(self.parameters):
            raise TypeError(
                f"{self!r} takes {len(self.parameters)} arguments, not {len(args)}"
            )
        return [
            value_of(f"{self!r} argument {index}", kind, size, argument)
            for index, ((kind, size), argument) in enumerate(
                zip(self.parameters, args, strict=True)
            )
        ]

    def get_global(self, name: str) -> npt.NDArray[np.uint8]:
        """The variable's bytes; see `Kernel.get_global`."""
        import numpy as np

        found = variable(self.artifact.bytes, name)
        if found is None:
            raise KeyError(f"{self!r} has no global {name!r}")
        offset, size, writable = found
        address = load_address(self.raw, "kernels_async_entry") + offset
        array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        array.flags.writeable = writable
        return array


class CpuBound(BoundKernel):
    """A launch of a `CpuKernel`; see `BoundKernel`."""

    __slots__ = ("_cpu", "_kept", "_launch", "_run")

    def __init__(
        self, kernel: CpuKernel, launch: _Launch, values: list[Any], args: Arguments
    ) -> None:
        super().__init__(kernel)
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        launch.arguments = ctypes.addressof(addresses)
        self._cpu = kernel.cpu
        self._kept = (tuple(args), values, addresses)
        self._launch = launch
        self._run = kernel.run

    def __call__(self, stream: StreamLike | None = None) -> None:
        """Run it and return; see `BoundKernel.__call__`."""
        self._cpu.check_stream(stream)
        launch = _Launch.from_buffer_copy(self._launch)
        self._cpu.run(self._run, launch)
        if launch.failed:
            message = launch.message.decode(errors="replace")
            raise LaunchError(f"{self.kernel!r}: {message}")


class CpuDevice:
    """The host's processors, as a device."""

    name = "cpu"
    target = "cpu"

    def __init__(self) -> None:
        self._helpers = min(len(os.sched_getaffinity(0)), _WORKER_LIMIT) - 1
        self._threads = ThreadPoolExecutor(max(self._helpers, 1), "kernels_async-cpu")
        self._closed = False
        self._process = os.getpid()

    def accepts(self, target: str) -> bool:
        """Whether artifacts for `target` run here."""
        return target == self.target

    def check_stream(self, stream: object) -> None:
        """Raise `DeviceMismatchError` for any stream: the cpu device has none."""
        if stream is not None:
            raise DeviceMismatchError(f"the cpu device has no streams, not {stream!r}")

    async def load(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        """Load all of them in one hop to a thread; outcomes in order."""
        return await in_thread(self._load_all, artifacts)

    def _load_all(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        return [timed(self._load, artifact) for artifact in artifacts]

    def _load(self, artifact: Artifact) -> Kernel | LoadError:
        try:
            return CpuKernel(self, artifact)
        except (OSError, ValueError) as error:
            return refused(self.name, artifact, error)

    def run(self, run: Any, launch: _Launch) -> None:
        """Run every block of `launch`, on the caller's thread and the pool's."""
        alone = self._closed or os.getpid() != self._process
        helpers = 0 if alone else min(self._helpers, math.prod(launch.grid) - 1)
        crew = _Crew(run, launch)
        try:
            with contextlib.suppress(RuntimeError):  # no thread, or closed meanwhile
                for _ in range(helpers):
                    self._threads.submit(crew.help)
            run(ctypes.pointer(launch))
        finally:
            crew.finish()

    def close(self) -> None:
        """End the pool; kernels go on running on their callers' threads."""
        self._closed = True
        self._threads.shutdown()


class _Crew:
    """Those who run the blocks of one launch; who comes when it is over does nothing."""

    def __init__(self, run: Any, launch: _Launch) -> None:
        self._run = run
        self._launch = launch
        self._changed = threading.Condition()
        self._helping = 0
        self._over = False

    def help(self) -> None:
        with self._changed:
            if self._over:
                return
            self._helping += 1
        try:
            self._run(ctypes.pointer(self._launch))
        finally:
            with self._changed:
                self._helping -= 1
                self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._helping)


def _extent(what: str, extent: Sequence[int], limits: Sequence[int]) -> Any:
    if not isinstance(extent, tuple | list) or not 1 <= len(extent) <= len(limits):
        raise TypeError(f"{what} is a tuple of one to three numbers, not {extent!r}")
    if not all(isinstance(size, numbers.Integral) for size in extent):
        raise TypeError(f"{what} is made of integers, not {extent!r}; divide with //")
    padded = [*map(int, extent), 1, 1][: len(limits)]
    for size, limit in zip(padded, limits, strict=True):
        _within(what, size, 1, limit)
    return (ctypes.c_uint32 * 3)(*padded)


def _within(what: str, number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise LaunchError(f"{what} is {number}, which is not within {least} and {most}")
    return number
