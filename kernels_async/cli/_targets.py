"""The targets of a command, and whether the NVRTC that there is compiles for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .._errors import SpecificationError
from ..toolchains import check_target
from ..toolchains._cuda import architectures
from ..toolchains._toolkit import find_library


def chosen_targets(given: Sequence[str]) -> list[str]:
    """The targets of an option such as `sm_80,sm_90`, each once, all of them known.

    Otherwise every kernel would fail, one after the other, for the same reason.

    Raises:
        SpecificationError: One is none, or is not known.
        ToolchainError: There is no NVRTC for those that take one.
    """
    names = [name.strip() for text in given for name in text.split(",")]
    chosen = list(dict.fromkeys(filter(None, names)))
    if not chosen:
        raise SpecificationError("build needs a target, such as --target sm_90,cpu")
    for target in map(check_target, chosen):
        lack = None if target == "cpu" else unknown_architecture(target)
        if lack is not None:
            raise SpecificationError(lack)
    return chosen


def unknown_architecture(target: str) -> str | None:
    """What to say of a GPU's target that this NVRTC does not know; `None` if it does.

    Raises:
        ToolchainError: There is no NVRTC.
    """
    known = architectures(find_library())
    if int(re.sub(r"\D", "", target)) in known:
        return None
    versions = f"this NVRTC compiles for sm_{known[0]} to sm_{known[-1]}"
    return f"{target} is not known: {versions}"
