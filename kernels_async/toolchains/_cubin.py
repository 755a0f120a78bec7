"""What a cubin tells of a kernel and ptxas's report does not.

A cubin is an ELF file whose `.nv.*` sections are described by no public specification;
their layout here was read off the output of NVRTC 12.9 to 13.x.
"""

from __future__ import annotations

import math
import struct
from io import BytesIO

_SIZED = 4
_LAUNCH_BOUNDS = (0x05, 0x10)  # EIATTR_MAX_THREADS, EIATTR_REQNTID
_DIMENSIONS = struct.Struct("<3I")


def load() -> None:
    """Import what reads ELF files, before the worker gives up reading modules."""
    import elftools.elf.elffile  # noqa: F401 - imported for its effect


def constant_bytes(cubin: bytes) -> int:
    """The size of the bank of `__constant__` variables."""
    return len(_section(cubin, ".nv.constant3"))


def launch_bound(cubin: bytes, entry: str) -> int:
    """The threads of a block that the kernel was compiled for at most; 0 if not bounded.

    The section `.nv.info.<entry>` is a list of attributes: a form, a number, and two
    bytes that are the value itself or, in the form 4, the size of what follows.
    """
    data = _section(cubin, f".nv.info.{entry}")
    at = 0
    while at + 4 <= len(data):
        form, number, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            if number in _LAUNCH_BOUNDS and size == _DIMENSIONS.size:
                return math.prod(_DIMENSIONS.unpack_from(data, at))
            at += size
    return 0


def symbols(cubin: bytes) -> set[str]:
    """The names of everything in it."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    table = ELFFile(BytesIO(cubin)).get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        return set()
    return {symbol.name for symbol in table.iter_symbols()}


def _section(cubin: bytes, name: str) -> bytes:
    from elftools.elf.elffile import ELFFile

    section = ELFFile(BytesIO(cubin)).get_section_by_name(name)
    return b"" if section is None else bytes(section.data())
