"""An asyncio cache of loaded GPU kernels, keyed by the artifact they compile to."""

from ._artifact import Artifact
from ._compiler import Compiler
from ._diagnostics import Diagnostic, Severity
from ._digest import Difference
from ._errors import (
    BuildError,
    ClosedError,
    CompileError,
    CompileMemoryError,
    CompileTimeout,
    DeviceError,
    DeviceMismatchError,
    KernelsError,
    LaunchError,
    LoadError,
    OverloadedError,
    QuarantinedError,
    ReentryError,
    ReporterError,
    SpecificationError,
    SpillError,
    SymbolNotFoundError,
    ToolchainError,
    WorkerCrashed,
    WrongLoopError,
)
from ._kernels import Kernels
from ._keyed import KeyedKernels
from ._pending import Pending
from ._report import Reporter
from ._reporters import LoggingReporter, Reporters, SpillPolicy
from ._resources import Resources
from ._source import Source
from ._specialization import Specialization
from .devices import Kernel

__all__ = [
    "Artifact",
    "BuildError",
    "ClosedError",
    "CompileError",
    "CompileMemoryError",
    "CompileTimeout",
    "Compiler",
    "DeviceError",
    "DeviceMismatchError",
    "Diagnostic",
    "Difference",
    "Kernel",
    "Kernels",
    "KernelsError",
    "KeyedKernels",
    "LaunchError",
    "LoadError",
    "LoggingReporter",
    "OverloadedError",
    "Pending",
    "QuarantinedError",
    "ReentryError",
    "Reporter",
    "ReporterError",
    "Reporters",
    "Resources",
    "Severity",
    "Source",
    "Specialization",
    "SpecificationError",
    "SpillError",
    "SpillPolicy",
    "SymbolNotFoundError",
    "ToolchainError",
    "WorkerCrashed",
    "WrongLoopError",
]
