"""A worker that does what its job's source says, to be put in place of the real one.

`FakeWorker` makes a program of this file that serves as `sys.executable`. A job whose
source holds a line `//! fault` is begun, and then the fault is committed; any other
is answered with an artifact. Every job that is begun is written down.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kernels_async import _frames
from kernels_async._artifact import Output

DATA = b"\x7fELF of a fake kernel"


class FakeWorker:
    """A program that is started like Python and is a fake worker.

    Attributes:
        program: Its path.
    """

    def __init__(self, folder: Path) -> None:
        self.program = str(folder / "fake-python")
        self._log = folder / "begun"
        self._log.touch()
        Path(self.program).write_text(
            f"#!/bin/sh\nexec '{sys.executable}' '{__file__}' '{self._log}' \"$@\"\n"
        )
        Path(self.program).chmod(0o700)

    def begun(self) -> Counter[str]:
        """How often each job was begun, by its symbol."""
        return Counter(self._log.read_text().splitlines())


def _send(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _die(number: signal.Signals) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def _leave_a_child() -> None:
    """End, while a child that ignores SIGTERM holds the pipes open."""
    subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; sleep 1000; sleep 1000"])
    os._exit(9)


def _eat() -> None:
    held = []
    while True:
        held.append(b"x" * (16 << 20))


def _end_after(data: bytes) -> None:
    _send(data)
    _die(signal.SIGKILL)


def _close() -> None:
    os.close(1)
    _hang()


def _repeat_late(data: bytes) -> None:
    _send(data)
    time.sleep(0.1)
    _send(data)


def _flood(then: Callable[[], None]) -> None:
    for _ in range(1600):
        os.write(2, b"noise \x1b[31m " * 5000)
    then()


def _good(number: int) -> bytes:
    output = Output(DATA, "entry", (), None, 0.001)
    return _frames.answer(number, output)


def _changed(number: int, **changes: object) -> bytes:
    """A good answer with fields changed, or left out where `None`."""
    record = json.loads(_good(number)[_frames.HEADER.size : -len(DATA)])
    record = {k: v for k, v in (record | changes).items() if v != "left out"}
    return _frames.encode(record, DATA)


PICKLE = b"cposix\nsystem\n(S'touch /tmp/kernels_async-unpickled'\ntR."

FAULTS: dict[str, Callable[[int], None]] = {
    "segv": lambda _: _die(signal.SIGSEGV),
    "abort": lambda _: _die(signal.SIGABRT),
    "kill": lambda _: _die(signal.SIGKILL),
    "exit-0": lambda _: os._exit(0),
    "exit-3": lambda _: os._exit(3),
    "hang": lambda _: _hang(),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "eat": lambda _: _eat(),
    "child": lambda _: _leave_a_child(),
    "close": lambda _: _close(),
    "flood-and-die": lambda _: _flood(lambda: _die(signal.SIGSEGV)),
    "half-a-header": lambda n: _end_after(_good(n)[:7]),
    "half-a-frame": lambda n: _end_after(_good(n)[:-3]),
    "rubbish": lambda _: _send(os.urandom(4096)),
    "too-large": lambda _: _send(_frames.HEADER.pack(10, 1 << 40)),
    "no-json": lambda _: _send(_frames.HEADER.pack(6, 0) + b"{ nope"),
    "deep-json": lambda _: _send(_frames.HEADER.pack(10**6, 0) + b"[" * 10**6),
    "pickle": lambda _: _send(_frames.HEADER.pack(len(PICKLE), 0) + PICKLE),
    "no-number": lambda n: _send(
        _good(n).replace(b'"compile_seconds": 0.001', b'"compile_seconds":   NaN')
    ),
    "infinite": lambda n: _send(
        _good(n).replace(b'"compile_seconds": 0.001', b'"compile_seconds": 1e999')
    ),
    "another-job": lambda n: _send(_good(n + 1)),
    "twice": lambda n: _send(_good(n) * 2),
    "begun-twice": lambda n: _send(_frames.begun(n) + _good(n)),
    "a-field-more": lambda n: _send(_changed(n, more=1)),
    "a-field-less": lambda n: _send(_changed(n, entry="left out")),
    "wrong-type": lambda n: _send(_changed(n, entry=5)),
    "wrong-diagnostic": lambda n: _send(_changed(n, diagnostics=[{"severity": "BAD"}])),
    "wrong-resources": lambda n: _send(_changed(n, resources={"registers": -1})),
    "no-artifact": lambda n: _send(_good(n)[:8] + bytes(8) + _good(n)[16 : -len(DATA)]),
}
"""Each ends the job that commits it, in a `WorkerCrashed`, a time-out or for memory."""

DIE_WITH_HEADERS = "die-with-headers"
"""It is committed by a job that is to keep its headers, and by no other."""

HARMLESS: dict[str, Callable[[int], None]] = {
    "flood": lambda n: _flood(lambda: _send(_good(n))),
    "die-after": lambda n: _end_after(_good(n)),
    "late": lambda n: _repeat_late(_good(n)),
}
"""Each gives an artifact all the same."""


def main(log: str) -> None:
    """Serve jobs like a worker."""
    jobs = sys.stdin.buffer

    def read() -> dict[str, object]:
        header = jobs.read(_frames.HEADER.size)
        if not header:
            os._exit(0)
        record: dict[str, object] = json.loads(jobs.read(_frames.HEADER.unpack(header)[0]))
        return record

    read()
    _send(_frames.hello("a fake worker"))
    while True:
        record = read()
        number, job = record["number"], record["job"]
        assert isinstance(number, int)
        assert isinstance(job, dict)
        with Path(log).open("a") as file:
            file.write(f"{job['symbol']}\n")
        _send(_frames.begun(number))
        fault = re.search(r"^//! (\S+)$", job["text"], re.MULTILINE)
        if fault is None or (fault[1] == DIE_WITH_HEADERS and not record["shared"]):
            _send(_good(number))
        elif fault[1] == DIE_WITH_HEADERS:
            _die(signal.SIGBUS)
        else:
            (FAULTS | HARMLESS)[fault[1]](number)


if __name__ == "__main__":
    main(sys.argv[1])
