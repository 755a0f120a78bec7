"""Tests of the tiers: whatever a disk does, the kernel is kept somewhere."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kernels_async import SpecificationError
from kernels_async._artifact import Output
from kernels_async._files import Files
from kernels_async._record import Seal, chosen_key
from kernels_async._store import Store
from kernels_async._tiers import Place, TieredStore, _Trouble
from tests.bars.injection import ENTRIES, Failing, fork

KEY = "ab" + "c" * 62
OTHER = "ab" + "d" * 62
OUTPUT = Output(b"\x7fELF cubin", "_Z1kv", (), None, 0.25)


class Clock:
    """Seconds, as a test sets them."""

    now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Full(Files):
    """A disk that is full, and counts what is tried."""

    def __init__(self) -> None:
        self.is_full = True
        self.number = errno.ENOSPC
        self.tried = 0

    def write(self, fd: int, data: memoryview) -> int:
        """Write, or refuse."""
        if self.is_full:
            self.tried += 1
            raise OSError(self.number, os.strerror(self.number))
        return super().write(fd, data)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def disk() -> Full:
    """A full disk."""
    return Full()


@pytest.fixture
def tiers(tmp_path: Path, disk: Full, clock: Clock) -> TieredStore:
    """A store on the full disk, and a private folder on another."""
    return open_tiers(tmp_path, files=disk, clock=clock)


def open_tiers(
    folder: Path,
    *,
    layers: Sequence[Path] = (),
    max_bytes: int | None = None,
    key: bytes | None = None,
    files: Files | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TieredStore:
    """A store in a folder."""
    place = Place(folder / "store", tuple(layers), max_bytes, key)
    private = folder / "private"
    return TieredStore(place, "kernel.cubin", private, files=files, clock=clock)


def key(number: int) -> str:
    """One of many keys."""
    return f"{number:064x}"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the server was told."""
    return [r.getMessage() for r in caplog.records if r.name == "kernels_async"]


