"""Tests of `Specialization`: equal requests are equal, wrong ones are refused at once."""

from __future__ import annotations

import copy
import enum
import pickle
from typing import Any

import numpy as np
import pytest

from kernels_async import Specialization, SpecificationError


@pytest.mark.parametrize(
    "other",
    [
        Specialization("k", options=("-DN=4",)),
        Specialization("k", options=("-D", "N=4")),
        Specialization("k", options=("--define-macro=N=4",)),
        Specialization("k", {"N": "4"}),
        Specialization("k", {"N": 4}, ("-DN=4",)),
    ],
    ids=repr,
)
def test_equivalent_spellings_of_a_define_are_equal(other: Specialization) -> None:
    """However a macro is defined, the specialization is the same."""
    one = Specialization("k", {"N": 4})

    assert (one, hash(one)) == (other, hash(other))


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (("-std=c++17",), ("--std=c++17",)),
        (("-std", "c++17"), ("--std=c++17",)),
        (("-use_fast_math",), ("--use_fast_math",)),
        (("-arch", "sm_90"), ("--gpu-architecture=sm_90",)),
        (("-Xptxas", "-O1"), ("--ptxas-options=-O1",)),
        (("-w",), ("--disable-warnings",)),
        (("-UX",), ("--undefine-macro=X",)),
        (("-rdc=false",), ()),
    ],
)
def test_short_and_long_options_are_equal(
    short: tuple[str, ...], long: tuple[str, ...]
) -> None:
    """Each option has one canonical spelling."""
    assert Specialization("k", options=short) == Specialization("k", options=long)


def test_the_order_of_options_is_kept_and_that_of_defines_is_not() -> None:
    """The last of two options wins in NVRTC; defines of different names do not meet."""
    assert Specialization("k", options=("-ftz=true", "-fmad=false")) != Specialization(
        "k", options=("-fmad=false", "-ftz=true")
    )
    assert Specialization("k", {"A": 1, "B": 2}) == Specialization("k", {"B": 2, "A": 1})


def test_defines_are_written_as_cpp_writes_them() -> None:
    """A bool is 0 or 1, a float keeps its digits, None is empty, text is verbatim."""
    defines = {"B": True, "F": 1e-05, "I": -3, "E": None, "MAX(a,b)": "((a)>(b)?(a):(b))"}
    spec = Specialization("k", defines)

    assert dict(spec.defines) == {
        "B": "1",
        "E": "",
        "F": "1e-05",
        "I": "-3",
        "MAX(a,b)": "((a)>(b)?(a):(b))",
    }


@pytest.mark.parametrize(
    ("option", "way"),
    [
        ("-I/usr/include", "headers"),
        ("--include-path=/usr", "headers"),
        ("-include=x.h", "headers"),
        ("--pre-include=x.h", "headers"),
        ("-time=t.csv", "compile_seconds"),
        ("--fdevice-time-trace=x", "compile_seconds"),
        ("--pch", "precompiled"),
        ("--use-pch=/tmp/x.pch", "precompiled"),
        ("--pch-dir=/tmp", "precompiled"),
        ("-o=/tmp/x", "artifact"),
        ("-rdc=true", "link"),
        ("-dc", "link"),
        ("-dlto", "link"),
        ("--optix-ir", "cubin"),
        ("--frandom-seed=1", "sets it"),
        ("--use-bundled-headers=/tmp", "writes files"),
        ("--ptxas-options=-o,/tmp/x", "ptxas"),
        ("--zork", "unknown"),
        ("-Xptxas -v", "own string"),
        ("", "empty"),
        ("-use_fast_math=1", "no value"),
        ("--std=c++17 -I/etc", "cannot have"),
        ("-DN=1 -DM=2", "second define"),
        ("-DVAL =6", "identifier"),
        ("-D1X=2", "identifier"),
        ("-DN=a\nb", "control character"),
        ("-D__CUDA_ARCH__=800", "belongs to the compiler"),
        ("-std", "needs a value"),
    ],
)
def test_an_option_that_cannot_be_right_is_refused_with_the_reason(
    option: str, way: str
) -> None:
    """Options that read or write the host, or make no cubin, name the way to do it."""
    with pytest.raises(SpecificationError, match=way):
        Specialization("k", options=(option,))


