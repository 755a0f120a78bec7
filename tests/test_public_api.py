"""Tests of the public surface: exactly these names, each documented."""

from __future__ import annotations

import inspect

import kernels_async

NAMES = {
    *("Kernels", "Pending", "KeyedKernels", "Kernel", "Specialization", "Source"),
    *(
        "Compiler",
        "Artifact",
        "Resources",
        "Diagnostic",
        "Difference",
        "Severity",
        "Reporter",
    ),
    *("LoggingReporter", "Reporters", "SpillPolicy", "HtmlReporter"),
    *("Build", "BuiltKernel", "Span", "BuildCollector", "Comparison", "Change"),
    *("read_build", "render_page", "compare_builds", "trace_build"),
    *("KernelsError", "SpecificationError", "ToolchainError", "DeviceError"),
    *("DeviceMismatchError", "CompileError", "SymbolNotFoundError", "CompileTimeout"),
    *("WorkerCrashed", "ReporterError", "LoadError", "LaunchError", "ReentryError"),
    *("BoundKernel", "OverloadedError"),
    *("WrongLoopError", "ClosedError", "BuildError", "SpillError"),
    *("CompileMemoryError", "QuarantinedError", "FrozenError", "ManifestError"),
    *("Manifest", "ManifestKernel", "Recording", "Progress", "FallbackPending"),
    *("Stats", "Event", "Events", "Listener"),
}


def test_the_public_names_are_these() -> None:
    """`__all__` holds them, sorted, and nothing else is without an underscore."""
    assert set(kernels_async.__all__) == NAMES
    assert list(kernels_async.__all__) == sorted(kernels_async.__all__)
    public = {
        name
        for name, value in vars(kernels_async).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == NAMES


def test_every_public_class_and_method_is_documented() -> None:
    """What it is, why, what it does not promise, arguments, errors."""
    missing = [
        f"{name}.{member}"
        for name in NAMES
        if inspect.isclass(cls := getattr(kernels_async, name))
        for member, value in [("", cls), *vars(cls).items()]
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | type))
        and not inspect.getdoc(value)
    ]
    assert missing == []
