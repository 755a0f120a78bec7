"""B3 and B5: what a file system answers, and what it gives back."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernels_async._artifact import Output
from kernels_async._files import Files
from kernels_async._record import Record, Seal
from kernels_async._store import RECORD, Store
from kernels_async._tiers import Place, TieredStore
from kernels_async._trust import LAYER
from kernels_async._upkeep import verify

from .injection import ENTRIES, Counting, Failing, Watched, make_key, make_output, scratch

ERRNOS = [
    errno.EACCES, errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EFBIG, errno.EINTR,
    errno.EIO, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE, errno.ENOMEM,
    errno.ENOSPC, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EROFS, errno.ESTALE,
    errno.EXDEV,
]  # fmt: skip
SOME = 400
MakeTiers = Callable[[Path, Path, Files], TieredStore]


def open_tiers(root: Path, private: Path, files: Files) -> TieredStore:
    """The store that is tried; its clock makes it try again each time."""
    hours = itertools.count(0, 3600)
    place = Place(root, max_bytes=2000)
    return TieredStore(place, "kernel.cubin", private, files=files, clock=hours.__next__)


def get(tiers: TieredStore, key: str, output: Output) -> bytes:
    """What a server does for one kernel; the bytes that it would load."""
    found = tiers.read(key)
    if found is None:
        lock = tiers.try_lock(key)
        found = tiers.read(key) or tiers.keep(key, ENTRIES, output)
        if lock is not None:
            lock.release()
    return found.bytes


class Case:
    """A directory in some state, to get a kernel from."""

    def __init__(self, folder: Path, generator: random.Random, make: MakeTiers) -> None:
        self.root, self.private = folder / "store", folder / "private"
        self._make = make
        self.key, self.output = make_key(generator), make_output(generator)
        older = [(make_key(generator), make_output(generator)) for _ in range(3)]
        if generator.random() < 0.8:
            for key, output in older:
                Store(self.root, "kernel.cubin").publish(key, ENTRIES, output)
        if generator.random() < 0.5:
            store = Store(self.root, "kernel.cubin")
            path = store.publish(self.key, ENTRIES, self.output).path
            if generator.random() < 0.7:
                path.write_bytes(b"torn")

    def get(self, files: Files) -> None:
        """Get it twice."""
        tiers = self._make(self.root, self.private, files)
        for _ in range(2):
            assert get(tiers, self.key, self.output) == self.output.data

    def check(self) -> None:
        """What the errors left is whole, and works."""
        self.get(Files())
        store = Store(self.root, "kernel.cubin")
        assert not verify(store).damaged
        store.publish(self.key, ENTRIES, self.output)
        found = store.read(self.key)
        assert found is not None
        assert found.bytes == self.output.data


def fail(count: int | None, seed: int, make: MakeTiers = open_tiers) -> str:
    """Fail each call with each error, once and for ever; all cases, or `count`."""
    generator = random.Random(seed)
    states = range(4)
    with scratch() as folder:
        calls = {}
        for state in states:
            counting = Counting()
            Case(folder / f"dry-{state}", random.Random(f"{seed} {state}"), make).get(
                counting
            )
            calls[state] = len(counting.calls)
        cases = [
            (state, at, number, kind)
            for state in states
            for at in range(1, calls[state] + 1)
            for number in ERRNOS
            for kind in ("once", "for ever", "done")
        ]
        if count is not None:
            cases = generator.sample(cases, count)
        failed = 0
        for number_of_case, (state, at, number, kind) in enumerate(cases):
            place = folder / f"{number_of_case}"
            case = Case(place, random.Random(f"{seed} {state}"), make)
            failing = Failing(at, number, for_ever=kind == "for ever", done=kind == "done")
            try:
                case.get(failing)
                assert failing.failed, "no error was injected"
                case.check()
            except Exception as error:
                name = errno.errorcode[number]
                raise AssertionError(f"call {at} of {state}, {name} {kind}") from error
            failed += failing.failed
            shutil.rmtree(place)
    return (
        f"seed {seed}, {len(cases)} cases of {len(ERRNOS)} errors, {failed} errors: "
        f"each of {4 * len(cases)} gets returned the kernel, 0 torn entries"
    )


class Altered(Watched):
    """Gives back other bytes for the files of some names."""

    def __init__(self) -> None:
        self.replaced: dict[str, bytes] = {}
        self._given: dict[int, bytes] = {}

    def around(self, name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if name == "read":
            fd, size = arguments
            given = self._given.get(fd)
            if given is not None:
                self._given[fd] = given[size:]
                return given[:size]
        result = call()
        if name == "stat" and arguments[0] in self._given:
            fields = list(result)
            fields[stat.ST_SIZE] = len(self._given[arguments[0]])
            return os.stat_result(fields)
        if name == "open" and arguments[0] in self.replaced:
            self._given[result] = self.replaced[arguments[0]]
        elif name == "close":
            self._given.pop(arguments[0], None)
        return result


MakeStore = Callable[[Path, Files], Store]


def open_layer(root: Path, files: Files) -> Store:
    """A store that puts nothing aside, so that the same entry is damaged again."""
    return Store(root, "kernel.cubin", trust=LAYER, files=files)


def mutate(data: bytes, generator: random.Random) -> bytes:
    """Other bytes, which differ by some changes of chance."""
    changed = bytearray(data)
    while bytes(changed) == data:
        for _ in range(generator.choice((1, 1, 2, 5))):
            at = generator.randrange(len(changed) + 1)
            match generator.randrange(5):
                case 0:
                    changed[at : at + 1] = generator.randbytes(1)
                case 1:
                    del changed[at : at + generator.randrange(1, 9)]
                case 2:
                    changed[at:at] = generator.choice(
                        (b" ", b"\n", b"0", b",", b'"', b"\0")
                    )
                case 3:
                    other = generator.randrange(len(changed) + 1)
                    changed[at:at] = changed[other : other + generator.randrange(1, 33)]
                case 4:
                    del changed[at:]
    return bytes(changed)


def damages(data: bytes) -> Iterator[bytes]:
    """Every truncation, and every bit the other way."""
    for length in range(len(data)):
        yield data[:length]
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def corrupt(mutations: int, step: int, seed: int, make: MakeStore = open_layer) -> str:
    """Read entries that are damaged in every way; of bits and lengths every `step`th."""
    generator = random.Random(seed)
    altered = Altered()
    accepted = bits = 0
    with scratch() as folder:
        writer = Store(folder / "store", "kernel.cubin")
        entries = [(make_key(generator), make_output(generator)) for _ in range(20)]
        paths = [writer.publish(key, ENTRIES, output).path for key, output in entries]
        store = make(folder / "store", altered)
        key = entries[0][0]
        whole = {path.name: path.read_bytes() for path in paths[0].parent.iterdir()}

        def reads(name: str, data: bytes) -> bool:
            altered.replaced = {name: data}
            return store.read(key) is not None

        assert all(reads(name, data) for name, data in whole.items())
        for name, data in whole.items():
            for changed in itertools.islice(damages(data), seed % step, None, step):
                accepted += reads(name, changed)
                bits += 1
        altered.replaced = {}
        swaps = 0
        for one, other in itertools.permutations(range(20), 2):
            here, there = paths[one].parent, paths[other].parent
            kept = here.with_name("kept")
            here.rename(kept)
            shutil.copytree(there, here)
            accepted += store.read(entries[one][0]) is not None
            shutil.rmtree(here)
            kept.rename(here)
            swaps += 1
        through = 0
        for _ in range(mutations):
            name = generator.choice((RECORD, RECORD, RECORD, "kernel.cubin"))
            changed = mutate(whole[name], generator)
            if generator.random() < 0.02:
                through += 1
                accepted += reads(name, changed)
            else:
                accepted += holds({**whole, name: changed})
    assert accepted == 0, f"{accepted} damaged entries were accepted"
    return (
        f"seed {seed}, {bits} flipped bits and truncations, {swaps} swaps, {mutations} "
        f"mutations ({through} of them through the store): 0 accepted"
    )


def holds(contents: dict[str, bytes]) -> bool:
    """Whether a record and bytes are accepted as an entry, apart from where they lie."""
    try:
        record = Record.decode(contents[RECORD], Seal())
        record.artifact(contents["kernel.cubin"], Path("kernel.cubin"), "disk")
    except ValueError:
        return False
    return True


BARS = {
    "B3": lambda full, seed: fail(None if full else SOME, seed),
    "B5": lambda full, seed: (
        corrupt(1_000_000, 1, seed) if full else corrupt(20_000, 7, seed)
    ),
}
