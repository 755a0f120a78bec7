"""What a toolchain is: the one interface between a compiler and the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from .._artifact import Output
from .._includes import without_comments
from .._source import Source
from .._specialization import Specialization


@dataclass(frozen=True, slots=True)
class Job:
    """One compile: `specialization` of `source` for `target`."""

    source: Source
    specialization: Specialization
    target: str

    def to_record(self) -> dict[str, Any]:
        """The JSON form, read by `from_record`."""
        return {
            "text": self.source.text,
            "headers": dict(self.source.headers),
            "name": self.source.name,
            "symbol": self.specialization.symbol,
            "defines": dict(self.specialization.defines),
            "options": list(self.specialization.options),
            "target": self.target,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Job:
        """Rebuild one from its JSON form."""
        return cls(
            Source(record["text"], record["headers"], record["name"]),
            Specialization(record["symbol"], record["defines"], record["options"]),
            record["target"],
        )


@dataclass(frozen=True)
class Access:
    """What of the host a toolchain needs once it is loaded; its worker keeps no more.

    Attributes:
        reads: Files, and folders with everything in them, that it reads.
        executes: Those that it reads and executes.
        writes: Those that it reads and writes.
        addresses: Bytes of address space that it reserves beyond what a compile needs.
    """

    reads: tuple[str, ...] = ()
    executes: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    addresses: int = 0


class Toolchain(Protocol):
    """Turns a job into bytes and diagnostics.

    Found in the server's process, where it only says what it is; rebuilt from its
    `configuration` in a worker process, where `compile` runs.
    """

    kind: ClassVar[str]
    filename: ClassVar[str]

    @property
    def identity(self) -> str:
        """Everything about it that changes its output, and no path."""

    def configuration(self) -> dict[str, Any]:
        """JSON from which a worker rebuilds it."""

    def prefix(self, job: Job, /) -> str:
        """A digest of what the job shares with others that one worker compiles faster.

        Empty if it shares nothing.
        """

    def keeps(self, shared: str, /) -> bool:
        """Whether a compile of that prefix would keep its headers, in a worker."""

    def spoils(self, job: Job, /) -> bool:
        """Whether its compile changes what later jobs of the same process compile to."""

    def load(self) -> None:
        """Load every module and library that `compile` uses, while they can be read.

        Raises:
            ToolchainError: The compiler cannot be used.
        """

    def access(self) -> Access:
        """What `compile` needs of the host after `load`."""

    def compile(self, job: Job, shared: str = "", /) -> Output:
        """Compile one job, in the current directory, which is empty and private.

        Args:
            job: What to compile.
            shared: The job's prefix, if others of it are to follow.

        Raises:
            CompileError: The compiler refused the source.
            CompileMemoryError: It says that there was not enough memory.
            ToolchainError: The compiler cannot be used, or not for this target.
        """


_KERNEL = re.compile(
    r"(?P<space>\bnamespace\s+(?P<inner>\w+)\s*\{)|(?P<open>\{)|(?P<close>\})|"
    r"(?:template\s*<(?P<parameters>[^{};]*?)>\s*)?"
    r"(?:(?:static|inline|extern|__forceinline__|__noinline__)\s+|\"C\"\s*)*"
    r"__global__\s+"
    r"(?:__\w+__\s*\((?:[^()]|\([^()]*\))*\)\s*|\w+\s+)*?"
    r"(?P<name>\w+)\s*\("
)


def kernels_in(source: Source) -> list[str]:
    """The kernels that `source` seems to define, for messages only.

    It reads text, not C++: kernels made by macros or in headers are not seen.
    """
    found: list[str] = []
    spaces: list[str] = []
    for match in _KERNEL.finditer(without_comments(source.text)):
        if match["space"] or match["open"]:
            spaces.append(match["inner"] or "")
        elif match["close"]:
            del spaces[-1:]
        else:
            name = "::".join([*filter(None, spaces), match["name"]])
            parameters = match["parameters"]
            found.append(name if parameters is None else f"{name}<{_names(parameters)}>")
    return list(dict.fromkeys(found))


def no_such_kernel(job: Job, reason: str) -> str:
    """The message for a symbol that the source does not have."""
    kernels = kernels_in(job.source)
    has = f"it has {', '.join(kernels)}" if kernels else "it has no kernel"
    text = f"no kernel {job.specialization.symbol!r} in {job.source.name}: {reason}; {has}"
    name = re.match(r"[&(\s]*(?:::)?([\w:]*\w)", job.specialization.symbol)
    plain = name[1] if name else ""
    near = [k for k in kernels if k.partition("<")[0].rpartition("::")[2] == plain]
    template = next((k for k in kernels if k.startswith(f"{plain}<")), None)
    if template is not None:
        text += f"\nhint: {template} is a template: name an instantiation of it"
    elif plain.startswith("_Z"):
        text += "\nhint: a symbol is written as in C++, not mangled"
    elif near and near[0] != plain:
        text += f"\nhint: its name is {near[0]}"
    return text


def _names(parameters: str) -> str:
    words = (part.partition("=")[0].split() for part in parameters.split(","))
    return ", ".join(part[-1] for part in words if part)
