"""What this machine, or the container on it, lets a pool of workers use, and they use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

WORKER_BYTES = 512 << 20
"""What a worker holds after a compile that reads CUB: about 400 MB, and some air."""

LEAST_MEMORY = 64 << 20
"""What a worker holds before it has compiled anything, and some air."""

_LEAST_DEFAULT = 2 << 30
_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def default_workers() -> int:
    """How many compiles to run at once: bounded by processors and by free memory."""
    return max(1, min(processors(), available_memory() // WORKER_BYTES))


def default_memory() -> int:
    """The bytes that one compile may hold: half of what there is, in use or not."""
    most = [_PAGE * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):
        most.append(int((_CGROUP / "memory.max").read_text()))
    return max(_LEAST_DEFAULT, min(most) // 2)


def resident_bytes(process: int) -> int:
    """The resident memory of a process and all its descendants; 0 if it has ended."""
    total, found = 0, [process]
    while found:
        folder = _PROC / str(found.pop())
        try:
            total += int((folder / "statm").read_text().split()[1]) * _PAGE
            for thread in (folder / "task").iterdir():
                found += map(int, (thread / "children").read_text().split())
        except (OSError, ValueError, IndexError):
            continue
    return total


def processors() -> int:
    """How many processors there are for this process, by affinity and quota."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        return count


def available_memory() -> int:
    """The bytes of memory that are free, or would be if they were asked for."""
    limits = [_PAGE * os.sysconf("SC_AVPHYS_PAGES")]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits = [int(line.split()[1]) * 1024]
        most = int((_CGROUP / "memory.max").read_text())
        limits.append(most - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0, min(limits))
