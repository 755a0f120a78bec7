"""Tests of the frames between pool and worker: exactly the expected, or a `ValueError`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_async import (
    CompileError,
    CompileMemoryError,
    Diagnostic,
    KernelsError,
    Resources,
    Severity,
    SymbolNotFoundError,
    ToolchainError,
    _frames,
)
from kernels_async._artifact import Output
from kernels_async._frames import HEADER, Bounds

DIAGNOSTIC = Diagnostic(Severity.WARNING, "unused", "177-D", "kernel.cu", 3, 4, "  int x;")
RESOURCES = Resources(*range(8))
OUTPUT = Output(b"\x7fELF", "_Z1kv", (DIAGNOSTIC,), RESOURCES, 0.25)
ANYTHING = r"."
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def parts(frame: bytes) -> tuple[bytes, bytes]:
    """The JSON and the data of a frame."""
    text, data = HEADER.unpack_from(frame)
    assert len(frame) == HEADER.size + text + data
    return frame[HEADER.size : HEADER.size + text], frame[HEADER.size + text :]


def read(record: object, data: bytes = OUTPUT.data) -> Output | KernelsError:
    """What an answer to job 7 with these parts says."""
    return _frames.read_answer(json.dumps(record).encode(), data, 7)


RECORD: dict[str, Any] = json.loads(parts(_frames.answer(7, OUTPUT))[0])


def test_an_artifact_arrives_as_it_was() -> None:
    """With what the compiler said."""
    assert _frames.read_answer(*parts(_frames.answer(7, OUTPUT)), 7) == OUTPUT


@pytest.mark.parametrize(
    "error",
    [
        CompileError("no", diagnostics=[DIAGNOSTIC], log="log"),
        SymbolNotFoundError("none", log="log"),
        CompileMemoryError("much"),
        ToolchainError("missing"),
    ],
)
def test_an_error_arrives_as_it_was(error: KernelsError) -> None:
    """Of its class, with diagnostics and log."""
    again = _frames.read_answer(*parts(_frames.answer(7, error)), 7)

    assert (type(again), str(again)) == (type(error), str(error))
    assert vars(again) == vars(error)


def test_an_artifact_that_is_too_large_is_a_compile_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker says so itself; nothing of it is sent."""
    monkeypatch.setattr(_frames, "ANSWER", Bounds(1 << 20, 3))
    text, data = parts(_frames.answer(7, OUTPUT))

    error = _frames.read_answer(text, data, 7)
    assert isinstance(error, CompileError)
    assert str(error) == "the artifact is too large: 4 bytes, of 3"
    assert error.diagnostics == (DIAGNOSTIC,)


def test_what_a_compiler_says_is_bounded() -> None:
    """However long its log is, and however much of it has to be escaped."""
    error = CompileError(
        "\x1b" * (3 << 20), diagnostics=[DIAGNOSTIC] * 20_000, log="\x07\n" * (1 << 20)
    )
    again = _frames.read_answer(*parts(_frames.answer(7, error)), 7)

    assert isinstance(again, CompileError)
    assert len(again.log) < _frames.ANSWER.text
    assert len(again.diagnostics) == 10_000
    assert "\x1b" not in str(again)


WRONG: dict[str, list[object]] = {
    "number": [None, True, 7.0, "7", 8, []],
    "entry": [None, "", 7, ["k"], {"k": 1}],
    "diagnostics": [None, {}, "x", [None], [[]], [{}], [{"severity": "BAD"}]],
    "resources": [
        [],
        "x",
        {},
        {"registers": 1},
        *(RESOURCES.to_record() | {"stack": n} for n in (-1, 1 << 70, 1.5, True, None)),
    ],
    "compile_seconds": [None, 1, "1", -0.5, True, []],
    "more": [None, 1],
}


@pytest.mark.parametrize("field", WRONG)
def test_an_answer_with_a_wrong_field_is_none(field: str) -> None:
    """Of another type, out of bounds, or one more."""
    for value in WRONG[field]:
        with pytest.raises(ValueError, match=ANYTHING):
            read(RECORD | {field: value})


@pytest.mark.parametrize("field", RECORD)
def test_an_answer_without_a_field_is_none(field: str) -> None:
    """Each is needed."""
    with pytest.raises(ValueError, match="the fields"):
        read({name: value for name, value in RECORD.items() if name != field})


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-Infinity", "1e999", "-0.5", "1"])
def test_seconds_are_a_finite_number(seconds: str) -> None:
    """JSON of Python's knows others."""
    text = json.dumps(RECORD).replace("0.25", seconds)
    with pytest.raises(ValueError, match=r"no number|seconds"):
        _frames.read_answer(text.encode(), b"x", 7)


@pytest.mark.parametrize("name", [*Diagnostic.__slots__, "more"])
def test_a_diagnostic_is_exactly_one(name: str) -> None:
    """Its place is a number that fits."""
    for value in (object, 1 << 70, -1, [], "BAD" if name == "severity" else {}):
        record = DIAGNOSTIC.to_record() | {name: value}
        if value is object:
            record = {k: v for k, v in record.items() if k != name}
            if name == "more":
                continue
        with pytest.raises(ValueError, match=ANYTHING):
            read(RECORD | {"diagnostics": [record]})


def test_frames_come_in_their_order_and_about_their_job() -> None:
    """One of another kind, or of another job, is an error."""
    hello, begun = _frames.hello("landlock"), _frames.begun(7)
    assert _frames.read_hello(parts(hello)[0]) == "landlock"
    assert not _frames.read_begun(parts(begun)[0], 7)
    assert _frames.read_begun(parts(_frames.begun(7, keeps=True))[0], 7)
    for frame in (hello, _frames.answer(7, OUTPUT), _frames.begun(8)):
        with pytest.raises(ValueError, match=ANYTHING):
            _frames.read_begun(parts(frame)[0], 7)
    for frame in (begun, _frames.answer(7, OUTPUT)):
        with pytest.raises(ValueError, match=ANYTHING):
            _frames.read_hello(parts(frame)[0])
    for frame in (hello, begun, _frames.answer(8, OUTPUT)):
        with pytest.raises(ValueError, match=ANYTHING):
            _frames.read_answer(*parts(frame), 7)


def test_a_refusal_is_a_toolchain_error() -> None:
    """Instead of a hello."""
    with pytest.raises(ToolchainError, match="no landlock"):
        _frames.read_hello(parts(_frames.refusal("no landlock"))[0])


@pytest.mark.parametrize("lengths", [(65 << 20, 0), (0, 257 << 20), (1 << 63, 1 << 63)])
def test_a_frame_that_is_too_large_is_refused_by_its_header(
    lengths: tuple[int, int],
) -> None:
    """Before any of it is read."""
    with pytest.raises(ValueError, match="a frame of"):
        _frames.lengths(HEADER.pack(*lengths), _frames.ANSWER)


@given(JSON, st.binary(max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_other_json_is_a_value_error(record: object, data: bytes) -> None:
    """And nothing but a `ValueError`."""
    for changed in (
        record,
        {**RECORD, "diagnostics": record},
        {**RECORD, "resources": record},
    ):
        try:
            outcome = read(changed, data)
        except ValueError:
            continue
        assert isinstance(outcome, Output)
        assert record in ([], None)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_other_bytes_are_a_value_error(text: bytes) -> None:
    """Also a pickle, or JSON that is nested too deeply."""
    for rubbish in (text, b"[" * 100_000, b"\x80\x04K\x01."):
        with pytest.raises(ValueError, match=ANYTHING):
            _frames.read_answer(rubbish, b"x", 7)
