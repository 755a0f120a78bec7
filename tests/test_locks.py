"""Tests of the locks: one for each key, the kernel's to let go of."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from kernels_async._files import Files
from kernels_async._locks import Hold, KeyLocks, Lock, is_network
from tests.bars.injection import fork, start

KEY = "ab" + "c" * 62
OTHER = "ab" + "d" * 62


def acquire(locks: KeyLocks, key: str = KEY) -> Lock:
    """A lock that is free."""
    lock = locks.try_acquire(key)
    assert lock is not None
    assert lock.is_held
    return lock


def descriptors() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def test_a_key_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    """In one process too; other keys are free meanwhile."""
    one, two = KeyLocks(tmp_path / "store"), KeyLocks(tmp_path / "store")
    lock = acquire(one)

    assert one.try_acquire(KEY) is None
    assert two.try_acquire(KEY) is None
    acquire(two, OTHER).release()
    lock.release()
    lock.release()
    acquire(two).release()


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    """Until the lock is released."""
    lock = acquire(KeyLocks(tmp_path))

    def is_free() -> None:
        acquire(KeyLocks(tmp_path)).release()

    assert fork(is_free) == 1
    lock.release()
    assert fork(is_free) == 0


def test_many_locks_take_one_descriptor_and_one_file(tmp_path: Path) -> None:
    """And none when nothing is held."""
    locks = KeyLocks(tmp_path / "store")
    before = descriptors()
    held = [acquire(locks, f"{n:04x}" * 16) for n in range(100)]

    assert descriptors() == before + 1
    assert os.listdir(tmp_path / "store") == ["locks"]
    for lock in held:
        lock.release()
    assert descriptors() == before


def hold(root: Path, ready: int) -> None:
    """Hold a lock for ever, in a process that has forked."""
    lock = acquire(KeyLocks(root))
    child = start(lambda: time.sleep(60))
    os.write(ready, child.to_bytes(4, "little"))
    time.sleep(60)
    lock.release()


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    """Also if a child that it forked lives on, from when that has begun to run."""
    receive, send = os.pipe()
    owner = start(lambda: hold(tmp_path, send))
    child = int.from_bytes(os.read(receive, 4), "little")
    locks = KeyLocks(tmp_path)
    try:
        assert locks.try_acquire(KEY) is None
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        ends = time.monotonic() + 1
        while (lock := locks.try_acquire(KEY)) is None and time.monotonic() < ends:
            time.sleep(0.001)
        assert lock is not None
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(receive)
        os.close(send)


def test_a_forked_child_cannot_let_go_of_its_parents_lock(tmp_path: Path) -> None:
    """It is the parent's."""
    locks = KeyLocks(tmp_path)
    lock = acquire(locks)

    def child() -> None:
        lock.release()
        assert locks.try_acquire(KEY) is None

    assert fork(child) == 0
    assert KeyLocks(tmp_path).try_acquire(KEY) is None
    lock.release()


def test_a_directory_that_is_replaced_has_new_locks(tmp_path: Path) -> None:
    """Who holds one in the old directory lets go of that."""
    root = tmp_path / "store"
    locks = KeyLocks(root)
    before = descriptors()
    old = acquire(locks)
    shutil.rmtree(root)
    new = acquire(locks)
    old.release()

    assert KeyLocks(root).try_acquire(KEY) is None
    new.release()
    assert descriptors() == before


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre"])
def test_a_directory_on_another_machine_is_locked_on_this_one(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of a network file system may hang."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    device = root.stat().st_dev
    mounts = tmp_path / "mountinfo"
    place = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(
        f"1 2 0:999 / / rw - ext4 x rw\n3 4 {place} / /mnt rw shared:1 - {kind} host:/x rw\n"
    )
    lock = acquire(KeyLocks(root, mounts=mounts))

    assert os.listdir(root) == []
    assert KeyLocks(root, mounts=mounts).try_acquire(KEY) is None
    (folder,) = tmp_path.glob("kernels_async-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    lock.release()


def test_a_local_file_system_is_not_taken_for_another_machines(tmp_path: Path) -> None:
    """As this one is; nor is one that the list does not have."""
    assert not is_network(tmp_path.stat().st_dev)
    assert not is_network(os.makedev(4000, 1))
    assert not is_network(1, tmp_path / "none")


class Lockless(Files):
    """A file system without locks."""

    def __init__(self, number: int) -> None:
        self._number = number

    def lock_byte(self, fd: int, offset: int) -> None:
        """Refuse."""
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_everybody_compiles(tmp_path: Path, number: int) -> None:
    """Publishing twice does no harm; waiting for ever does."""
    before = descriptors()
    locks = KeyLocks(tmp_path, Lockless(number))
    one, two = locks.try_acquire(KEY), locks.try_acquire(KEY)

    assert one is not None
    assert two is not None
    assert not one.is_held
    one.release()
    assert descriptors() == before


def test_a_directory_that_cannot_be_opened_has_no_locks(tmp_path: Path) -> None:
    """It keeps nothing either."""
    (tmp_path / "file").touch()
    lock = KeyLocks(tmp_path / "file").try_acquire(KEY)

    assert lock is not None
    assert not lock.is_held


def test_a_lock_that_a_thread_gets_too_late_is_let_go(tmp_path: Path) -> None:
    """The task that wanted it has ended: nobody else must wait for it."""
    locks, others = KeyLocks(tmp_path), KeyLocks(tmp_path)
    with Hold() as hold:
        pass
    assert hold.take(lambda: locks.try_acquire(KEY))
    acquire(others).release()
    with Hold() as hold:
        assert hold.take(lambda: locks.try_acquire(KEY))
        assert others.try_acquire(KEY) is None
    acquire(others).release()


def test_a_lock_is_its_takers_in_every_generation(tmp_path: Path) -> None:
    """Though the locks were made before the first fork."""
    locks = KeyLocks(tmp_path)

    def child() -> None:
        lock = acquire(locks)

        def grandchild() -> None:
            lock.release()
            assert locks.try_acquire(KEY) is None

        assert fork(grandchild) == 0
        lock.release()

    assert fork(child) == 0
