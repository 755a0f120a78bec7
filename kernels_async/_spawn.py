"""Starts a process while the other threads of this one go on.

`subprocess` holds the interpreter's lock until the new program is loaded: two milliseconds
in which no event loop turns, and many more on a busy machine. This calls the C library's
`posix_spawn` (POSIX.1-2017), which holds up nobody but the thread that calls it. glibc
before 2.29 has no action that changes the folder, which the program does itself, and does
not hand on a descriptor under its own number: it takes a way by another one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
_FIRST_FREE = 3

_libc = ctypes.CDLL(None)
_Opaque = ctypes.c_uint64 * 128
"""Room for any of the C library's attributes, actions and sets of signals."""


class Spawned(NamedTuple):
    """A new process, the leader of a session and a process group of its own.

    Attributes:
        pid: Its number, and that of its group.
        stdin: The open pipe to its standard input.
        stdout: The open pipe from its standard output.
        stderr: The open pipe from its standard error.
    """

    pid: int
    stdin: int
    stdout: int
    stderr: int

    def close(self) -> None:
        """Let go of the pipes."""
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


def spawn(command: Sequence[str], environment: Mapping[str, str], keep: int) -> Spawned:
    """Start a process; blocks until its program is loaded.

    Args:
        command: The program's path, and its arguments.
        environment: Its environment.
        keep: A descriptor that it inherits.

    Raises:
        OSError: It cannot be started.
    """
    given: list[int] = []
    kept: list[int] = []
    try:
        for number in range(3):
            ends = _pipe()
            inner, outer = ends if number == 0 else reversed(ends)
            given.append(inner)
            kept.append(outer)
        return Spawned(_spawn(command, environment, [*given, keep]), *kept)
    except BaseException:
        for descriptor in kept:
            os.close(descriptor)
        raise
    finally:
        for descriptor in given:
            os.close(descriptor)


def _spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    inherited: Sequence[int],
) -> int:
    """Start a process with standard streams and one descriptor more; its number."""
    pid = ctypes.c_int()
    actions, attributes = _Opaque(), _Opaque()
    program = command[0]
    _check(_libc.posix_spawn_file_actions_init(actions), program)
    _check(_libc.posix_spawnattr_init(attributes), program)
    try:
        *streams, keep = inherited
        other = _FIRST_FREE if keep != _FIRST_FREE else _FIRST_FREE + 1
        for target, descriptor in (*enumerate(streams), (other, keep), (keep, other)):
            added = _libc.posix_spawn_file_actions_adddup2(actions, descriptor, target)
            _check(added, program)
        _set_signals(attributes)
        error = _libc.posix_spawn(
            ctypes.byref(pid),
            os.fsencode(program),
            actions,
            attributes,
            _strings(command),
            _strings([f"{name}={value}" for name, value in environment.items()]),
        )
        _check(error, program)
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
        _libc.posix_spawnattr_destroy(attributes)
    return pid.value


def _set_signals(attributes: ctypes.Array[ctypes.c_uint64]) -> None:
    """No signal is blocked, and those that Python ignores are not; a session of its own."""
    none, defaults = _Opaque(), _Opaque()
    _libc.sigemptyset(none)
    _libc.sigemptyset(defaults)
    for number in _DEFAULTS:
        _libc.sigaddset(defaults, int(number))
    _libc.posix_spawnattr_setsigmask(attributes, none)
    _libc.posix_spawnattr_setsigdefault(attributes, defaults)
    flags = ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID)
    _libc.posix_spawnattr_setflags(attributes, flags)


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)


def _pipe() -> tuple[int, int]:
    """A pipe, neither of whose ends is a standard stream."""
    given, other = os.pipe()
    try:
        first = above_standard_streams(given)
    except OSError:
        os.close(other)
        raise
    try:
        return first, above_standard_streams(other)
    except OSError:
        os.close(first)
        raise


def above_standard_streams(given: int) -> int:
    """The open file under another number: a server may have closed its standard streams.

    The given number is closed, whatever happens.

    Raises:
        OSError: There is no other number.
    """
    try:
        return fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    finally:
        os.close(given)


def _check(error: int, about: str) -> None:
    if error:
        raise OSError(error, os.strerror(error), about)