def test_what_a_full_disk_cannot_keep_is_kept_privately_and_told_once(
    tiers: TieredStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel is delivered; the server is told once, not per kernel."""
    for number in range(20):
        kept = tiers.keep(key(number), ENTRIES, OUTPUT)
        assert (kept.bytes, kept.origin) == (OUTPUT.data, "compiled")
        assert kept.path.is_relative_to(tmp_path / "private")
        assert tiers.read(key(number)) is not None

    (warning,) = told(caplog)
    assert "not kept" in warning
    assert "No space left" in warning


def test_writing_is_tried_again_later_and_each_time_twice_as_late(
    tiers: TieredStore, disk: Full, clock: Clock
) -> None:
    """After a second, and at the latest after a minute."""
    tiers.keep(KEY, ENTRIES, OUTPUT)
    for number, delay in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):
        clock.now += delay - 0.5
        tiers.keep(KEY, ENTRIES, OUTPUT)
        assert disk.tried == number
        clock.now += 0.5
        tiers.keep(KEY, ENTRIES, OUTPUT)
        assert disk.tried == number + 1


def test_a_disk_with_room_again_is_written_again(
    tiers: TieredStore, disk: Full, clock: Clock, tmp_path: Path
) -> None:
    """Without a restart of the server."""
    tiers.keep(KEY, ENTRIES, OUTPUT)
    disk.is_full = False
    assert tiers.keep(KEY, ENTRIES, OUTPUT).path.is_relative_to(tmp_path / "private")
    clock.now += 1

    assert tiers.keep(KEY, ENTRIES, OUTPUT).path.is_relative_to(tmp_path / "store")
    assert tiers.keep(OTHER, ENTRIES, OUTPUT).path.is_relative_to(tmp_path / "store")


def test_a_new_fault_is_tried_again_as_soon_as_the_first_one(
    tiers: TieredStore, disk: Full, clock: Clock
) -> None:
    """What is over has no part in it."""
    for wait in (1, 2):
        tiers.keep(KEY, ENTRIES, OUTPUT)
        clock.now += wait
    disk.is_full = False
    tiers.keep(KEY, ENTRIES, OUTPUT)
    disk.is_full, tried = True, disk.tried
    tiers.keep(OTHER, ENTRIES, OUTPUT)
    clock.now += 1
    tiers.keep(OTHER, ENTRIES, OUTPUT)

    assert disk.tried == tried + 2


def test_what_fails_in_many_threads_at_once_has_failed_once(clock: Clock) -> None:
    """Else a burst of kernels would put off the next try for a minute."""
    trouble = _Trouble(clock)
    for _ in range(10):
        trouble.put_off()
    clock.now += 1

    assert not trouble.is_recent()


def test_another_cause_is_told_and_the_same_one_after_an_hour(
    tiers: TieredStore, disk: Full, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A new one is news, and an old one is not over."""
    for number in (errno.ENOSPC, errno.EIO, errno.ENOSPC, errno.EIO):
        disk.number = number
        tiers.keep(KEY, ENTRIES, OUTPUT)
        clock.now += 100
    assert len(told(caplog)) == 2
    clock.now += 3600
    tiers.keep(KEY, ENTRIES, OUTPUT)

    assert len(told(caplog)) == 3


def test_what_can_be_kept_nowhere_is_delivered_all_the_same(tmp_path: Path) -> None:
    """Its bytes are in memory."""
    (tmp_path / "private").touch()
    (tmp_path / "store").touch()
    kept = open_tiers(tmp_path).keep(KEY, ENTRIES, OUTPUT)

    assert (kept.bytes, kept.digest, kept.entry) == (OUTPUT.data, KEY, "_Z1kv")


def test_the_private_folder_is_used_wherever_it_lies(tmp_path: Path) -> None:
    """A container's folder for temporary files may be anybody's."""
    tmp_path.chmod(0o777)
    kept = open_tiers(tmp_path).keep(KEY, ENTRIES, OUTPUT)

    assert kept.path.is_relative_to(tmp_path / "private")
    assert kept.path.read_bytes() == OUTPUT.data


def test_without_a_directory_the_private_folder_is_used(tmp_path: Path) -> None:
    """As where there is no home directory."""
    tiers = TieredStore(Place(None), "kernel.cubin", tmp_path / "private")
    lock = tiers.try_lock(KEY)

    assert lock is not None
    assert not lock.is_held
    assert tiers.keep(KEY, ENTRIES, OUTPUT).path.is_relative_to(tmp_path / "private")
    assert tiers.read(KEY) is not None


def test_an_unreadable_directory_is_told_once_and_nothing_in_it_is_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of the disk is not a fault of the entry."""
    path = open_tiers(tmp_path).keep(KEY, ENTRIES, OUTPUT).path

    class Broken(Files):
        def read(self, fd: int, size: int) -> bytes:
            raise OSError(errno.EIO, "broken")

    tiers = open_tiers(tmp_path, files=Broken())
    for _ in range(5):
        assert tiers.read(KEY) is None
    (warning,) = told(caplog)
    assert "cannot be read" in warning
    assert path.exists()


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file may have more than a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_limit_on_the_size_of_files_kills_nobody(tmp_path: Path) -> None:
    """It is an error like a full disk; the signal is ignored by Python."""

    def keep() -> None:
        with small_files():
            kept = open_tiers(tmp_path).keep(KEY, ENTRIES, OUTPUT)
        assert kept.bytes == OUTPUT.data
        assert list((tmp_path / "store" / "tmp").iterdir()) == []

    assert fork(keep) == 0


def snapshot(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything about a directory but when it was read."""
    return {
        str(path): (found.st_mode, found.st_ino, found.st_mtime_ns, data)
        for path in [root, *root.rglob("*")]
        for found in [path.stat()]
        for data in [path.read_bytes() if path.is_file() else b""]
    }


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A directory as it is baked into an image: readable by all, long unused."""
    root = tmp_path / "layer"
    for name in (KEY, OTHER):
        Store(root, "kernel.cubin").publish(name, ENTRIES, OUTPUT)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (0, 0))
    return root


def test_a_layer_is_read_and_never_written(tmp_path: Path, layer: Path) -> None:
    """Not locked, not touched; what is compiled goes to the directory above."""
    before = snapshot(layer)
    tiers = open_tiers(tmp_path, layers=[layer, tmp_path / "none"])
    found = tiers.read(KEY)

    assert found is not None
    assert (found.origin, found.path) == ("disk", Store(layer, "kernel.cubin").path(KEY))
    kept = tiers.keep(key(1), ENTRIES, OUTPUT)
    assert kept.path.is_relative_to(tmp_path / "store")
    assert snapshot(layer) == before


def test_a_damaged_entry_of_a_layer_is_a_miss_and_stays(
    tmp_path: Path, layer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is compiled again into the directory above, which comes first."""
    Store(layer, "kernel.cubin").path(KEY).write_bytes(b"torn")
    before = snapshot(layer)
    tiers = open_tiers(tmp_path, layers=[layer])

    assert tiers.read(KEY) is None
    assert "damaged" in told(caplog)[0]
    tiers.keep(KEY, ENTRIES, OUTPUT)
    found = tiers.read(KEY)
    assert found is not None
    assert found.path.is_relative_to(tmp_path / "store")
    assert snapshot(layer) == before


def test_a_layer_that_others_can_write_is_not_read(
    tmp_path: Path, layer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever can write it can run code here."""
    layer.chmod(0o775)
    tiers = open_tiers(tmp_path, layers=[layer])

    assert tiers.read(KEY) is None
    assert "may be written by others" in told(caplog)[0]


def test_an_artifact_that_is_larger_than_the_limit_is_kept_privately(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would drive out everything, and itself."""
    tiers = open_tiers(tmp_path, max_bytes=5)

    assert tiers.keep(KEY, ENTRIES, OUTPUT).path.is_relative_to(tmp_path / "private")
    assert told(caplog) == []


def test_the_directory_may_be_deleted_at_any_time(tmp_path: Path) -> None:
    """It is made again."""
    tiers = open_tiers(tmp_path)
    for _ in range(3):
        assert tiers.keep(KEY, ENTRIES, OUTPUT).path.is_relative_to(tmp_path / "store")
        assert tiers.read(KEY) is not None
        shutil.rmtree(tmp_path / "store")
        assert tiers.read(KEY) is None


def test_a_stale_handle_is_tried_once_more(tmp_path: Path) -> None:
    """A network file system has them when a directory was replaced."""
    open_tiers(tmp_path).keep(KEY, ENTRIES, OUTPUT)
    for at in range(1, 10):
        files = Failing(at, errno.ESTALE)
        assert open_tiers(tmp_path, files=files).read(KEY) is not None
        assert files.failed == 1


def test_caches_with_different_keys_share_a_directory(tmp_path: Path) -> None:
    """Each reads what was written with its own key, and harms no other's entries."""
    caches = [open_tiers(tmp_path, key=key) for key in (None, b"one", b"two")]
    for number, cache in enumerate(caches):
        assert cache.read(KEY) is None
        cache.keep(KEY, ENTRIES, Output(b"%d" % number, "k", (), None, 0.1))
    for number, cache in enumerate(caches):
        found = cache.read(KEY)
        assert found is not None
        assert found.bytes == b"%d" % number
    assert len(list((tmp_path / "store").glob("v1*"))) == 3


def test_the_name_of_a_key_tells_nothing_of_the_key_that_seals() -> None:
    """Each purpose has a key of its own."""
    seal = Seal(b"key")
    assert seal._key is not None
    assert seal.namespace.removeprefix("v1-") not in seal._key.hex()


def test_the_key_of_a_shared_cache_is_an_argument_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not shown; an empty one is a mistake, and not no key."""
    monkeypatch.delenv("KERNELS_ASYNC_CACHE_KEY", raising=False)
    assert chosen_key(None) is None
    monkeypatch.setenv("KERNELS_ASYNC_CACHE_KEY", "secret")
    assert chosen_key(None) == b"secret"
    assert chosen_key("other") == b"other"
    assert Seal(b"secret").namespace != Seal(b"other").namespace != "v1"
    assert "secret" not in f"{Seal(b'secret')!r} {Place(None, key=b'secret')!r}"
    for empty in ("", b""):
        with pytest.raises(SpecificationError, match="empty"):
            chosen_key(empty)
    monkeypatch.setenv("KERNELS_ASYNC_CACHE_KEY", "")
    with pytest.raises(SpecificationError, match="empty"):
        chosen_key(None)