@pytest.mark.parametrize(
    ("defines", "options"),
    [
        ({"N": 1}, ("-DN=2",)),
        ({}, ("-DN=1", "-DN=2")),
        ({"N": 1}, ("-UN",)),
        ({}, ("-arch=sm_90", "-arch=sm_80")),
    ],
)
def test_a_conflict_is_an_error(defines: dict[str, Any], options: tuple[str, ...]) -> None:
    """Nothing wins silently."""
    with pytest.raises(SpecificationError):
        Specialization("k", defines, options)


@pytest.mark.parametrize("symbol", ["", "  ", "k\0", "k\nl", "k" * 5000, "\ud800"])
def test_a_symbol_that_cannot_be_one_is_refused(symbol: str) -> None:
    """NVRTC would cut it at a NUL; a symbol is one printable line."""
    with pytest.raises(SpecificationError, match="symbol"):
        Specialization(symbol)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Specialization(b"k"),  # type: ignore[arg-type]
        lambda: Specialization("k", options="-DN=4"),
        lambda: Specialization("k", options=(4,)),  # type: ignore[arg-type]
        lambda: Specialization("k", {4: "x"}),  # type: ignore[dict-item]
        lambda: Specialization("k", ("-lineinfo",)),  # type: ignore[arg-type]
        lambda: Specialization("k", options=None),  # type: ignore[arg-type]
        lambda: Specialization("k", {"N": object()}),  # type: ignore[dict-item]
        lambda: Specialization("k", {"N": float("inf")}),
    ],
)
def test_a_wrong_type_is_a_type_error(make: Any) -> None:
    """A string of options would otherwise become characters."""
    with pytest.raises(TypeError):
        make()


def test_it_is_immutable_and_survives_copy_and_pickle() -> None:
    """It crosses processes unchanged, architecture included."""
    spec = Specialization("k<int>", {"N": 4}, ("-arch=sm_90", "-lineinfo"))

    with pytest.raises(AttributeError):
        spec.symbol = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        spec.defines["N"] = "5"  # type: ignore[index]
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec  # noqa: S301
    assert repr(spec) == "<Specialization k<int> -DN=4 --generate-line-info>"


def test_numbers_of_numpy_are_numbers() -> None:
    """Shapes are often NumPy's."""
    spec = Specialization("k", {"N": np.int64(3), "F": np.float32(0.5)})  # type: ignore[dict-item]

    assert dict(spec.defines) == {"F": "0.5", "N": "3"}


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--use-fast-math", "did you mean --use_fast_math"),
        ("-O3", "NVRTC optimizes.*drop it"),
        ("--maxregcount=3", "did you mean --maxrregcount"),
    ],
)
def test_a_misspelt_option_is_told_its_spelling(option: str, hint: str) -> None:
    """Or why it is not needed."""
    with pytest.raises(SpecificationError, match=hint):
        Specialization("k", options=(option,))


def test_an_enumeration_is_its_value() -> None:
    """Two of them with one name and other values must not share a key."""

    class Text(str, enum.Enum):  # noqa: UP042 - as older code has them
        X = "1"

    class Number(int, enum.Enum):
        X = 2

    spec = Specialization("k", {"A": Text.X, "B": Number.X})

    assert dict(spec.defines) == {"A": "1", "B": "2"}
    assert type(spec.defines["A"]) is str


@pytest.mark.parametrize("text", ["1 \\", "1 /*", "\ud800"])
def test_a_define_that_would_go_on_into_the_source_is_refused(text: str) -> None:
    """It is one line before the source."""
    with pytest.raises(SpecificationError):
        Specialization("k", {"A": text})
