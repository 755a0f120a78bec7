"""B6: many processes want the same kernels at once, and some are killed at it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kernels_async._artifact import Artifact, Output
from kernels_async._locks import Lock
from kernels_async._tiers import Place, TieredStore

from .injection import ENTRIES, make_key, make_output, scratch, start

PATIENCE_SECONDS = 60.0
COMPILE_SECONDS = 0.002
TryLock = Callable[[TieredStore, str], Lock | None]


def want(tiers: TieredStore, key: str, output: Output, log: int, try_lock: TryLock) -> None:
    """Get one kernel as a server does: look, lock, look again, compile, keep."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        found = tiers.read(key)
        if found is None:
            lock = try_lock(tiers, key)
            if lock is None:
                time.sleep(0.002)
                continue
            try:
                found = tiers.read(key) or compile_(tiers, key, output, log)
            finally:
                lock.release()
        assert found.bytes == output.data
        return
    raise AssertionError("it waited too long")


def compile_(tiers: TieredStore, key: str, output: Output, log: int) -> Artifact:
    """Take some time, note that it was done, and keep it."""
    os.write(log, f"{key}\n".encode())
    time.sleep(COMPILE_SECONDS)
    return tiers.keep(key, ENTRIES, output)


def gather(
    processes: int,
    keys: int,
    kills: int,
    seed: int,
    try_lock: TryLock = TieredStore.try_lock,
) -> str:
    """Start them all at once, and kill some of them."""
    generator = random.Random(seed)
    wanted = {make_key(generator): make_output(generator) for _ in range(keys)}
    with scratch() as folder:
        gate, opening = os.pipe()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        def serve() -> None:
            os.close(opening)
            own = random.Random(os.getpid())
            private = folder / f"private-{os.getpid()}"
            tiers = TieredStore(Place(folder / "store"), "kernel.cubin", private)
            order = own.sample(list(wanted), keys)
            os.read(gate, 1)
            for key in order:
                want(tiers, key, wanted[key], log, try_lock)

        alive = {start(serve) for _ in range(processes)}
        began = time.monotonic()
        os.close(opening)
        ended: Counter[int] = Counter()
        killed = 0
        while alive:
            killing = killed < kills
            for process in list(alive):
                found, status = os.waitpid(process, os.WNOHANG if killing else 0)
                if found:
                    alive.discard(process)
                    ended[os.waitstatus_to_exitcode(status)] += 1
            if killing and alive:
                os.kill(generator.choice(sorted(alive)), signal.SIGKILL)
                killed += 1
                time.sleep(0.005)
        seconds = time.monotonic() - began
        os.close(gate)
        os.close(log)
        compiles = len((folder / "log").read_text().split())
        check_entries(folder / "store", wanted)
    died = ended.pop(-signal.SIGKILL, 0)
    assert set(ended) <= {0}, f"some failed: {ended}"
    if kills:
        assert keys <= compiles <= keys + died, f"{compiles} compiles, {died} killed"
    else:
        assert compiles == keys, f"{compiles} compiles of {keys}"
    return (
        f"seed {seed}, {processes} processes, {keys} keys, {died} SIGKILLs: "
        f"{compiles} compiles, 0 bad reads, {seconds:.1f} s of waiting"
    )


def check_entries(root: Path, wanted: dict[str, Output]) -> None:
    """Every kernel is there and right."""
    tiers = TieredStore(Place(root), "kernel.cubin", root.with_name("none"))
    for key, output in wanted.items():
        found = tiers.read(key)
        assert found is not None
        assert found.bytes == output.data


def herd(full: bool, seed: int) -> str:
    """Without kills and with them."""
    size = (100, 100) if full else (20, 20)
    kills = 60 if full else 8
    return f"{gather(*size, 0, seed)}; {gather(*size, kills, seed)}"


BARS = {"B6": herd}
