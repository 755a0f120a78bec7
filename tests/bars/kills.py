"""B1: a process may be killed at any call that it makes on the store."""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from kernels_async._artifact import Output
from kernels_async._files import Files
from kernels_async._locks import KeyLocks
from kernels_async._store import Store
from kernels_async._upkeep import prune, sweep_staging, verify

from .injection import (
    ENTRIES,
    MOMENTS,
    Counting,
    Killing,
    fork,
    make_key,
    make_output,
    scratch,
)

OLDER = 4
Open = Callable[[Path, Files], Store]


def open_store(root: Path, files: Files) -> Store:
    """The store that is tried."""
    return Store(root, "kernel.cubin", files=files)


class Victim:
    """A directory with some entries, and what may be going on in it when it is killed."""

    def __init__(self, root: Path, generator: random.Random, open_: Open) -> None:
        self.store = open_(root, Files())
        self.locks = KeyLocks(root)
        self._open = open_
        self._root = root
        self._generator = generator
        self.entries: dict[str, Output] = {}
        self.new = ""
        self.output = make_output(generator)

    def prepare(self) -> None:
        """Fill it up, and choose what will be published."""
        while len(self.entries) < OLDER:
            key, output = make_key(self._generator), make_output(self._generator)
            self.store.publish(key, ENTRIES, output)
            self.entries[key] = output
        self.new, self.output = make_key(self._generator), make_output(self._generator)

    def publish(self, files: Files) -> None:
        """Publish an entry."""
        self._open(self._root, files).publish(self.new, ENTRIES, self.output)

    def evict(self, files: Files) -> None:
        """Remove all but some entries."""
        prune(self._open(self._root, files), 1000)

    def lock(self, files: Files) -> None:
        """Compile under a lock."""
        lock = KeyLocks(self._root, files).try_acquire(self.new)
        assert lock is not None
        assert lock.is_held
        store = self._open(self._root, files)
        if store.read(self.new) is None:
            store.publish(self.new, ENTRIES, self.output)
        lock.release()

    def sweep(self, files: Files) -> None:
        """Remove what others left, of whom one was killed just now."""
        sweep_staging(self._open(self._root, files), 0)

    def replace(self, files: Files) -> None:
        """Find an entry damaged, put it aside, and publish it again."""
        store = self._open(self._root, files)
        if store.read(self.new) is None:
            store.publish(self.new, ENTRIES, self.output)

    def check(self, *, evicted: bool, damaged: bool) -> None:
        """Nothing is lost, torn or stuck; what was under way can be done again."""
        lock = self.locks.try_acquire(self.new)
        assert lock is not None, "a lock of a killed process is stuck"
        assert lock.is_held
        for key, output in list(self.entries.items()):
            found = self.store.read(key)
            assert found or evicted, "an older entry is lost"
            assert found is None or found.bytes == output.data, "an entry is corrupt"
            if found is None:
                del self.entries[key]
        assert damaged or not verify(self.store).damaged, "an entry is torn"
        self.store.publish(self.new, ENTRIES, self.output)
        found = self.store.read(self.new)
        assert found, "it cannot be published again"
        assert found.bytes == self.output.data, "the new entry is corrupt"
        lock.release()


SCENARIOS = {
    "publish": Victim.publish,
    "evict": Victim.evict,
    "lock": Victim.lock,
    "sweep": Victim.sweep,
    "replace": Victim.replace,
}


def leave_staging(victim: Victim) -> None:
    """Have a publisher killed in the middle."""
    fork(lambda: victim.publish(Killing(60, "half")))


def damage(victim: Victim) -> None:
    """Plant a torn entry."""
    path = victim.store.publish(victim.new, ENTRIES, victim.output).path
    path.write_bytes(path.read_bytes()[:-1])


PREPARATIONS = {"sweep": leave_staging, "replace": damage}


def count_calls(name: str, folder: Path, generator: random.Random, open_: Open) -> int:
    """How many calls it takes when nothing happens."""
    victim = Victim(folder / f"dry-{name}", generator, open_)
    victim.prepare()
    PREPARATIONS.get(name, lambda _: None)(victim)
    counting = Counting()
    SCENARIOS[name](victim, counting)
    return len(counting.calls)


def kill(count: int, seed: int, open_: Open = open_store) -> str:
    """Kill at `count` points, all of them in turn and in an order of chance."""
    generator = random.Random(seed)
    killed: Counter[str] = Counter()
    with scratch() as folder:
        turns: list[Iterator[tuple[str, int, str]]] = []
        total = 0
        for name in SCENARIOS:
            calls = count_calls(name, folder, generator, open_)
            points = [
                (name, at, moment) for at in range(1, calls + 1) for moment in MOMENTS
            ]
            generator.shuffle(points)
            turns.append(itertools.cycle(points))
            total += len(points)
        victim = Victim(folder / "store", generator, open_)
        for turn in itertools.islice(itertools.cycle(turns), count):
            name, at, moment = next(turn)
            victim.prepare()
            PREPARATIONS.get(name, lambda _: None)(victim)
            ended = fork(lambda: SCENARIOS[name](victim, Killing(at, moment)))  # noqa: B023
            assert ended in (0, -signal.SIGKILL), f"{name} {at} {moment}: {ended}"
            killed[name] += ended == -signal.SIGKILL
            victim.check(evicted=name == "evict", damaged=name == "replace")
            if sum(killed.values()) % 10 == 0:
                prune(victim.store, 0)
                victim.entries.clear()
        sweep_staging(victim.store, 0)
        left = list((victim.store.root / "tmp").iterdir())
        assert left == [], f"orphans: {left}"
    kinds = ", ".join(f"{name} {number}" for name, number in killed.items())
    assert sum(killed.values()) >= 0.9 * count, f"too few were killed: {kinds}"
    return (
        f"seed {seed}, {sum(killed.values())} SIGKILLs at {total} points ({kinds}): "
        "0 corrupt reads, 0 lost older entries, 0 stuck locks, 0 orphans"
    )


BARS = {"B1": lambda full, seed: kill(22_000 if full else 400, seed)}
