"""Checks of the compilers: what there is, and whether they compile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial

from .._errors import ToolchainError
from ..toolchains._cpu import CpuToolchain
from ..toolchains._cuda import CudaToolchain, architectures
from ..toolchains._host_compiler import find_compiler
from ..toolchains._nvjitlink import INSTALL as INSTALL_LINKER
from ..toolchains._nvjitlink import Linker
from ..toolchains._toolkit import INSTALL, find_library, headers_identity
from ._bench import Bench, ProbeError
from ._findings import Check, Finding, Status, from_error, note, ok, problem, warning
from ._targets import unknown_architecture
from ._words import line, seconds

_SECONDS = 60.0
_TARGET = "sm_90"


def checks(bench: Bench) -> list[Check]:
    """Those of the toolchains."""
    return [
        Check("NVRTC", _nvrtc),
        Check("nvJitLink", _linker),
        Check("C++ compiler", _host_compiler),
        Check(f"compile {_TARGET}", partial(_compile_cuda, bench), _SECONDS + 5),
        Check(f"compile {_TARGET} slim", partial(_compile_slim, bench), _SECONDS + 5),
        Check("compile cpu", partial(_compile_cpu, bench), _SECONDS + 5),
    ]


def _nvrtc() -> Iterator[Finding]:
    try:
        library = find_library()
    except ToolchainError:
        status = Status.WARNING if _has_host_compiler() else Status.PROBLEM
        text = "it was not found: nothing can be compiled for a GPU"
        yield Finding("NVRTC", status, text, INSTALL)
        return
    toolchain = CudaToolchain.find()
    known = architectures(library)
    version = ".".join(map(str, toolchain.version))
    yield ok("NVRTC", f"{version}, for sm_{known[0]} to sm_{known[-1]}, {library}")
    yield from _headers(toolchain)


def _headers(toolchain: CudaToolchain) -> Iterator[Finding]:
    said = " ".join(headers_identity(folder) for folder in toolchain.include_dirs)
    versions = dict(re.findall(r"(\w+)_VERSION (\d+)", said))
    cuda, cccl = (int(versions[of]) if of in versions else None for of in ("CUDA", "CCCL"))
    if cuda is None:
        text = "none of its CUDA: no source that includes cuda_fp16.h or CUB compiles"
        yield warning("CUDA headers", text, INSTALL)
        return
    toolkit = (cuda // 1000, cuda % 1000 // 10)
    text = f"{toolkit[0]}.{toolkit[1]}, {toolchain.include_dirs[0]}"
    if toolkit == toolchain.version:
        yield ok("CUDA headers", text)
    else:
        version = ".".join(map(str, toolchain.version))
        remedy = f"install CUDA headers and NVRTC of one version, such as {version}"
        yield warning("CUDA headers", f"{text}: not NVRTC's version {version}", remedy)
    if cccl is None:
        yield warning("CCCL headers", "none: no source that includes CUB compiles", INSTALL)
    else:
        text = f"{cccl // 1000000}.{cccl // 1000 % 1000}.{cccl % 1000}"
        yield ok("CCCL headers", text)


def _linker() -> Iterator[Finding]:
    try:
        toolchain = CudaToolchain.find()
    except ToolchainError:  # what NVRTC lacks is told elsewhere
        return
    try:
        linker = Linker.find(toolchain.version)
    except ToolchainError as error:
        told = from_error("nvJitLink", error)
        yield note("nvJitLink", f"{told.text}: slim=True cannot be used", INSTALL_LINKER)
        return
    yield ok("nvJitLink", f"{linker.identity.split()[1]}, {linker.library}")


def _host_compiler() -> Iterator[Finding]:
    try:
        find_compiler()
    except ToolchainError as error:
        status = Status.PROBLEM if os.environ.get("CXX") else Status.WARNING
        yield from_error("C++ compiler", error, status)
        return
    toolchain = CpuToolchain.find()
    version = re.search(r"\[(.*?\d+\.\d+[\w.]*)(?= |\])", toolchain.identity)
    named = line(version[1]) if version else "unknown"
    yield ok("C++ compiler", f"{named}, {' '.join(toolchain.command)}")


def _has_host_compiler() -> bool:
    try:
        return bool(find_compiler())
    except ToolchainError:
        return False


def _compile_cpu(bench: Bench) -> Iterator[Finding]:
    if _has_host_compiler():
        yield from _compile(bench, "cpu")


def _compile_cuda(bench: Bench) -> Iterator[Finding]:
    try:
        find_library()
    except ToolchainError:
        return
    yield from _compile(bench, _TARGET)


def _compile_slim(bench: Bench) -> Iterator[Finding]:
    try:
        Linker.find(CudaToolchain.find().version)
    except ToolchainError:
        return
    yield from _compile(bench, _TARGET, "slim")


def _compile(bench: Bench, *arguments: str) -> Iterator[Finding]:
    name = " ".join(("compile", *arguments))
    try:
        report = bench.probe("compile", *arguments, seconds=_SECONDS)
    except ProbeError as error:
        yield from_error(name, error)
        return
    took = report["seconds"]
    assert isinstance(took, float)  # noqa: S101 - the probe is our own
    runs = " and ran" if arguments == ("cpu",) else ""
    text = f"a small kernel compiled{runs}, in {seconds(took)} with a worker's start"
    yield ok(name, text)
    yield _confined(str(report["sandbox"]))


def _confined(sandbox: str) -> Finding:
    kept = ", ".join(sandbox.split(", ")[:2])
    if sandbox.startswith("landlock"):
        return ok("sandbox", f"workers confine themselves: {kept}")
    remedy = (
        "use Linux 5.13 or later with landlock among its security modules "
        "(cat /sys/kernel/security/lsm), or a container whose seccomp profile allows it"
    )
    return warning("sandbox", f"workers can read the server's files: {kept}", remedy)


def unknown_target(target: str) -> Finding | None:
    """What is wrong with a device's target for the NVRTC that there is, if anything is."""
    try:
        lack = unknown_architecture(target)
    except ToolchainError:
        return problem(
            "NVRTC", "there is a GPU, and nothing to compile for it with", INSTALL
        )
    if lack is None:
        return None
    return problem(
        "GPU architecture",
        lack,
        "for older GPUs pip install 'kernels_async[cuda12]', for newer ones a newer "
        "nvidia-cuda-nvrtc",
    )
