"""What to do about the usual errors: a line for a person under the compiler's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .._diagnostics import Diagnostic, Severity

_HOST_HEADERS = (
    r"(?:std\w+\.h|math\.h|string\.h|float\.h|limits\.h|assert\.h|iostream|vector|string"
    r"|memory|algorithm|type_traits|utility|limits|array|tuple|functional|complex"
    r"|c(?:assert|ctype|errno|fenv|float|inttypes|limits|locale|math|setjmp|signal"
    r"|stdarg|stddef|stdint|stdio|stdlib|string|time|uchar|wchar))"
)
_HINTS = [
    (
        rf'open source file "{_HOST_HEADERS}"',
        "NVRTC has no host headers: printf, assert, size_t and the math functions need "
        "none; for the rest include <cuda/std/...>, such as <cuda/std/cstdint>",
    ),
    (
        r'open source file "(?:(?:crt|cub|cuda|thrust|nv|cooperative_groups)/'
        r"|cooperative_groups\.h|cuda_(?:fp\d|bf16|runtime)|cuda\.h|mma\.h)",
        "a header of the toolkit is missing: pip install 'kernels_async[cuda13]' "
        "(or [cuda12])",
    ),
    (
        r"open source file|No such file or directory",
        "pass the header's text in Source(headers={...}), or read source and headers "
        "with Source.load(path, include_dirs=[...])",
    ),
    (
        r'identifier "(?:__half2?|half2?|__nv_bfloat16\d?)"',
        "half types need #include <cuda_fp16.h> or <cuda_bf16.h>",
    ),
    (
        r'identifier "(?:u?int(?:8|16|32|64)_t|u?intptr_t)"',
        "fixed-width integers need #include <cuda/std/cstdint>, and its namespace "
        "cuda::std",
    ),
    (
        r'identifier "(?:INFINITY|NAN|FLT_MAX|DBL_MAX|INT_MAX|M_PI)"',
        "NVRTC lacks the C library's macros: include <math_constants.h> for "
        "CUDART_INF_F and its kin, or use cuda::std::numeric_limits",
    ),
    (
        r'namespace "std" has no member|name must be a namespace name|"std" (?:is|has)',
        "NVRTC has no host standard library: use cuda::std, from <cuda/std/...>",
    ),
    (
        r"too much shared data",
        "more than 48 KB must be dynamic: extern __shared__, and shared_mem=... at the "
        "launch, up to what the device has",
    ),
    (
        r"not supported on \.target '(sm_\d+)'|not supported for this GPU architecture"
        r"|requires \.target",
        "the target lacks it: ask for one with a suffix, such as target='sm_90a', or for "
        "a later one",
    ),
    (
        r"considered a host (?:function|variable)|inferred to be __host__",
        "mark it __device__, or give the option -default-device",
    ),
    (
        r"unrecognized token|stray '\\\d+'",
        "the source has a character that is not C++, perhaps pasted from a page: a "
        "non-breaking space, a curly quote, a letter of another alphabet",
    ),
    (
        r"^in symbol .*overloaded function",
        "choose one with a cast, such as (void(*)(float*))name",
    ),
    (
        r"^in symbol .*(?:must form address|must have a constant value)",
        "a symbol names a kernel; read variables with kernel.get_global(...)",
    ),
    (
        r"Unresolved extern function",
        "a kernel is compiled whole: its device functions must be in the source",
    ),
    (
        r"member of a class|cannot be a member function",
        "make the kernel a function of its own, outside any class",
    ),
]


def with_hint(message: str, diagnostics: Sequence[Diagnostic]) -> str:
    """`message`, and a hint for the first of the errors that has one."""
    for diagnostic in diagnostics:
        if diagnostic.severity is Severity.ERROR:
            for pattern, hint in _HINTS:
                if re.search(pattern, diagnostic.message):
                    return f"{message}\nhint: {hint}"
            return message
    return message
