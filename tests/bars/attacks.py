"""B19, the store's part: what other users and planted files can do to it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from kernels_async._locks import KeyLocks
from kernels_async._record import Seal
from kernels_async._store import RECORD, Store
from kernels_async._tiers import Place, TieredStore
from kernels_async._trust import LAYER
from kernels_async._upkeep import clear, prune, sweep_staging, verify

from .injection import ENTRIES, Watched, fork, make_key, make_output, scratch

NOBODY = 65534
ENTRY = "v1/ab/cd"


class Scene:
    """A user's cache directory with an entry, and another's files, which must not change.

    Attributes:
        root: The cache directory.
        entry: The folder of its one entry.
        victim: A folder of files of the same user outside the cache.
        store: The store that is attacked.
    """

    def __init__(self, folder: Path) -> None:
        generator = random.Random(0)
        self.folder = folder
        self.root = folder / "home" / "store"
        self.key, self.output = make_key(generator), make_output(generator)
        self.other, self.planted = make_key(generator), make_output(generator)
        self.store = Store(self.root, "kernel.cubin")
        self.entry = self.store.publish(self.key, ENTRIES, self.output).path.parent
        sweep_staging(self.store)
        lock = KeyLocks(self.root).try_acquire(self.key)
        assert lock is not None
        lock.release()
        self.victim = folder / "victim"
        elsewhere = Store(self.victim / "store", "kernel.cubin")
        elsewhere.publish(self.key, ENTRIES, self.planted)
        (self.victim / "file").write_text("precious")
        (self.victim / "file").chmod(0o644)
        self.before = self.snapshot()

    def snapshot(self) -> list[tuple[str, int, int, bytes]]:
        """Everything about the victim's files."""
        return [
            (str(path), found.st_mode, found.st_ino, content)
            for path in sorted(self.victim.rglob("*"))
            for found in [path.stat()]
            for content in [path.read_bytes() if path.is_file() else b""]
        ]

    def use(self) -> None:
        """Everything that a server does; nothing planted is returned or changed."""
        tiers = TieredStore(Place(self.root), "kernel.cubin", self.folder / "private")
        found = tiers.read(self.key)
        assert found is None or found.bytes == self.output.data, "planted bytes are loaded"
        assert tiers.keep(self.key, ENTRIES, self.output).bytes == self.output.data
        lock = tiers.try_lock(self.key)
        assert lock is not None
        lock.release()
        for upkeep in (verify, sweep_staging, lambda store: prune(store, 0), clear):
            with contextlib.suppress(OSError):
                upkeep(self.store)
        assert self.snapshot() == self.before, "the victim's files have changed"

    def refuses_all(self) -> None:
        """The directory is not used at all, and each call says why."""
        place = f"{re.escape(str(self.folder))}|/dev/zero"
        with pytest.raises(PermissionError, match=place):
            self.store.read(self.key)
        with pytest.raises(PermissionError, match=place):
            self.store.publish(self.other, ENTRIES, self.output)
        lock = KeyLocks(self.root).try_acquire(self.key)
        assert lock is not None
        assert not lock.is_held
        self.use()

    def has_no_lock(self) -> None:
        """The lock file is not opened for locking, and everybody compiles."""
        lock = KeyLocks(self.root).try_acquire(self.key)
        assert lock is not None
        assert not lock.is_held, "a planted lock file is locked"
        self.use()

    def misses(self) -> None:
        """The entry is not loaded, and is replaced."""
        assert self.store.read(self.key) is None
        self.store.publish(self.key, ENTRIES, self.output)
        found = self.store.read(self.key)
        assert found is not None
        assert found.bytes == self.output.data
        self.use()

    def refuses_or_misses(self) -> None:
        """It is not loaded, be it that an error says why."""
        with contextlib.suppress(OSError):
            assert self.store.read(self.key) is None
        self.use()


