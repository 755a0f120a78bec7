"""The cuda toolchain: CUDA C++ through NVRTC straight to a cubin.

NVRTC and the toolkit's headers come from the `nvidia-cuda-*` wheels or an installed
toolkit; neither a GPU nor a driver is needed. The traps of NVRTC are handled here and
known nowhere else: it reports success for an empty result, one bad name expression
fails the whole program, its output holds a seed of the process unless it is given one,
debug information the current folder's path unless it has none, and some options stay in
force for every later program of the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from .._artifact import Output
from .._diagnostics import Diagnostic, Severity, printable, summarize
from .._errors import (
    CompileError,
    CompileMemoryError,
    KernelsError,
    SymbolNotFoundError,
    ToolchainError,
)
from .._includes import written_out
from . import _cubin, _nvrtc_log
from ._base import Access, Job, no_such_kernel
from ._hints import with_hint
from ._nowhere import nowhere
from ._nvjitlink import INTERMEDIATE, Linker
from ._pch import HEAP_BYTES, PrecompiledHeaders, prefix
from ._toolkit import (
    INSTALL,
    builtins,
    find_headers,
    find_library,
    headers_identity,
    library_digest,
    version_of,
)

_SEED = "kernels_async"
_STICKY = ("--optimization-info", "--restrict")
_OLDEST = (12, 9)


@dataclass(frozen=True)
class CudaToolchain:
    """NVRTC and the headers beside it.

    Attributes:
        library: Path of `libnvrtc`.
        include_dirs: The toolkit's and CCCL's header folders, as far as found.
        version: NVRTC's version, without the patch level, which it does not tell.
        identity: The version, the digests of its libraries and the headers' versions.
        linker: What leaves out all that a kernel does not use, if that is wanted.
    """

    library: str
    include_dirs: tuple[str, ...]
    version: tuple[int, int]
    identity: str
    linker: Linker | None = None
    _headers: PrecompiledHeaders = field(
        default_factory=PrecompiledHeaders, init=False, repr=False, compare=False
    )
    kind: ClassVar[str] = "cuda"
    filename: ClassVar[str] = "kernel.cubin"

    @classmethod
    def find(cls, slim: bool = False) -> CudaToolchain:
        """Find NVRTC, its headers and, if slim, nvJitLink; reads each once per process."""
        library = find_library()
        version = version_of(library)
        if version < _OLDEST:
            raise ToolchainError(
                f"NVRTC {version[0]}.{version[1]} at {library} is older than "
                f"{_OLDEST[0]}.{_OLDEST[1]}, which does not give equal bytes for equal "
                f"input: {INSTALL}"
            )
        include_dirs = find_headers(library, version)
        headers = ", ".join(headers_identity(folder) for folder in include_dirs)
        identity = (
            f"nvrtc {version[0]}.{version[1]} {library_digest(library)} headers [{headers}]"
        )
        if not slim:
            return cls(library, include_dirs, version, identity)
        linker = Linker.find(version)
        identity = f"{identity} {linker.identity}"
        return cls(library, include_dirs, version, identity, linker)

    @classmethod
    def from_configuration(cls, configuration: dict[str, Any]) -> CudaToolchain:
        """Rebuild one in a worker."""
        linker = configuration["linker"]
        return cls(
            configuration["library"],
            tuple(configuration["include_dirs"]),
            (configuration["version"][0], configuration["version"][1]),
            configuration["identity"],
            None if linker is None else Linker.from_configuration(linker),
        )

    def configuration(self) -> dict[str, Any]:
        """JSON from which a worker rebuilds it."""
        return {
            "kind": self.kind,
            "library": self.library,
            "include_dirs": list(self.include_dirs),
            "version": list(self.version),
            "identity": self.identity,
            "linker": None if self.linker is None else self.linker.configuration(),
        }

    def load(self) -> None:
        """Load NVRTC with the part that it would look for late, and what reads its output.

        NVRTC asks for its builtins by name: if they are loaded, no folder is searched.
        """
        nvrtc = _Nvrtc(self.library)
        nvrtc.architectures()
        nvrtc.call("SetPCHHeapSize", HEAP_BYTES)
        for part in builtins(self.library):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(part))
        if self.linker is not None:
            self.linker.load()
        _cubin.load()
        with nowhere():
            pass

    def access(self) -> Access:
        """NVRTC's folder and the headers; the current folder, for precompiled ones."""
        return Access(
            reads=(str(Path(self.library).resolve().parent), *self.include_dirs),
            writes=(".",),
            addresses=HEAP_BYTES,
        )

    def prefix(self, job: Job, /) -> str:
        """What its headers, precompiled, depend on; nothing if its worker does not stay."""
        return "" if self.spoils(job) else prefix(job)

    def keeps(self, shared: str, /) -> bool:
        """Whether there is room for them, and they have not failed."""
        return bool(self._headers.options(shared))

    def spoils(self, job: Job, /) -> bool:
        """Whether it has an option that NVRTC does not forget."""
        return any(o.partition("=")[0] in _STICKY for o in job.specialization.options)

    def compile(self, job: Job, shared: str = "", /) -> Output:
        """Compile one job with NVRTC, in this process.

        What fails with precompiled headers is compiled again without: if it was not their
        fault, it fails again, as it should.
        """
        with_headers = self._headers.options(shared)
        if not with_headers:
            return self._compile(job, [])
        trusted = self._headers.are_trusted(shared)
        try:
            output = self._compile(job, with_headers)
            if not trusted and self._says_the_same(job, output, with_headers):
                self._headers.trust(shared)
            elif not trusted:
                self._headers.distrust(shared)
        except (KernelsError, MemoryError):
            if not trusted:
                self._headers.drop(shared)
            output = self._compile(job, [])
            self._headers.distrust(shared)
        return output

    def _says_the_same(self, job: Job, made: Output, with_headers: list[str]) -> bool:
        """Whether a compile that uses the headers says what the one that made them said."""
        if not made.diagnostics:
            return True
        return self._compile(job, with_headers).diagnostics == made.diagnostics

    def _compile(self, job: Job, more_options: list[str]) -> Output:
        nvrtc = _Nvrtc(self.library)
        started = time.perf_counter()
        with nowhere(), nvrtc.program(job) as program:
            symbol = job.specialization.symbol.encode()
            nvrtc.call("AddNameExpression", program, symbol)
            status = nvrtc.compile(program, [*self._options(job), *more_options])
            text = nvrtc.log(program)
            log = _nvrtc_log.parse(text)
            if status != "NVRTC_SUCCESS":
                raise _failure(job, status, text, log, nvrtc.architectures())
            entry = nvrtc.lowered_name(program, symbol)
            if self.linker is None:
                data = nvrtc.output(program, "CUBIN")
            else:
                linked = self.linker.link(nvrtc.output(program, "LTOIR"), entry, job)
                data, text = linked.output, f"{text}\n{linked.log}"
                log = _nvrtc_log.parse(text)
                if not data:
                    raise _failure(job, linked.status, text, log, [])
        if not data or entry not in log.kernels:
            raise SymbolNotFoundError(
                no_such_kernel(job, "the compiled program does not have it"),
                diagnostics=log.diagnostics,
                log=printable(text),
            )
        seconds = time.perf_counter() - started
        resources = replace(
            log.kernels[entry],
            constant=_cubin.constant_bytes(data),
            max_threads=_cubin.launch_bound(data, entry),
        )
        return Output(data, entry, tuple(log.diagnostics), resources, seconds)

    def _options(self, job: Job) -> list[str]:
        return [
            f"--gpu-architecture={job.target}",
            "--ptxas-options=-v",
            f"--frandom-seed={_SEED}",
            "--no-cache",
            *(INTERMEDIATE if self.linker is not None else ()),
            *job.specialization.options,
            *(f"--include-path={folder}" for folder in self.include_dirs),
        ]


