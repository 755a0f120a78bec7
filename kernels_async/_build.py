"""What happened to the kernels of a build, as one value that can be written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from types import UnionType
from typing import Any, Literal, get_args

from ._artifact import Origin
from ._diagnostics import Diagnostic, Severity
from ._occupancy import WARP, blocks_at_once, multiprocessor
from ._resources import Resources

SCHEMA = "kernels_async build 1"

SpanKind = Literal["waiting", "reading", "compiling", "keeping", "loading"]
"""What was done with a kernel; see `Span`."""

State = Literal["building", "kept", "loaded", "shared", "failed"]
"""How far a kernel came; see `BuiltKernel`."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took its time.

    Attributes:
        kind: `waiting`: nobody worked on it; `reading` it from disk or a remote store;
            `compiling`; `keeping` it on disk; `loading` it onto a device.
        begin: When it began, in seconds after the build's `began`.
        end: When it ended.
        lane: Where: `worker 2`, `store`, the device's name; `""` for `waiting`.
    """

    kind: SpanKind
    begin: float
    end: float
    lane: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin

    def to_record(self) -> list[object]:
        """The JSON form, read by `from_record`."""
        return [self.kind, round(self.begin, 6), round(self.end, 6), self.lane]

    @classmethod
    def from_record(cls, record: object) -> Span:
        """Rebuild one from its JSON form; anything else raises `ValueError`."""
        match record:
            case [str(kind), int() | float() as begin, int() | float() as end, str(lane)]:
                if kind in get_args(SpanKind) and 0 <= begin <= end < _CENTURIES:
                    return cls(kind, begin, end, lane)  # type: ignore[arg-type]  # a SpanKind
        raise ValueError("not a span")


@dataclass(frozen=True)
class BuiltKernel:
    """What is known of one kernel of a build, without its bytes.

    Attributes:
        key: The digest of the artifact.
        symbol: The kernel as it was asked for.
        target: What it is compiled for.
        state: `building`: not finished; `kept`: its artifact is there; `loaded`;
            `shared`: another with the same bytes was loaded already; `failed`.
        device: The name of the device that loaded it, or `""`.
        origin: Where its artifact came from; `None` if there is none.
        entries: Everything that entered the key; empty if there is no artifact.
        resources: What it needs; `None` for the target `cpu`, or without an artifact.
        diagnostics: The first of what the compiler said.
        unsaid: How many more diagnostics there were.
        size: Bytes of the artifact.
        compile_seconds: How long its compile took, whenever it was.
        requests: How many asked for it while it was not loaded.
        error: The class and the text of why it failed, or `""`.
        spans: What took its time, in order.
    """

    key: str
    symbol: str
    target: str
    state: State = "building"
    device: str = ""
    origin: Origin | None = None
    entries: Mapping[str, str] = field(default_factory=dict)
    resources: Resources | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    unsaid: int = 0
    size: int | None = None
    compile_seconds: float | None = None
    requests: int = 0
    error: str = ""
    spans: tuple[Span, ...] = ()

    @cached_property
    def defines(self) -> dict[str, str]:
        """Its preprocessor defines."""
        prefix = "define "
        return {
            name.removeprefix(prefix): text
            for name, text in self.entries.items()
            if name.startswith(prefix)
        }

    @property
    def configuration(self) -> str:
        """Its defines in one line."""
        return ", ".join(f"{name}={text}" for name, text in self.defines.items())

    @property
    def options(self) -> str:
        """Its compiler options."""
        return self.entries.get("options", "")

    @cached_property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What the compiler warned of."""
        return tuple(d for d in self.diagnostics if d.severity is Severity.WARNING)

    @property
    def spills(self) -> int:
        """Bytes that each thread spills and loads back."""
        return 0 if self.resources is None else self.resources.spills

    def occupancy(self, threads: int) -> float | None:
        """The share of a multiprocessor's warps that run at once, in blocks of `threads`.

        It is computed without a GPU, as `Artifact.occupancy` is; `None` if the target's
        limits are not known.
        """
        limits = multiprocessor(self.target)
        if self.resources is None or limits is None:
            return None
        blocks = blocks_at_once(self.resources, limits, threads, 0)
        return blocks * -(-threads // WARP) * WARP / limits.threads

    def seconds(self, kind: SpanKind) -> float | None:
        """How long all of one kind took, or `None` if there was nothing of it."""
        found = [span.seconds for span in self.spans if span.kind == kind]
        return sum(found) if found else None

    def to_record(self) -> dict[str, object]:
        """The JSON form, read by `from_record`."""
        return {name: getattr(self, name) for name in _KINDS} | {
            "entries": dict(self.entries),
            "resources": self.resources and self.resources.to_record(),
            "diagnostics": [d.to_record() for d in self.diagnostics],
            "spans": [span.to_record() for span in self.spans],
        }

    @classmethod
    def from_record(cls, record: object) -> BuiltKernel:
        """Rebuild one from its JSON form; anything else raises `ValueError`."""
        fields = _checked(record, _KINDS)
        resources = fields["resources"]
        numbers = {} if resources is None else resources
        _checked(numbers, dict.fromkeys(numbers, int))
        if fields["state"] not in get_args(State):
            raise ValueError("state is none")
        if fields["origin"] not in (None, *get_args(Origin)):
            raise ValueError("origin is none")
        if not all(isinstance(text, str) for text in fields["entries"].values()):
            raise ValueError("entries are not texts")
        return cls(
            **fields
            | {
                "resources": None
                if resources is None
                else Resources.from_record(resources),
                "diagnostics": tuple(map(Diagnostic.from_record, fields["diagnostics"])),
                "spans": tuple(map(Span.from_record, fields["spans"])),
            }
        )


_KINDS: dict[str, type | UnionType] = {
    "key": str,
    "symbol": str,
    "target": str,
    "state": str,
    "device": str,
    "origin": str | None,
    "entries": dict,
    "resources": dict | None,
    "diagnostics": list,
    "unsaid": int,
    "size": int | None,
    "compile_seconds": int | float | None,
    "requests": int,
    "error": str,
    "spans": list,
}


@dataclass(frozen=True)
class Build:
    """What happened to the kernels of a build.

    It exists so that a build can be looked at, kept and compared when the process that
    made it is gone. It has no compiled bytes. A `BuildCollector` makes one.

    Attributes:
        began: When, in seconds since 1970.
        kernels: Its kernels.
        dropped: How many older kernels are not kept.
    """

    began: float
    kernels: tuple[BuiltKernel, ...]
    dropped: int = 0

    @property
    def failed(self) -> tuple[BuiltKernel, ...]:
        """The kernels that failed."""
        return tuple(k for k in self.kernels if k.state == "failed")

    @cached_property
    def busy(self) -> tuple[tuple[float, float], ...]:
        """The times at which something was being built, as begin and end, in order."""
        return union((s.begin, s.end) for kernel in self.kernels for s in kernel.spans)

    @property
    def seconds(self) -> float:
        """How long something was being built; rests do not count."""
        return sum(end - begin for begin, end in self.busy)

    @property
    def compile_seconds(self) -> float:
        """Seconds in which workers compiled, added up."""
        return sum(kernel.seconds("compiling") or 0.0 for kernel in self.kernels)

    @property
    def saved_seconds(self) -> float:
        """Seconds that the compiles of what was only read had taken."""
        read = (k for k in self.kernels if k.origin in ("disk", "remote"))
        return sum(kernel.compile_seconds or 0.0 for kernel in read)

    @property
    def workers(self) -> int:
        """How many workers compiled."""
        return len({s.lane for k in self.kernels for s in k.spans if s.kind == "compiling"})

    @property
    def efficiency(self) -> float | None:
        """Compile seconds over the time that the workers used had for them.

        That is the time in which something was compiled, or waited to be; `None` if
        nothing was.
        """
        wanted = union(
            (before.begin if before.kind == "waiting" else span.begin, span.end)
            for kernel in self.kernels
            for before, span in pairwise((*kernel.spans[:1], *kernel.spans))
            if span.kind == "compiling"
        )
        seconds = sum(end - begin for begin, end in wanted) * self.workers
        return min(1.0, self.compile_seconds / seconds) if seconds else None

    def distinct(self, entry: str) -> tuple[str, ...]:
        """The different values of one entry of the keys, such as `toolchain`."""
        found = (k.entries[entry] for k in self.kernels if entry in k.entries)
        return tuple(dict.fromkeys(found))

    def to_record(self) -> dict[str, object]:
        """The JSON form, read by `from_record`."""
        return {
            "schema": SCHEMA,
            "began": self.began,
            "dropped": self.dropped,
            "kernels": [kernel.to_record() for kernel in self.kernels],
        }

    @classmethod
    def from_record(cls, record: object) -> Build:
        """Rebuild one from its JSON form; anything else raises `ValueError`."""
        kinds: dict[str, type | UnionType] = {
            "schema": str,
            "began": int | float,
            "dropped": int,
            "kernels": list,
        }
        fields = _checked(record, kinds)
        if fields.pop("schema") != SCHEMA:
            raise ValueError("it is of another version")
        if fields["began"] > _CENTURIES:
            raise ValueError("began is out of range")
        return cls(**fields | {"kernels": tuple(map(_kernel, fields["kernels"]))})


def union(spans: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """What spans of time cover together, as begin and end, in order."""
    covered: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if covered and begin <= covered[-1][1]:
            covered[-1] = covered[-1][0], max(end, covered[-1][1])
        else:
            covered.append((begin, end))
    return tuple(covered)


def _kernel(record: object) -> BuiltKernel:
    try:
        return BuiltKernel.from_record(record)
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"not a kernel: {error}") from error


def _checked(record: object, kinds: Mapping[str, type | UnionType]) -> dict[str, Any]:
    """The fields of a JSON object that has just these, each of its kind."""
    if not isinstance(record, dict) or record.keys() != kinds.keys():
        raise ValueError("its fields are others")
    for name, kind in kinds.items():
        value = record[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name} is no {kind}")
        if isinstance(value, int | float) and not 0 <= value < _FOREVER:
            raise ValueError(f"{name} is out of range")
    return dict(record)


_FOREVER = 1 << 53
_CENTURIES = 1e11  # in seconds; the calendar of a page ends in the year 9999
