"""Which variables a kernel uses, read off the PTX of its whole program.

Everything that is not understood counts as used: a variable too many costs a few bytes,
one too few would be wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*")
_LINKAGE = r"^(?P<linkage>(?:\.\w+(?:\([^)]*\))?[ \t]+)*?)"
_VARIABLE = re.compile(
    _LINKAGE + r"\.(?:global|const)\b[^;{=]*?(?P<name>[\w$]+)(?:\[\d*\])*\s*(?:=[^;]*)?;",
    re.MULTILINE,
)
_FUNCTION = re.compile(
    _LINKAGE + r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(?P<name>[\w$]+)[^{;]*"
    r"(?:;|\{.*?^\})",
    re.MULTILINE | re.DOTALL,
)
_NAME = re.compile(r"(?<![\w$.%])[A-Za-z_$][\w$]*")


@dataclass(frozen=True)
class Variable:
    """A `__device__` or `__constant__` variable.

    Attributes:
        name: Its lowered name.
        is_exported: Whether other programs may name it, as with external linkage.
    """

    name: str
    is_exported: bool


def used_variables(ptx: str, entry: str) -> list[Variable]:
    """The variables that a kernel, what it calls and what those point to name."""
    text = _COMMENT.sub("", ptx)
    named: dict[str, set[str]] = {}
    variables: dict[str, Variable] = {}

    def take(definition: re.Match[str]) -> str:
        name = definition["name"]
        named.setdefault(name, set()).update(_NAME.findall(definition[0]))
        if definition.re is _VARIABLE:
            linkage = definition["linkage"]
            variables[name] = Variable(name, ".visible" in linkage or ".weak" in linkage)
        return ""

    rest = _VARIABLE.sub(take, _FUNCTION.sub(take, text))
    reached: set[str] = set()
    outstanding = {entry, *_NAME.findall(rest)}
    while outstanding:
        name = outstanding.pop()
        reached.add(name)
        outstanding |= named.get(name, set()) - reached
    return [variable for name, variable in variables.items() if name in reached]