@dataclasses.dataclass(frozen=True)
class Attack:
    """One case of the table.

    Attributes:
        name: What is done.
        prepare: Does it, with the rights of whoever runs the bar.
        expect: What the user then does and sees.
        by_root: Whether only root can prepare it.
    """

    name: str
    prepare: Callable[[Scene], object]
    expect: Callable[[Scene], object]
    by_root: bool = False


def nothing(scene: Scene) -> None:
    """Leave the scene as it is: the attack is in what follows."""


def linked(scene: Scene) -> None:
    """Lead to the directory by a link of another user."""
    put("a symbolic link to where it was", scene.root, scene)
    os.lchown(scene.root, 1234, 1234)


def put(kind: str, path: Path, scene: Scene) -> None:
    """Put something else in the place of a file or a folder."""
    target = scene.victim / "file"
    moved = scene.folder / "moved"
    if path.exists():
        path.rename(moved)
    match kind:
        case "a symbolic link to where it was":
            path.symlink_to(moved)
        case "a symbolic link to a file":
            path.symlink_to(target)
        case "a symbolic link to a folder":
            path.symlink_to(scene.victim / "store")
        case "a symbolic link to itself":
            path.symlink_to(path)
        case "a dangling symbolic link":
            path.symlink_to(scene.victim / "new")
        case "a symbolic link to a device":
            path.symlink_to("/dev/zero")
        case "a FIFO":
            os.mkfifo(path)
        case "a socket":
            here = Path.cwd()
            os.chdir(path.parent)
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
            os.chdir(here)
        case "a file":
            path.write_bytes(b"a file")
        case "a folder":
            path.mkdir()
        case "a second name of a file":
            os.link(target, path)
        case "a second name of itself":
            os.link(moved, path)
        case _:
            raise ValueError(kind)


LINKS = [
    "a symbolic link to a file",
    "a symbolic link to a folder",
    "a symbolic link to itself",
    "a dangling symbolic link",
    "a symbolic link to a device",
]
SPECIAL = ["a FIFO", "a socket"]


def replaced(
    what: str,
    kinds: list[str],
    expect: Callable[[Scene], object],
    path: Callable[[Scene], Path],
) -> Iterator[Attack]:
    """Attacks that put something in a place."""
    for kind in kinds:

        def prepare(scene: Scene, kind: str = kind) -> None:
            put(kind, path(scene), scene)

        yield Attack(f"{what} is {kind}", prepare, expect)


def loosened(
    what: str,
    modes: list[int],
    expect: Callable[[Scene], object],
    path: Callable[[Scene], Path],
) -> Iterator[Attack]:
    """Attacks through modes that are too wide."""
    for mode in modes:

        def prepare(scene: Scene, mode: int = mode) -> None:
            path(scene).chmod(mode)

        yield Attack(f"{what} has mode {mode:o}", prepare, expect)


def owned(
    what: str, expect: Callable[[Scene], object], path: Callable[[Scene], Path]
) -> Attack:
    """An attack by another user who owns it, and lets all read it."""

    def prepare(scene: Scene) -> None:
        target = path(scene)
        target.chmod(0o755 if target.is_dir() else 0o644)
        os.chown(target, 1234, 1234)

    return Attack(f"{what} belongs to another", prepare, expect, by_root=True)


def respaced(scene: Scene) -> None:
    """Write a record that says the same in other bytes."""
    path = scene.entry / RECORD
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=1))


def sealed(record: Any, key: bytes | None = None) -> bytes:
    """A record with the seal that anybody can make."""
    data = json.dumps(record, sort_keys=True).encode()
    seal = blake3(data, key=key).hexdigest() if key else blake3(data).hexdigest()
    return json.dumps(record | {"seal": seal}).encode()


def forged(name: str, **changes: Any) -> Attack:
    """An entry whose record says something else, with a seal that fits."""

    def prepare(scene: Scene) -> None:
        path = scene.entry / RECORD
        record = json.loads(path.read_bytes())
        del record["seal"]
        path.write_bytes(sealed(record | changes))

    return Attack(f"the record has {name}", prepare, Scene.misses)


