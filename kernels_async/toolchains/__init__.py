"""Toolchains: each turns source, specialization and target into bytes.

Which one serves is decided here, by the target, and known nowhere else.
"""

from __future__ import annotations

import re
from typing import Any

from .._errors import SpecificationError
from ._base import Access, Job, Toolchain
from ._cpu import CpuToolchain
from ._cuda import CudaToolchain
from ._link_options import refuse_unlinkable

__all__ = [
    "Access",
    "Job",
    "Toolchain",
    "check_target",
    "find",
    "from_configuration",
    "output_name",
    "refuse_unlinkable",
]

_KINDS: dict[str, type[CpuToolchain] | type[CudaToolchain]] = {
    "cpu": CpuToolchain,
    "cuda": CudaToolchain,
}


def check_target(target: str) -> str:
    """`target` if it is one: `cpu`, or `sm_` and a compute capability such as `sm_90a`."""
    if not isinstance(target, str):
        raise TypeError(f"a target is a string such as 'sm_90', not {target!r}")
    if target != "cpu" and not re.fullmatch(r"sm_\d{2,3}[af]?", target):
        hint = "; a cubin is needed, not PTX" if target.startswith("compute_") else ""
        raise SpecificationError(
            f"a target is 'cpu' or an architecture such as 'sm_90a', not {target!r}{hint}"
        )
    return target


def find(target: str, slim: bool = False) -> Toolchain:
    """The toolchain for `target`; blocks while it reads its libraries.

    Args:
        target: As `check_target` returns it.
        slim: Whether its output is to have nothing that the kernel does not use.
    """
    return CpuToolchain.find() if target == "cpu" else CudaToolchain.find(slim)


def output_name(target: str) -> str:
    """What the output for `target` is called, such as `kernel.cubin`."""
    return CpuToolchain.filename if target == "cpu" else CudaToolchain.filename


def from_configuration(configuration: dict[str, Any]) -> Toolchain:
    """The toolchain that `configuration` describes, in a worker."""
    return _KINDS[configuration["kind"]].from_configuration(configuration)
