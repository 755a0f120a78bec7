"""B2: a publisher is killed at every system call that it really makes."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from kernels_async._locks import KeyLocks
from kernels_async._store import Store
from kernels_async._tiers import Place, TieredStore
from kernels_async._upkeep import sweep_staging, verify

from .injection import ENTRIES, make_key, make_output, scratch

BEGIN, END = "/begin-of-publishing", "/end-of-publishing"
SOME = 8
_CALL = re.compile(r"(?:\d+ +)?(\w+)\((.*)")


def strace() -> str | None:
    """The program, or `None` if there is none that may trace."""
    found = shutil.which("strace")
    if found is None:
        return None
    tried = subprocess.run([found, "-o", os.devnull, "true"], capture_output=True)
    return None if tried.returncode else found


def publish(root: str, seed: int) -> None:
    """What the traced process does: lock, publish, prune; between two marks."""
    generator = random.Random(seed)
    key, output = make_key(generator), make_output(generator, 1000)
    private = Path(root).with_name("private")
    tiers = TieredStore(Place(Path(root), max_bytes=2000), "kernel.cubin", private)
    os.access(BEGIN, os.F_OK)
    lock = tiers.try_lock(key)
    tiers.keep(key, ENTRIES, output)
    if lock is not None:
        lock.release()
    os.access(END, os.F_OK)


def trace(root: Path, seed: int, *options: str) -> int:
    """Run a publisher under strace; its exit status."""
    program = f"from tests.bars.syscalls import publish; publish({str(root)!r}, {seed})"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path])),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [str(strace()), "-f", *options, sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True).returncode


def fill(root: Path, seed: int) -> dict[str, bytes]:
    """Some entries that are older."""
    generator = random.Random(seed + 1)
    entries = {make_key(generator): make_output(generator) for _ in range(2)}
    for key, output in entries.items():
        Store(root, "kernel.cubin").publish(key, ENTRIES, output)
    return {key: output.data for key, output in entries.items()}


def points(log: Path) -> list[tuple[str, int]]:
    """The calls between the marks: name, and which of that name it is in the process."""
    seen: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    inside = False
    for line in log.read_text(errors="replace").splitlines():
        call = _CALL.match(line)
        if call is None:
            continue
        seen[call[1]] += 1
        inside = inside or BEGIN in call[2]
        if inside:
            found.append((call[1], seen[call[1]]))
        if END in call[2]:
            break
    return found


def check(root: Path, seed: int, older: dict[str, bytes]) -> None:
    """What a killed publisher leaves is no entry or a whole one, and nothing is stuck."""
    generator = random.Random(seed)
    key, output = make_key(generator), make_output(generator, 1000)
    store = Store(root, "kernel.cubin")
    assert not verify(store).damaged
    for name, data in older.items():
        found = store.read(name)
        assert found is None or found.bytes == data
    lock = KeyLocks(root).try_acquire(key)
    assert lock is not None
    lock.release()
    store.publish(key, ENTRIES, output)
    found = store.read(key)
    assert found is not None
    assert found.bytes == output.data
    sweep_staging(store, 0)
    assert list((root / "tmp").iterdir()) == []


def kill_calls(count: int | None, seed: int) -> str:
    """Kill at every call, or at `count` of them."""
    if strace() is None:
        return "left out: there is no strace here that may trace"
    generator = random.Random(seed)
    with scratch() as folder:
        fill(folder / "dry", seed)
        assert trace(folder / "dry", seed, "-o", str(folder / "log")) == 0
        calls = points(folder / "log")
        chosen = calls if count is None else generator.sample(calls, count)
        killed = 0
        for number, (name, when) in enumerate(chosen):
            root = folder / str(number) / "store"
            root.parent.mkdir()
            older = fill(root, seed)
            ended = trace(
                root,
                seed,
                *("-o", os.devnull, "-e", f"trace={name}"),
                *("-e", f"inject={name}:signal=SIGKILL:when={when}"),
            )
            killed += ended in (-signal.SIGKILL, 128 + signal.SIGKILL)
            check(root, seed, older)
            shutil.rmtree(root.parent)
    assert killed >= 0.9 * len(chosen), f"only {killed} of {len(chosen)} were killed"
    return (
        f"seed {seed}, {killed} SIGKILLs at {len(chosen)} of {len(calls)} system calls: "
        "0 torn entries, 0 stuck locks, 0 orphans"
    )


BARS = {"B2": lambda full, seed: kill_calls(None if full else SOME, seed)}
