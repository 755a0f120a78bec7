"""The soak's own process: starts the servers, strikes, watches and counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels_async import Artifact, Compiler
from tests.processes import children
from tests.soak.faults import Injector, Place, adopt_orphans, has_a_leader, is_zombie, kill
from tests.soak.workload import KNOWN, fingerprint, good, left_in

ROOT = Path(__file__).parents[2]
ORPHAN_SECONDS = 2.0
SILENT_SECONDS = 60.0
LEAVING_SECONDS = 30.0
STRIKE_SECONDS = 0.25


@dataclass
class Counts:
    """Everything that the last line states."""

    delivered: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    compiled: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    leaked: Counter[str] = field(default_factory=Counter)
    servers: int = 0

    @property
    def good(self) -> bool:
        """Whether every count that must be zero is."""
        return not (self.wrong or self.hung or self.leaked.total())

    def summary(self) -> str:
        """The last line."""
        recompiles = self.compiled.total() - len(self.compiled)
        others = self.leaked.total() - self.leaked["processes"] - self.leaked["descriptors"]
        return (
            f"kernels delivered {self.delivered}, faults by kind "
            f"{dict(sorted(self.faults.items()))}, recompiles {recompiles}, "
            f"wrong results {len(self.wrong)}, hung {len(self.hung)}, "
            f"leaked processes {self.leaked['processes']}, "
            f"leaked descriptors {self.leaked['descriptors']}, "
            f"leaked threads, tasks and folders {others}"
        )


class Soak:
    """Servers that come and go, and the faults."""

    def __init__(self, seed: int, processes: int) -> None:
        self.counts = Counts()
        self.place = Place()
        self._chance = random.Random(seed)
        self._processes = processes
        self._servers: dict[int, asyncio.subprocess.Process] = {}
        self._heard: dict[int, float] = {}
        self._orphans: dict[int, float] = {}
        self._seen: dict[str, str] = {}
        self._ending = False

    async def run(self, seconds: float) -> Counts:
        """Soak for so long; then every server leaves in peace."""
        await self._compile_references()
        adopt_orphans()
        injector = Injector(self.place, self._chance, lambda: list(self._servers))
        keeping = [
            asyncio.ensure_future(self._keep(n, injector)) for n in range(self._processes)
        ]
        end = time.monotonic() + seconds
        strike = 0.0
        while (now := time.monotonic()) < end:
            await asyncio.sleep(0.05)
            self._watch(now)
            if self._servers and now > strike:
                injector.strike()
                strike = now + self._chance.uniform(0, 2 * STRIKE_SECONDS)
            for task in keeping:
                if task.done():
                    task.result()
        self._ending = True
        self.place.recover()
        for server in list(self._servers.values()):
            self._leave(server)
        await asyncio.wait(keeping)
        for task in keeping:
            task.result()
        for _ in range(int(ORPHAN_SECONDS / 0.05) + 10):
            await asyncio.sleep(0.05)
            self._watch(time.monotonic())
        self.counts.faults.update(injector.done)
        return self.counts

    def close(self) -> None:
        """Leave nothing, also when the soak itself failed."""
        for process in self._servers:
            kill(process)
        self.place.close()

    async def _compile_references(self) -> None:
        folder = self.place.folder("references")
        async with Compiler("sm_90", cache_dir=folder, workers=2) as compiler:
            for artifact in await compiler.compile_all([good(n) for n in range(KNOWN)]):
                assert isinstance(artifact, Artifact), artifact
                self._seen[artifact.digest] = fingerprint(artifact)

    async def _keep(self, place: int, injector: Injector) -> None:
        """Have one server running, whatever becomes of it."""
        while not self._ending:
            self.counts.servers += 1
            name = f"{place}-{self.counts.servers}"
            temporary = self.place.folder(name)
            server = await self._start(temporary)
            patience = None
            if self._chance.random() < 0.3:
                patience = asyncio.get_running_loop().call_later(
                    self._chance.uniform(3, 12), self._leave, server
                )
            errors = asyncio.ensure_future(_tail(server))
            await self._listen(server)
            code = await server.wait()
            if patience is not None:
                patience.cancel()
            del self._servers[server.pid]
            text = (await errors).decode(errors="replace")
            if server.pid not in injector.killed:
                if code != 0:
                    self.counts.wrong.append(f"a server ended with {code}: {text[-3000:]}")
                elif left := left_in(temporary):
                    print(f"left by a server: {left}", file=sys.stderr)
                    self.counts.leaked["folders"] += len(left)
            if "are left" in text:
                print(text[-3000:], file=sys.stderr)
            if "Traceback" in text or "never retrieved" in text:
                self.counts.wrong.append(f"a server said: {text[-3000:]}")

    async def _start(self, temporary: Path) -> asyncio.subprocess.Process:
        user: dict[str, Any] = {}
        if self.place.user is not None:
            user = {"user": self.place.user, "group": self.place.user, "extra_groups": []}
        modules = [str(ROOT), *filter(None, sys.path)]
        server = await asyncio.create_subprocess_exec(
            *(*self.place.wrapper, sys.executable),
            *("-X", "dev", "-m", "tests.soak.server"),
            *(str(self.place.cache), str(self._chance.randrange(1 << 32))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=temporary,
            env=os.environ
            | {
                "HOME": str(temporary),
                "TMPDIR": str(temporary),
                "PYTHONPATH": os.pathsep.join(modules),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            limit=1 << 24,
            **user,
        )
        self._servers[server.pid] = server
        self._heard[server.pid] = time.monotonic()
        return server

    def _leave(self, server: asyncio.subprocess.Process) -> None:
        """Ask a server to end; it has so long."""
        assert server.stdin is not None
        server.stdin.close()

    async def _listen(self, server: asyncio.subprocess.Process) -> None:
        assert server.stdout is not None
        async for line in server.stdout:
            self._heard[server.pid] = time.monotonic()
            with contextlib.suppress(json.JSONDecodeError):  # it was killed as it wrote
                self._count(json.loads(line))

    def _count(self, told: dict[str, Any]) -> None:
        counts = self.counts
        counts.delivered += told["delivered"]
        counts.faults.update(told["faults"])
        counts.failures.update(told["failures"])
        counts.compiled.update(told["compiled"])
        counts.leaked.update(told["leaked"])
        counts.wrong += told["wrong"]
        counts.hung += told["hung"]
        for digest, found in told["seen"].items():
            if self._seen.setdefault(digest, found) != found:
                counts.wrong.append(f"{digest} is not its reference")

    def _watch(self, now: float) -> None:
        """Reap orphans, count those that live too long, and servers that are silent."""
        orphans = set(children()) - set(self._servers)
        for process in orphans:
            if is_zombie(process):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
            elif has_a_leader(process):
                self._orphans.pop(process, None)
            elif now - self._orphans.setdefault(process, now) > ORPHAN_SECONDS:
                command = Path(f"/proc/{process}/cmdline").read_bytes()
                print(f"leaked: {process} {command[:100]!r}", file=sys.stderr)
                self.counts.leaked["processes"] += kill(process)
                self._orphans[process] = float("inf")
        self._orphans = {p: since for p, since in self._orphans.items() if p in orphans}
        for process, server in self._servers.items():
            if now - self._heard[process] > SILENT_SECONDS:
                self.counts.hung.append(f"server {process}")
                self._heard[process] = now
                server.kill()


async def _tail(server: asyncio.subprocess.Process) -> bytes:
    """The last of what a server wrote to its standard error."""
    assert server.stderr is not None
    tail = b""
    while chunk := await server.stderr.read(1 << 16):
        tail = (tail + chunk)[-(1 << 16) :]
    return tail


async def soak(seconds: float, seed: int, processes: int) -> Counts:
    """Run one; see the package."""
    made = Soak(seed, processes)
    try:
        return await made.run(seconds)
    finally:
        made.close()
