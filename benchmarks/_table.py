"""What the benchmarks share: one command line, one table, one JSON.

A script gives a title, what it excludes, its columns and `measure`, which returns rows;
`main` does the rest. A cell that does not apply is `None`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _fresh import fresh

NO_GPU_TARGET = "sm_90"
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Machine:
    """What the figures depend on; printed above each table."""

    cpus: int
    processor: str
    gpu: str | None
    driver: str | None
    target: str | None
    python: str
    nvrtc: str | None
    cupy: str | None
    date: str

    def __str__(self) -> str:
        gpu = f"{self.gpu}, driver {self.driver}" if self.gpu else "no GPU"
        return (
            f"{self.cpus} CPUs ({self.processor}), {gpu}, Python {self.python}, "
            f"NVRTC {self.nvrtc}, CuPy {self.cupy}, {self.date}"
        )


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
        device: Such as `"cuda:0"`; `"cpu"` where no GPU is to be used.
        target: What compile-only measurements compile for: the GPU's own target.
        workers: How many compiles run at once.
        quick: Whether only to show that the script works: sizes are tiny then.
    """

    device: str
    target: str
    workers: int
    quick: bool

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is used."""
        return self.device != "cpu"


def main(
    document: str,
    title: str,
    excludes: str,
    columns: Mapping[str, str],
    measure: Callable[[Options], Sequence[Row]],
) -> None:
    """Parse the command line, measure, and print one table or JSON.

    Args:
        document: The script's docstring.
        title: What is measured.
        excludes: What the figures leave out.
        columns: For each column, how its numbers are formatted.
        measure: Measures, and returns the rows.
    """
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "device",
        nargs="?",
        choices=("cpu", "cuda:0"),
        help="by default the GPU if there is one; CUDA_VISIBLE_DEVICES says which",
    )
    parser.add_argument("--json", nargs="?", const="-", metavar="PATH")
    parser.add_argument("--workers", type=int, help="by default the number of CPUs")
    parser.add_argument("--quick", action="store_true", help="tiny: figures mean nothing")
    given = parser.parse_args()
    machine = Machine(**fresh(describe))
    options = _options(given, machine)
    rows = measure(options)
    if given.json is None:
        _print(title, excludes, machine, options, columns, rows)
        return
    found = {
        "title": title,
        "excludes": excludes,
        "machine": asdict(machine),
        **asdict(options),
        "columns": list(columns),
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
    }
    text = json.dumps(found, indent=1, ensure_ascii=False)
    if given.json == "-":
        print(text)
    else:
        Path(given.json).write_text(text + "\n")


def describe() -> dict[str, Any]:
    """The fields of `Machine`; loads CuPy, so it runs in a process of its own."""
    gpu, target, cupy = _gpu()
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "gpu": gpu,
        "driver": _driver() if gpu else None,
        "target": target,
        "python": platform.python_version(),
        "nvrtc": _nvrtc(),
        "cupy": cupy,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _options(given: argparse.Namespace, machine: Machine) -> Options:
    device = given.device or ("cuda:0" if machine.gpu else "cpu")
    if device != "cpu" and machine.gpu is None:
        sys.exit(f"there is no {device} here")
    target = machine.target if device != "cpu" else None
    return Options(
        device, target or NO_GPU_TARGET, given.workers or machine.cpus, given.quick
    )


def _gpu() -> tuple[str | None, str | None, str | None]:
    """The GPU's name and target, and CuPy's version; `None` for what there is not."""
    try:
        import cupy
    except ImportError:
        return None, None, None
    try:
        found = cupy.cuda.runtime.getDeviceProperties(0)
    except cupy.cuda.runtime.CUDARuntimeError:
        return None, None, cupy.__version__
    return found["name"].decode(), f"sm_{found['major']}{found['minor']}", cupy.__version__


def _nvrtc() -> str | None:
    from _peers import toolchain

    from kernels_async import ToolchainError

    try:
        return ".".join(map(str, toolchain()["version"]))
    except ToolchainError:
        return None


def _driver() -> str:
    """The kernel module's version, else the CUDA version that the driver knows."""
    module = Path("/sys/module/nvidia/version")
    if module.exists():
        return module.read_text().strip()
    import cupy

    version: int = cupy.cuda.runtime.driverGetVersion()
    return f"for CUDA {version // 1000}.{version % 1000 // 10}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _print(
    title: str,
    excludes: str,
    machine: Machine,
    options: Options,
    columns: Mapping[str, str],
    rows: Sequence[Row],
) -> None:
    print(f"{title}\n\nmachine:  {machine}")
    print(f"run:      {_run(options)}")
    print(f"excludes: {excludes}\n")
    cells = [list(columns)]
    cells += (
        [_cell(cell, how) for cell, how in zip(row, columns.values(), strict=True)]
        for row in rows
    )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        parts = [
            cell.rjust(width) if how else cell.ljust(width)
            for cell, width, how in zip(line, widths, columns.values(), strict=True)
        ]
        print("  ".join(parts).rstrip())


def _run(options: Options) -> str:
    where = options.device if options.on_gpu else "no GPU: cpu device, and compiles"
    quick = (
        ", QUICK: the figures mean nothing, small sources stand for CUB"
        if options.quick
        else ""
    )
    return f"{where} for {options.target}, {options.workers} workers{quick}"


def _cell(cell: Any, how: str) -> str:
    return "-" if cell is None else format(cell, how)
