"""What this machine, or the container on it, lets a pool of workers use."""

from __future__ import annotations

import os
from pathlib import Path

WORKER_BYTES = 512 << 20
"""What a worker holds after a compile that reads CUB: about 400 MB, and some air."""

_CGROUP = Path("/sys/fs/cgroup")


def default_workers() -> int:
    """How many compiles to run at once: bounded by processors and by free memory."""
    return max(1, min(_processors(), _available_memory() // WORKER_BYTES))


def _processors() -> int:
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        return count


def _available_memory() -> int:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits = [int(line.split()[1]) * 1024]
        most = int((_CGROUP / "memory.max").read_text())
        limits.append(most - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0, min(limits))
