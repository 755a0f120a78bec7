"""Compiled bytes, and what the compiler said about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ._diagnostics import Diagnostic, Severity

Origin = Literal["compiled", "disk", "remote"]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel needs of a multiprocessor, as ptxas tells it, before any load.

    Attributes:
        registers: Registers of each thread.
        spill_stores: Bytes of registers stored to local memory, each thread.
        spill_loads: Bytes loaded back, each thread.
        stack: Bytes of stack frame of each thread.
        shared: Bytes of static shared memory of each block.
        constant: Bytes of `__constant__` variables, as the cubin has them.
        barriers: Barriers of each block.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    constant: int
    barriers: int

    def to_record(self) -> dict[str, int]:
        """The JSON form, read by `from_record`."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Resources:
        """Rebuild one from its JSON form; anything else raises `ValueError`."""
        values = {name: record.get(name) for name in cls.__slots__}
        if len(record) != len(values) or any(type(v) is not int for v in values.values()):
            raise ValueError(f"not resources: {sorted(record)}")
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Output:
    """What a toolchain makes of one job, before it has a place on disk.

    Attributes:
        data: The compiled bytes: a cubin, or a shared library.
        entry: The kernel's lowered name in them.
        diagnostics: What the compiler said.
        resources: What ptxas said of the kernel; `None` from the cpu toolchain.
        compile_seconds: Wall time of the compile alone.
    """

    data: bytes = field(repr=False)
    entry: str
    diagnostics: tuple[Diagnostic, ...]
    resources: Resources | None
    compile_seconds: float


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel as it lies on disk, verified, with what the compiler said.

    The reporter gets it before it loads. It does not promise that its file stays: a
    cache may be cleared underneath.

    Attributes:
        digest: The artifact's key: what it was compiled from, by what, for what.
        bytes: The cubin, or the shared library of the cpu toolchain.
        path: The file that holds them.
        symbol: The kernel as it was asked for.
        entry: Its lowered name in the file.
        target: What it was compiled for, such as `sm_90`.
        compiler_identity: The toolchain that compiled it.
        diagnostics: What the compiler said, also when this is read from disk.
        resources: Registers, spills and so on; `None` for the target `cpu`.
        origin: `"compiled"` now, read from `"disk"`, or fetched from `"remote"`.
        compile_seconds: Wall time of the compile, whenever it was.
        output_digest: The digest of `bytes`.
        entries: Everything that entered the key, by name; texts by their digest.
    """

    digest: str
    bytes: bytes = field(repr=False)
    path: Path
    symbol: str
    entry: str
    target: str
    compiler_identity: str = field(repr=False)
    diagnostics: tuple[Diagnostic, ...] = field(repr=False)
    resources: Resources | None
    origin: Origin
    compile_seconds: float
    output_digest: str = field(repr=False)
    entries: Mapping[str, str] = field(repr=False)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Those of its diagnostics that are warnings."""
        return tuple(d for d in self.diagnostics if d.severity is Severity.WARNING)
