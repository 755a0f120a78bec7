"""The cpu toolchain: the same CUDA C++ source through the host's C++ compiler.

One header, `cuda_on_cpu.h`, supplies CUDA's language; a construct that it lacks is a
compile error that names it. It exists so that kernels, tests and servers run where
there is no GPU; it promises right numbers, not speed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from .._artifact import Output
from .._diagnostics import Diagnostic, Severity, printable, summarize
from .._errors import (
    CompileError,
    CompileMemoryError,
    KernelsError,
    SymbolNotFoundError,
    ToolchainError,
)
from .._specialization import Specialization
from .._value import digest
from . import _gnu_log, _host_compiler
from ._base import Access, Job, kernels_in, no_such_kernel
from ._hints import with_hint

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Symbol

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
DYNAMIC_SHARED = "kernels_async_dynamic_shared"
DYNAMIC_SHARED_LIMIT = 227 * 1024
STATIC_SHARED_LIMIT = 48 * 1024

_OLD_STANDARDS = {"c++03", "c++11", "c++14"}
_FLAGS = (
    "-O2",
    "-UNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-fsigned-char",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fdiagnostics-color=never",
    "-Wunused-variable",
)
_SYMBOL = "symbol"
_KERNEL_FIELD = 8
_OWN_THREAD_LOCALS = 1024


@dataclass(frozen=True)
class CpuToolchain:
    """The host's C++ compiler and the header that makes CUDA C++ of it.

    Attributes:
        command: The compiler's command line, without options.
        identity: Its version, its machine and the digest of the header.
    """

    command: tuple[str, ...]
    identity: str
    kind: ClassVar[str] = "cpu"
    filename: ClassVar[str] = "kernel.so"

    @classmethod
    def find(cls) -> CpuToolchain:
        """Find a C++ compiler: `$CXX`, `c++`, `g++`, `clang++`, or the ziglang wheel."""
        command = _host_compiler.find_compiler()
        version, machine = _host_compiler.describe(command)
        header = digest(HEADER.read_bytes())
        flags = "".join(f" {flag}" for flag in command[1:])
        identity = f"c++ [{version}]{flags} for {machine} cuda_on_cpu.h {header}"
        return cls(command, identity)

    @classmethod
    def from_configuration(cls, configuration: dict[str, Any]) -> CpuToolchain:
        """Rebuild one in a worker."""
        return cls(tuple(configuration["command"]), configuration["identity"])

    def configuration(self) -> dict[str, Any]:
        """JSON from which a worker rebuilds it."""
        return {
            "kind": self.kind,
            "command": list(self.command),
            "identity": self.identity,
        }

    def load(self) -> None:
        """Import what reads ELF objects."""
        import elftools.elf.elffile
        import elftools.elf.relocation  # noqa: F401 - imported for its effect

    def access(self) -> Access:
        """The compiler's installation, to execute, and the current folder, to write."""
        return _host_compiler.access(self.command, HEADER)

    def prefix(self, _: Job, /) -> str:
        """Nothing: each compile is a process of its own."""
        return ""

    def keeps(self, _: str, /) -> bool:
        """It does not."""
        return False

    def spoils(self, _: Job, /) -> bool:
        """It does not: each compile is a process of its own."""
        return False

    def compile(self, job: Job, _: str = "", /) -> Output:
        """Compile and link one job, in a folder of its own."""
        started = time.perf_counter()
        with TemporaryDirectory(dir=".") as folder:
            log = self._compile(job, Path(folder))
            entry, shared, guards = _read_object(Path(folder, "kernel.o"))
            self._link(Path(folder), _stub(shared, guards))
            data = Path(folder, "kernel.so").read_bytes()
        seconds = time.perf_counter() - started
        return Output(data, entry, tuple(_gnu_log.parse(log)), None, seconds)

    def _compile(self, job: Job, folder: Path) -> str:
        source = job.source
        _write(folder / source.name, source.text)
        for name, text in source.headers.items():
            _write(folder / ".headers" / name, text)
        entry = (
            f'{_macros(job.specialization)}#include "{source.name}"\n'
            f'#line 1 "{_SYMBOL}"\n'
            "static constexpr auto kernels_async_symbol = "
            f"::kernels_async_cpu::kernel_pointer(\n{job.specialization.symbol}\n);\n"
            "KERNELS_ASYNC_ENTRY(kernels_async_symbol)\n"
        )
        _write(folder / ".entry.cpp", entry)
        options = [
            *_translate(job.specialization.options),
            "-iquote",
            ".headers",
            "-idirafter",
            ".headers",
            "-frandom-seed=kernels_async",
            "-include",
            str(HEADER),
        ]
        result = self._run(
            [*_FLAGS, *options, "-c", ".entry.cpp", "-o", "kernel.o"], folder
        )
        if result.returncode:
            raise _failure(job, result.stderr)
        return result.stderr

    def _link(self, folder: Path, stub: str) -> None:
        _write(folder / ".shared.s", stub)
        options = ["-shared", "-Wl,-Bsymbolic", "-Wl,--build-id=none", "-Wl,--no-undefined"]
        result = self._run([*options, "kernel.o", ".shared.s", "-o", "kernel.so"], folder)
        if result.returncode:
            diagnostics = _gnu_log.parse(result.stderr)
            text = printable(result.stderr).strip()
            raise CompileError(
                f"the kernel does not link: {text}", diagnostics=diagnostics, log=text
            )

    def _run(
        self, arguments: Sequence[str], folder: Path
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [*self.command, *arguments],
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            check=False,
        )
        number = _gnu_log.killed_by(result.returncode, result.stderr)
        if number is not None and not _gnu_log.out_of_memory(result.stderr):
            _die_as(number, result.stderr)
        return result


