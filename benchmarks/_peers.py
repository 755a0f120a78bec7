"""What a user would pick instead: plain NVRTC, CuPy, cuda.core.

Each has the same options and target. The toolkit's headers are the same too, but for
CuPy, which looks in the CCCL that it bundles first. Process pools import this module, so it
imports no more than they need.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

OPTIONS = ("-std=c++17",)


def toolchain() -> dict[str, Any]:
    """NVRTC's library, version and header folders, as this library finds them."""
    from kernels_async.toolchains import find

    return dict(find("sm_90").configuration())


def can_be_slim() -> bool:
    """Whether there is what `slim=True` needs."""
    from kernels_async import ToolchainError
    from kernels_async.toolchains import find

    try:
        find("sm_90", slim=True)
    except ToolchainError:
        return False
    return True


def nvrtc_options(target: str) -> list[str]:
    """The options of plain NVRTC."""
    includes = (f"--include-path={folder}" for folder in toolchain()["include_dirs"])
    return [f"--gpu-architecture={target}", *OPTIONS, *includes]


def load_nvrtc(library: str) -> None:
    """Load NVRTC, before the clock starts or as a pool's initializer."""
    import ctypes

    ctypes.CDLL(library)
    from cuda.bindings import nvrtc

    _call("Version", nvrtc)


def compile_plain(text: str, symbol: str, options: list[str]) -> tuple[bytes, str]:
    """A cubin, and the kernel's lowered name in it, from NVRTC through cuda.bindings."""
    from cuda.bindings import nvrtc

    program = _call("CreateProgram", nvrtc, text.encode(), b"kernel.cu", 0, [], [])
    _call("AddNameExpression", nvrtc, program, symbol.encode())
    encoded = [option.encode() for option in options]
    _call("CompileProgram", nvrtc, program, len(encoded), encoded)
    data = bytes(_call("GetCUBINSize", nvrtc, program))
    _call("GetCUBIN", nvrtc, program, data)
    entry = _call("GetLoweredName", nvrtc, program, symbol.encode()).decode()
    _call("DestroyProgram", nvrtc, program)
    return data, entry


def _call(name: str, nvrtc: Any, *arguments: object) -> Any:
    status, *results = getattr(nvrtc, f"nvrtc{name}")(*arguments)
    if status.value:
        raise RuntimeError(f"nvrtc{name}: {status.name}")
    return results[0] if results else None


def cupy_maker(target: str, on_gpu: bool) -> Callable[[str, str], Any]:
    """A function that makes a kernel of a request as CuPy does.

    On a GPU it is `RawModule(...).get_function(...)`, and the context exists already.
    Without one it is the same path up to the driver: options, key, disk cache, NVRTC;
    what asks the driver for the architecture and what loads is replaced.
    """
    return _raw_module() if on_gpu else _up_to_the_load(target.removeprefix("sm_"))


def cupy_name(how: str, on_gpu: bool) -> str:
    """What `cupy_maker` is called in a table, used in that way."""
    return f"CuPy {how}{'' if on_gpu else ' (up to the load)'}"


def make_context() -> None:
    """Import CuPy and create the device's context, before the clock starts."""
    import cupy

    cupy.zeros(1)


def _raw_module() -> Callable[[str, str], Any]:
    import cupy

    make_context()
    options = _cupy_options()

    def make(text: str, symbol: str) -> Any:
        module = cupy.RawModule(code=text, options=options, name_expressions=[symbol])
        return module.get_function(symbol)

    return make


def _up_to_the_load(architecture: str) -> Callable[[str, str], Any]:
    from cupy._core.core import assemble_cupy_compiler_options
    from cupy.cuda import compiler

    compiler.function = SimpleNamespace(Module=_NotLoaded)
    compiler._get_arch_for_options_for_nvrtc = lambda arch: (f"-arch=sm_{arch}", "cubin")
    options = assemble_cupy_compiler_options(_cupy_options())

    def make(text: str, symbol: str) -> Any:
        return compiler._compile_module_with_cache(
            text, options, arch=architecture, name_expressions=(symbol,)
        )

    return make


class _NotLoaded:
    """Stands in for CuPy's module, whose load needs a driver."""

    def _set_mapping(self, mapping: dict[str, str]) -> None:
        self.mapping = mapping

    def load(self, cubin: bytes) -> None:
        pass


def _cupy_options() -> tuple[str, ...]:
    return (*OPTIONS, *(f"-I{folder}" for folder in toolchain()["include_dirs"]))


def core_key(target: str) -> Callable[[str, str], bytes]:
    """A function that makes the key of a request as users of cuda.core's cache do.

    Who has include folders must vouch for their contents with a digest of his own, which
    costs nothing here.
    """
    from cuda.core import ProgramOptions
    from cuda.core.utils import make_program_cache_key

    include_dirs = toolchain()["include_dirs"]

    def key(text: str, symbol: str) -> bytes:
        made: bytes = make_program_cache_key(
            code=text,
            code_type="c++",
            options=ProgramOptions(arch=target, std="c++17", include_path=include_dirs),
            target_type="cubin",
            name_expressions=[symbol],
            extra_digest=b"the toolkit's headers",
        )
        return made

    return key
