"""What several test modules need to watch processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOOD = "template <int N> __global__ void good(int* p) { *p = N; }\n"
SLOW = """
extern "C" __global__ void slow(float* p) {
  float v[32];
  for (int i = 0; i < 32; i++) v[i] = p[i];
#pragma unroll
  for (int r = 0; r < 40; r++) {
#pragma unroll
    for (int i = 0; i < 32; i++) v[i] = sinf(v[i]) * v[(i + r) % 32];
  }
  for (int i = 0; i < 32; i++) p[i] = v[i];
}
"""


def children(process: int | None = None) -> list[int]:
    """The process numbers of a process's children; by default of this one's."""
    number = os.getpid() if process is None else process
    text = Path(f"/proc/{number}/task/{number}/children").read_text()
    return [int(child) for child in text.split()]


async def until(condition: Callable[[], Any]) -> Any:
    """Wait for `condition` to hold; its value."""
    async with asyncio.timeout(20):
        while not (value := condition()):
            await asyncio.sleep(0.002)
        return value
