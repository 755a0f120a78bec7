"""Tests of the error tree."""

from __future__ import annotations

import inspect
import pickle

import pytest

import kernels_async
from kernels_async import BuildError, CompileError, Diagnostic, KernelsError, Severity
from kernels_async._errors import fresh

ERRORS = [
    error
    for _, error in inspect.getmembers(kernels_async, inspect.isclass)
    if issubclass(error, KernelsError) and error is not BuildError
]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_survives_pickling(error: type[KernelsError]) -> None:
    """An exception that cannot be unpickled breaks process pools."""
    again = pickle.loads(pickle.dumps(error("what happened")))  # noqa: S301

    assert (type(again), str(again)) == (error, "what happened")
    assert error.__doc__


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_can_be_told_to_many(error: type[KernelsError]) -> None:
    """Also one that is a built-in error of another kind."""
    again = fresh(error("what happened"))

    assert (type(again), str(again)) == (error, "what happened")


def test_a_fresh_copy_keeps_everything_but_the_traceback() -> None:
    """Each waiter gets an exception of its own, with the cause and the diagnostics."""
    diagnostic = Diagnostic(Severity.ERROR, "no")
    with pytest.raises(CompileError) as caught:
        raise CompileError("bad", diagnostics=[diagnostic], log="text") from OSError()
    original = caught.value
    copy = fresh(original)

    assert (copy.diagnostics, copy.log, str(copy)) == ((diagnostic,), "text", "bad")
    assert copy.__traceback__ is None
    assert copy.__cause__ is original.__cause__ is not None


def test_a_build_error_is_a_group_and_a_kernels_error() -> None:
    """`except*` takes it apart and `except KernelsError` catches it whole."""
    group = BuildError("2 of 3 kernels failed", [CompileError("a"), OSError("b")])
    rest = group.split(OSError)[1]

    assert isinstance(group, KernelsError)
    assert isinstance(rest, BuildError)
    assert [str(error) for error in rest.exceptions] == ["a"]
    assert pickle.loads(pickle.dumps(group)).exceptions  # noqa: S301
