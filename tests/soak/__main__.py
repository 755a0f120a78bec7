"""`python -m tests.soak --minutes N [--seed S] [--processes P]`."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

from tests.soak.run import soak


def main() -> int:
    """Soak, and say what came of it; 1 if anything did that must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--processes", type=int, default=4)
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.processes} processes, {chosen.minutes:g} minutes")
    counts = asyncio.run(soak(chosen.minutes * 60, chosen.seed, chosen.processes))
    for what in (*counts.wrong, *counts.hung):
        print(what)
    print(
        f"{counts.servers} servers; failures that were told {dict(counts.failures)}; "
        f"left {dict(counts.leaked)}"
    )
    print(counts.summary())
    return 0 if counts.good else 1


if __name__ == "__main__":
    sys.exit(main())
