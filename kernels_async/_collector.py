"""Makes a `Build` of what happens, event by event."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypedDict, Unpack

from ._artifact import Artifact
from ._build import Build, BuiltKernel, Span, SpanKind, State
from ._diagnostics import Diagnostic
from ._errors import CompileError
from ._events import Event

KEPT = 2_000
_SPANS = 32
_DIAGNOSTICS = 50
_TEXT = 8_000
_MOMENT = 1e-6


class BuildCollector:
    """A listener that remembers what happened to each kernel.

    It exists because a build is seen whole only when it is over. It keeps facts and no
    compiled bytes. A call costs some ten microseconds. It belongs to one event loop.

    Args:
        limit: How many finished kernels are kept: the newest.
    """

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._zero: float | None = None
        self._began = time.time()
        self._building: dict[str, BuiltKernel] = {}
        self._ended: dict[str, BuiltKernel] = {}
        self._open: dict[str, tuple[SpanKind, float, str]] = {}
        self._dropped = 0

    @property
    def outstanding(self) -> int:
        """How many kernels have begun and not ended."""
        return len(self._building)

    def build(self) -> Build:
        """What is known now."""
        kernels = (*self._ended.values(), *self._building.values())
        return Build(self._began, kernels, self._dropped)

    def add(self, artifact: Artifact) -> None:
        """Remember an artifact of whose making nothing was told."""
        key = artifact.digest
        if key not in self._building:
            known = self._ended.get(key)
            if known is None or not known.spans:
                kernel = BuiltKernel(key, artifact.symbol, artifact.target, "kept")
                self._end(_learn(kernel, artifact))

    def __call__(self, event: Event) -> None:
        """Remember what happened."""
        at = self._seconds(event.time)
        key = event.key
        kernel = self._building.get(key) or self._ended.get(key)
        kernel = kernel or BuiltKernel(key, event.symbol, event.target)
        if event.artifact is not None:
            kernel = _learn(kernel, event.artifact)
        elif event.entries is not None and not kernel.entries:
            kernel = replace(kernel, entries=event.entries)
        match event.kind:
            case "requested" | "joined":
                kernel = replace(kernel, requests=kernel.requests + 1)
                self._begin(kernel, "waiting", at)
            case "compiling":
                kernel = _with(kernel, self._until(key, at))
                self._begin(kernel, "compiling", at, f"worker {event.worker or 1}")
            case "compiled":
                if key in self._open:
                    kernel = _with(kernel, self._until(key, at))
                    self._next(kernel, "keeping", at, "store")
            case "kept" | "found":
                self._there(kernel, event, at)
            case "loading":
                self._put(kernel)
            case "loaded":
                self._loaded(kernel, event, at)
            case "failed":
                self._failed(kernel, event.error, at)

    def _seconds(self, at: float) -> float:
        """A time of `time.monotonic()` as one after the build began."""
        if self._zero is None:
            self._zero = at
            self._began = time.time() - (time.monotonic() - at)
        return max(0.0, at - self._zero)

    def _begin(
        self, kernel: BuiltKernel, kind: SpanKind, at: float, lane: str = ""
    ) -> None:
        """It is being built; what has begun already goes on."""
        if kernel.key not in self._building:
            self._ended.pop(kernel.key, None)
            kernel = replace(kernel, state="building", error="")
        self._building[kernel.key] = kernel
        self._open.setdefault(kernel.key, (kind, at, lane))

    def _next(self, kernel: BuiltKernel, kind: SpanKind, at: float, lane: str = "") -> None:
        self._put(kernel)
        if kernel.key in self._building:
            self._open[kernel.key] = kind, at, lane

    def _put(self, kernel: BuiltKernel) -> None:
        held = self._building if kernel.key in self._building else self._ended
        held[kernel.key] = kernel

    def _until(self, key: str, at: float) -> tuple[Span, ...]:
        """What has begun, as it ends then."""
        begun = self._open.pop(key, None)
        if begun is None:
            return ()
        kind, begin, lane = begun
        if kind == "waiting" and at - begin < _MOMENT:
            return ()
        return (Span(kind, begin, max(begin, at), lane),)

    def _there(self, kernel: BuiltKernel, event: Event, at: float) -> None:
        """Its artifact is there: read, or compiled and kept."""
        if event.kind == "found":
            begin = max(0.0, at - (event.seconds or 0.0))
            read = Span("reading", begin, at, "store")
            spans: tuple[Span, ...] = (*self._until(kernel.key, begin), read)
        else:
            spans = self._until(kernel.key, at)
        if kernel.requests:
            self._next(_with(kernel, spans), "waiting", at)
        else:
            self._end(_with(kernel, spans, state="kept", error=""))

    def _loaded(self, kernel: BuiltKernel, event: Event, at: float) -> None:
        begin = max(0.0, at - (event.seconds or 0.0))
        device = event.device or "device"
        spans = self._until(kernel.key, begin)
        state: State = "shared"
        if event.seconds is not None:
            spans, state = (*spans, Span("loading", begin, at, device)), "loaded"
        self._end(_with(kernel, spans, state=state, device=device, error=""))

    def _failed(self, kernel: BuiltKernel, error: Exception | None, at: float) -> None:
        said, unsaid = kernel.diagnostics, kernel.unsaid
        if isinstance(error, CompileError):
            said, unsaid = _first(error.diagnostics)
        self._end(
            _with(
                kernel,
                self._until(kernel.key, at),
                state="failed",
                error=f"{type(error).__name__}: {error}"[:_TEXT],
                diagnostics=said,
                unsaid=unsaid,
            )
        )

    def _end(self, kernel: BuiltKernel) -> None:
        """It is finished; the oldest that is one too many goes."""
        self._building.pop(kernel.key, None)
        self._open.pop(kernel.key, None)
        self._ended.pop(kernel.key, None)
        self._ended[kernel.key] = kernel
        if len(self._ended) > self._limit:
            del self._ended[next(iter(self._ended))]
            self._dropped += 1


class _Changes(TypedDict, total=False):
    state: State
    device: str
    error: str
    diagnostics: tuple[Diagnostic, ...]
    unsaid: int


def _with(
    kernel: BuiltKernel, spans: tuple[Span, ...], **changes: Unpack[_Changes]
) -> BuiltKernel:
    """It with more spans; those of a kernel that is tried for ever do not pile up."""
    return replace(kernel, spans=(*kernel.spans, *spans)[-_SPANS:], **changes)


def _learn(kernel: BuiltKernel, artifact: Artifact) -> BuiltKernel:
    """It with the facts of its artifact, if they are news."""
    if kernel.entries is artifact.entries and kernel.origin == artifact.origin:
        return kernel
    said, unsaid = _first(artifact.diagnostics)
    return replace(
        kernel,
        origin=artifact.origin,
        entries=artifact.entries,
        resources=artifact.resources,
        diagnostics=said,
        unsaid=unsaid,
        size=len(artifact.bytes),
        compile_seconds=artifact.compile_seconds,
    )


def _first(said: tuple[Diagnostic, ...]) -> tuple[tuple[Diagnostic, ...], int]:
    """As much as is kept of what the compiler said, and how much more it was."""
    return said[:_DIAGNOSTICS], max(0, len(said) - _DIAGNOSTICS)
