"""What a worker gives up before it compiles, for good.

A source is trusted to run, but its compile need not be trusted with the host: NVRTC
prints lines of any file that an `#include` names. So a worker that has loaded its
toolchain keeps the files that the toolchain needs, and nothing else: Landlock, where the
kernel has it, holds for every later file, whoever opens it. It does not hide which files
there are, and does not hold back UDP.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ._errors import ToolchainError
from .toolchains import Access

Mode = Literal["auto", "require", "off"]
"""Whether workers are confined: where it can be done, always, never."""
MODES = ("auto", "require", "off")

FILE_BYTES = 1 << 30
_FILES = 256
_ADDRESSES_PER_BYTE = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG = 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_ABI = (1 << 13) - 1
_ADDED_BY_ABI = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READS = _READ_FILE | _READ_DIR
_WRITES = (
    _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
)
_TCP, _TCP_ABI = 0b11, 4
_SCOPES, _SCOPES_ABI = 0b11, 6

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def confine(access: Access, memory: int, mode: Mode) -> str:
    """Give up everything that `access` does not name; what of it is in force, as text.

    It holds for the calling thread and those that it starts, and for every child.

    Args:
        access: What the toolchain needs.
        memory: What a compile may hold; address space is bounded by a multiple of it.
        mode: Whether to use Landlock if there is one, or insist on it, or not to.

    Raises:
        ToolchainError: Landlock is required, and this kernel does not have it.
    """
    os.umask(0o077)
    said = [_limit(memory, access.addresses)]
    if mode == "off":
        return ", ".join(["sandbox off", *said])
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    try:
        said.insert(0, _landlock(access))
    except OSError as error:
        if mode == "require":
            raise ToolchainError(
                f"sandbox='require', but this kernel has no Landlock: {error}"
            ) from error
        said.insert(0, f"no landlock ({error.strerror})")
    return ", ".join([*said, "no new privileges"])


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this signal when the thread that started the process ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0))


def _limit(memory: int, reserved: int) -> str:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    held = pages * resource.getpagesize()
    addresses = held + reserved + _ADDRESSES_PER_BYTE * memory
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_AS, addresses)
    _lower(resource.RLIMIT_FSIZE, FILE_BYTES)
    _lower(resource.RLIMIT_NOFILE, _FILES)
    return f"no core dumps, at most {addresses >> 20} MiB of addresses"


def _lower(limit: int, value: int) -> None:
    """Set both limits, not above what is allowed."""
    _, most = resource.getrlimit(limit)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))


def _landlock(access: Access) -> str:
    abi = _check(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))
    handled = _FIRST_ABI
    for since, right in _ADDED_BY_ABI.items():
        handled |= right if abi >= since else 0
    ruleset = _Ruleset(
        handled, _TCP if abi >= _TCP_ABI else 0, _SCOPES if abi >= _SCOPES_ABI else 0
    )
    size = ctypes.c_size_t(ctypes.sizeof(ruleset))
    rules = _check(_libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0))
    try:
        _allow(rules, access.reads, _READS & handled)
        _allow(rules, access.executes, (_READS | _EXECUTE) & handled)
        _allow(rules, access.writes, (_READS | _WRITES) & handled)
        _check(_libc.syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)
    return f"landlock abi {abi}, " + ("no TCP" if abi >= _TCP_ABI else "TCP allowed")


def _allow(rules: int, paths: Iterable[str], rights: int) -> None:
    """Allow `rights` beneath each path that is there."""
    for path in paths:
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            is_folder = stat.S_ISDIR(os.fstat(folder).st_mode)
            rule = _PathBeneath(rights if is_folder else rights & _OF_FILES, folder)
            added = _libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0)
            _check(added)
        finally:
            os.close(folder)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, errno.errorcode.get(number, str(number)))
    return result
