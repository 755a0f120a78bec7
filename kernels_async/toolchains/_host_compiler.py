"""The host's C++ compiler: where it is, what it is, what of the host it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from .._errors import ToolchainError
from ._base import Access

_INSTALL = "install g++ or clang++, set $CXX, or pip install ziglang"
_SYSTEM = (
    *("/bin", "/lib", "/lib32", "/lib64", "/nix/store"),
    *("/usr/bin", "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"),
    *("/usr/local/bin", "/usr/local/include", "/usr/local/lib"),
    *("/etc/alternatives", "/etc/ld.so.cache"),
)
_NULL = "/dev/null"


def find_compiler() -> tuple[str, ...]:
    """The command line of `$CXX`, else of the first compiler that is installed.

    Raises:
        ToolchainError: There is none.
    """
    chosen = os.environ.get("CXX", "").split()
    if chosen:
        found = shutil.which(chosen[0])
        if found is None:
            raise ToolchainError(
                f"$CXX names {chosen[0]!r}, which is not there: {_INSTALL}"
            )
        return (found, *chosen[1:])
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return (found,)
    zig = find_spec("ziglang")
    if zig is not None and zig.submodule_search_locations:
        return (str(Path(zig.submodule_search_locations[0], "zig")), "c++")
    raise ToolchainError(f"no C++ compiler was found: {_INSTALL}")


@lru_cache
def describe(command: tuple[str, ...]) -> tuple[str, str]:
    """The compiler's version and the machine that it compiles for.

    Of what it says of its version that is the first line: others hold a licence, and the
    folder that it lies in.
    """
    answers = []
    for option in ("--version", "-dumpmachine"):
        try:
            result = subprocess.run(
                [*command, option], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise ToolchainError(
                f"{' '.join(command)} is no working C++ compiler: {error}; {_INSTALL}"
            ) from error
        answers.append(result.stdout.strip().partition("\n")[0])
    return answers[0], answers[1]


def access(command: tuple[str, ...], header: Path) -> Access:
    """The compiler's own folders and the system's, and the current one to write in.

    Args:
        command: The compiler's command line.
        header: A header of ours that it reads.
    """
    program = Path(command[0]).resolve()
    is_wheel = program.name == "zig"
    home = Path(os.environ.get("HOME", "/"))
    prefix = program.parent if is_wheel else program.parent.parent
    own = str(program.parent if prefix in (Path("/"), Path("/usr"), home) else prefix)
    cache = (str(home / ".cache/zig"),) if is_wheel else ()
    return Access(
        reads=(str(header),),
        executes=(*_SYSTEM, own),
        writes=(".", _NULL, *cache),
    )
