"""Tests of the artifact store: whole, verified, or a miss."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernels_async import Artifact, Diagnostic, Resources, Severity
from kernels_async._artifact import Output
from kernels_async._files import Files
from kernels_async._store import RECORD, Store, default_cache_dir
from kernels_async._trust import LAYER
from tests.bars.damage import Altered, damages
from tests.bars.injection import Counting

NOBODY = 65534
KEY = "ab" + "c" * 62
OTHER = "ab" + "d" * 62
ENTRIES = {"symbol": "k<int>", "target": "sm_90", "toolchain": "nvrtc 13.5"}
OUTPUT = Output(
    data=b"\x7fELF cubin",
    entry="_Z1kv",
    diagnostics=(Diagnostic(Severity.WARNING, "unused", "177-D", "k.cu", 1, 2, "x"),),
    resources=Resources(1, 2, 3, 4, 5, 6, 7),
    compile_seconds=0.25,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in a directory that does not exist yet."""
    return Store(tmp_path / "store", "kernel.cubin")


def publish(store: Store, key: str = KEY, output: Output = OUTPUT) -> Artifact:
    """Publish one artifact."""
    return store.publish(key, ENTRIES, output)


def test_what_was_published_is_read_back_whole(store: Store) -> None:
    """Bytes, names, diagnostics and resources come back, and say where from."""
    compiled = publish(store)
    read = store.read(KEY)

    assert read is not None
    assert (compiled.origin, read.origin) == ("compiled", "disk")
    assert read.path == store.root / "v1" / "ab" / ("c" * 62) / "kernel.cubin"
    assert read.path.read_bytes() == read.bytes == OUTPUT.data
    assert (read.digest, read.symbol, read.entry) == (KEY, "k<int>", "_Z1kv")
    assert (read.target, read.compiler_identity) == ("sm_90", "nvrtc 13.5")
    assert (read.diagnostics, read.resources) == (OUTPUT.diagnostics, OUTPUT.resources)
    assert (read.compile_seconds, read.entries) == (0.25, ENTRIES)


