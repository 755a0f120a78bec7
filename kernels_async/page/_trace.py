"""A build as a trace that Perfetto and `chrome://tracing` open."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from .._build import Build
from ._lanes import Bar, lanes, waiting

TraceEvent = Mapping[str, object]
_PROCESS = 1


def trace_build(build: Build) -> dict[str, object]:
    """The build's timeline in the Trace Event Format, to be written as JSON.

    Each lane is a thread; one whose spans overlap is several. How many kernels wait is a
    counter. Times are microseconds after the build began.

    Args:
        build: The build.
    """
    events: list[TraceEvent] = [_PROCESS_NAME]
    rows = [
        (lane.name if number == 0 else f"{lane.name} ({number + 1})", row)
        for lane in lanes(build)
        for number, row in enumerate(lane.rows)
    ]
    for thread, (name, row) in enumerate(rows, 1):
        events.append(_named("thread_name", thread, {"name": name}))
        events.append(_named("thread_sort_index", thread, {"sort_index": thread}))
        events.extend(_complete(bar, thread) for bar in row)
    events.extend(
        {
            "name": "waiting",
            "ph": "C",
            "ts": _microseconds(time),
            "pid": _PROCESS,
            "args": {"kernels": count},
        }
        for time, count in waiting(build)
    )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"began": build.began},
    }


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a trace of `trace_build`, as `json.dumps` writes it.

    Raises:
        OSError: It cannot be read.
    """
    begin = json.dumps({"traceEvents": [_PROCESS_NAME]}).removesuffix("]}").encode()
    with Path(path).open("rb") as file:
        return file.read(len(begin)) == begin


def _named(name: str, thread: int, arguments: Mapping[str, object]) -> TraceEvent:
    return {
        "name": name,
        "ph": "M",
        "pid": _PROCESS,
        "tid": thread,
        "args": dict(arguments),
    }


_PROCESS_NAME = _named("process_name", 0, {"name": "kernels_async"})


def _complete(bar: Bar, thread: int) -> TraceEvent:
    kernel, span = bar.kernel, bar.span
    arguments: dict[str, object] = {
        "key": kernel.key,
        "target": kernel.target,
        "state": kernel.state,
        "waited_ms": round((kernel.seconds("waiting") or 0.0) * 1000, 3),
        **({"error": kernel.error} if bar.failed else {}),
    }
    begin = _microseconds(span.begin)
    return {
        "name": kernel.symbol,
        "cat": f"{span.kind},failed" if bar.failed else span.kind,
        "ph": "X",
        "ts": begin,
        "dur": round(_microseconds(span.end) - begin, 3),
        "pid": _PROCESS,
        "tid": thread,
        "args": arguments,
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
