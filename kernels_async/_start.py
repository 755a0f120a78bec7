"""The program of a worker process: `python _start.py LOCK THREAD FOLDER`.

It imports the worker's modules and not the package's own `__init__`, which brings asyncio
and everything of the server's side along: a worker starts a quarter faster without.
"""

import sys
import types
from pathlib import Path

if __name__ == "__main__":
    package = types.ModuleType("kernels_async")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules[package.__name__] = package

    from kernels_async._worker import main

    main()