def architectures(library: str) -> list[int]:
    """The compute capabilities that NVRTC compiles for, such as 90, ascending.

    Raises:
        ToolchainError: It cannot be loaded.
    """
    return sorted(_Nvrtc(library).architectures())


class _Nvrtc:
    """NVRTC's calls; the only place that knows `cuda.bindings`."""

    def __init__(self, library: str) -> None:
        try:
            ctypes.CDLL(library)
            from cuda.bindings import nvrtc
        except (ImportError, OSError, RuntimeError) as error:
            raise ToolchainError(f"NVRTC cannot be loaded: {error}; {INSTALL}") from error
        self._nvrtc = nvrtc

    def call(self, name: str, *arguments: object) -> Any:
        """Call `nvrtc<name>`; a failure of NVRTC itself is a `ToolchainError`."""
        status, *results = getattr(self._nvrtc, f"nvrtc{name}")(*arguments)
        if status.name == "NVRTC_ERROR_OUT_OF_MEMORY":
            raise CompileMemoryError(f"nvrtc{name} ran out of memory")
        if status.value:
            raise ToolchainError(f"nvrtc{name} failed: {status.name}")
        return results[0] if len(results) == 1 else results

    @contextlib.contextmanager
    def program(self, job: Job) -> Iterator[Any]:
        given = job.source.headers
        headers = {n: written_out(n, text, given) for n, text in given.items()}
        program = self.call(
            "CreateProgram",
            (_preamble(job) + job.source.text).encode(),
            job.source.name.encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
        try:
            yield program
        finally:
            self.call("DestroyProgram", program)

    def compile(self, program: Any, options: list[str]) -> str:
        encoded = [option.encode() for option in options]
        (status,) = self._nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        name: str = status.name
        return name

    def log(self, program: Any) -> str:
        buffer = bytes(self.call("GetProgramLogSize", program))
        self.call("GetProgramLog", program, buffer)
        return buffer.replace(b"\0", b"").decode(errors="backslashreplace")

    def lowered_name(self, program: Any, symbol: bytes) -> str:
        name: bytes = self.call("GetLoweredName", program, symbol)
        return name.decode()

    def output(self, program: Any, kind: str) -> bytes:
        buffer = bytes(self.call(f"Get{kind}Size", program))
        self.call(f"Get{kind}", program, buffer)
        return buffer

    def architectures(self) -> list[int]:
        found: list[int] = self.call("GetSupportedArchs")
        return [number for number in found if number]


def _preamble(job: Job) -> str:
    """The request's macros, to stand before the source.

    Given as options they would change NVRTC's own headers too.
    """
    macros = job.specialization.defines.items()
    lines = [f"#define {name} {text}\n" for name, text in macros]
    return "".join([*lines, f'#line 1 "{job.source.name}"\n']) if lines else ""


def _failure(
    job: Job, status: str, text: str, log: _nvrtc_log.Log, architectures: list[int]
) -> KernelsError:
    """What a failed compile is: the target's fault, the symbol's or the source's."""
    if status == "NVRTC_ERROR_OUT_OF_MEMORY" or log.out_of_memory:
        return CompileMemoryError(
            f"{job.specialization.symbol!r} of {job.source.name} ran out of memory: "
            f"{printable(text).strip()}"
        )
    if status == "NVRTC_ERROR_INVALID_OPTION" and "gpu-architecture" in text:
        known = ", ".join(f"sm_{number}" for number in architectures)
        return ToolchainError(
            f"this NVRTC does not know the target {job.target}; it knows {known}"
        )
    if status == "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE":
        return ToolchainError(f"NVRTC is not whole: {printable(text).strip()}")
    diagnostics = [_about_symbol(job, diagnostic) for diagnostic in log.diagnostics]
    errors = [d for d in log.diagnostics if d.severity is Severity.ERROR]
    if errors and all(d.file == _nvrtc_log.NAME_MAP for d in errors):
        return SymbolNotFoundError(
            with_hint(no_such_kernel(job, errors[0].message), diagnostics),
            diagnostics=diagnostics,
            log=printable(text),
        )
    message = f"{status}: {printable(text).strip()}"
    if errors:
        leading = sorted(diagnostics, key=lambda d: not d.file)
        message = with_hint(summarize(leading), leading)
    return CompileError(message, diagnostics=diagnostics, log=printable(text))


def _about_symbol(job: Job, diagnostic: Diagnostic) -> Diagnostic:
    if diagnostic.file != _nvrtc_log.NAME_MAP:
        return diagnostic
    message = f"in symbol {job.specialization.symbol!r}: {diagnostic.message}"
    return replace(diagnostic, message=message, file="", line=None, column=None, excerpt="")
