"""Symbol and configuration of one compile."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from . import _options
from ._errors import SpecificationError
from ._value import Value

SYMBOL_LIMIT = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, eq=False, repr=False)
class Specialization(Value):
    """Which kernel of a source, compiled how.

    It exists to be a cheap, hashable part of a request. Equivalent spellings of an
    option (`-DN=4`, `--define-macro=N=4`, `defines={"N": 4}`) make equal
    specializations. It does not promise that the source has such a kernel.

    Args:
        symbol: An `extern "C"` name, or a C++ name expression as NVRTC takes it:
            `scale<float, 4>`, `detail::scale<T>`, `(void(*)(int*))f`.
        defines: Macros by name. A number or a `bool` is written as C++ does, a string
            verbatim, and `None` defines the macro as empty.
        options: NVRTC's options, in order. Both toolchains take the same ones; the cpu
            toolchain keeps the C++ standard and fast math and drops those that only
            mean something to a GPU.

    Raises:
        TypeError: An argument has the wrong type.
        SpecificationError: An argument cannot be right, or an option is refused.
    """

    symbol: str
    defines: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.symbol, str):
            raise TypeError(f"a symbol is a string, not {self.symbol!r}")
        object.__setattr__(self, "symbol", str.__str__(self.symbol))
        if not self.symbol.strip():
            raise SpecificationError("the symbol is empty")
        if _CONTROL.search(self.symbol) or len(self.symbol) > SYMBOL_LIMIT:
            raise SpecificationError(
                f"a symbol is one line of at most {SYMBOL_LIMIT} characters, "
                f"not {self.symbol[:80]!r}"
            )
        if not isinstance(self.defines, Mapping):
            raise TypeError(f"defines is a mapping, such as a dict, not {self.defines!r}")
        defines: dict[str, str] = {}
        for name, value in self.defines.items():
            if not isinstance(name, str):
                raise TypeError(f"a define's name is a string, not {name!r}")
            _options.add_define(defines, name, _macro_text(name, value))
        options = _options.parse(self.options, defines)
        object.__setattr__(self, "defines", MappingProxyType(options.defines))
        object.__setattr__(self, "options", options.canonical)
        object.__setattr__(self, "_architecture", options.architecture)

    @property
    def architecture(self) -> str | None:
        """What an `-arch` among the options said, or `None`."""
        architecture: str | None = self.__dict__["_architecture"]
        return architecture

    @property
    def _parts(self) -> tuple[object, ...]:
        macros = tuple(self.defines.items())
        return (self.symbol, macros, tuple(self.options), self.architecture)

    @property
    def arguments(self) -> tuple[str, dict[str, str], tuple[str, ...]]:
        """Symbol, defines and options of which an equal one can be made."""
        options = tuple(self.options)
        if self.architecture is not None:
            options += (f"-arch={self.architecture}",)
        return self.symbol, {n: str(text) for n, text in self.defines.items()}, options

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.arguments)

    def __repr__(self) -> str:
        macros = "".join(f" -D{name}={text}" for name, text in self.defines.items())
        options = "".join(f" {option}" for option in self.options)
        return f"<Specialization {self.symbol}{macros}{options}>"


def as_specialization(specialization: Specialization | str) -> Specialization:
    """`specialization`, or one of that symbol alone."""
    if isinstance(specialization, Specialization):
        return specialization
    return Specialization(specialization)


def _macro_text(name: str, value: object) -> str:
    match value:
        case str():
            return str.__str__(value)
        case None:
            return ""
        case numbers.Integral():
            return str(int(value))
        case numbers.Real() if math.isfinite(value):
            return repr(float(value))
    raise TypeError(f"define {name} is text, a finite number or None, not {value!r}")
