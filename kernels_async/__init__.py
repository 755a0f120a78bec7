"""An asyncio cache of loaded GPU kernels, keyed by the artifact they compile to."""

from ._artifact import Artifact
from ._build import Build, BuiltKernel, Span
from ._collector import BuildCollector
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
    FrozenError,
    KernelsError,
    LaunchError,
    LoadError,
    ManifestError,
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
from ._events import Event, Events, Listener
from ._fallback import FallbackPending
from ._html import HtmlReporter
from ._kernels import Kernels
from ._keyed import KeyedKernels
from ._manifest import Manifest, ManifestKernel
from ._pending import Pending
from ._recording import Recording
from ._report import Reporter
from ._reporters import LoggingReporter, Reporters, SpillPolicy
from ._resources import Resources
from ._source import Source
from ._specialization import Specialization
from ._stats import Stats
from ._warm import Progress
from .devices import BoundKernel, Kernel
from .page import Change, Comparison, compare_builds, read_build, render_page, trace_build

__all__ = [
    "Artifact",
    "BoundKernel",
    "Build",
    "BuildCollector",
    "BuildError",
    "BuiltKernel",
    "Change",
    "ClosedError",
    "Comparison",
    "CompileError",
    "CompileMemoryError",
    "CompileTimeout",
    "Compiler",
    "DeviceError",
    "DeviceMismatchError",
    "Diagnostic",
    "Difference",
    "Event",
    "Events",
    "FallbackPending",
    "FrozenError",
    "HtmlReporter",
    "Kernel",
    "Kernels",
    "KernelsError",
    "KeyedKernels",
    "LaunchError",
    "Listener",
    "LoadError",
    "LoggingReporter",
    "Manifest",
    "ManifestError",
    "ManifestKernel",
    "OverloadedError",
    "Pending",
    "Progress",
    "QuarantinedError",
    "Recording",
    "ReentryError",
    "Reporter",
    "ReporterError",
    "Reporters",
    "Resources",
    "Severity",
    "Source",
    "Span",
    "Specialization",
    "SpecificationError",
    "SpillError",
    "SpillPolicy",
    "Stats",
    "SymbolNotFoundError",
    "ToolchainError",
    "WorkerCrashed",
    "WrongLoopError",
    "compare_builds",
    "read_build",
    "render_page",
    "trace_build",
]
