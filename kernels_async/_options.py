"""NVRTC's options: one spelling of each, and why some are refused.

Options are NVRTC's own, so that a specialization reads as NVRTC's documentation does
(https://docs.nvidia.com/cuda/nvrtc/#supported-compile-options). A request is hermetic:
an option that reads or writes the host, or that gives something other than a cubin, is
refused with the way to do it instead. Order is kept, since the last of two options wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ._errors import SpecificationError

_FLAGS = {
    "--device-debug": "-G",
    "--device-as-default-execution-space": "-default-device",
    "--device-float128": "-device-float128",
    "--device-int128": "-device-int128",
    "--disable-warnings": "-w",
    "--display-error-number": "-err-no",
    "--extensible-whole-program": "-ewp",
    "--extra-device-vectorization": "-extra-device-vectorization",
    "--generate-line-info": "-lineinfo",
    "--minimal": "-minimal",
    "--no-display-error-number": "-no-err-no",
    "--no-source-include": "-no-source-include",
    "--restrict": "-restrict",
    "--use_fast_math": "-use_fast_math",
}
_VALUED = {
    "--Ofast-compile": "-Ofc",
    "--brief-diagnostics": "-brief-diag",
    "--builtin-initializer-list": "-builtin-initializer-list",
    "--builtin-move-forward": "-builtin-move-forward",
    "--define-macro": "-D",
    "--device-stack-protector": "-device-stack-protector",
    "--diag-error": "-diag-error",
    "--diag-suppress": "-diag-suppress",
    "--diag-warn": "-diag-warn",
    "--dopt": "-dopt",
    "--fmad": "-fmad",
    "--ftz": "-ftz",
    "--gpu-architecture": "-arch",
    "--jump-table-density": "-jtd",
    "--maxrregcount": "-maxrregcount",
    "--modify-stack-limit": "-modify-stack-limit",
    "--optimization-info": "-opt-info",
    "--prec-div": "-prec-div",
    "--prec-sqrt": "-prec-sqrt",
    "--ptxas-options": "-Xptxas",
    "--relocatable-device-code": "-rdc",
    "--split-compile": "-split-compile",
    "--std": "-std",
    "--undefine-macro": "-U",
    "--version-ident": "-version-ident",
    "--warning-as-error": "-Werror",
}
_LONG = {short: name for name, short in (_FLAGS | _VALUED).items()}

_HEADERS = "pass the header's text in Source(headers={...})"
_LINK = "a kernel is compiled whole; there is no link step, so drop it"
_CUBIN = "a kernel is compiled to a cubin, so drop it"
_SEED = "the library sets it, so that equal input gives equal bytes; drop it"
_TIME = "it writes a file; the time is in the artifact, as compile_seconds"
_PCH = "it reads or writes files; precompiled headers are the worker's own affair"
_OUTPUT = "it writes a file; the bytes are in the artifact"
_REFUSED = {
    "--include-path": _HEADERS,
    "-I": _HEADERS,
    "-isystem": _HEADERS,
    "--pre-include": _HEADERS,
    "-include": _HEADERS,
    "--use-bundled-headers": "it writes files; the toolkit's headers are found without",
    "--device-c": _LINK,
    "-dc": _LINK,
    "--device-w": _LINK,
    "-dw": _LINK,
    "--dlink-time-opt": _LINK,
    "-dlto": _LINK,
    "--gen-opt-lto": _LINK,
    "-gen-opt-lto": _LINK,
    "--optix-ir": _CUBIN,
    "-optix-ir": _CUBIN,
    "--ptx": _CUBIN,
    "-ptx": _CUBIN,
    "--fdevice-syntax-only": _CUBIN,
    "-fdevice-syntax-only": _CUBIN,
    "--frandom-seed": _SEED,
    "-frandom-seed": _SEED,
    "--no-cache": _SEED,
    "-no-cache": _SEED,
    "--time": _TIME,
    "-time": _TIME,
    "--fdevice-time-trace": _TIME,
    "-fdevice-time-trace": _TIME,
    "--output-file": _OUTPUT,
    "-o": _OUTPUT,
    "--pch": _PCH,
    "-pch": _PCH,
    "--create-pch": _PCH,
    "-create-pch": _PCH,
    "--use-pch": _PCH,
    "-use-pch": _PCH,
    "--pch-dir": _PCH,
    "-pch-dir": _PCH,
    "--pch-messages": _PCH,
    "-pch-messages": _PCH,
    "--pch-verbose": _PCH,
    "-pch-verbose": _PCH,
    "--instantiate-templates-in-pch": _PCH,
    "-instantiate-templates-in-pch": _PCH,
}
_JOINED = ("-D", "-U", "-I")

_PTXAS = re.compile(
    r"-v|--verbose|-w|--disable-warnings|-O[0-4]|--opt-level=[0-4]|-Werror"
    r"|--warning-as-error|--warn-on-(spills|local-memory-usage|double-precision-use)"
    r"|(-dlcm|-dscm|--def-load-cache|--def-store-cache)=\w+"
    r"|(-fmad|--fmad|--allow-expensive-optimizations|-allow-expensive-optimizations)"
    r"=(true|false)|(-maxrregcount|--maxrregcount|--register-usage-level"
    r"|-register-usage-level)=\d+|--suppress-stack-size-warning"
    r"|--disable-optimizer-constants|--preserve-relocs"
)
_MACRO = re.compile(
    r"[A-Za-z_]\w*(\(\s*(\w+(\s*,\s*\w+)*)?(\s*,?\s*\.\.\.)?\s*\))?", re.ASCII
)
_RESERVED = re.compile(r"__CUDA\w*|__NVCC\w*|__cplusplus|__KERNELS_ASYNC\w*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Options:
    """A specialization's options, taken apart.

    Attributes:
        canonical: Every option that is neither a define nor the architecture, spelled
            the long way, in the order given.
        defines: Macro values by name.
        architecture: What `-arch` said, or `None`.
    """

    canonical: tuple[str, ...]
    defines: dict[str, str]
    architecture: str | None


def parse(options: Sequence[str], defines: dict[str, str]) -> Options:
    """Take `options` apart, adding their macros to `defines`.

    Raises:
        TypeError: `options` is one string, or holds something else than strings.
        SpecificationError: An option is unknown, refused or in conflict.
    """
    canonical: list[str] = []
    architecture: str | None = None
    defines = dict(defines)
    for name, value in _pairs(options):
        if name == "--gpu-architecture":
            if architecture not in (None, value):
                raise SpecificationError(
                    f"-arch is given twice, as {architecture} and as {value}"
                )
            architecture = value
        elif name == "--define-macro":
            macro, equals, text = value.partition("=")
            add_define(defines, macro, text if equals else "1")
        elif name == "--relocatable-device-code":
            if value != "false":
                raise SpecificationError(f"option -rdc={value} is refused: {_LINK}")
        else:
            canonical.append(f"{name}={value}" if name in _VALUED else name)
    for option in canonical:
        name, _, value = option.partition("=")
        if name == "--undefine-macro" and value in defines:
            raise SpecificationError(f"macro {value} is both defined and undefined")
    return Options(tuple(canonical), dict(sorted(defines.items())), architecture)


def add_define(defines: dict[str, str], name: str, text: str) -> None:
    """Add one macro to `defines`; a second value for one name is an error."""
    if not _MACRO.fullmatch(name):
        raise SpecificationError(
            f"a define's name is an identifier such as TILE or MAX(a,b), not {name!r}"
        )
    if _RESERVED.fullmatch(name.partition("(")[0]):
        raise SpecificationError(f"macro {name} belongs to the compiler")
    if _CONTROL.search(text):
        raise SpecificationError(f"the value of define {name} has a control character")
    if text.endswith("\\") or "/*" in text:
        raise SpecificationError(
            f"the value of define {name} would go on into the source: {text!r}"
        )
    if re.search(r"\s-[DU]\w", text):
        raise SpecificationError(
            f"the value of define {name} holds a second define: {text!r}; "
            "give each its own string"
        )
    if defines.setdefault(name, text) != text:
        raise SpecificationError(
            f"define {name} is given twice, as {defines[name]!r} and as {text!r}"
        )


def _pairs(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    if isinstance(options, str | bytes) or not isinstance(options, Iterable):
        raise TypeError(f"options are a sequence of strings, not {options!r}")
    words = iter(options)
    for word in words:
        name, equals, value = _split(word)
        if name in _VALUED and not equals:
            value = next(words, "")
        if name in _VALUED and (not isinstance(value, str) or not value):
            raise SpecificationError(f"option {word} needs a value")
        _check(word, name, value)
        yield name, value


def _split(word: str) -> tuple[str, str, str]:
    if not isinstance(word, str):
        raise TypeError(f"an option is a string, not {word!r}")
    for joined in _JOINED:
        if word.startswith(joined) and len(word) > len(joined):
            return _LONG.get(joined, joined), "=", word[len(joined) :]
    name, equals, value = word.partition("=")
    return _LONG.get(name, name), equals, value


def _check(word: str, name: str, value: str) -> None:
    if name in _REFUSED:
        raise SpecificationError(f"option {word} is refused: {_REFUSED[name]}")
    if name not in _FLAGS and name not in _VALUED:
        raise SpecificationError(_unknown(word))
    if name in _FLAGS and value:
        raise SpecificationError(f"option {name} takes no value: {word!r}")
    if _CONTROL.search(value):
        raise SpecificationError(f"option {name} has a control character: {word!r}")
    if name == "--ptxas-options":
        for option in value.split(","):
            if not _PTXAS.fullmatch(option):
                raise SpecificationError(f"ptxas option {option!r} is refused")
    elif name != "--define-macro" and not re.fullmatch(r"[\w+,.\-]*", value):
        raise SpecificationError(f"option {name} cannot have the value {value!r}")


def _unknown(word: str) -> str:
    if not word.strip():
        return "an option is empty"
    if re.match(r"-\S+\s", word):
        return f"unknown option {word!r}: give each word its own string"
    if re.fullmatch(r"-O[0-3]|--gpu-code.*|-gencode.*|-x.*", word):
        return f"unknown option {word!r}: NVRTC optimizes, and for one target; drop it"
    near = get_close_matches(word.partition("=")[0], [*_FLAGS, *_VALUED, *_LONG], 1)
    hint = f"did you mean {near[0]}?" if near else "NVRTC's options are expected"
    return f"unknown option {word!r}: {hint}"