def written(name: str, data: bytes) -> Attack:
    """An entry whose record is something else."""
    return Attack(
        f"the record is {name}",
        lambda scene: (scene.entry / RECORD).write_bytes(data),
        Scene.misses,
    )


def keyed(name: str, written_with: bytes | None, moved: bool = True) -> Attack:
    """An entry that a reader with a key must not take from a writer without that key."""

    def prepare(scene: Scene) -> None:
        writer = Store(scene.root, "kernel.cubin", seal=Seal(written_with))
        place = writer.publish(scene.other, ENTRIES, scene.planted).path.parent
        reader = Store(scene.root, "kernel.cubin", seal=Seal(b"the key"))
        there = reader.path(scene.other).parent
        if place != there:
            there.parent.parent.mkdir(exist_ok=True)
            there.parent.mkdir(exist_ok=True)
            shutil.copytree(place, there)

    def expect(scene: Scene) -> None:
        reader = Store(scene.root, "kernel.cubin", seal=Seal(b"the key"))
        assert reader.read(scene.other) is None
        reader.publish(scene.other, ENTRIES, scene.output)
        found = reader.read(scene.other)
        assert found is not None
        assert found.bytes == scene.output.data

    return Attack(f"with a key, {name}", prepare, expect)


def replayed(scene: Scene) -> None:
    """An entry that was sealed for one key lies under another, with the cache's key."""
    store = Store(scene.root, "kernel.cubin", seal=Seal(b"the key"))
    old = store.publish(scene.key, ENTRIES, scene.planted).path.parent
    new = store.path(scene.other).parent
    new.parent.mkdir(exist_ok=True)
    shutil.copytree(old, new)
    assert store.read(scene.other) is None


def mixed(scene: Scene) -> None:
    """The bytes of one entry lie beside the record of another, with the cache's key."""
    store = Store(scene.root, "kernel.cubin", seal=Seal(b"the key"))
    one = store.publish(scene.key, ENTRIES, scene.output).path
    two = store.publish(scene.other, ENTRIES, scene.planted).path
    one.write_bytes(two.read_bytes())
    assert store.read(scene.key) is None


def hostile_umask(mask: int) -> Attack:
    """A process whose files would be anybody's, or nobody's."""

    def expect(scene: Scene) -> None:
        root = scene.folder / "home" / "new" / "store"
        old = os.umask(mask)
        try:
            store = Store(root, "kernel.cubin")
            store.publish(scene.key, ENTRIES, scene.output)
            lock = KeyLocks(root).try_acquire(scene.key)
        finally:
            os.umask(old)
        assert lock is not None
        assert lock.is_held
        assert store.read(scene.key) is not None
        for path in [root.parent, root, *root.rglob("*")]:
            wanted = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path

    return Attack(f"the umask is {mask:03o}", nothing, expect)


