"""What the soak does to processes and to the cache directory they share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.processes import children

NOBODY = 65534
SIZE = 48 << 20
_SUBREAPER = 36


def adopt_orphans() -> None:
    """Have every orphan below this process become its child, so that none hides."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


class Place:
    """The directory that the servers share, on a small file system where there may be one.

    Attributes:
        cache: The cache directory, which may be removed.
        mounted: Whether it is a file system of its own, which can be full.
        user: The user that the servers are, or `None` for this one.
        wrapper: What a server's command begins with.
    """

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="soak-"))
        self._root.chmod(0o755)
        self.shared = self._root / "shared"
        self.temporary = self._root / "temporary"
        for folder in (self.shared, self.temporary):
            folder.mkdir()
        self.mounted = _run(
            *("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "soak", self.shared)
        )
        self.user = NOBODY if _may_be_nobody() else None
        self.wrapper = _obeying_modes() if self.user is None else []
        self.cache = self.shared / "cache"
        self.own(self.shared)

    def own(self, folder: Path) -> None:
        """Make a folder the servers' own."""
        folder.chmod(0o700)
        if self.user is not None:
            os.chown(folder, self.user, self.user)

    def folder(self, name: str) -> Path:
        """A temporary directory for one server."""
        made = self.temporary / name
        made.mkdir()
        self.own(made)
        return made

    def close(self) -> None:
        """Remove everything."""
        self.recover()
        if self.mounted:
            _run("umount", "--lazy", self.shared)
        shutil.rmtree(self._root)

    # --- spells: states that last a while

    def make_read_only(self) -> str:
        """Nothing can be written."""
        self._change_modes(0o500)
        return "cache read-only"

    def fill(self) -> str | None:
        """The file system is full; `None` if it is not one of its own."""
        if not self.mounted:
            return None
        with (self.shared / "filler").open("wb", buffering=0) as filler:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(size))
        return "disk full"

    def recover(self) -> None:
        """It can be written again."""
        self._change_modes(0o700)
        (self.shared / "filler").unlink(missing_ok=True)

    def _change_modes(self, mode: int) -> None:
        for folder in (self.cache, *self.cache.rglob("*/")):
            with contextlib.suppress(OSError):
                folder.chmod(mode)

    # --- what is done to entries

    def spoil(self, chance: random.Random) -> str | None:
        """Damage, swap or remove an entry; what was done, if anything."""
        entries = sorted(self.cache.glob("v1*/??/*"))
        if not entries:
            return None
        entry = chance.choice(entries)
        kind = chance.choice(
            ["flipped", "truncated", "emptied", "foreign", "swapped", "deleted", "halved"]
        )
        with contextlib.suppress(OSError):
            files = [file for file in sorted(entry.iterdir()) if file.stat().st_size]
            if not files:
                return None
            match kind:
                case "deleted":
                    shutil.rmtree(entry)
                case "halved":
                    chance.choice(files).unlink()
                case "swapped":
                    self._swap(entry, chance.choice(entries))
                case _:
                    self._replace(chance.choice(files), kind, chance)
            return f"entries {kind}"
        return None

    def _swap(self, one: Path, other: Path) -> None:
        aside = self.shared / f"swap-{os.getpid()}"
        one.rename(aside)
        if one != other:
            other.rename(one)
        aside.rename(other)

    def _replace(self, path: Path, kind: str, chance: random.Random) -> None:
        """Put other bytes in a file's place: what has mapped the old ones keeps them."""
        data = bytearray(path.read_bytes())
        if kind == "flipped":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == "truncated":
            del data[chance.randrange(len(data)) :]
        else:
            data = bytearray(b"" if kind == "emptied" else b"\x7fELF somebody else's")
        spoiled = self.shared / f"spoiled-{os.getpid()}"
        spoiled.write_bytes(data)
        spoiled.chmod(0o600)
        if self.user is not None:
            os.chown(spoiled, self.user, self.user)
        spoiled.replace(path)

    def remove(self) -> None:
        """The whole cache directory is gone."""
        shutil.rmtree(self.cache, ignore_errors=True)


def _may_be_nobody() -> bool:
    """Whether a server can be another user, who can run this Python."""
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-c", ""]
    try:
        found = subprocess.run(
            command,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return found.returncode == 0


def _obeying_modes() -> list[str]:
    """What a command begins with so that root may write no more than its modes allow."""
    rights = "--bounding-set=-dac_override,-dac_read_search"
    return ["setpriv", rights] if _run("setpriv", rights, "true") else []


def _run(*command: object) -> bool:
    words = [str(word) for word in command]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def kill(process: int) -> bool:
    """SIGKILL; whether there was such a process."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def below(process: int) -> Iterator[int]:
    """Every descendant of a process."""
    with contextlib.suppress(OSError):
        for child in children(process):
            yield child
            yield from below(child)


def workers_and_compilers(server: int) -> tuple[list[int], list[int]]:
    """A server's workers, and the compilers that they run."""
    workers = [child for child in below(server) if "_start.py" in _command(child)]
    return workers, [child for worker in workers for child in below(worker)]


def _command(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text()
    return ""


def has_a_leader(process: int) -> bool:
    """Whether the worker that it works for lives: a process's group is its worker's."""
    try:
        leader = os.getpgid(process)
    except ProcessLookupError:
        return True
    return leader != process and not is_zombie(leader) and Path(f"/proc/{leader}").exists()


def is_zombie(process: int) -> bool:
    """Whether a process has ended and waits to be reaped."""
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
    return False


class Injector:
    """Does one thing at a time to the servers and their directory, and counts.

    Args:
        place: The directory.
        chance: Decides.
        servers: The process numbers of the servers.
    """

    def __init__(
        self, place: Place, chance: random.Random, servers: Callable[[], list[int]]
    ) -> None:
        self.done: Counter[str] = Counter()
        self.killed: set[int] = set()
        self._place = place
        self._chance = chance
        self._servers = servers
        self._spell = 0

    def strike(self) -> None:
        """One fault, of any kind."""
        if self._spell:
            self._spell -= 1
            if not self._spell:
                self._place.recover()
        kinds: list[tuple[int, Callable[[], str | None]]] = [
            (2, self._kill_a_server),
            (6, self._kill_a_worker),
            (6, self._kill_a_compiler),
            (14, lambda: self._place.spoil(self._chance)),
            (1, self._remove),
            (2, lambda: self._begin_spell(self._place.make_read_only)),
            (2, lambda: self._begin_spell(self._place.fill)),
        ]
        (_, strike) = self._chance.choices(kinds, [weight for weight, _ in kinds])[0]
        if done := strike():
            self.done[done] += 1

    def _kill_a_server(self) -> str | None:
        server = self._chance.choice(self._servers())
        self.killed.add(server)
        return "servers killed" if kill(server) else None

    def _kill_a_worker(self) -> str | None:
        workers, _ = workers_and_compilers(self._chance.choice(self._servers()))
        return "workers killed" if workers and kill(self._chance.choice(workers)) else None

    def _kill_a_compiler(self) -> str | None:
        _, compilers = workers_and_compilers(self._chance.choice(self._servers()))
        found = bool(compilers) and kill(self._chance.choice(compilers))
        return "compilers killed" if found else None

    def _remove(self) -> str | None:
        self._place.remove()
        return "cache removed"

    def _begin_spell(self, begin: Callable[[], str | None]) -> str | None:
        if self._spell:
            return None
        done = begin()
        if done:
            self._spell = self._chance.randrange(2, 8)
        return done
