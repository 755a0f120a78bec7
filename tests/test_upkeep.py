"""Tests of the upkeep: what goes, what stays, and what is never touched."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_async._artifact import Output
from kernels_async._files import Files
from kernels_async._record import Seal
from kernels_async._staging import staging_name
from kernels_async._store import ASIDE_MOST, Store
from kernels_async._tiers import Place, TieredStore
from kernels_async._upkeep import clear, prune, sweep_staging, verify
from tests.bars.injection import ENTRIES, fork, scratch, start

HOUR = 3600.0


def key(number: int) -> str:
    """One of many keys, in four directories."""
    return f"{number % 4:02x}{number:062x}"


def fill(store: Store, count: int, size: int = 1000) -> list[Path]:
    """Publish entries, the first of which is the least recently used."""
    paths = []
    for number in range(count):
        output = Output(bytes([number % 256]) * size, "k", (), None, 0.1)
        path = store.publish(key(number), ENTRIES, output).path
        past = time.time() - 24 * HOUR + number
        os.utime(path.parent, (past, past))
        paths.append(path)
    return paths


def size_of(root: Path) -> int:
    """Bytes of all entries."""
    return sum(path.stat().st_size for path in (root / "v1").rglob("*") if path.is_file())


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: these tests publish a lot."""
    with scratch() as folder:
        yield folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store", "kernel.cubin")