def named(name: str, text: str) -> Attack:
    """A name from a source or a symbol, which must not become a path."""

    def expect(scene: Scene) -> None:
        entries = ENTRIES | {"symbol": text, "source name": text, f"header {text}": text}
        output = dataclasses.replace(scene.output, entry=text)
        store = Store(scene.root, "kernel.cubin")
        store.publish(scene.other, entries, output)
        found = store.read(scene.other)
        assert found is not None
        assert (found.symbol, found.entry) == (text, text)
        names = {path.name for path in scene.folder.rglob("*")}
        assert not [name for name in names if "evil" in name]
        scene.use()

    return Attack(f"a symbol is {name}", nothing, expect)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Swapping(Watched):
    """Replaces a path by a link to the victim's, again and again, between two calls."""

    def __init__(self, path: Path, target: Path) -> None:
        self._path, self._target = path, target
        self._kept = path.with_name("kept")
        self.swaps = 0

    def around(self, name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if self._path.is_symlink():
            self._path.unlink()
            self._kept.rename(self._path)
        elif self._path.exists():
            remove(self._kept)
            self._path.rename(self._kept)
            self._path.symlink_to(self._target)
            self.swaps += 1
        return call()


def swapped(what: str, path: Callable[[Scene], Path], target: str) -> Attack:
    """An attack between the look and the use."""

    def expect(scene: Scene) -> None:
        files = Swapping(path(scene), scene.victim / target)
        store = Store(scene.root, "kernel.cubin", files=files)
        for _ in range(100):
            with contextlib.suppress(OSError):
                found = store.read(scene.key)
                assert found is None or found.bytes == scene.output.data
            for key in (scene.key, scene.other):
                with contextlib.suppress(OSError):
                    store.publish(key, ENTRIES, scene.output)
        assert files.swaps > 20
        assert scene.snapshot() == scene.before

    return Attack(f"{what} is swapped between the look and the use", nothing, expect)


def huge(name: str) -> Attack:
    """A file with a hole of a terabyte, which must not be read into memory."""
    return Attack(
        f"{name} has a terabyte",
        lambda scene: os.truncate(scene.entry / name, 1 << 40),
        Scene.misses,
    )


def layer_of(name: str, prepare: Callable[[Path], object]) -> Attack:
    """A layer that others can change is not read."""

    def plant(scene: Scene) -> None:
        root = scene.folder / "layer"
        Store(root, "kernel.cubin").publish(scene.other, ENTRIES, scene.planted)
        prepare(root)

    def expect(scene: Scene) -> None:
        layer = Store(scene.folder / "layer", "kernel.cubin", trust=LAYER)
        with contextlib.suppress(OSError):
            assert layer.read(scene.other) is None
        scene.use()

    return Attack(f"a layer {name}", plant, expect)


def attacks() -> list[Attack]:
    """The whole table."""
    kernel = "kernel.cubin"
    loose = [0o777, 0o770, 0o702, 0o755, 0o750, 0o705, 0o1777, 0o720]
    files = [*LINKS, *SPECIAL, "a folder", "a second name of a file",
             "a second name of itself", "a symbolic link to where it was"]  # fmt: skip
    folders = [*LINKS, *SPECIAL, "a file", "a symbolic link to where it was"]
    return [
        *loosened("the directory", loose, Scene.refuses_all, lambda s: s.root),
        owned("the directory", Scene.refuses_all, lambda s: s.root),
        *loosened("what it lies in", [0o777, 0o770], Scene.refuses_all, lambda s: s.root.parent),
        owned("what it lies in", Scene.refuses_all, lambda s: s.root.parent),
        Attack(
            "another's symbolic link leads to the directory",
            linked,
            Scene.refuses_all,
            by_root=True,
        ),
        *replaced(
            "the directory",
            ["a file", *SPECIAL, "a symbolic link to a file", "a symbolic link to a device"],
            Scene.refuses_all,
            lambda s: s.root,
        ),
        *replaced("the directory of a version", folders, Scene.refuses_or_misses, lambda s: s.root / "v1"),
        *replaced("a directory of entries", folders, Scene.refuses_or_misses, lambda s: s.entry.parent),
        *replaced("an entry", folders, Scene.misses, lambda s: s.entry),
        *replaced("the staging directory", folders, Scene.use, lambda s: s.root / "tmp"),
        *replaced("the directory aside", folders, Scene.use, lambda s: s.root / "aside"),
        *replaced("the lock file", files, Scene.has_no_lock, lambda s: s.root / "locks"),
        *replaced("the kernel", files, Scene.misses, lambda s: s.entry / kernel),
        *replaced("the record", files, Scene.misses, lambda s: s.entry / RECORD),
        *loosened("the kernel", [0o666, 0o620], Scene.misses, lambda s: s.entry / kernel),
        *loosened("the record", [0o666, 0o602], Scene.misses, lambda s: s.entry / RECORD),
        *loosened("an entry", [0o777, 0o720], Scene.misses, lambda s: s.entry),
        *loosened("a directory of entries", [0o777], Scene.refuses_or_misses, lambda s: s.entry.parent),
        owned("an entry", Scene.refuses_or_misses, lambda s: s.entry),
        owned("a directory of entries", Scene.refuses_or_misses, lambda s: s.entry.parent),
        Attack("the record is spaced otherwise", respaced, Scene.misses),
        owned("the kernel", Scene.refuses_or_misses, lambda s: s.entry / kernel),
        owned("the record", Scene.refuses_or_misses, lambda s: s.entry / RECORD),
        owned("the lock file", Scene.has_no_lock, lambda s: s.root / "locks"),
        huge(kernel),
        huge(RECORD),
        forged("a field more", version=2),
        forged("another key", key="ab" * 32),
        forged("a path for a kernel's name", output="../../../../etc/passwd"),
        forged("a number for a name", entry=1),
        forged("no entries", entries={}),
        forged("a list of entries", entries=["symbol"]),
        forged("a number in its entries", entries=ENTRIES | {"symbol": 1}),
        forged("not a number of seconds", compile_seconds=float("nan")),
        forged("endless seconds", compile_seconds=float("inf")),
        forged("negative seconds", compile_seconds=-1.0),
        forged("truth for seconds", compile_seconds=True),
        forged("a text for seconds", compile_seconds="1"),
        forged("resources of another kind", resources={"registers": 1}),
        forged("diagnostics of another kind", diagnostics=[{"severity": "NOTE"}]),
        forged("a text for diagnostics", diagnostics="none"),
        written("a pickle", b"\x80\x04cos\nsystem\n(S'touch evil'\ntR."),
        written("nested without end", b"[" * 100_000),
        written("a number without end", b"9" * 100_000),
        written("a list", b"[]"),
        written("of no characters", b"\xff\xfe"),
        keyed("an entry of one without", None),
        keyed("an entry of another key", b"another key"),
        Attack("with a key, an old entry is replayed", nothing, replayed),
        Attack("with a key, bytes of another entry", nothing, mixed),
        *map(hostile_umask, (0o000, 0o777, 0o277)),
        named("a path upwards", "../../../../evil"),
        named("an absolute path", "/tmp/evil"),  # noqa: S108
        named("cut by a zero", "f<int>\0evil"),
        named("of two lines", "f\nevil"),
        named("a megabyte", "evil" * 250_000),
        swapped("an entry", lambda s: s.entry, "store/v1"),
        swapped("a directory of entries", lambda s: s.entry.parent, "store/v1/" + Path(ENTRY).parent.name),
        swapped("the staging directory", lambda s: s.root / "tmp", "store"),
        swapped("the kernel", lambda s: s.entry / kernel, "file"),
        layer_of("may be written by others", lambda root: root.chmod(0o777)),
        layer_of("is in a folder of others", lambda root: root.parent.chmod(0o777)),
        layer_of("has an entry of links", lambda root: link_all(root)),
    ]  # fmt: skip


def link_all(root: Path) -> None:
    """Move a layer's shards elsewhere and leave links."""
    shard = next((root / "v1").iterdir())
    shard.rename(root.parent / "elsewhere")
    shard.symlink_to(root.parent / "elsewhere")


def attack(full: bool, seed: int) -> str:
    """Run the whole table, each case in a process of a user without rights."""
    root = os.geteuid() == 0
    table = [case for case in attacks() if root or not case.by_root]
    random.Random(seed).shuffle(table)
    for case in table:
        with scratch() as folder:
            if root:
                os.chown(folder, NOBODY, NOBODY)
            ended = fork(lambda: run(case, folder, root))  # noqa: B023
            assert ended == 0, f"{case.name}: {ended}"
    skipped = len(attacks()) - len(table)
    return (
        f"seed {seed}, {len(table)} attacks as user {NOBODY if root else os.geteuid()} "
        f"({skipped} left out, which need root): all refused, 0 of the victim's files changed"
    )


def run(case: Attack, folder: Path, root: bool) -> None:
    """Lay the scene as the user, attack it, and see as the user what happens."""
    tempfile.tempdir = str(folder)
    if root:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    scene = Scene(folder)
    if case.by_root:
        os.seteuid(0)
    case.prepare(scene)
    if root:
        os.seteuid(0)
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    case.expect(scene)


BARS = {"B19-store": attack}