def _die_as(number: int, text: str) -> NoReturn:
    """End this worker as its compiler ended: that was a crash, and no word on the source.

    What the compiler had started goes with the worker's process group.
    """
    os.write(2, text.encode(errors="backslashreplace"))
    with contextlib.suppress(OSError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(1)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _translate(options: Sequence[str]) -> list[str]:
    """Options of NVRTC that mean something to a host compiler, in its words."""
    standard = "c++17"
    translated = []
    for option in options:
        name, _, value = option.partition("=")
        match name:
            case "--std":
                standard = "c++17" if value in _OLD_STANDARDS else value
            case "--disable-warnings":
                translated.append("-w")
    return [f"-std={standard.replace('c++', 'gnu++')}", *translated]


def _macros(specialization: Specialization) -> str:
    """The request's macros, to stand after the header and before the source.

    Given on the command line they would change the header too.
    """
    lines = [f"#define {name} {text}" for name, text in specialization.defines.items()]
    for option in specialization.options:
        name, _, value = option.partition("=")
        if name == "--undefine-macro":
            lines.append(f"#undef {value}")
    return "".join(f"{line}\n" for line in lines)


def _stub(shared: Sequence[str], guards: Sequence[str]) -> str:
    """Assembler text for what a kernel's object leaves open.

    Every `extern __shared__` array is a thread-local variable that nobody defines: all
    of them lie at one place, as in CUDA. Where a compiler expects such a variable to
    need an initializer it calls one, which does nothing.
    """

    def label(symbol: str, kind: str) -> list[str]:
        visible = [f".globl {symbol}", f".hidden {symbol}"]
        return [*visible, f".type {symbol}, {kind}", f"{symbol}:"]

    lines = ['.section .tbss,"awT",%nobits', ".balign 128"]
    for symbol in shared:
        lines += label(symbol, "%object")
    lines += [f".zero {DYNAMIC_SHARED_LIMIT}" if shared else "", ".text"]
    for symbol in guards:
        lines += label(symbol, "%function")
    if shared:
        lines += [
            ".data",
            f".globl {DYNAMIC_SHARED}",
            f"{DYNAMIC_SHARED}: .byte 1",
            ".text",
        ]
    return "\n".join([*lines, "ret", '.section .note.GNU-stack,"",%progbits', ""])


def _read_object(path: Path) -> tuple[str, list[str], list[str]]:
    """The kernel's lowered name, its `extern __shared__` arrays and their initializers."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with path.open("rb") as stream:
        elf = ELFFile(stream)
        table = elf.get_section_by_name(".symtab")
        if not isinstance(table, SymbolTableSection):
            raise ToolchainError("the C++ compiler did not make an ELF object")
        symbols = list(table.iter_symbols())
        undefined = [s for s in symbols if s["st_shndx"] == "SHN_UNDEF"]
        shared = [s.name for s in undefined if s["st_info"]["type"] == "STT_TLS"]
        static = sum(
            s["st_size"]
            for s in symbols
            if s["st_info"]["type"] == "STT_TLS" and s not in undefined
        )
        if static > STATIC_SHARED_LIMIT + _OWN_THREAD_LOCALS:
            raise CompileError(
                f"the kernel uses too much shared data: {static} bytes, of "
                f"{STATIC_SHARED_LIMIT}; more must be dynamic: extern __shared__, and "
                "shared_mem=... at the launch"
            )
        guards = [s.name for s in undefined if s.name.startswith("_ZTH")]
        return _kernel_name(elf, symbols), shared, guards


def _kernel_name(elf: ELFFile, symbols: Sequence[Symbol]) -> str:
    """What the relocation of the exported entry's `kernel` field points at."""
    from elftools.elf.relocation import RelocationSection

    exported = next(s for s in symbols if s.name == "kernels_async_entry")
    relocation = next(
        relocation
        for section in elf.iter_sections()
        if isinstance(section, RelocationSection)
        and section["sh_info"] == exported["st_shndx"]
        for relocation in section.iter_relocations()
        if relocation["r_offset"] == exported["st_value"] + _KERNEL_FIELD
    )
    kernel = symbols[relocation["r_info_sym"]]
    if kernel["st_info"]["type"] != "STT_SECTION":
        return str(kernel.name)
    return next(
        str(s.name)
        for s in symbols
        if s["st_info"]["type"] == "STT_FUNC"
        and s["st_shndx"] == kernel["st_shndx"]
        and s["st_value"] == relocation["r_addend"]
    )


def _failure(job: Job, text: str) -> KernelsError:
    if _gnu_log.out_of_memory(text):
        return CompileMemoryError(
            f"{job.specialization.symbol!r} of {job.source.name} ran out of memory: "
            f"{printable(text).strip()}"
        )
    diagnostics = [_about_symbol(job, d) for d in _gnu_log.parse(text)]
    errors = [d for d in _gnu_log.parse(text) if d.severity is Severity.ERROR]
    blamed = {d.file for d in errors}
    has_it = job.specialization.symbol.strip() in kernels_in(job.source)
    if _SYMBOL in blamed and blamed <= {_SYMBOL, str(HEADER)} and not has_it:
        return SymbolNotFoundError(
            with_hint(no_such_kernel(job, errors[0].message), errors),
            diagnostics=diagnostics,
            log=printable(text),
        )
    message = printable(text).strip()
    if errors:
        message = with_hint(summarize(diagnostics), diagnostics)
    return CompileError(message, diagnostics=diagnostics, log=printable(text))


def _about_symbol(job: Job, diagnostic: Diagnostic) -> Diagnostic:
    if diagnostic.file != _SYMBOL:
        file = diagnostic.file.removeprefix("./").removeprefix(".headers/")
        return replace(diagnostic, file=file)
    message = f"in symbol {job.specialization.symbol!r}: {diagnostic.message}"
    return replace(diagnostic, message=message, file="", line=None, column=None, excerpt="")
