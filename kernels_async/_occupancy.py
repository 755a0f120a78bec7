"""How many blocks of a kernel a multiprocessor runs at once, computed without a GPU.

The limits are those of the table "Technical Specifications per Compute Capability" of the
CUDA C++ Programming Guide, and registers are given out by the warp, in units of 256.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ._resources import Resources

WARP = 32
MOST_THREADS = 1024
_REGISTERS = 65536
_REGISTER_UNIT = 256
_WARP_GROUPS = 4
_SHARED_UNIT = 128


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What one multiprocessor of an architecture has to give.

    Attributes:
        threads: Threads at once.
        blocks: Blocks at once.
        shared: Bytes of shared memory.
        reserved: Bytes of shared memory that the system takes for each block.
    """

    threads: int
    blocks: int
    shared: int
    reserved: int = 1024


_MULTIPROCESSORS = {
    75: Multiprocessor(1024, 16, 64 << 10, 0),
    80: Multiprocessor(2048, 32, 164 << 10),
    86: Multiprocessor(1536, 16, 100 << 10),
    87: Multiprocessor(1536, 16, 164 << 10),
    89: Multiprocessor(1536, 24, 100 << 10),
    90: Multiprocessor(2048, 32, 228 << 10),
    100: Multiprocessor(2048, 32, 228 << 10),
    120: Multiprocessor(1536, 24, 100 << 10),
}


def multiprocessor(target: str) -> Multiprocessor | None:
    """The multiprocessor of a target such as `sm_90a`; `None` if it is not known."""
    match = re.fullmatch(r"sm_(\d{1,4})[af]?", target)
    return _MULTIPROCESSORS.get(int(match[1])) if match else None


def most_threads(resources: Resources) -> int:
    """The most threads that a block can have, for its registers; a multiple of a warp."""
    bound = resources.max_threads or MOST_THREADS
    return min(MOST_THREADS, bound, _warps_for_registers(resources) * WARP)


def blocks_at_once(
    resources: Resources, limits: Multiprocessor, threads: int, dynamic_shared: int
) -> int:
    """How many blocks of so many threads a multiprocessor runs at once; 0 if none fits."""
    warps = -(-threads // WARP)
    shared = _up(resources.shared + dynamic_shared + limits.reserved, _SHARED_UNIT)
    if threads > most_threads(resources) or shared > limits.shared:
        return 0
    return min(
        limits.blocks,
        limits.threads // WARP // warps,
        _warps_for_registers(resources) // warps,
        limits.shared // shared if shared else limits.blocks,
    )


def _warps_for_registers(resources: Resources) -> int:
    """Warps whose registers fit; each quarter of a multiprocessor has its own registers."""
    each = _up(max(resources.registers, 1) * WARP, _REGISTER_UNIT)
    return _REGISTERS // _WARP_GROUPS // each * _WARP_GROUPS


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