def test_the_least_recently_used_entries_go_first(store: Store) -> None:
    """Until the rest is small enough; nothing is left of them."""
    paths = fill(store, 8)
    whole = size_of(store.root)
    pruned = prune(store, whole // 2)

    assert [path.exists() for path in paths] == [False] * 4 + [True] * 4
    assert (pruned.removed, pruned.left) == (4, size_of(store.root))
    assert pruned.freed + pruned.left == whole
    assert list((store.root / "tmp").iterdir()) == []


def test_an_entry_that_was_read_is_recently_used(store: Store) -> None:
    """Its time is set at most once an hour."""
    paths = fill(store, 4)
    store.read(key(0))
    first = paths[0].parent.stat().st_mtime_ns
    store.read(key(0))
    assert paths[0].parent.stat().st_mtime_ns == first
    prune(store, size_of(store.root) // 4)

    assert [path.exists() for path in paths] == [True, False, False, False]


def test_an_entry_that_is_being_read_stays(store: Store) -> None:
    """However old it is, and if everything is to go."""
    paths = fill(store, 3)
    reader = os.open(paths[0].parent, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)

    assert (prune(store, 0).removed, clear(store).removed) == (2, 0)
    assert paths[0].exists()
    os.close(reader)
    assert clear(store).removed == 1


def test_reading_keeps_an_entry_from_going(store: Store) -> None:
    """From before its files are opened until they are read."""
    fill(store, 1)
    removed = []

    class Pruning(Files):
        def read(self, fd: int, size: int) -> bytes:
            removed.append(prune(store, 0).removed)
            return super().read(fd, size)

    assert Store(store.root, "kernel.cubin", files=Pruning()).read(key(0)) is not None
    assert set(removed) == {0}
    assert prune(store, 0).removed == 1


def test_an_entry_that_is_used_while_others_go_stays(store: Store) -> None:
    """It was old when it was looked at, and is not any more."""
    paths = fill(store, 2)

    class Used(Files):
        def rename(self, name: str, dir_fd: int, new: str, new_dir_fd: int) -> None:
            os.utime(paths[1].parent)
            super().rename(name, dir_fd, new, new_dir_fd)

    prune(Store(store.root, "kernel.cubin", files=Used()), 0)
    assert [path.exists() for path in paths] == [False, True]


@pytest.mark.parametrize("years", [-10, 10])
def test_a_clock_that_was_set_makes_no_entry_immortal_and_evicts_none(
    store: Store, years: int
) -> None:
    """A time in the future is set to now when it is seen; the order stays."""
    paths = fill(store, 4)
    for path in paths:
        moved = path.parent.stat().st_mtime + years * 8766 * HOUR
        os.utime(path.parent, (moved, moved))
    prune(store, size_of(store.root) // 2)

    assert [path.exists() for path in paths] == [False, False, True, True]
    assert all(path.parent.stat().st_mtime <= time.time() for path in paths[2:])
    os.utime(paths[3].parent, (time.time() + years * HOUR, time.time() + years * HOUR))
    assert store.read(key(3)) is not None
    assert abs(paths[3].parent.stat().st_mtime - time.time()) < HOUR / 2


def test_a_cache_with_a_limit_stays_below_it(tmp_path: Path) -> None:
    """While it is filled, whatever the limit is changed to later."""
    for limit in (20_000, 5000):
        place = Place(tmp_path / "store", max_bytes=limit)
        tiers = TieredStore(place, "kernel.cubin", tmp_path / "private")
        for number in range(40):
            output = Output(bytes([number]) * 1000, "k", (), None, 0.1)
            tiers.keep(key(number + limit), ENTRIES, output)
            assert size_of(tmp_path / "store") <= limit + 2000
        assert size_of(tmp_path / "store") <= limit
        assert tiers.read(key(39 + limit)) is not None


def test_of_very_many_entries_some_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bounded number in each call, and the size stays about right."""
    monkeypatch.setattr("kernels_async._upkeep._MOST_ENTRIES", 20)
    place = Place(tmp_path / "store", max_bytes=40_000)
    tiers = TieredStore(place, "kernel.cubin", tmp_path / "private")
    for number in range(400):
        output = Output(bytes([number % 256]) * 1000, "k", (), None, 0.1)
        tiers.keep(f"{number % 64:02x}{number:062x}", ENTRIES, output)
    assert 20_000 < size_of(tmp_path / "store") < 80_000


def test_many_who_prune_at_once_end_below_the_limit(store: Store) -> None:
    """Also if the limit is below one entry."""
    fill(store, 40)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            prune(store, 10)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert size_of(store.root) <= 10


def test_two_toolchains_are_looked_after_together(store: Store) -> None:
    """They share the directory, and each entry has its own kind of file."""
    other = Store(store.root, "kernel.so")
    fill(store, 2)
    path = other.publish(key(2), ENTRIES, Output(b"so", "k", (), None, 0.1)).path
    assert (verify(store).sound, verify(other).sound) == (3, 3)
    path.write_bytes(b"no")

    assert (verify(store).sound, verify(store).damaged) == (2, 0)
    assert prune(store, 0).removed == 2


def test_verifying_puts_aside_what_is_damaged_and_uses_nothing(
    store: Store,
) -> None:
    """Whole entries are as old as they were."""
    paths = fill(store, 6)
    old = paths[0].parent.stat().st_mtime
    paths[1].write_bytes(b"torn")
    paths[2].unlink()
    shutil.rmtree(paths[3].parent)
    paths[3].parent.write_text("a file")
    shutil.rmtree(paths[4].parent)
    paths[4].parent.symlink_to(paths[5].parent)
    found = verify(store)

    assert (found.sound, found.damaged, found.unreadable) == (2, 4, 0)
    assert verify(store).damaged == 0
    assert paths[0].parent.stat().st_mtime == old
    assert paths[5].exists()


def test_only_a_few_damaged_entries_are_kept_aside(
    store: Store,
) -> None:
    """The newest, so that somebody may look at them."""
    for number in range(ASIDE_MOST + 4):
        (path,) = fill(store, 1)
        path.write_bytes(b"torn %d" % number)
        assert store.read(key(0)) is None
    torn = {path.read_bytes() for path in (store.root / "aside").rglob("kernel.cubin")}

    assert torn == {b"torn %d" % number for number in range(4, ASIDE_MOST + 4)}
    left = plant(store, dead_name(store.root.parent), HOUR)
    clear(store)
    assert list((store.root / "aside").iterdir()) == []
    assert not left.exists()


def test_clearing_leaves_the_entries_of_other_keys(store: Store) -> None:
    """And of other versions: they have directories of their own."""
    fill(store, 2)
    keyed = Store(store.root, "kernel.cubin", seal=Seal(b"key"))
    fill(keyed, 3)
    (store.root / "v9").mkdir()

    assert clear(store).removed == 2
    assert verify(keyed).sound == 3
    assert (store.root / "v9").exists()


def test_an_empty_place_needs_no_upkeep(store: Store) -> None:
    """And is not made by it."""
    assert prune(store, 0).removed == clear(store).removed == sweep_staging(store) == 0
    assert verify(store).sound == 0
    assert not store.root.exists()


def plant(store: Store, name: str, age: float) -> Path:
    """Leave staging of some age."""
    path = store.root / "tmp" / name
    path.mkdir(parents=True, mode=0o700)
    (path / "kernel.cubin").write_bytes(b"half")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def dead_name(folder: Path) -> str:
    """A staging name of a process that has ended."""
    file = folder / "name"
    fork(lambda: file.write_text(staging_name()))
    return file.read_text()


def test_staging_of_dead_processes_is_swept_and_that_of_slow_ones_kept(
    store: Store, tmp_path: Path
) -> None:
    """What may be of another machine is kept for a day."""
    fill(store, 1)
    number, here, start, chance = staging_name().split("-")
    reused = "-".join([number, here, str(int(start) - 1), chance])
    elsewhere = "-".join([number, "0" * 16, start, chance])
    swept = [
        plant(store, dead_name(tmp_path), 2 * 60),
        plant(store, reused, 2 * 60),
        plant(store, "9-0123456789abcdef", 25 * HOUR),
        plant(store, elsewhere, 25 * HOUR),
    ]
    kept = [
        plant(store, dead_name(tmp_path), 10),
        plant(store, staging_name(), 100 * HOUR),
        plant(store, elsewhere.replace("0-", "1-"), HOUR),
        plant(store, "8-0123456789abcdef", HOUR),
    ]
    assert sweep_staging(store) == 4
    assert [path.exists() for path in [*swept, *kept]] == [False] * 4 + [True] * 4


def test_a_process_that_ended_and_was_not_waited_for_is_dead(
    store: Store, tmp_path: Path
) -> None:
    """It still has its number."""
    fill(store, 1)
    file = tmp_path / "name"
    child = start(lambda: file.write_text(staging_name()))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    left = plant(store, file.read_text(), HOUR)
    sweep_staging(store)
    os.waitpid(child, 0)

    assert not left.exists()


def test_publishing_sweeps_what_others_left(store: Store, tmp_path: Path) -> None:
    """Once in a while, without being asked."""
    fill(store, 1)
    left = plant(store, dead_name(tmp_path), HOUR)
    tiers = TieredStore(Place(store.root), "kernel.cubin", tmp_path / "private")
    tiers.keep(key(1), ENTRIES, Output(b"x", "k", (), None, 0.1))

    assert not left.exists()


def test_a_file_system_without_locks_is_looked_after_too(store: Store) -> None:
    """Readers may then miss an entry that goes."""

    class Lockless(Files):
        def lock(self, fd: int, *, shared: bool) -> None:
            raise OSError(38, "no locks")

    lockless = Store(store.root, "kernel.cubin", files=Lockless())
    fill(lockless, 2)
    assert lockless.read(key(0)) is not None
    assert prune(lockless, 0).removed == 2
