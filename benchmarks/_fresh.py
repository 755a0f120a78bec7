"""A Python process of its own for each contender.

What one has loaded, cached or allocated neither helps nor hurts the next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHILD = """
import asyncio, importlib, inspect, json, sys
module, name = sys.argv[1:]
result = getattr(importlib.import_module(module), name)(*json.load(sys.stdin))
print(json.dumps(asyncio.run(result) if inspect.isawaitable(result) else result))
"""


def fresh(function: Callable[..., Any], *arguments: Any, caches: str | None = None) -> Any:
    """What a function of one of these scripts returns in a new process.

    The process is no script that a child of it would run again, so that a process pool
    in it starts as fast as it can. Arguments and result travel as JSON.

    Args:
        function: A function of a module; if it is `async` it runs in a new event loop.
        arguments: Its arguments.
        caches: Where CuPy's cache directory and this library's are; by default new and
            empty ones.

    Raises:
        subprocess.CalledProcessError: It failed; its traceback is on standard error.
    """
    if caches is None:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            return fresh(function, *arguments, caches=folder)
    module = Path(function.__code__.co_filename).stem
    process = subprocess.run(
        [sys.executable, "-c", _CHILD, module, function.__name__],
        input=json.dumps(arguments),
        env=_environment(caches),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def _environment(caches: str) -> dict[str, str]:
    modules = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "CUPY_CACHE_DIR": str(Path(caches, "cupy")),
        "KERNELS_ASYNC_CACHE_DIR": str(Path(caches, "kernels_async")),
        "PYTHONPATH": os.pathsep.join(filter(None, modules)),
    }
