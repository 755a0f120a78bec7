"""Shared libraries: loading one, and what the dynamic linker and its file say of it."""

from __future__ import annotations

import ctypes
import os
from io import BytesIO

from .._artifact import Artifact
from .._private import copies

_linker = ctypes.CDLL(None)
_linker.dlopen.restype = ctypes.c_void_p
_linker.dlerror.restype = ctypes.c_char_p


def load_library(artifact: Artifact) -> ctypes.CDLL:
    """The library; from memory where files in the temporary directory may not run."""
    name = f"{artifact.output_digest}.so"
    try:
        return _open(str(copies.on_disk(name, artifact.bytes)))
    except OSError:
        return _open(str(copies.in_memory(name, artifact.bytes)))


def _open(path: str) -> ctypes.CDLL:
    """The library at a path; other threads go on meanwhile, as `ctypes` has them wait."""
    handle = _linker.dlopen(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)
    if not handle:
        raise OSError((_linker.dlerror() or b"unknown").decode(errors="replace"))
    return ctypes.CDLL(path, handle=handle)


class _AddressInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def exports(library: ctypes.CDLL, name: str) -> bool:
    """Whether the library has a symbol of that name for others."""
    try:
        ctypes.c_char.in_dll(library, name)
    except ValueError:
        return False
    return True


def load_address(library: ctypes.CDLL, symbol: str) -> int:
    """Where the dynamic linker put the library that has a symbol of that name."""
    info = _AddressInfo()
    entry = ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
    if not _linker.dladdr(ctypes.c_void_p(entry), ctypes.byref(info)):
        raise OSError("the dynamic linker does not know the library")
    return int(info.base)


def variable(library: bytes, name: str) -> tuple[int, int, bool] | None:
    """Offset and size of a variable, and whether it may be written.

    None is exported, so that two libraries cannot mix theirs up. A static one is found
    by its plain name too, as on a GPU.
    """
    from elftools.elf.constants import SH_FLAGS
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(BytesIO(library))
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        return None
    for spelled in (name, f"_ZL{len(name)}{name}"):
        for symbol in table.get_symbol_by_name(spelled) or ():
            if symbol["st_info"]["type"] == "STT_OBJECT":
                section = elf.get_section(symbol["st_shndx"])
                writable = bool(section["sh_flags"] & SH_FLAGS.SHF_WRITE)
                return int(symbol["st_value"]), int(symbol["st_size"]), writable
    return None
