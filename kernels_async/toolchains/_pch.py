"""NVRTC's precompiled headers, kept by one worker for jobs that begin alike.

What stands before the first declaration of a source, with every header that it includes,
is kept as a memory image in the worker's private folder, and later jobs of that worker
begin with it: they take a third of the time (NVRTC's guide, "Precompiled Headers"). The
bytes that come out are the same.

Traps of NVRTC that are handled here: the texts of headers that were given in memory are not
compared, so each prefix has a folder of its own, named by their digests; warnings in the
headers may be told once and never again, so the first compile that says anything is done
twice, and one that fails leaves no image; a full disk fails the compile, or kills the
process, so there must be room for two images, and what fails is compiled again without.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from .._digest import artifact_key
from .._includes import leading_directives
from ._base import Job

HEAP_BYTES = 1 << 30
"""How large an image may be; NVRTC reserves so many addresses, and no memory."""

_OPTIONS = ("--pch", "--pch-verbose=false", "--pch-messages=false")
_ROOM = 2 * HEAP_BYTES
_KEPT_BYTES = 1 << 30
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b", re.MULTILINE)


def prefix(job: Job) -> str:
    """What an image of the job's headers depends on, as a digest; empty without headers."""
    directives = leading_directives(job.source.text)
    if not _INCLUDE.search(directives):
        return ""
    return artifact_key(
        {
            "directives": directives,
            "defines": repr(list(job.specialization.defines.items())),
            "options": repr(list(job.specialization.options)),
            **{n: d for n, d in job.source.digests.items() if n != "source text"},
        }
    )


class PrecompiledHeaders:
    """The images of one worker.

    It lives in the worker's current folder, under a name that no source can know, so that
    none can include what is in it.
    """

    def __init__(self) -> None:
        self._root: Path | None = None
        self._trusted: set[str] = set()
        self._distrusted: set[str] = set()

    def options(self, prefix: str) -> list[str]:
        """NVRTC's options for a job of that prefix; none if it is compiled without."""
        if not prefix or prefix in self._distrusted:
            return []
        try:
            folder = self._folder(prefix)
            if not folder.is_dir():
                if shutil.disk_usage(folder.parent).free < _ROOM:
                    return []
                self._make_room()
                folder.mkdir()
            os.utime(folder)
        except OSError:
            return []
        return [*_OPTIONS, f"--pch-dir={folder}"]

    def are_trusted(self, prefix: str) -> bool:
        """Whether a compile with an image is known to say what one without says."""
        return prefix in self._trusted

    def trust(self, prefix: str) -> None:
        """Take what is made with the image from now on; if there is one."""
        if any(self._folder(prefix).glob("*")):
            self._trusted.add(prefix)
        else:
            self.distrust(prefix)

    def distrust(self, prefix: str) -> None:
        """Compile jobs of that prefix without an image from now on."""
        self._distrusted.add(prefix)
        self.drop(prefix)

    def drop(self, prefix: str) -> None:
        """Remove the image."""
        self._trusted.discard(prefix)
        shutil.rmtree(self._folder(prefix), ignore_errors=True)

    def _folder(self, prefix: str) -> Path:
        if self._root is None or not self._root.is_dir():
            self._root = Path(tempfile.mkdtemp(dir=Path.cwd()))
        return self._root / prefix

    def _make_room(self) -> None:
        """Remove the images that were not used for longest, if they are many."""
        if self._root is None:
            return
        held = 0
        used = sorted(self._root.iterdir(), key=lambda f: f.stat().st_mtime, reverse=True)
        for folder in used:
            held += sum(file.stat().st_size for file in folder.iterdir())
            if held > _KEPT_BYTES:
                self.drop(folder.name)
