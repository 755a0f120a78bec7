"""The store's bars in their short form, and that each of them can fail."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kernels_async import Artifact
from kernels_async._artifact import Origin, Output
from kernels_async._files import write_file
from kernels_async._locks import Lock
from kernels_async._record import Record
from kernels_async._store import Store
from kernels_async._tiers import Place, TieredStore
from kernels_async._trust import LAYER, Trust
from tests.bars import attacks, damage, herd, kills, syscalls
from tests.bars.injection import ENTRIES, OPERATIONS, Counting

pytestmark = pytest.mark.alone

BARS = {
    **kills.BARS,
    **syscalls.BARS,
    **damage.BARS,
    **herd.BARS,
    **attacks.BARS,
}


@pytest.mark.parametrize("name", BARS)
def test_a_bar_is_met(name: str) -> None:
    """`python -m tests.bars NAME --full` runs it in full."""
    if name == "B2" and syscalls.strace() is None:
        pytest.skip("there is no strace that may trace")
    summary = BARS[name](False, 0)

    print(f"{name}: {summary}")
    assert "0" in summary


class InPlace(Store):
    """A store that writes an entry where it is read."""

    def _publish(self, key: str, contents: Mapping[str, bytes]) -> Artifact | None:
        with (
            self.shard(key[:2], create=True) as (_, shard),
            self.folder(key[2:], shard, create=True) as entry,
        ):
            for name, data in contents.items():
                with contextlib.suppress(FileExistsError):
                    write_file(self.files, name, data, entry)
        return None


class Unverified(Store):
    """A store that takes whatever lies there."""

    def _verified(
        self, entry: int, found: os.stat_result, key: str, filename: str, origin: Origin
    ) -> Artifact:
        data = self.contents(entry, filename, 1 << 20)
        output = Output(data, "k", (), None, 0.0)
        return Record.of(key, ENTRIES, output).artifact(data, self.path(key), origin)


class Careless(TieredStore):
    """A store that gives up where it cannot write."""

    def keep(self, key: str, entries: Mapping[str, str], output: Output) -> Artifact:
        assert self.main is not None
        return self.main.publish(key, entries, output)


def kill_in_place() -> str:
    """B1 without a rename."""
    return kills.kill(
        200, 0, lambda root, files: InPlace(root, "kernel.cubin", files=files)
    )


def read_unverified() -> str:
    """B5 without a look."""
    return damage.corrupt(
        100,
        50,
        0,
        lambda root, files: Unverified(root, "kernel.cubin", trust=LAYER, files=files),
    )


def fail_carelessly() -> str:
    """B3 without a second place."""
    return damage.fail(
        100,
        0,
        lambda root, private, files: Careless(
            Place(root), "kernel.cubin", private, files=files
        ),
    )


def gather_without_locks() -> str:
    """B6 without locks."""
    return herd.gather(10, 10, 0, 0, lambda *_: Lock())


@pytest.mark.parametrize(
    "broken", [kill_in_place, read_unverified, fail_carelessly, gather_without_locks]
)
def test_a_broken_store_does_not_meet_its_bar(broken: Callable[[], str]) -> None:
    """Else the bar would show nothing."""
    with pytest.raises(AssertionError):
        broken()


@pytest.mark.parametrize(
    "check", ["objection_to_file", "objection_to_folder", "check_root"]
)
def test_a_store_that_trusts_everything_fails_in_the_table_of_attacks(
    monkeypatch: pytest.MonkeyPatch, check: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was planted is then loaded."""
    monkeypatch.setattr(Trust, check, lambda *_: None)

    with pytest.raises(AssertionError):
        attacks.attack(False, 0)


def test_every_operation_of_the_file_system_is_watched(tmp_path: Path) -> None:
    """Those that are not cannot be failed, and nothing would tell."""
    counting = Counting()
    victim = kills.Victim(tmp_path / "store", random.Random(0), kills.open_store)
    for name, scenario in kills.SCENARIOS.items():
        victim.prepare()
        kills.PREPARATIONS.get(name, lambda _: None)(victim)
        scenario(victim, counting)
    store = Store(tmp_path / "store", "kernel.cubin", files=counting)
    path = store.publish(victim.new, ENTRIES, victim.output).path
    os.utime(path.parent, (0, 0))
    store.read(victim.new)

    assert set(OPERATIONS) - set(counting.calls) == {"chmod", "readlink"}
