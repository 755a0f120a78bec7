"""Programs that `doctor` runs beside itself: what crashes or hangs there harms nobody."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from .._diagnostics import printable
from .._private import remove_folder

_LAST_WORDS = 400
_MOST_TRIES = 100
_PACKAGE = Path(__file__).parents[1]
_PROGRAM = """
import sys
from importlib.util import module_from_spec, spec_from_file_location

folder = sys.argv.pop(1)
spec = spec_from_file_location("kernels_async", f"{folder}/__init__.py")
sys.modules["kernels_async"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["kernels_async"])

from kernels_async.cli._probe import main

main()
"""
"""Runs `_probe` of this package, wherever another one is installed."""


class ProbeError(Exception):
    """A probe did not end well; the text says how."""


class Bench:
    """A scratch folder, and the probes that sit in it; all of it goes at the end.

    Temporary files, artifacts and what CuPy keeps are there too, so that nothing of the
    user's is made or changed.
    """

    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="kernels_async-doctor-"))
        self._changing = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._closed = False

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changing:
            self._closed = True
            processes = list(self._processes)
        for process in processes:
            _end(process)
        _remove(self._scratch)

    def probe(self, *arguments: str, seconds: float) -> dict[str, object]:
        """What a probe reports, see `_probe`.

        Raises:
            ProbeError: It crashed, did not end in time, or reports an error.
        """
        with self._started(arguments) as process:
            try:
                out, words = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                raise ProbeError(f"it did not end within {seconds:g} s") from None
        try:
            report = json.loads(out.splitlines()[-1])
        except (ValueError, IndexError):
            report = None
        if not isinstance(report, dict):
            last = printable(words.strip()[-_LAST_WORDS:])
            raise ProbeError(f"{_ending(process.returncode)}: {last}".rstrip(": "))
        if "error" in report:
            raise ProbeError(str(report["error"]))
        return report

    @contextlib.contextmanager
    def _started(self, arguments: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
        scratch = tempfile.mkdtemp(dir=self._scratch)
        places = {"TMPDIR": scratch, "CUPY_CACHE_DIR": scratch}
        with self._changing:
            if self._closed:
                raise ProbeError("it was not begun")
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(_PACKAGE), *arguments],
                env=os.environ | places,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="backslashreplace",
                start_new_session=True,
            )
            self._processes.add(process)
        try:
            yield process
        finally:
            _end(process)
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()
            with self._changing:
                self._processes.discard(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill it, if it has not ended; one that cannot even be killed is left."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)


def _remove(folder: Path) -> None:
    """Remove it, though a compiler of a probe that was killed may still write there."""
    for _ in range(_MOST_TRIES):
        remove_folder(folder)
        if not folder.exists():
            return
        time.sleep(0.02)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it ended with code {code}"