def test_a_key_that_was_never_published_is_a_miss(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A miss is silent, and makes nothing."""
    assert store.read(KEY) is None
    assert not store.root.exists()
    assert caplog.records == []


def test_files_are_for_their_owner_alone(store: Store) -> None:
    """An entry is code that will be loaded."""
    path = publish(store).path

    modes = [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent, store.root)]
    assert modes == [0o600, 0o700, 0o700]


def test_an_entry_is_on_the_disk_before_it_appears(store: Store) -> None:
    """Its files and their directory; and then where it appears."""
    publish(store, OTHER)
    counting = Counting()
    publish(Store(store.root, "kernel.cubin", files=counting))
    order = [name for name in counting.calls if name in ("write", "sync", "rename")]

    assert order == ["write", "sync", "write", "sync", "sync", "rename", "sync"]


class Stuttering(Files):
    """A file system that reads and writes a byte at a time."""

    def read(self, fd: int, size: int) -> bytes:
        """One byte."""
        return super().read(fd, 1)

    def write(self, fd: int, data: memoryview) -> int:
        """One byte."""
        return super().write(fd, data[:1])


def test_what_is_read_and_written_in_parts_is_whole(store: Store) -> None:
    """The system may do less than it is asked for."""
    stuttering = Store(store.root, "kernel.cubin", files=Stuttering())
    publish(stuttering)

    assert store.read(KEY) is not None
    assert stuttering.read(KEY) is not None


class Sharing(Files):
    """Another publisher is faster, whenever this one is about to rename."""

    def __init__(self, store: Store) -> None:
        self._other = store

    def rename(self, name: str, dir_fd: int, new: str, new_dir_fd: int) -> None:
        """Be late."""
        publish(self._other)
        super().rename(name, dir_fd, new, new_dir_fd)


def test_who_is_second_gets_the_entry_of_the_first(store: Store) -> None:
    """It is verified, and the second one's staging goes."""
    late = Store(store.root, "kernel.cubin", files=Sharing(store))
    second = publish(late, output=Output(b"other", "_Z1kv", (), None, 1.0))

    assert (second.bytes, second.origin) == (OUTPUT.data, "compiled")
    assert list((store.root / "tmp").iterdir()) == []


def test_an_entry_that_was_replaced_meanwhile_is_not_put_aside(store: Store) -> None:
    """It was damaged when it was opened, and another process was faster."""
    path = publish(store).path
    path.write_bytes(b"torn")
    whole = store.root / "whole"

    class Replacing(Files):
        def read(self, fd: int, size: int) -> bytes:
            if not whole.exists():
                path.parent.rename(whole)
                publish(store)
            return super().read(fd, size)

    assert Store(store.root, "kernel.cubin", files=Replacing()).read(KEY) is None
    assert store.read(KEY) is not None


def test_publishing_leaves_no_staging_behind(store: Store) -> None:
    """An entry appears by a rename of its finished directory."""
    publish(store)
    publish(store)

    assert list((store.root / "tmp").iterdir()) == []


def test_the_first_of_two_publishers_wins_and_the_path_keeps_its_bytes(
    store: Store,
) -> None:
    """A path is never rewritten with other bytes: CuPy remembers modules by path."""
    first = publish(store)
    second = publish(store, output=Output(b"other", "_Z1kv", (), None, 1.0))

    assert second.bytes == first.bytes == first.path.read_bytes()


@pytest.mark.parametrize("name", ["kernel.cubin", RECORD])
def test_an_entry_with_any_bit_flipped_or_cut_anywhere_is_a_miss(
    store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage is never loaded."""
    caplog.set_level(logging.CRITICAL)
    whole = publish(store).path.with_name(name).read_bytes()
    altered = Altered()
    layer = Store(store.root, "kernel.cubin", trust=LAYER, files=altered)
    for data in damages(whole):
        altered.replaced = {name: data}
        assert layer.read(KEY) is None
    altered.replaced = {name: whole}
    assert layer.read(KEY) is not None


def swap(entry: Path) -> None:
    """Put another valid entry in its place."""
    shutil.rmtree(entry)
    shutil.copytree(entry.with_name("d" * 62), entry)


def empty(entry: Path) -> None:
    """Leave a directory with nothing in it."""
    shutil.rmtree(entry)
    entry.mkdir()


def replace_by_file(entry: Path) -> None:
    """Put a file in its place."""
    shutil.rmtree(entry)
    entry.write_bytes(b"a file")


def replace_record(entry: Path) -> None:
    """Put JSON of another form in its place."""
    (entry / RECORD).write_text(json.dumps(["no", "record"]))


@pytest.mark.parametrize(
    "damage",
    [
        swap,
        replace_record,
        lambda entry: (entry / RECORD).unlink(),
        lambda entry: (entry / "kernel.cubin").unlink(),
        lambda entry: (entry / "kernel.cubin").write_bytes(b""),
        empty,
        replace_by_file,
        lambda entry: (
            (entry / "kernel.cubin").unlink(),
            (entry / "kernel.cubin").mkdir(),
        ),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_replaced(
    store: Store, damage: Callable[[Path], object]
) -> None:
    """Swapped, torn, emptied or foreign: compiled again, and then whole."""
    entry = publish(store).path.parent
    publish(store, OTHER)
    damage(entry)

    assert store.read(KEY) is None
    assert publish(store).bytes == OUTPUT.data
    assert store.read(KEY) is not None


def test_a_damaged_entry_that_nobody_read_is_replaced(store: Store) -> None:
    """Its damage is seen when the new one is about to appear."""
    path = publish(store).path
    path.write_bytes(b"torn")

    assert publish(store).bytes == OUTPUT.data == path.read_bytes()
    assert store.read(KEY) is not None


@pytest.mark.parametrize("limit", ["LARGEST_OUTPUT", "LARGEST_RECORD"])
def test_what_is_too_large_to_be_read_again_is_not_published(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """An entry beyond the limits would be a miss each time."""
    monkeypatch.setattr(f"kernels_async._store.{limit}", 5)

    with pytest.raises(OSError, match="more than it keeps"):
        publish(store)
    assert not store.root.exists()


@contextlib.contextmanager
def as_nobody() -> Iterator[Path]:
    """Be a user who may not write anywhere else, in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.chown(name, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def test_a_directory_that_cannot_be_written_is_an_os_error() -> None:
    """The compiler works on without it; reads go on."""
    with as_nobody() as folder:
        store = Store(folder / "store", "kernel.cubin")
        publish(store)
        for path in [store.root, *store.root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o500)

        with pytest.raises(OSError, match="denied"):
            publish(store, OTHER)
        assert store.read(KEY) is not None
        for path in [store.root, *store.root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o700)


def test_links_of_the_users_own_lead_to_the_directory(tmp_path: Path) -> None:
    """A cache often lies on another disk; but not at the end of a loop."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "to-disk").symlink_to(tmp_path / "disk")
    (tmp_path / "link").symlink_to("./to-disk/../to-disk/cache")
    store = Store(tmp_path / "link", "kernel.cubin")
    publish(Store(tmp_path / "disk" / "cache", "kernel.cubin"))
    assert store.read(KEY) is not None
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(OSError, match="too many links"):
        Store(tmp_path / "loop", "kernel.cubin").read(KEY)


@pytest.mark.parametrize("name", ["ünï dir 日本", "a b", "x" * 200])
def test_any_directory_name_works(tmp_path: Path, name: str) -> None:
    """Spaces, other alphabets and long names are fine."""
    store = Store(tmp_path / name, "kernel.cubin")
    publish(store)

    assert store.read(KEY) is not None


def test_a_relative_directory_is_resolved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may change its directory; `~` is the home directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store = Store("cache", "kernel.cubin")
    monkeypatch.chdir("/")

    assert store.root == tmp_path / "cache"
    assert Store("~/c", "kernel.cubin").root == tmp_path / "home" / "c"


def test_the_default_directory_is_named_or_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty HOME must not mean the root directory."""
    monkeypatch.setenv("KERNELS_ASYNC_CACHE_DIR", "/named")
    assert default_cache_dir() == Path("/named")
    monkeypatch.delenv("KERNELS_ASYNC_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/kernels_async")
    monkeypatch.setenv("HOME", "")
    assert default_cache_dir() is None


@pytest.mark.parametrize("found", [RuntimeError("no home"), Path("~/.cache/x")])
def test_a_user_without_a_home_has_no_default_directory(
    monkeypatch: pytest.MonkeyPatch, found: RuntimeError | Path
) -> None:
    """A user number that no password file knows, as containers have."""

    def user_cache_path(*_: object, **__: object) -> Path:
        if isinstance(found, RuntimeError):
            raise found
        return found

    monkeypatch.delenv("KERNELS_ASYNC_CACHE_DIR")
    monkeypatch.setattr("kernels_async._store.user_cache_path", user_cache_path)
    assert default_cache_dir() is None
