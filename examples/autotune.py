"""An autotuner: fifty variants of a matrix product, built in one batch, the fastest kept.

A variant is a set of defines: the tile that a block computes, how many of its numbers a
thread does, how far the loop is unrolled, how many blocks are to fit on a multiprocessor.
Some cannot be right, and a `static_assert` says so; some spill registers, and a
`SpillPolicy` refuses them. The others are run, checked and timed::

    python examples/autotune.py --device cuda:0 --size 2048 --keep tuned

The choice is remembered: `tuned/choices.json` has its defines, by target and size, and
`tuned/kernels.manifest.json` the kernel, for `Kernels.warm` and `kernels-async build`. The
next start compiles that one only, if it has to; `--again` tunes again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from kernels_async import (
    Kernel,
    Kernels,
    KernelsError,
    Manifest,
    ManifestKernel,
    Source,
    Specialization,
    SpillPolicy,
)

MATMUL = Source(
    name="matmul.cu",
    text=r"""
static_assert(TILE * TILE / WORK <= 1024, "a block has at most 1024 threads");
constexpr int ROWS = TILE / WORK;  // of threads
constexpr int DEPTH = 16;

// C = A B, all n x n and row-major. A block computes a tile of C, a thread WORK numbers of
// one of its columns, in steps of DEPTH.
extern "C" __global__ void __launch_bounds__(TILE * ROWS, BLOCKS)
matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float left[TILE][DEPTH + 1], right[DEPTH][TILE];
    const int x = threadIdx.x, y = threadIdx.y, thread = y * TILE + x;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    float sums[WORK] = {};
    for (int first = 0; first < n; first += DEPTH) {
        for (int i = thread; i < TILE * DEPTH; i += TILE * ROWS) {
            int r = row + i / DEPTH, k = first + i % DEPTH;
            left[i / DEPTH][i % DEPTH] = r < n && k < n ? a[(size_t)r * n + k] : 0;
            k = first + i / TILE, r = column + i % TILE;
            right[i / TILE][i % TILE] = k < n && r < n ? b[(size_t)k * n + r] : 0;
        }
        __syncthreads();
#pragma unroll UNROLL
        for (int k = 0; k < DEPTH; ++k) {
            const float value = right[k][x];
#pragma unroll
            for (int i = 0; i < WORK; ++i) sums[i] += left[y + i * ROWS][k] * value;
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < WORK; ++i)
        if (row + y + i * ROWS < n && column + x < n)
            c[(size_t)(row + y + i * ROWS) * n + column + x] = sums[i];
}
""",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compile the kernel.

    Attributes:
        tile: The sides of the tile that a block computes.
        work: How many numbers of it a thread computes.
        unroll: How many rounds of a step's loop are unrolled.
        blocks: How many blocks are to fit on a multiprocessor, which limits registers.
    """

    tile: int
    work: int
    unroll: int
    blocks: int

    @property
    def specialization(self) -> Specialization:
        """What is compiled."""
        defines = {name.upper(): value for name, value in asdict(self).items()}
        return Specialization("matmul", defines)

    def launch(self, kernel: Kernel, a: Any, b: Any, c: Any) -> None:
        """Launch the kernel on square arrays of its device."""
        tiles = -(-len(a) // self.tile)
        block = (self.tile, self.tile // self.work)
        kernel((tiles, tiles), block, (a, b, c, np.int32(len(a))))


VARIANTS = [Variant(*v) for v in product((32, 64, 128), (8, 16, 32), (1, 4, 16), (1, 4))]
Choices = dict[str, Variant]


class Bench:
    """Times variants on the device of a cache; call it in a thread.

    Args:
        device: The device's name.
        size: The sides of the matrices.
    """

    def __init__(self, device: str, size: int) -> None:
        a, b = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
        self.expected = a @ b
        self.arrays: list[Any] = [a, b, np.zeros_like(a)]
        self.cupy: Any = None
        if device != "cpu":
            import cupy

            self.cupy = cupy
            self.cupy.cuda.Device(int(device.removeprefix("cuda:"))).use()
            self.arrays = [cupy.asarray(array) for array in self.arrays]

    def seconds(self, variant: Variant, kernel: Kernel) -> float:
        """What a launch takes, the fastest of three; `inf` if its result is wrong."""
        self.arrays[2].fill(0)
        took = min(self._time(variant, kernel) for _ in range(3))
        found = self.arrays[2] if self.cupy is None else self.arrays[2].get()
        is_right = np.allclose(found, self.expected, rtol=1e-3, atol=1e-2)
        return took if is_right else float("inf")

    def _time(self, variant: Variant, kernel: Kernel) -> float:
        if self.cupy is None:
            began = time.perf_counter()
            variant.launch(kernel, *self.arrays)
            return time.perf_counter() - began
        first, last = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        first.record()
        variant.launch(kernel, *self.arrays)
        last.record()
        last.synchronize()
        milliseconds: float = self.cupy.cuda.get_elapsed_time(first, last)
        return milliseconds / 1e3


def time_all(
    device: str, size: int, kernels: dict[Variant, Kernel]
) -> dict[Variant, float]:
    """Time each on the same matrices; blocks."""
    bench = Bench(device, size)
    return {variant: bench.seconds(variant, kernel) for variant, kernel in kernels.items()}


async def tune(kernels: Kernels, variants: list[Variant], size: int) -> Variant:
    """Compile all variants in one batch, time those that are any good; the fastest."""
    kernels.reporting(SpillPolicy(warn=None, reject=1))
    began = time.perf_counter()
    pendings = [kernels.request(MATMUL, variant.specialization) for variant in variants]
    outcomes = await asyncio.gather(*pendings, return_exceptions=True)
    print(f"{kernels}: {len(variants)} variants in {time.perf_counter() - began:.1f} s")

    good: dict[Variant, Kernel] = {}
    for variant, outcome in zip(variants, outcomes, strict=True):
        if isinstance(outcome, Kernel):
            good[variant] = outcome
        elif isinstance(outcome, KernelsError):
            print(f"dropped {variant}: {str(outcome).splitlines()[0]}")
        else:
            raise outcome
    if not good:
        raise SystemExit("no variant is any good")

    device = next(iter(good.values())).device
    seconds = await asyncio.to_thread(time_all, device, size, good)
    print_table(good, seconds, size)
    return min(seconds, key=seconds.__getitem__)


def print_table(
    kernels: dict[Variant, Kernel], seconds: dict[Variant, float], size: int
) -> None:
    """The variants, the fastest first."""
    print("tile  work  unroll  blocks  registers         ms  GFLOP/s")
    for variant in sorted(seconds, key=seconds.__getitem__):
        used, took = kernels[variant].artifact.resources, seconds[variant]
        registers = used.registers if used else "-"
        print(
            f"{variant.tile:4}{variant.work:6}{variant.unroll:8}{variant.blocks:8}"
            f"{registers:>11}{took * 1e3:11.3f}{2e-9 * size**3 / took:9.0f}"
        )


async def choose(options: argparse.Namespace, choices: Choices) -> Choices:
    """The choices, with one for this device and size."""
    async with Kernels.open(options.device) as kernels:
        problem = f"{kernels.compiler.target} {options.size}"
        known = choices.get(problem)
        if known is None or options.again:
            chosen = await tune(kernels, VARIANTS[: options.most], options.size)
            print(f"chosen for {problem}: {chosen}")
            return choices | {problem: chosen}
        kernel = await kernels.get(MATMUL, known.specialization)
        print(f"known for {problem}: {known}, {kernel.artifact.origin}")
        return choices


def read_choices(path: Path) -> Choices:
    """What was chosen before; a file that is no such thing is an error."""
    if not path.exists():
        return {}
    return {problem: Variant(**v) for problem, v in json.loads(path.read_text()).items()}


def main() -> None:
    """Tune, or take what is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", help="'cpu' or such as 'cuda:0'")
    add("--size", type=int, default=256, help="sides of the matrices")
    add("--most", type=int, default=len(VARIANTS), help="how many variants to try")
    add("--keep", type=Path, default=Path("tuned"), help="the folder of the choices")
    add("--again", action="store_true", help="tune again")
    options = parser.parse_args()

    path = options.keep / "choices.json"
    choices = asyncio.run(choose(options, read_choices(path)))
    options.keep.mkdir(parents=True, exist_ok=True)
    written = {problem: asdict(variant) for problem, variant in choices.items()}
    path.write_text(json.dumps(written, indent=1) + "\n")
    chosen = [ManifestKernel(MATMUL, v.specialization) for v in set(choices.values())]
    asyncio.run(Manifest(tuple(chosen)).save(options.keep / "kernels.manifest.json"))


if __name__ == "__main__":
    main()
