"""The errors of kernels_async, one tree, each saying who raises it and when.

::

    KernelsError
    ├── SpecificationError      the request itself cannot be right (also a ValueError)
    ├── ToolchainError          no usable compiler, or a target that it does not know
    ├── DeviceError             no such device, or it cannot be opened
    │   └── DeviceMismatchError a stream or an artifact of another device
    ├── CompileError            the compiler refused the source
    │   └── SymbolNotFoundError it compiled, but has no such kernel
    ├── CompileTimeout          the compile ran past its limit (also a TimeoutError)
    ├── CompileMemoryError      the compile took too much memory (also a MemoryError)
    ├── WorkerCrashed           the worker process died while it compiled
    ├── QuarantinedError        the compile killed workers before; it is not tried again
    ├── ReporterError           the reporter raised
    ├── SpillError              a `SpillPolicy` refused the kernel
    ├── LoadError               the device refused the artifact
    ├── LaunchError             a kernel of the cpu device ended in an error
    ├── ReentryError            a reporter called back into its own cache
    ├── OverloadedError         more requests than `max_outstanding` are not loaded yet
    ├── FrozenError             a frozen cache was asked for what it has not loaded
    ├── ManifestError           a file is no manifest, or is damaged
    ├── WrongLoopError          an await from a loop that does not own the cache
    ├── ClosedError             the cache or its compiler is closed
    └── BuildError              several of the above (also an ExceptionGroup)

Every error can be copied and pickled: one failure is told to many waiters, and each
of them gets an exception of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ._diagnostics import Diagnostic
    from ._digest import Difference


class KernelsError(Exception):
    """The root of every error that this library raises on purpose."""


class SpecificationError(KernelsError, ValueError):
    """A source, symbol, define, option or argument that cannot be right.

    Raised at once, by `Source`, `Specialization`, `Kernels.request` and
    `Compiler.key`; nothing has been compiled.
    """


class ToolchainError(KernelsError):
    """No usable compiler for the target.

    Raised when a `Compiler` is opened and NVRTC or the C++ compiler is missing, by a
    compile whose target the toolchain does not know, and where no worker process can
    start. The text names the remedy.
    """


class DeviceError(KernelsError):
    """A device that does not exist or cannot be opened.

    Raised by `Kernels.open` and `Compiler.for_device`.
    """


class DeviceMismatchError(DeviceError):
    """A stream, target or device that is not the one of the cache.

    Raised by every call that takes a stream, also when the kernel is loaded already,
    and by `Kernels` over a compiler whose target the device cannot run.
    """


class CompileError(KernelsError):
    """The compiler refused the source.

    Raised to whoever awaits that kernel, and to nobody else. The text leads with the
    first error, its place and its source line.

    Attributes:
        diagnostics: Everything that the compiler said, in its order.
        log: The compiler's text as it was, control characters made visible.
    """

    def __init__(
        self,
        message: str,
        *,
        diagnostics: Sequence[Diagnostic] = (),
        log: str = "",
    ) -> None:
        super().__init__(message)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        self.log = log

    def _repr_html_(self) -> str | None:
        """How a notebook shows it."""
        from ._notebook import show_error

        return show_error(self)


class SymbolNotFoundError(CompileError):
    """The source has no kernel of that name; the text lists those that it has."""


class CompileTimeout(KernelsError, TimeoutError):
    """A compile that ran past the compiler's `timeout`; its worker was killed."""


class CompileMemoryError(MemoryError, KernelsError):
    """A compile that took more than the compiler's `memory`, or more than there was."""


class WorkerCrashed(KernelsError):
    """The worker process died, or wrote what is no answer, while it compiled.

    Only the job that it ran fails with this; the worker is replaced on demand.

    Attributes:
        returncode: Its exit status, negative for a signal, `None` if not known.
        stderr: The last of what it wrote to its standard error.
    """

    def __init__(
        self, message: str, *, returncode: int | None = None, stderr: str = ""
    ) -> None:
        super().__init__(message)
        self.returncode = returncode
        self.stderr = stderr


class QuarantinedError(KernelsError):
    """A request whose compile killed workers, so that it is refused at once.

    It crashed them, or ran past the limits of time or memory. It is compiled again after
    `Compiler.forget`.

    Attributes:
        history: The texts of the earlier errors, the oldest first.
    """

    def __init__(self, message: str, *, history: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.history: tuple[str, ...] = tuple(history)


class ReporterError(KernelsError):
    """The reporter raised; its exception is the cause.

    Only the kernel that was reported fails to load. A reporter that raises a
    `KernelsError` of its own refuses the kernel with that error instead.
    """


class SpillError(KernelsError):
    """The kernel spills more registers than a `SpillPolicy` allows; it is not loaded."""


class LoadError(KernelsError):
    """The device refused a verified artifact; the driver's error is the cause."""


class LaunchError(KernelsError):
    """A kernel of the cpu device ended in an error.

    Its threads waited at different barriers, an `assert` failed, or it trapped.
    """


class ReentryError(KernelsError):
    """A reporter asked its own cache for work.

    The cache waits for its reporter, so the call could only wait for itself.
    """


class OverloadedError(KernelsError):
    """One request more than `max_outstanding` that are not loaded yet; try again later.

    Raised at once, by every call that would make a new request; requests that are known
    and kernels that are loaded are served.
    """


class FrozenError(KernelsError):
    """A request of a frozen cache for a kernel that it did not load at its warm-up.

    Raised by whatever asks for it; nothing is compiled or loaded.

    Attributes:
        nearest: The symbol of the loaded kernel that differs least; `None` if there is
            none.
        differences: What it differs in, from the nearest to what was asked for.
    """

    def __init__(
        self,
        message: str,
        *,
        nearest: str | None = None,
        differences: Sequence[Difference] = (),
    ) -> None:
        super().__init__(message)
        self.nearest = nearest
        self.differences: tuple[Difference, ...] = tuple(differences)


class ManifestError(KernelsError, ValueError):
    """A file that is no manifest of this library, or a damaged one."""


class WrongLoopError(KernelsError):
    """A call from an event loop that may not make it.

    An await from another loop than the one that the cache was opened in, or a blocking
    call from inside a running loop.
    """


class ClosedError(KernelsError):
    """The cache or the compiler is closed, or closed while the caller waited."""


class BuildError(ExceptionGroup[Exception], KernelsError):
    """Every failure of one `Kernels.build()`; the kernels that are not in it loaded."""

    # typeshed's `derive` is generic in the exceptions, and a BuildError is not
    def derive(self, excs: Sequence[Exception], /) -> BuildError:  # type: ignore[override]
        """Keep the class when `except*` splits the group; errors only, as its own."""
        return BuildError(self.message, excs)


Error = TypeVar("Error", bound=BaseException)


def fresh(error: Error) -> Error:
    """A copy of `error` for one more waiter, without traceback, with its cause.

    It is made without calling the class, whose arguments may be anybody's.
    """
    duplicate = type(error).__new__(type(error), *error.args)
    duplicate.args = error.args
    duplicate.__dict__.update(error.__dict__)
    if hasattr(error, "__notes__"):
        duplicate.__notes__ = list(error.__notes__)
    duplicate.__cause__ = error.__cause__
    return duplicate
