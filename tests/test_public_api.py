"""Tests of the public surface: exactly these names, each documented."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

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


def annotated(node: ast.ClassDef | ast.FunctionDef) -> Iterator[ast.expr]:
    """The annotations of what others may use: functions, methods and attributes."""
    for child in ast.walk(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("_") or name.endswith("__"):
                    signature = child.args
                    arguments = [*signature.posonlyargs, *signature.args]
                    arguments += [*signature.kwonlyargs]
                    arguments += filter(None, [signature.vararg, signature.kwarg])
                    yield from filter(None, [a.annotation for a in arguments])
                    yield from filter(None, [child.returns])
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                if not name.startswith("_"):
                    yield annotation
    if isinstance(node, ast.ClassDef):
        parts = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        yield from (part.annotation for part in parts)


def test_no_public_signature_holds_any() -> None:
    """A checker would let pass whatever is given."""
    seen = {
        (name, ast.unparse(annotation)): annotation
        for name in NAMES
        if (module := sys.modules.get(getattr(kernels_async, name).__module__))
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
        for annotation in annotated(node)
    }
    loose = [
        found
        for found, annotation in seen.items()
        if "Any" in {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)}
    ]
    assert len(seen) > 200
    assert loose == []


def test_no_type_that_signatures_name_is_any() -> None:
    """Those of one module, by other names."""
    types = Path(kernels_async.__file__).parent / "_types.py"
    assert "Any" not in types.read_text()
