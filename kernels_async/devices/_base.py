"""What a device is: the one interface between a driver and the rest."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from .._artifact import Artifact
from .._errors import LoadError
from .._types import Arguments, GlobalVariable, StreamLike


class Kernel(ABC):
    """A loaded kernel, callable as CuPy's kernels are.

    It is loaded whole: its first launch needs nothing more. It lives as long as the
    process, as CuPy never unloads a module. The arguments' number and sizes are held
    against the driver's own table of the parameters in its first launch, and then in each
    with `checked=True`; their types are not known to the driver. On the cpu device every
    call is checked, and returns when the kernel has run.

    Requests whose code is equal to the byte, under one entry name, share one kernel, though
    their keys differ: also its `__device__` and `__constant__` variables, and its
    `artifact`, which is that of the first. For variables of their own, make the sources
    differ in what they compile to; or set the variable before each launch.

    Arrays are passed without a copy, by their address, without type or strides: CuPy's,
    and with `__cuda_array_interface__` or DLPack anyone's, such as PyTorch's, Numba's and
    JAX's. One that lies elsewhere is refused; CuPy's own are not asked. A read-only one is
    passed too, except on the cpu device: the driver does not tell what a kernel writes.

    A launch is in order with what is on its own stream, and nothing else. It waits, on the
    GPU, for the stream that `__cuda_array_interface__` names, and DLPack has the producer
    wait likewise. PyTorch tells nothing: give `stream=torch.cuda.current_stream()`. What a
    producer does after the launch is not held back by it, and memory that is freed must
    not be used again before the kernel has run, as for CuPy's own arrays.

    Attributes:
        artifact: What was loaded; of requests that share the kernel, the first's.
        device: The device's name, such as `"cuda:0"` or `"cpu"`.
        attributes: The driver's own numbers, by CuPy's names: `num_regs`,
            `shared_size_bytes`, `max_threads_per_block` and so on.
        raw: The `cupy.RawKernel`, or the cpu device's `ctypes.CDLL`.
        load_seconds: How long its load took.
        loaded_at: When that ended, in seconds of `time.monotonic()`.
    """

    __slots__ = (
        "__weakref__",
        "artifact",
        "attributes",
        "device",
        "load_seconds",
        "loaded_at",
        "raw",
    )

    def __init__(
        self, artifact: Artifact, device: str, attributes: Mapping[str, int], raw: object
    ) -> None:
        self.artifact: Artifact = artifact
        self.device: str = device
        self.attributes: Mapping[str, int] = attributes
        self.raw: object = raw
        self.load_seconds: float = 0.0
        self.loaded_at: float = 0.0

    @abstractmethod
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
        """Launch the kernel.

        Args:
            grid: Blocks in x, y and z; one to three numbers.
            block: Threads of a block in x, y and z; one to three numbers.
            args: One value for each parameter: arrays for pointers, NumPy scalars of
                the parameter's own type for values, NumPy arrays of size one for
                structures. A Python `int` does for any integer that can hold it.
            shared_mem: Dynamic shared memory of each block, in bytes.
            stream: The stream to launch on: CuPy's, PyTorch's, one with
                `__cuda_stream__`, or an address; by default CuPy's current stream.
            checked: Whether to check the arguments though it is not the first launch.

        Raises:
            DeviceMismatchError: The stream, or an array, belongs to another device.
            TypeError: The arguments do not fit the parameters, or the stream is none.
            LaunchError: On the cpu device, the grid is out of bounds, or the kernel
                ended in an error.
        """

    @abstractmethod
    def bind(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Arguments,
        shared_mem: int = 0,
        stream: StreamLike | None = None,
    ) -> BoundKernel:
        """This launch, to be repeated: everything is converted and checked once.

        Args:
            grid: As for a call.
            block: As for a call.
            args: As for a call. Of an array the address now is kept, of a scalar the value.
            shared_mem: As for a call.
            stream: As for a call; by default the stream that is current in CuPy at each
                launch.

        Raises:
            DeviceMismatchError: As for a call.
            TypeError: As for a call.
            LaunchError: As for a call.
        """

    @abstractmethod
    def get_global(self, name: str) -> GlobalVariable:
        """The `__device__` or `__constant__` variable of that (lowered) name.

        Returns:
            A `cupy.cuda.MemoryPointer`; on the cpu device the variable's bytes, as a
            writable NumPy array of `uint8`.

        Raises:
            KeyError: The kernel's program has no such variable.
        """

    def __reduce__(self) -> str:
        raise TypeError("a loaded kernel belongs to its process; pickle its request")

    def __repr__(self) -> str:
        return f"<Kernel {self.artifact.symbol} on {self.device}>"


class BoundKernel(ABC):
    """A launch of a kernel whose grid, block and arguments are fixed, for a hot loop.

    `bound()` takes five sixths of a call's time on an H200, and half to two thirds on the
    cpu device. The arrays live as long as this does. What their elements are is seen at
    each launch; where they lie was looked up once, so one that moves
    (`torch.Tensor.resize_`) must be bound again. What their producers do meanwhile is not
    waited for. Any thread may launch.

    Attributes:
        kernel: What is launched.
    """

    __slots__ = ("__weakref__", "kernel")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel: Kernel = kernel

    @abstractmethod
    def __call__(self, stream: StreamLike | None = None) -> None:
        """Launch it.

        Args:
            stream: The stream to launch on, instead of the one that it was bound to.

        Raises:
            DeviceMismatchError: The stream belongs to another device.
            TypeError: The stream is none.
            LaunchError: On the cpu device, the kernel ended in an error.
        """

    def __reduce__(self) -> str:
        raise TypeError("a bound kernel belongs to its process; pickle its request")

    def __repr__(self) -> str:
        return f"<BoundKernel {self.kernel.artifact.symbol} on {self.kernel.device}>"


def timed(
    load: Callable[[Artifact], Kernel | LoadError], artifact: Artifact
) -> Kernel | LoadError:
    """What `load` makes of `artifact`; a kernel knows how long that took."""
    began = time.monotonic()
    outcome = load(artifact)
    if isinstance(outcome, Kernel):
        outcome.loaded_at = time.monotonic()
        outcome.load_seconds = outcome.loaded_at - began
    return outcome


def refused(device: str, artifact: Artifact, error: Exception) -> LoadError:
    """The error of an artifact that a device would not load; `error` is its cause."""
    failure = LoadError(
        f"{device} refused {artifact.symbol!r} ({artifact.target}): {error}"
    )
    failure.__cause__ = error
    return failure


@runtime_checkable
class Device(Protocol):
    """Loads artifacts into kernels, in the server's process."""

    @property
    def name(self) -> str:
        """Such as `"cuda:0"` or `"cpu"`."""

    @property
    def target(self) -> str:
        """The device's own target, such as `"sm_90"`."""

    def accepts(self, target: str) -> bool:
        """Whether artifacts for `target` run here."""

    def check_stream(self, stream: object) -> None:
        """Raise `DeviceMismatchError` if `stream` belongs to another device."""

    async def load(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        """Load all of them back to back, off the event loop; outcomes in order."""

    def close(self) -> None:
        """End its threads; kernels that are loaded stay callable. Blocks."""
