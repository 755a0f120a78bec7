"""Builds made by hand, event by event, for the tests of what is shown of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernels_async import (
    Artifact,
    Build,
    BuildCollector,
    CompileError,
    Diagnostic,
    Resources,
    Severity,
)
from kernels_async._artifact import Origin
from kernels_async._events import Event

WARNING = Diagnostic(
    Severity.WARNING,
    'variable "unused" was declared but never referenced',
    "177-D",
    "kernels.cu",
    12,
    9,
    "      int unused;\n          ^",
)
ERROR = Diagnostic(
    Severity.ERROR, 'identifier "tile" is undefined', "20", "kernels.cu", 31, 14
)
NAMES = ("softmax", "layer_norm", "matmul", "rms_norm", "rope", "attention")
BASE = 1000.0


def artifact(
    symbol: str = "k<float>",
    *,
    key: str = "",
    defines: Mapping[str, object] | None = None,
    warnings: tuple[Diagnostic, ...] = (),
    target: str = "sm_90",
    origin: Origin = "compiled",
    size: int = 3000,
    seconds: float = 0.5,
    text: str = "blake3 aa",
    **resources: int,
) -> Artifact:
    """An artifact as a reporter gets it; what is not said of it is ordinary."""
    used = dict.fromkeys(Resources.__slots__, 0) | {"registers": 32} | resources
    entries = {
        "schema": "kernels_async artifact 1, blake3",
        "toolchain": "nvrtc 13.5 5d01d16ad561165b",
        "target": target,
        "source name": "kernels.cu",
        "source text": text,
        "symbol": symbol,
        **{f"define {name}": str(value) for name, value in (defines or {}).items()},
        "options": "--use_fast_math",
    }
    return Artifact(
        digest=key or f"key of {symbol}",
        bytes=b"x" * size,
        path=Path("kernel.cubin"),
        symbol=symbol,
        entry="_Z1k",
        target=target,
        compiler_identity=entries["toolchain"],
        diagnostics=warnings,
        resources=None if target == "cpu" else Resources(**used),
        origin=origin,
        compile_seconds=seconds,
        output_digest="00",
        entries=entries,
    )


def event(kind: Any, at: float, made: Artifact, **details: Any) -> Event:
    """An event of an artifact, so many seconds after the first one."""
    if kind in ("found", "kept", "loading", "loaded"):
        details.setdefault("artifact", made)
    return Event(kind, BASE + at, made.digest, made.symbol, made.target, **details)


def compiled(made: Artifact, at: float = 0.0, worker: int = 1) -> list[Event]:
    """What is told of one that is compiled and loaded: it takes two seconds."""
    return [
        event("requested", at, made, device="cuda:0"),
        event("compiling", at + 0.5, made, worker=worker),
        event("compiled", at + 1.5, made, worker=worker, seconds=1.0),
        event("kept", at + 1.6, made, seconds=0.1),
        event("loading", at + 1.6, made, device="cuda:0"),
        event("loaded", at + 2.0, made, device="cuda:0", seconds=0.2),
    ]


def failure() -> CompileError:
    """What a source that is wrong ends in."""
    return CompileError(
        'kernels.cu:31:14: error: identifier "tile" is undefined', diagnostics=[ERROR]
    )


def build(*events: Event) -> Build:
    """What a collector makes of some events."""
    collector = BuildCollector()
    for one in sorted(events, key=lambda one: one.time):
        collector(one)
    return replace(collector.build(), began=1_790_000_000.0)


def built(*artifacts: Artifact) -> Build:
    """A build of artifacts, of whose making nothing is known."""
    collector = BuildCollector()
    for made in artifacts:
        collector.add(made)
    return replace(collector.build(), began=1_790_000_000.0)


def large(count: int = 24, failing: Collection[int] = (5,)) -> Build:
    """A build with something of everything, on four workers."""
    events: list[Event] = []
    for n in range(count):
        made = artifact(
            f"{NAMES[n % 6]}<float, {n}>",
            key=f"{n:064x}",
            defines={"BLOCK": 32 << n % 5},
            warnings=(WARNING,) if n % 6 == 1 else (),
            origin="disk" if n % 6 == 3 else "compiled",
            size=3000 + n,
            seconds=0.1 + (n * 7 % 11) / 10,
            registers=16 + n * 37 % 200,
            spill_stores=48 if n % 12 == 4 else 0,
            spill_loads=96 if n % 12 == 4 else 0,
            shared=n % 3 * 4096,
        )
        told = compiled(made, at=n // 4 * 1.1, worker=n % 4 + 1)
        if n in failing:
            told[3:] = [event("failed", told[2].time - BASE, made, error=failure())]
        elif made.origin == "disk":
            told[1:4] = [event("found", told[1].time - BASE, made, seconds=0.01)]
        elif n % 6 == 2:
            told[-1] = event("loaded", told[-1].time - BASE, made, device="cuda:0")
        events += told
    return build(*events)
