"""Where NVRTC and the toolkit's headers are, and everything about them that is in a key.

They come from the `nvidia-cuda-*` wheels or an installed toolkit. Headers of another CUDA
than NVRTC's are not mixed in.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import lru_cache
from pathlib import Path

from blake3 import blake3

from .._errors import ToolchainError
from .._value import digest

INSTALL = "pip install 'kernels_async[cuda13]' (or [cuda12]), or install a CUDA toolkit"


def find_library(name: str = "nvrtc", title: str = "NVRTC", install: str = INSTALL) -> str:
    """Path of a library of the toolkit; raises `ToolchainError` if there is none."""
    try:
        from cuda import pathfinder
    except ImportError as error:
        raise ToolchainError(f"{title} was not found: {install}") from error
    try:
        library = pathfinder.load_nvidia_dynamic_lib(name).abs_path
    except (pathfinder.DynamicLibNotFoundError, OSError, RuntimeError) as error:
        raise ToolchainError(f"{title} was not found: {install}") from error
    if library is None:
        raise ToolchainError(f"{title} has no path: {install}")
    return str(library)


def version_of(library: str) -> tuple[int, int]:
    """NVRTC's version, without the patch level, which it does not tell."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    status = ctypes.CDLL(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if status:
        raise ToolchainError(f"NVRTC at {library} does not tell its version: {status}")
    return major.value, minor.value


def find_headers(library: str, version: tuple[int, int]) -> tuple[str, ...]:
    """The toolkit's headers beside the library if there are any, else the nearest.

    Headers of another CUDA than NVRTC's, or a CCCL of another toolkit, are not mixed in.
    """
    from cuda import pathfinder

    beside = [parent / "include" for parent in Path(library).resolve().parents[:4]]
    elsewhere = pathfinder.find_nvidia_header_directory("cudart")
    candidates = [*beside, *([Path(elsewhere)] if elsewhere else [])]
    toolkit = next((c for c in candidates if _cuda_version(c) // 1000 == version[0]), None)
    if toolkit is None:
        return ()
    if (toolkit / "cccl").is_dir():
        return (str(toolkit), str(toolkit / "cccl"))
    found = pathfinder.find_nvidia_header_directory("cccl")
    if found is None or _cuda_version(Path(found).parent) not in (
        0,
        _cuda_version(toolkit),
    ):
        return (str(toolkit),)
    return tuple(dict.fromkeys((str(toolkit), found)))


def _cuda_version(folder: Path) -> int:
    """CUDA_VERSION of the `cuda.h` in a folder, such as 13000; 0 if there is none."""
    try:
        text = (folder / "cuda.h").read_text(errors="replace")
    except OSError:
        return 0
    match = re.search(r"#define CUDA_VERSION (\d+)", text)
    return int(match[1]) if match else 0


def library_digest(library: str) -> str:
    """Of the library and its builtins: the version lacks the patch level."""
    return files_digest(library, *builtins(library))


@lru_cache
def files_digest(*files: str | Path) -> str:
    """Of what is in the files, read once per process."""
    hasher = blake3(max_threads=blake3.AUTO)
    for file in files:
        hasher.update_mmap(Path(file).resolve())
    return hasher.hexdigest()


def builtins(library: str) -> list[Path]:
    """The libraries beside NVRTC that it loads itself."""
    return sorted(Path(library).resolve().parent.glob("libnvrtc-builtins*"))


@lru_cache
def headers_identity(folder: str) -> str:
    """The headers' versions, and the digest of the top folder's names and sizes.

    The version of the toolkit lacks the patch level, and reading the whole tree takes
    minutes where a container's image is fetched on demand.
    """
    root = Path(folder)
    files = sorted(
        f"{entry.name} {entry.stat().st_size}"
        for entry in os.scandir(root)
        if entry.is_file()
    )
    versions = [
        f"{match[1]} {match[2]}"
        for name in ("cuda.h", "cuda/std/__cccl/version.h")
        if (root / name).is_file()
        for match in re.finditer(
            r"#\s*define (CUDA_VERSION|CCCL_VERSION) (\d+)",
            (root / name).read_text(errors="replace"),
        )
    ]
    return " ".join([*versions, digest("\n".join(files).encode())])
