"""nvJitLink: makes the cubin of one kernel from a program's LTO-IR, and of no more.

The headers of a toolkit leave hundreds of unused variables in a cubin, and its load takes
as long as they are many. nvJitLink can leave them out, but must be told with care:

- `-optimize-unused-variables` and `-kernels-used` alone give wrong results: a variable
  that only the host sets is taken for a constant, one that only the host reads is not
  written. So a first link, to PTX, finds the variables that the kernel uses, and the
  second keeps them with `-variables-used`; with it, the other option is ignored.
- NVRTC's `-dlto` implies `-rdc=true`, which declares more than a kernel that is compiled
  whole may use; without its macro it does not.
- Names are matched as parts: `k` keeps `k2` too, a variable `n` many others.
- It takes `-ftz`, `-maxrregcount` and their like once, and fails late at a second one.
- `-device-stack-protector`, as documented, is unknown to 13.5; with two dashes and a value
  it works. `-restrict` is taken for `-r`; `-Xnvvm=-restrict` stays in force for the next.
- `-g` makes other code than NVRTC's `-G`.
- It links LTO-IR of its own major version and not of a later minor one.
- Out of memory, ptxas tells standard error so, and the log only `ptxjit`; LLVM aborts.
- Its log holds a line about every LTO-IR container.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

from .._diagnostics import printable
from .._errors import CompileMemoryError, ToolchainError
from . import _cubin
from ._base import Job
from ._link_options import linker_options
from ._ptx import Variable, used_variables
from ._toolkit import files_digest, find_library

INTERMEDIATE = ("--dlink-time-opt", "--undefine-macro=__CUDACC_RDC__")
INSTALL = "pip install 'kernels_async[cuda13-slim]' (or [cuda12-slim])"

_OF_THE_SOURCE = {"ERROR_NVVM_COMPILE", "ERROR_PTX_COMPILE", "ERROR_FINALIZE"}
_OUT_OF_MEMORY = re.compile(r"out of memory|Memory allocation failure|ERROR \d+: ptxjit")
_NOISE = re.compile(
    r"^(?:INFO: .* LTOIR Container created .*|ERROR NVJITLINK_ERROR_\w+: .*)\n?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Linked:
    """What came of a link.

    Attributes:
        output: The cubin, or the PTX; nothing if the source is at fault.
        status: nvJitLink's name of the outcome.
        log: What nvJitLink and ptxas said.
    """

    output: bytes
    status: str
    log: str


@dataclass(frozen=True)
class Linker:
    """nvJitLink's library.

    Attributes:
        library: Its path.
        identity: Its version and the digest of the library.
    """

    library: str
    identity: str

    @classmethod
    def find(cls, nvrtc: tuple[int, int]) -> Linker:
        """Find the library for LTO-IR of NVRTC's version; reads it once per process.

        Raises:
            ToolchainError: There is none, or it cannot link that LTO-IR.
        """
        library = find_library("nvJitLink", "nvJitLink", INSTALL)
        version = _version_of(library)
        if version[0] != nvrtc[0] or version < nvrtc:
            raise ToolchainError(
                f"nvJitLink {version[0]}.{version[1]} at {library} cannot link what NVRTC "
                f"{nvrtc[0]}.{nvrtc[1]} makes: slim=True needs nvJitLink {nvrtc[0]}.x from "
                f"{nvrtc[0]}.{nvrtc[1]}: {INSTALL}"
            )
        digest = files_digest(library)
        return cls(library, f"nvjitlink {version[0]}.{version[1]} {digest}")

    @classmethod
    def from_configuration(cls, configuration: dict[str, str]) -> Linker:
        """Rebuild one in a worker."""
        return cls(configuration["library"], configuration["identity"])

    def configuration(self) -> dict[str, str]:
        """JSON from which a worker rebuilds it."""
        return {"library": self.library, "identity": self.identity}

    def load(self) -> None:
        """Load the library, while it can be read.

        Raises:
            ToolchainError: It cannot be loaded.
        """
        _NvJitLink(self.library)

    def link(self, ltoir: bytes, entry: str, job: Job) -> Linked:
        """Make the cubin of `entry`, with the variables that it uses.

        Raises:
            CompileMemoryError: There was not enough memory.
            ToolchainError: nvJitLink cannot be used, or not for this job.
        """
        nvjitlink = _NvJitLink(self.library)
        options = linker_options(job.specialization.options)
        flags = [f"-arch={job.target}", "-lto", "-no-cache", *options]
        whole = nvjitlink.link(ltoir, [*flags, "-ptx"], "linked_ptx")
        if not whole.output:
            return whole
        used = used_variables(whole.output.decode(errors="replace"), entry)
        keep = [f"-variables-used={variable.name}" for variable in used]
        flags += ["-Xptxas=-v", f"-kernels-used={entry}"]
        flags += keep or ["-optimize-unused-variables"]
        linked = nvjitlink.link(ltoir, flags, "linked_cubin")
        if linked.output:
            _check_kept(used, linked.output)
        return linked


class _NvJitLink:
    """nvJitLink's calls; the only place that knows `cuda.bindings.nvjitlink`."""

    def __init__(self, library: str) -> None:
        try:
            ctypes.CDLL(library)
            from cuda.bindings import nvjitlink

            nvjitlink.version()
        except (ImportError, OSError, RuntimeError) as error:
            message = f"nvJitLink cannot be loaded: {error}; {INSTALL}"
            raise ToolchainError(message) from error
        self._nvjitlink = nvjitlink

    def link(self, ltoir: bytes, flags: list[str], wanted: str) -> Linked:
        """One link; `wanted` is what `nvJitLinkGet...` calls its output."""
        native = self._nvjitlink
        try:
            handle = native.create(len(flags), flags)
        except native.nvJitLinkError as error:
            message = f"nvJitLink refuses {' '.join(flags)}: {error}"
            raise ToolchainError(message) from error
        try:
            native.add_data(handle, native.InputType.LTOIR, ltoir, len(ltoir), "kernel")
            native.complete(handle)
            return Linked(self._get(handle, wanted), "SUCCESS", self._log(handle))
        except native.nvJitLinkError as error:
            status = native.Result(error.status).name
            return _failed(status, self._log(handle))
        finally:
            native.destroy(handle)

    def _log(self, handle: Any) -> str:
        logs = [self._get(handle, name) for name in ("info_log", "error_log")]
        texts = [log.rstrip(b"\0").decode(errors="backslashreplace") for log in logs]
        return _NOISE.sub("", "\n".join(text.rstrip() for text in texts))

    def _get(self, handle: Any, name: str) -> bytes:
        buffer = bytearray(getattr(self._nvjitlink, f"get_{name}_size")(handle))
        if buffer:
            getattr(self._nvjitlink, f"get_{name}")(handle, buffer)
        return bytes(buffer)


def _failed(status: str, log: str) -> Linked:
    """What a failed link is: out of memory, nvJitLink's fault or the source's."""
    if _OUT_OF_MEMORY.search(log):
        raise CompileMemoryError(f"nvJitLink ran out of memory: {printable(log).strip()}")
    if status not in _OF_THE_SOURCE:
        raise ToolchainError(f"nvJitLink failed: {status}: {printable(log).strip()}")
    return Linked(b"", status, log)


def _check_kept(used: list[Variable], cubin: bytes) -> None:
    """That nothing is lost which another nvJitLink might name otherwise."""
    exported = {variable.name for variable in used if variable.is_exported}
    lost = sorted(exported - _cubin.symbols(cubin))
    if lost:
        raise ToolchainError(
            f"nvJitLink lost variables that the kernel uses, {', '.join(lost)}: "
            "compile it without slim=True"
        )


def _version_of(library: str) -> tuple[int, int]:
    major, minor = ctypes.c_uint(), ctypes.c_uint()
    status = ctypes.CDLL(library).nvJitLinkVersion(ctypes.byref(major), ctypes.byref(minor))
    if status:
        raise ToolchainError(f"nvJitLink at {library} does not tell its version: {status}")
    return major.value, minor.value
