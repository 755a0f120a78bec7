"""Runs bars by their name: `python -m tests.bars B1 [--full] [--seed N]`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import random
import time
from collections.abc import Callable

import tests.bars


def find() -> dict[str, Callable[[bool, int], str]]:
    """Every bar of every module, by name."""
    modules = (
        importlib.import_module(f"{tests.bars.__name__}.{module.name}")
        for module in pkgutil.iter_modules(tests.bars.__path__)
        if not module.name.startswith("_")
    )
    return {
        name: bar for module in modules for name, bar in getattr(module, "BARS", {}).items()
    }


def main() -> None:
    """Run those whose name is given, or begins with it and a hyphen."""
    bars = find()
    parser = argparse.ArgumentParser(prog="python -m tests.bars", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(sorted(bars))}")
    parser.add_argument("--full", action="store_true", help="with the full counts")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args()
    names = [
        name
        for name in bars
        if not chosen.names or {name, name.partition("-")[0]} & set(chosen.names)
    ]
    if not names:
        parser.error(f"there is no bar {' '.join(chosen.names)}")
    for name in names:
        began = time.monotonic()
        summary = bars[name](chosen.full, chosen.seed)
        print(f"{name}: {summary} in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
