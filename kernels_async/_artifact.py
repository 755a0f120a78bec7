"""Compiled bytes, and what the compiler said about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ._diagnostics import Diagnostic, Severity, shortened
from ._errors import SpecificationError
from ._occupancy import blocks_at_once, most_threads, multiprocessor
from ._resources import Resources

Origin = Literal["compiled", "disk", "remote"]
"""Where an artifact comes from."""


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


@dataclass(frozen=True, slots=True, repr=False)
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
    bytes: bytes
    path: Path
    symbol: str
    entry: str
    target: str
    compiler_identity: str
    diagnostics: tuple[Diagnostic, ...]
    resources: Resources | None
    origin: Origin
    compile_seconds: float
    output_digest: str
    entries: Mapping[str, str]

    @property
    def max_threads_per_block(self) -> int | None:
        """The most threads that a block can have, for its registers; `None` on the CPU."""
        return None if self.resources is None else most_threads(self.resources)

    def occupancy(self, threads: int, dynamic_shared: int = 0) -> int | None:
        """How many blocks one multiprocessor of the target runs at once.

        It is computed from the resources, without a GPU, and is what the driver answers.

        Args:
            threads: Threads of a block.
            dynamic_shared: Dynamic shared memory of a block, in bytes.

        Returns:
            Blocks; 0 if not even one fits; `None` if the target's limits are not known.

        Raises:
            SpecificationError: There is no such block.
        """
        if threads < 1 or dynamic_shared < 0:
            raise SpecificationError(
                f"a block has at least one thread and no less than 0 bytes, not {threads} "
                f"and {dynamic_shared}"
            )
        limits = multiprocessor(self.target)
        if self.resources is None or limits is None:
            return None
        return blocks_at_once(self.resources, limits, threads, dynamic_shared)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Those of its diagnostics that are warnings."""
        return tuple(d for d in self.diagnostics if d.severity is Severity.WARNING)

    def __repr__(self) -> str:
        registers = f", {self.resources.registers} registers" if self.resources else ""
        return (
            f"<Artifact {shortened(self.symbol)} for {self.target}, {self.origin}, "
            f"{len(self.bytes)} bytes{registers} {self.digest[:12]}>"
        )

    def _repr_html_(self) -> str | None:
        """How a notebook shows it."""
        from ._notebook import show_artifact

        return show_artifact(self)
