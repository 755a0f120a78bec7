"""What the tests of the command line share: a way to run it, and ready-made artifacts."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernels_async.__main__ import main
from kernels_async._artifact import Output
from kernels_async._diagnostics import Diagnostic, Severity
from kernels_async._digest import artifact_key
from kernels_async._record import Seal
from kernels_async._resources import Resources
from kernels_async._store import Store

NVRTC = "nvrtc 13.5 " + "ab" * 32 + " headers [CUDA_VERSION 13050 " + "cd" * 32 + "]"
RESOURCES = Resources(32, 8, 12, 16, 1024, 4, 1)
WARNING = Diagnostic(Severity.WARNING, "never \x1b[31mreferenced", "177-D", "k.cu", 3, 5)


@dataclass(frozen=True)
class Ran:
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document of standard output."""
        found: dict[str, Any] = json.loads(self.out)
        assert found["exit_code"] == self.code
        return found


Run = Callable[..., Ran]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process."""

    def run(*arguments: object) -> Ran:
        code = main([str(argument) for argument in arguments])
        return Ran(code, *capsys.readouterr())

    return run


def entries_of(symbol: str, target: str = "sm_90", **defines: str) -> dict[str, str]:
    """What enters the key of a made-up request."""
    return {
        "schema": "test",
        "toolchain": "c++ [c++ (Debian) 12.2.0] for x86" if target == "cpu" else NVRTC,
        "target": target,
        "source name": "k.cu",
        "source text": "blake3 " + "12" * 32,
        "symbol": symbol,
        **{f"define {name}": text for name, text in defines.items()},
        "options": "--std=c++20",
    }


def put(
    root: Path,
    symbol: str,
    target: str = "sm_90",
    *,
    size: int = 1000,
    seconds: float = 0.5,
    secret: bytes | None = None,
    **defines: str,
) -> str:
    """Keep an artifact in a cache directory; its key."""
    named = entries_of(symbol, target, **defines)
    name = "kernel.so" if target == "cpu" else "kernel.cubin"
    resources = None if target == "cpu" else RESOURCES
    output = Output(
        symbol.encode().ljust(size), f"_Z{symbol}", (WARNING,), resources, seconds
    )
    key = artifact_key(named)
    Store(root, name, seal=Seal(secret)).publish(key, named, output)
    return key


def in_terminal(
    command: Sequence[str], environment: dict[str, str], feed: bytes = b""
) -> tuple[int, str]:
    """Run `kernels-async` with a terminal for all its streams; code and what it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kernels_async", *command],
        env=environment | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    os.write(ours, feed)
    try:
        while chunk := os.read(ours, 1 << 16):
            shown += chunk
    except OSError:  # the last of the terminal's users has gone
        pass
    finally:
        os.close(ours)
    return process.wait(10), shown.decode()
