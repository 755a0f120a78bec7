"""Numbers and texts as people read and write them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from .._diagnostics import printable
from .._errors import SpecificationError

_UNITS = ("B", "kB", "MB", "GB", "TB")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def size(number: float) -> str:
    """Bytes, such as `4.1 MB`."""
    for unit in _UNITS:
        if number < 999.5 or unit == _UNITS[-1]:
            break
        number /= 1000
    digits = 0 if unit == "B" or number >= 99.5 else 1
    return f"{number:.{digits}f} {unit}"


def parse_size(text: str) -> int:
    """The bytes of a size such as `500M`, `2G`, `1.5GB` or `1GiB`.

    Raises:
        SpecificationError: It is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SpecificationError(f"a size is such as 500M, 2G or 1GiB, not {text!r}")
    number, unit, binary = match.groups()
    power = " kmgt".index(unit.lower() or " ")
    if binary and not power:
        raise SpecificationError(f"a size is such as 500M, 2G or 1GiB, not {text!r}")
    return int(float(number) * (1024 if binary else 1000) ** power)


def seconds(number: float) -> str:
    """A time that something takes: `12 ms`, `3.1 s`, `2 min 5 s`."""
    if number < 0.9995:
        return f"{number * 1000:.0f} ms"
    if number < 99.5:
        return f"{number:.1f} s"
    minutes, rest = divmod(round(number), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def ago(number: float) -> str:
    """How long ago something was, roughly."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if number >= length:
            return f"{int(number // length)} {unit}"
    return "now" if number < 10 else f"{int(number)} s"


def line(text: str) -> str:
    """A text of somebody else's as one line, control characters made visible."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def first_line(error: BaseException) -> str:
    """What an error says first."""
    return line(str(error).strip().partition("\n")[0]) or type(error).__name__


def shorten(text: str) -> str:
    """A text with each digest cut to its first digits."""
    return _DIGEST.sub(r"\1", line(text))


def own_version() -> str:
    """The version of this package, if it is installed as one."""
    try:
        return version("kernels_async")
    except PackageNotFoundError:
        return "(not installed)"


def count(number: int, noun: str) -> str:
    """Such as `1 artifact`, `2 artifacts`, `no artifacts`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
