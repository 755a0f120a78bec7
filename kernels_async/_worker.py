"""The worker process: compiles one job after another, and nothing else.

Started as `python -m kernels_async._worker` in an empty private directory. It never
imports the user's `__main__`, never touches a GPU, and ends when its standard input
does. Its first frame says which toolchain it is; each later one is a job.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import BinaryIO

from . import _frames
from ._artifact import Output
from ._diagnostics import Diagnostic, Severity
from ._errors import CompileError, KernelsError
from ._includes import includes, leaves_the_source, relative
from ._source import Source
from .toolchains import Job, Toolchain, from_configuration

NICENESS = 10


def main() -> None:
    """Serve jobs from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs = sys.stdin.buffer
    toolchain: Toolchain | None = None
    while (record := _read(jobs)) is not None:
        if toolchain is None:
            toolchain = from_configuration(record)
            continue
        answers.write(_frames.answer(_compile(toolchain, Job.from_record(record))))
        answers.flush()


def _compile(toolchain: Toolchain, job: Job) -> Output | KernelsError:
    try:
        _refuse_host_files(job.source)
        return toolchain.compile(job)
    except KernelsError as error:
        return error


def _refuse_host_files(source: Source) -> None:
    """An include that names a file of the host's is an error, whether it is there."""
    for name, text in {**source.headers, source.name: source.text}.items():
        for include in includes(text):
            inside = relative(name, include.name) in source.headers
            if not include.macro and leaves_the_source(include.name) and not inside:
                message = (
                    f"{include.name!r} is a path of the host's: pass the header's text in "
                    "Source(headers={...}), or use Source.load"
                )
                diagnostic = Diagnostic(Severity.ERROR, message, "", name, include.line)
                raise CompileError(str(diagnostic), diagnostics=[diagnostic])


def _read(stream: BinaryIO) -> dict[str, object] | None:
    header = stream.read(_frames.HEADER.size)
    if len(header) < _frames.HEADER.size:
        return None
    text, _ = _frames.lengths(header)
    record: dict[str, object] = json.loads(stream.read(text))
    return record


if __name__ == "__main__":
    main()
