"""The pipe between pool and worker: length-prefixed frames of JSON and bytes.

A frame is two lengths, eight bytes each in network order, then a JSON object, then raw
bytes. A worker says hello, and for each job that it has begun, and what came of it.
Nothing that it sends is unpickled. What is not exactly of the expected form raises
`ValueError`, before anything of its size is allocated, and counts as the worker's death.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ._artifact import Output
from ._diagnostics import LOG_LIMIT, Diagnostic, printable
from ._errors import (
    CompileError,
    CompileMemoryError,
    KernelsError,
    SymbolNotFoundError,
    ToolchainError,
)
from ._resources import Resources

HEADER = struct.Struct("!QQ")
BIG = 1 << 18
"""Bytes from which a frame is made and read in a thread."""


class Bounds(NamedTuple):
    """How many bytes of JSON and of data a frame may have."""

    text: int
    data: int


JOB = Bounds(1 << 30, 0)
NOTE = Bounds(1 << 16, 0)
ANSWER = Bounds(64 << 20, 256 << 20)

_DIAGNOSTICS = 10_000
_LONGEST_TEXT = LOG_LIMIT + 100
_LARGEST_NUMBER = 1 << 63
_ERRORS: dict[str, type[KernelsError]] = {
    error.__name__: error
    for error in (CompileError, CompileMemoryError, SymbolNotFoundError, ToolchainError)
}


def encode(record: dict[str, Any], data: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(record).encode()
    return HEADER.pack(len(text), len(data)) + text + data


def lengths(header: bytes, bounds: Bounds) -> Bounds:
    """The lengths of JSON and bytes."""
    found = Bounds(*HEADER.unpack(header))
    if found.text > bounds.text or found.data > bounds.data:
        raise ValueError(f"a frame of {found.text} and {found.data} bytes")
    return found


def hello(sandbox: str) -> bytes:
    """The worker can compile; `sandbox` says how it is confined."""
    return encode({"sandbox": printable(sandbox, 1000)})


def refusal(reason: str) -> bytes:
    """The worker cannot compile, for a reason that it knows."""
    return encode({"refusal": printable(reason, 4000)})


def begun(number: int, keeps: bool = False) -> bytes:
    """The worker has read the job of that number, and compiles it.

    Args:
        number: The job's.
        keeps: Whether it keeps the job's headers, as it was told to.
    """
    return encode({"begun": number, "keeps": keeps})


def answer(number: int, outcome: Output | KernelsError) -> bytes:
    """What came of the job of that number."""
    if isinstance(outcome, Output) and len(outcome.data) > ANSWER.data:
        outcome = CompileError(
            f"the artifact is too large: {len(outcome.data)} bytes, of {ANSWER.data}",
            diagnostics=outcome.diagnostics,
        )
    if isinstance(outcome, Output):
        resources = outcome.resources
        record = {
            "number": number,
            "entry": outcome.entry,
            "diagnostics": _records(outcome.diagnostics),
            "resources": None if resources is None else resources.to_record(),
            "compile_seconds": outcome.compile_seconds,
        }
        return encode(record, outcome.data)
    return encode(
        {
            "number": number,
            "error": type(outcome).__name__,
            "message": _bounded_text(str(outcome)),
            "diagnostics": _records(getattr(outcome, "diagnostics", ())),
            "log": _bounded_text(getattr(outcome, "log", "")),
        }
    )


def read_hello(text: bytes) -> str:
    """How the worker is confined; a refusal is raised as a `ToolchainError`."""
    record = _parse(text)
    if record.keys() == {"refusal"}:
        raise ToolchainError(_text(record["refusal"]))
    _only(record, "sandbox")
    return _text(record["sandbox"])


def read_begun(text: bytes, number: int) -> bool:
    """Whether headers are kept, if this says that the job of that number has begun."""
    record = _parse(text)
    _only(record, "begun", "keeps")
    _same(record["begun"], number)
    keeps = record["keeps"]
    if type(keeps) is not bool:
        raise ValueError(f"it keeps {keeps!r}")
    return keeps


def read_answer(text: bytes, data: bytes, number: int) -> Output | KernelsError:
    """What came of the job of that number."""
    record = _parse(text)
    if "error" in record:
        _only(record, "number", "error", "message", "diagnostics", "log")
        _same(record["number"], number)
        return _error(record, data)
    _only(record, "number", "entry", "diagnostics", "resources", "compile_seconds")
    _same(record["number"], number)
    seconds, resources = record["compile_seconds"], record["resources"]
    if not data or not record["entry"]:
        raise ValueError("an artifact that is empty, or has no entry")
    if type(seconds) is not float or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{seconds!r} seconds")
    return Output(
        data=data,
        entry=_text(record["entry"]),
        diagnostics=_diagnostics(record["diagnostics"]),
        resources=None if resources is None else _resources(resources),
        compile_seconds=seconds,
    )


def _error(record: Mapping[str, Any], data: bytes) -> KernelsError:
    kind = _ERRORS.get(_text(record["error"]))
    if kind is None or data:
        raise ValueError("not an error of a compile")
    message, log = _text(record["message"]), _text(record["log"])
    diagnostics = _diagnostics(record["diagnostics"])
    if issubclass(kind, CompileError):
        return kind(message, diagnostics=diagnostics, log=log)
    return kind(message)


def _records(diagnostics: Sequence[Diagnostic]) -> list[dict[str, Any]]:
    return [
        {
            name: _bounded_text(value) if isinstance(value, str) else value
            for name, value in diagnostic.to_record().items()
        }
        for diagnostic in diagnostics[:_DIAGNOSTICS]
    ]


def _bounded_text(text: str) -> str:
    """`text` as it is told, cut once more where escapes have made it long."""
    return printable(printable(text))


def _diagnostics(records: object) -> tuple[Diagnostic, ...]:
    if type(records) is not list or len(records) > _DIAGNOSTICS:
        raise ValueError("not a list of diagnostics")
    return tuple(map(_diagnostic, records))


def _diagnostic(record: object) -> Diagnostic:
    if type(record) is not dict:
        raise ValueError("not a diagnostic")
    _only(record, *Diagnostic.__slots__)
    for value in record.values():
        if type(value) is int:
            _bounded(value)
    return Diagnostic.from_record(record)


def _resources(record: object) -> Resources:
    if type(record) is not dict:
        raise ValueError("not resources")
    resources = Resources.from_record(record)
    for value in record.values():
        _bounded(value)
    return resources


def _parse(text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if type(record) is not dict:
        raise ValueError("not an object")
    return record


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _only(record: Mapping[str, Any], *fields: str) -> None:
    if record.keys() != set(fields):
        raise ValueError(f"the fields {sorted(record)}, not {sorted(fields)}")


def _same(found: object, number: int) -> None:
    if type(found) is not int or found != number:
        raise ValueError(f"about the job {found!r}, not {number}")


def _text(value: object) -> str:
    if type(value) is not str or len(value) > _LONGEST_TEXT:
        raise ValueError("a text is missing, or too long")
    return value


def _bounded(number: int) -> None:
    if not 0 <= number < _LARGEST_NUMBER:
        raise ValueError(f"the number {number}")
