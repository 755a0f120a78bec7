"""The worker process: compiles one job after another, and nothing else.

Started by `_start.py` with three arguments, LOCK, THREAD and FOLDER: LOCK is a descriptor
that the server holds a lock on for as long as it lives, THREAD the number of the thread
that runs its event loop, FOLDER the empty private directory in which it works. It never
imports the user's `__main__` and never touches a GPU. The first frame that it reads says
which toolchain it is; it loads that, confines itself and says hello. Each later frame is
a job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

from . import _frames, _sandbox
from ._artifact import Output
from ._diagnostics import Diagnostic, Severity
from ._errors import (
    CompileError,
    CompileMemoryError,
    KernelsError,
    SpecificationError,
    ToolchainError,
)
from ._includes import Include, includes, leaves_the_source, relative
from ._source import Source
from .toolchains import Job, Toolchain, from_configuration

NICENESS = 10
_WATCH_MILLISECONDS = 250
_STANDARD_ERROR = 2


def main() -> None:
    """Serve jobs from standard input until it ends."""
    *watched, folder = sys.argv[1:]
    lock, thread = map(int, watched)
    _close_all_but(lock)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _end)
    _sandbox.die_with_parent(signal.SIGKILL)
    if not (_is_held(lock) and _is_there(thread)):
        return
    os.nice(NICENESS)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    jobs = sys.stdin.buffer
    if (settings := _read(jobs)) is None:
        return
    try:
        toolchain = from_configuration(settings["toolchain"])
        toolchain.load()
        access = toolchain.access()
        sandbox = _sandbox.confine(access, settings["memory"], settings["sandbox"])
    except ToolchainError as error:
        _write(answers, _frames.refusal(str(error)))
        return
    if access.executes:
        _sandbox.die_with_parent(signal.SIGTERM)
    threading.Thread(target=_watch, args=(lock, thread), daemon=True).start()
    _write(answers, _frames.hello(sandbox))
    while (record := _read(jobs)) is not None:
        number, shared = record["number"], record["shared"]
        _write(answers, _frames.begun(number, toolchain.keeps(shared)))
        job = Job.from_record(record["job"])
        outcome = _compile(toolchain, job, shared)
        _write(answers, _frames.answer(number, outcome))


def _close_all_but(lock: int) -> None:
    """Close what the server left open for its children: sockets, devices, files."""
    for descriptor in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
        if descriptor > _STANDARD_ERROR and descriptor != lock:
            with contextlib.suppress(OSError):  # it was that of the list itself
                os.close(descriptor)


def _compile(toolchain: Toolchain, job: Job, shared: str) -> Output | KernelsError:
    try:
        _refuse_host_files(job.source)
        return toolchain.compile(job, shared)
    except KernelsError as error:
        return error
    except MemoryError:
        return CompileMemoryError("the worker is out of memory")


def _refuse_host_files(source: Source) -> None:
    """An include that names a file of the host's is an error, whether it is there."""
    for name, text in {**source.headers, source.name: source.text}.items():
        for include in _includes(name, text):
            inside = relative(name, include.name) in source.headers
            if not include.macro and leaves_the_source(include.name) and not inside:
                message = (
                    f"{include.name!r} is a path of the host's: pass the header's text in "
                    "Source(headers={...}), or use Source.load"
                )
                diagnostic = Diagnostic(Severity.ERROR, message, "", name, include.line)
                raise CompileError(str(diagnostic), diagnostics=[diagnostic])


def _includes(name: str, text: str) -> list[Include]:
    try:
        return list(includes(text))
    except SpecificationError as error:
        raise CompileError(f"{name}: error: {error}") from error


def _watch(lock: int, thread: int) -> None:
    """End when the server or its loop's thread does, whoever holds the pipes open."""
    pipe = select.poll()
    pipe.register(0, 0)
    while _is_held(lock) and _is_there(thread) and not pipe.poll(_WATCH_MILLISECONDS):
        pass
    _end()


def _is_held(lock: int) -> bool:
    """Whether another process holds the lock on a descriptor."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_there(thread: int) -> bool:
    """Whether a thread lives, also one that this process may send no signal."""
    with contextlib.suppress(PermissionError):
        try:
            os.kill(thread, 0)
        except ProcessLookupError:
            return False
    return True


def _end(*_: object) -> None:
    """Kill this worker and the compilers that it runs, at once."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    header = stream.read(_frames.HEADER.size)
    if len(header) < _frames.HEADER.size:
        return None
    text, _ = _frames.lengths(header, _frames.JOB)
    record: dict[str, Any] = json.loads(stream.read(text))
    return record


def _write(stream: BinaryIO, frame: bytes) -> None:
    view = memoryview(frame)
    while view:
        view = view[stream.write(view) :]
