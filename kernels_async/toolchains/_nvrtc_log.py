"""NVRTC's log, taken apart: messages of its front end and of ptxas, and resources."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from .._diagnostics import Diagnostic, Severity, printable
from .._resources import Resources

NAME_MAP = "__nv_name_map"

_SEVERITY = {
    "info": Severity.NOTE,
    "note": Severity.NOTE,
    "remark": Severity.NOTE,
    "warning": Severity.WARNING,
}
_LOCATED = re.compile(
    r"(?P<file>\S.*?)\((?P<line>\d+)\): (?P<severity>[A-Za-z][A-Za-z -]*?)"
    r"(?: #(?P<code>[\w-]+))?\s*: (?P<message>.*)"
)
_PTXAS_LINE = re.compile(
    r"(?P<file>ptxas [^,;:]+), line (?P<line>\d+); "
    r"(?P<severity>\w+)\s*: (?P<message>.*)"
)
_TOOL = re.compile(
    r"(?P<file>)(?P<line>)(?P<tool>ptxas|nvrtc|Command-line|nvlink|cicc|At end of source):?"
    r" +(?P<severity>[a-z]+)\s*: (?P<message>.*)"
)
_ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '(\S+)' for '\w+'")
_FUNCTION = re.compile(r"ptxas info\s*: Function properties for (\S+)")
_SPILLS = re.compile(
    r"\s*(?:ptxas\s*\.\s*)?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads"
)
_USED = re.compile(r"ptxas info\s*: Used (\d+) registers(.*)")
_NO_MESSAGE = re.compile(
    r"ptxas info\s*: "
    r"(?:Compile time = .*|\d+ bytes gmem.*|Overriding maximum register.*)"
)


@dataclass
class Log:
    """What one compile's log says.

    Attributes:
        diagnostics: Every message, in order; what fits no pattern is a NOTE.
        kernels: The resources of each kernel of the program, by its lowered name.
    """

    diagnostics: list[Diagnostic] = field(default_factory=list)
    kernels: dict[str, Resources] = field(default_factory=dict)

    @property
    def out_of_memory(self) -> bool:
        """Whether the compiler ended because it had no more memory."""
        return any(d.message == "out of memory" for d in self.diagnostics)

    def add_spills(self, entry: str, stores: int, loads: int) -> None:
        """Add what a function that was not inlined spills to the kernel before it."""
        known = self.kernels.get(entry)
        if known is not None:
            self.kernels[entry] = replace(
                known,
                spill_stores=known.spill_stores + stores,
                spill_loads=known.spill_loads + loads,
            )


def parse(text: str) -> Log:
    """Take `text` apart; nothing in it is lost but ptxas's timings."""
    log = Log()
    entry = function = ""
    frames: dict[str, tuple[int, int, int]] = {}
    excerpt: list[str] = []
    for line in [*printable(text).splitlines(), ""]:
        if excerpt and line[:1].isspace() and line.strip():
            excerpt.append(line)
            continue
        if excerpt:
            log.diagnostics.append(_diagnostic(excerpt))
            excerpt = []
        if match := _ENTRY.match(line):
            entry = match[1]
        elif match := _FUNCTION.match(line):
            function = match[1]
        elif match := _SPILLS.match(line):
            stack, stores, loads = map(int, match.groups())
            if function != entry:
                log.add_spills(entry, stores, loads)
            frames[function] = (stack, stores, loads)
        elif match := _USED.match(line):
            log.kernels[entry] = _resources(match, frames.get(entry, (0, 0, 0)))
        elif line.strip() and not _NO_MESSAGE.match(line):
            excerpt = [line]
    return log


def _resources(used: re.Match[str], frame: tuple[int, int, int]) -> Resources:
    stack, stores, loads = frame

    def total(pattern: str) -> int:
        return sum(int(number) for number in re.findall(pattern, used[2]))

    return Resources(
        registers=int(used[1]),
        spill_stores=stores,
        spill_loads=loads,
        stack=stack,
        shared=total(r"(\d+)(?:\+\d+)? bytes smem"),
        constant=0,
        barriers=total(r"used (\d+) barriers"),
        max_threads=0,
    )


def _diagnostic(lines: list[str]) -> Diagnostic:
    head, *rest = lines
    match = _PTXAS_LINE.match(head) or _TOOL.match(head) or _LOCATED.match(head)
    if match is None:
        return Diagnostic(Severity.NOTE, "\n".join(lines))
    fields = match.groupdict()
    return Diagnostic(
        severity=_SEVERITY.get(fields["severity"].lower(), Severity.ERROR),
        message=fields["message"].strip(),
        code=fields.get("code") or "",
        file=fields["file"],
        line=int(fields["line"]) if fields["line"] else None,
        column=_column(rest),
        excerpt="\n".join(rest),
    )


def _column(excerpt: list[str]) -> int | None:
    """The column of the caret; NVRTC indents source lines by two."""
    if len(excerpt) < 2 or excerpt[1].strip() != "^":
        return None
    return max(len(excerpt[1].rstrip()) - 2, 1)
