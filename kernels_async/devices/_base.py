"""What a device is: the one interface between a driver and the rest."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from .._artifact import Artifact
from .._errors import LoadError


class Kernel(ABC):
    """A loaded kernel, callable as CuPy's kernels are.

    It is loaded whole: its first launch needs nothing more. It lives as long as the
    process, as CuPy never unloads a module. It does not check what a CUDA kernel is
    given: wrong arguments are as undefined as in CUDA. On the cpu device the arguments'
    number and sizes are checked, and a call returns when the kernel has run.

    Attributes:
        artifact: What was loaded.
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
        self, artifact: Artifact, device: str, attributes: Mapping[str, int], raw: Any
    ) -> None:
        self.artifact = artifact
        self.device = device
        self.attributes = attributes
        self.raw = raw
        self.load_seconds = 0.0
        self.loaded_at = 0.0

    @abstractmethod
    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        """Launch the kernel.

        Args:
            grid: Blocks in x, y and z; one to three numbers.
            block: Threads of a block in x, y and z; one to three numbers.
            args: One value for each parameter: arrays for pointers, NumPy scalars of
                the parameter's own type for values.
            shared_mem: Dynamic shared memory of each block, in bytes.
            stream: The stream to launch on; by default CuPy's current stream.

        Raises:
            DeviceMismatchError: The stream belongs to another device.
            TypeError: On the cpu device, the arguments do not fit the parameters.
            LaunchError: On the cpu device, the grid is out of bounds, or the kernel
                ended in an error.
        """

    @abstractmethod
    def get_global(self, name: str) -> Any:
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
