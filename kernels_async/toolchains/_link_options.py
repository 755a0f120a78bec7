"""NVRTC's options in nvJitLink's words: those that matter when machine code is made.

With LTO-IR that is at the link, and NVRTC's own setting is lost. nvJitLink has another
spelling, takes most options once only, and lacks some: those are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._errors import SpecificationError

_FAST_MATH = {"-ftz": "1", "-prec-div": "0", "-prec-sqrt": "0", "-fma": "1"}
_SWITCHES = {
    "--fmad": "-fma",
    "--ftz": "-ftz",
    "--prec-div": "-prec-div",
    "--prec-sqrt": "-prec-sqrt",
}
_VALUED = {
    "--Ofast-compile": "-Ofc",
    "--device-stack-protector": "--device-stack-protector",
    "--jump-table-density": "-jump-table-density",
    "--maxrregcount": "-maxrregcount",
    "--split-compile": "-split-compile",
}
_UNLINKABLE = {
    "--device-debug": "debug code is of the whole program",
    "--extensible-whole-program": "the program is linked, and not to be extended",
    "--extra-device-vectorization": "nvJitLink does not have it",
    "--optimization-info": "nvJitLink does not tell it",
    "--restrict": "nvJitLink would apply it to every later kernel too; write __restrict__",
}


def refuse_unlinkable(options: Sequence[str]) -> None:
    """Refuse options that cannot be combined with `slim=True`.

    Raises:
        SpecificationError: One of them is there.
    """
    for option in options:
        name = option.partition("=")[0]
        if name in _UNLINKABLE:
            raise SpecificationError(
                f"option {name} does not go with slim=True: {_UNLINKABLE[name]}"
            )


def linker_options(options: Sequence[str]) -> list[str]:
    """Options of nvJitLink that do what NVRTC's do without a link.

    The last of two values wins, and either wins over `--use_fast_math`.
    """
    given: dict[str, str] = {}
    flags: list[str] = []
    for option in options:
        name, _, value = option.partition("=")
        if name in _SWITCHES:
            given[_SWITCHES[name]] = "1" if value == "true" else "0"
        elif name in _VALUED:
            given[_VALUED[name]] = value
        elif name == "--generate-line-info":
            flags.append("-lineinfo")
        elif name == "--disable-warnings":
            flags.append("-Xptxas=-w")
        elif name == "--ptxas-options":
            flags += [f"-Xptxas={part}" for part in value.split(",")]
    if "--use_fast_math" in options:
        given = _FAST_MATH | given
    return [*(f"{name}={value}" for name, value in given.items()), *flags]
