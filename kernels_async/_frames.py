"""The pipe between pool and worker: length-prefixed frames of JSON and bytes.

A frame is two lengths, eight bytes each in network order, then a JSON object, then raw
bytes. Nothing that a worker sends is unpickled; what is no frame, or no answer of the
expected form, counts as the worker's death.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from ._artifact import Output
from ._diagnostics import Diagnostic
from ._errors import CompileError, KernelsError, SymbolNotFoundError, ToolchainError
from ._resources import Resources

HEADER = struct.Struct("!QQ")
SIZE_LIMIT = 1 << 30

_ERRORS: dict[str, type[KernelsError]] = {
    error.__name__: error for error in (CompileError, SymbolNotFoundError, ToolchainError)
}


def encode(record: dict[str, Any], data: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(record).encode()
    return HEADER.pack(len(text), len(data)) + text + data


def lengths(header: bytes) -> tuple[int, int]:
    """The lengths of JSON and bytes; absurd ones raise `ValueError`."""
    text, data = HEADER.unpack(header)
    if text > SIZE_LIMIT or data > SIZE_LIMIT:
        raise ValueError(f"a frame of {text} and {data} bytes")
    return text, data


def answer(outcome: Output | KernelsError) -> bytes:
    """The worker's answer to a job."""
    if isinstance(outcome, Output):
        resources = outcome.resources
        record = {
            "entry": outcome.entry,
            "diagnostics": [d.to_record() for d in outcome.diagnostics],
            "resources": None if resources is None else resources.to_record(),
            "compile_seconds": outcome.compile_seconds,
        }
        return encode(record, outcome.data)
    return encode(
        {
            "error": type(outcome).__name__,
            "message": str(outcome),
            "diagnostics": [d.to_record() for d in getattr(outcome, "diagnostics", ())],
            "log": getattr(outcome, "log", ""),
        }
    )


def outcome(text: bytes, data: bytes) -> Output | KernelsError:
    """What a worker's answer says; anything else raises `ValueError`."""
    record = json.loads(text)
    try:
        diagnostics = tuple(map(Diagnostic.from_record, record["diagnostics"]))
        if "error" in record:
            return _error(record, diagnostics)
        resources = record["resources"]
        return Output(
            data=data,
            entry=str(record["entry"]),
            diagnostics=diagnostics,
            resources=None if resources is None else Resources.from_record(resources),
            compile_seconds=float(record["compile_seconds"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an answer: {error!r}") from error


def _error(record: dict[str, Any], diagnostics: tuple[Diagnostic, ...]) -> KernelsError:
    kind = _ERRORS[record["error"]]
    message = str(record["message"])
    if issubclass(kind, CompileError):
        return kind(message, diagnostics=diagnostics, log=str(record["log"]))
    return kind(message)
