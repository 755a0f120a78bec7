"""Private folders of this process in the system's temporary directory.

They are named after the process, so that what a killed one left is removed by the next.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import threading
from pathlib import Path
from shutil import rmtree

from ._files import Files, opened
from ._staging import staging_name, sweep
from ._trust import OWN, open_folder, open_root

_FOLDER = "processes"
_MOST_SWEPT = 1000
_UNKNOWN_SECONDS = 30 * 86400.0


def user_folder() -> Path:
    """What this user's processes on this machine share in the temporary directory."""
    return Path(tempfile.gettempdir()).absolute() / f"kernels_async-{os.geteuid()}"


def private_folder() -> Path:
    """A new folder for this process alone.

    Raises:
        OSError: There is no place for one.
    """
    try:
        return _named_folder()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="kernels_async-"))


def remove_folder(folder: str | Path) -> None:
    """Remove a private folder with everything in it, as far as it goes."""
    rmtree(folder, ignore_errors=True)


def _named_folder() -> Path:
    files, base = Files(), user_folder()
    with (
        opened(files, open_root(files, base, OWN, create=True)) as root,
        opened(files, open_folder(files, _FOLDER, root, OWN, create=True)) as processes,
    ):
        sweep(files, processes, most=_MOST_SWEPT, unknown=_UNKNOWN_SECONDS)
        name = staging_name()
        files.mkdir(name, processes)
    return base / _FOLDER / name


class Copies:
    """Files of exactly the bytes that were verified, for what can only be loaded by path.

    An entry of the cache may be evicted or replaced between its verification and its
    load. A copy has a name of its own, is never rewritten, and stays as long as the
    process: CuPy and the dynamic linker remember what they loaded by its path.
    """

    def __init__(self) -> None:
        self.reset()
        atexit.register(self._remove)

    def reset(self) -> None:
        """Begin anew, in a forked child: the files are its parent's."""
        self._changing = threading.Lock()
        self._folder: Path | None = None
        self._in_memory: dict[str, Path] = {}

    def on_disk(self, name: str, data: bytes) -> Path:
        """The file of that name, made of `data` if there is none; in memory if it must.

        Raises:
            OSError: There is neither disk nor memory for it.
        """
        with self._changing, contextlib.suppress(OSError):
            if self._folder is None or not self._folder.is_dir():
                self._folder = private_folder()
            path = self._folder / name
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=self._folder) as unfinished:
                    written = Path(unfinished, name)
                    written.write_bytes(data)
                    written.rename(path)
            return path
        return self.in_memory(name, data)

    def in_memory(self, name: str, data: bytes) -> Path:
        """The same on no disk, by the number of a descriptor that stays open.

        Raises:
            OSError: There is no memory for it.
        """
        with self._changing:
            if name not in self._in_memory:
                descriptor = os.memfd_create(name)
                with os.fdopen(descriptor, "wb", closefd=False) as stream:
                    stream.write(data)
                self._in_memory[name] = Path(f"/proc/self/fd/{descriptor}")
            return self._in_memory[name]

    def _remove(self) -> None:
        if self._folder is not None:
            remove_folder(self._folder)


copies = Copies()
os.register_at_fork(after_in_child=copies.reset)
