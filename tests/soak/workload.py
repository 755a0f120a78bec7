"""What the servers ask for, and what is right."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import numpy as np
from blake3 import blake3

from kernels_async import Artifact, Kernel, Source, Specialization

GOOD = Source(
    "template <int N> __global__ void good(const int* x, int* y, int n) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) y[i] = x[i] * N + i;\n"
    "}\n"
)
BROKEN = Source("__global__ void broken(int* p) { *p = missing; }\n")
ENDLESS = Source(
    "".join(f"#define A{n} {f'A{n - 1} ' * 9}\n" for n in range(1, 13))
    + "#define A0 +1\n__global__ void endless(int* p) { *p = 0 A12; }\n"
)
CRASHING = Source(f"__global__ void crashing(int* p) {{ *p = {'!' * 600_000}1; }}\n")
KNOWN = 12


def known(chance: random.Random) -> int:
    """The number of a kernel: mostly one that others ask for too."""
    return chance.randrange(KNOWN) if chance.random() < 0.97 else chance.randrange(1 << 30)


def good(number: int) -> tuple[Source, Specialization]:
    """The request of the kernel of that number."""
    return GOOD, Specialization(f"good<{number}>")


def is_right(kernel: Kernel, number: int) -> bool:
    """Whether a kernel of the cpu device computes what was asked for."""
    x = np.arange(100, dtype=np.int32)
    y = np.zeros_like(x)
    kernel((4,), (32,), (x, y, np.int32(100)))
    wanted = x.astype(np.int64) * number + x
    return bool((y == wanted.astype(np.int32)).all())


def left_in(folder: str | Path) -> list[str]:
    """What is in a temporary directory, but for the user's own folder of locks."""
    return [n for n in os.listdir(folder) if not re.fullmatch(r"kernels_async-\d+", n)]


def fingerprint(artifact: Artifact) -> str:
    """What tells the bytes of an artifact."""
    return f"{artifact.entry} {blake3(artifact.bytes).hexdigest()}"
