"""Tests of what launches on a CUDA device take, as far as that needs no GPU."""

from __future__ import annotations

import ctypes
import enum
import logging
import sys
import weakref
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kernels_async import DeviceMismatchError
from kernels_async._artifact import Artifact
from kernels_async.devices._arguments import Converter, CupyMemory
from kernels_async.devices._bound import lay_out
from kernels_async.devices._cuda import CudaKernel
from kernels_async.devices._parameters import (
    check,
    import_driver,
    parameter_sizes,
    passed_bytes,
)
from kernels_async.devices._streams import Handle, Streams
from tests.arrays import Exported, Interfaced, Tensor

ORDINAL = 1


class _Any:
    """An object of no kind that is known."""

    def __repr__(self) -> str:
        return "any"


ANY = _Any()
PAIR = np.dtype([("x", "f4"), ("y", "i8")], align=True)
LIMIT = "max_dynamic_shared_size_bytes"


@pytest.fixture(scope="module")
def cupy() -> Any:
    """CuPy, of which no call here needs a GPU."""
    return pytest.importorskip("cupy")


class Stream:
    """As a `cupy.cuda.Stream`: what CuPy's launch takes."""

    def __init__(self, ptr: int, device_id: int = ORDINAL) -> None:
        self.ptr = ptr
        self.device_id = device_id

    def synchronize(self) -> None:
        """Wait."""


class Foreign:
    """Another library's stream, with what it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def synchronize(self) -> None:
        """Wait."""


class Memory:
    """What CUDA says of memory, by its address."""

    def __init__(self) -> None:
        self.places: dict[int, int | None] = {0x10: ORDINAL, 0x20: 0, 0x30: None}
        self.told: list[tuple[str, object, object]] = []

    def takes(self, argument: object) -> bool:
        return isinstance(argument, float | np.generic)

    def lies_on(self, address: int) -> int | None:
        if address not in self.places:
            raise ValueError("unknown to CUDA")
        return self.places[address]

    def order(self, producer: int, stream: object) -> None:
        self.told.append(("order", producer, stream))

    def from_dlpack(self, array: Any, stream: object) -> object:
        array.__dlpack__(stream=None)
        self.told.append(("from_dlpack", array, stream))
        return "view"


def protocol(version: int, ptr: int) -> Any:
    """A `__cuda_stream__`."""
    return lambda: (version, ptr)


@pytest.mark.parametrize(
    ("stream", "ptr"),
    [
        (7, 7),
        (0, 0),
        (Foreign(__cuda_stream__=protocol(0, 7)), 7),
        (Foreign(__cuda_stream__=protocol(0, 7), device=Foreign(device_id=ORDINAL)), 7),
        (Foreign(cuda_stream=7, device=Foreign(type="cuda", index=ORDINAL)), 7),
        (Foreign(cuda_stream=7, device=Foreign(type="cuda", index=None)), 7),
        (Foreign(ptr=7, device_id=-1), 7),
    ],
    ids=["address", "null", "protocol", "cuda.core", "torch", "torch of any", "ptr"],
)
def test_any_librarys_stream_is_its_handle(stream: Any, ptr: int) -> None:
    """CuPy's launch reads `ptr`, and the stream lives as long."""
    taken = Streams(ORDINAL, (Stream,)).take(stream)

    assert isinstance(taken, Handle)
    assert (taken.ptr, taken.stream) == (ptr, stream)


@pytest.mark.parametrize("device", [ORDINAL, -1])
def test_cupys_own_stream_is_taken_as_it_is(device: int) -> None:
    """An external one does not know its device."""
    stream = Stream(7, device)

    assert Streams(ORDINAL, (Stream,)).take(stream) is stream


@pytest.mark.parametrize(
    "stream",
    [
        Stream(7, 0),
        Foreign(cuda_stream=7, device=Foreign(type="cuda", index=0)),
        Foreign(__cuda_stream__=protocol(0, 7), device=Foreign(device_id=0)),
    ],
    ids=["cupy", "torch", "cuda.core"],
)
def test_another_devices_stream_is_refused(stream: Any) -> None:
    """Whoever made it, if it tells."""
    with pytest.raises(
        DeviceMismatchError, match="belongs to cuda:0, the kernel to cuda:1"
    ):
        Streams(ORDINAL, (Stream,)).take(stream)


@pytest.mark.parametrize(
    "stream",
    [True, "7", ANY, 7.0, SimpleNamespace(ptr=7), Foreign(ptr="7")],
)
def test_what_is_no_stream_is_a_type_error(stream: Any) -> None:
    """A memory pointer has a `ptr` too."""
    with pytest.raises(TypeError, match="a stream is CuPy's, PyTorch's"):
        Streams(ORDINAL, (Stream,)).take(stream)


def test_a_later_version_of_the_stream_protocol_is_refused() -> None:
    """It may mean another thing."""
    with pytest.raises(TypeError, match="version 1 of __cuda_stream__, not 0"):
        Streams(ORDINAL, ()).take(Foreign(__cuda_stream__=protocol(1, 7)))


class Number(enum.IntEnum):
    """A number with a name."""

    SEVEN = 7


@pytest.mark.parametrize(
    ("argument", "passed"),
    [
        (1.5, 1.5),
        (Number.SEVEN, 7),
        (Interfaced(0x10), 0x10),
        (Interfaced(0x30), 0x30),
        (Interfaced(0), 0),
        (Interfaced(0x10, data=(0x10, True)), 0x10),
        (Tensor(0x99, index=ORDINAL), 0x99),
        (Exported(np.zeros(1), (2, ORDINAL)), "view"),
        (Exported(np.zeros(1), (13, 0)), "view"),
    ],
    ids=[
        *("scalar", "IntEnum", "interface", "managed or pinned", "empty", "read-only"),
        *("tensor", "DLPack", "DLPack managed"),
    ],
)
def test_arrays_are_passed_by_their_address(argument: Any, passed: object) -> None:
    """Without a copy."""
    (found,) = Converter(ORDINAL, Memory()).convert((argument,), None)

    assert found == passed
    assert type(found) is type(passed)


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (Interfaced(0x20), DeviceMismatchError, "lies on cuda:0, the kernel on cuda:1"),
        (Tensor(1, index=0), DeviceMismatchError, "lies on cuda:0, the kernel on cuda:1"),
        (Exported(np.zeros(1), (2, 0)), DeviceMismatchError, "lies on cuda:0, the kernel"),
        (Interfaced(0x40), TypeError, "unknown to CUDA"),
        (Interfaced(0x10, mask=ANY), TypeError, "mask"),
        (Tensor(1, "cpu", None), TypeError, r"lies on no GPU \(Tensor\)"),
        (Tensor(1, index=ORDINAL, lazy="conj"), TypeError, r"resolve_conj\(\) it"),
        (Tensor(1, index=ORDINAL, lazy="neg"), TypeError, r"resolve_neg\(\) it"),
        (Tensor(1, index=ORDINAL, lazy="sparse"), TypeError, "has no address: it has no"),
        (np.zeros(4), TypeError, r"lies on no GPU \(ndarray\)"),
        (Exported(np.zeros(1), (3, 0)), TypeError, r"lies on no GPU \(Exported\)"),
        (
            Exported(np.zeros(1, np.float16), (2, ORDINAL)),
            TypeError,
            "by DLPack: of no type",
        ),
        ("text", TypeError, "is a scalar or an array on a GPU, not str"),
        ([1], TypeError, "is a scalar or an array on a GPU, not list"),
    ],
)
def test_what_a_kernel_could_not_read_is_refused(
    argument: Any, error: type[Exception], message: str
) -> None:
    """It is named by its place."""
    with pytest.raises(error, match=f"argument 1.*{message}"):
        Converter(ORDINAL, Memory()).convert((1.5, argument), None)


def test_a_launch_is_ordered_behind_the_producer_that_an_array_names() -> None:
    """On the stream of the launch; one without a stream of its own is not."""
    memory, stream = Memory(), Stream(7)
    exported = Exported(np.zeros(1), (2, ORDINAL))
    args = (Interfaced(0x10), Interfaced(0x10, stream=5), exported)
    Converter(ORDINAL, memory).convert(args, stream)

    assert memory.told == [("order", 5, stream), ("from_dlpack", exported, stream)]


def test_what_cupys_launch_takes_is_left_to_it(cupy: Any) -> None:
    """Everything else is converted."""
    pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(64, 64, None, 0), 0)
    array = cupy.ndarray((4,), np.float32, pointer)
    memory = CupyMemory(cupy)
    scalars = (None, True, 1, 1.5, 1j, np.float32(1), np.zeros((), PAIR)[()])
    arrays = (np.zeros((), PAIR), np.zeros((1, 1)), pointer, array, array[::2])
    others = (np.zeros(2), np.zeros(0), Number.SEVEN, "text", b"text", [1], Tensor(1))

    assert all(memory.takes(argument) for argument in (*scalars, *arrays))
    assert not any(memory.takes(argument) for argument in others)


@pytest.mark.parametrize(
    ("argument", "size"),
    [
        *((None, 8), (True, 1), (7, 8), (1.5, 8), (1j, 16), (ANY, 8)),
        *((np.float16(1), 2), (np.float32(1), 4), (np.float64(1), 8), (np.bool_(1), 1)),
        *((np.complex64(1), 8), (np.zeros((), PAIR)[()], 16), (np.zeros(1, PAIR), 16)),
    ],
    ids=repr,
)
def test_arguments_are_passed_in_their_own_size(argument: Any, size: int) -> None:
    """As CuPy does; any object that it takes is a pointer."""
    assert passed_bytes(argument) == size


@pytest.mark.parametrize(
    ("size", "argument"),
    [
        *((8, ANY), (8, None), (4, np.float32(1)), (16, np.zeros(1, PAIR)), (8, 1.5)),
        *((4, 1), (4, -(1 << 31)), (4, (1 << 32) - 1), (1, 255), (8, (1 << 64) - 1)),
        *((2, -1), (1, True), (16, 1j), (2, np.float16(1))),
    ],
    ids=repr,
)
def test_arguments_that_fit_are_let_pass(size: int, argument: Any) -> None:
    """A Python integer does where it is small enough."""
    check("kernel", (8, size), (None, argument))


@pytest.mark.parametrize(
    ("size", "argument", "message"),
    [
        (4, 1.5, "its parameter has 4 bytes, and float is passed as 8"),
        (4, np.float64(1), "its parameter has 4 bytes, and float64 is passed as 8"),
        (4, np.int64(1), "its parameter has 4 bytes, and int64 is passed as 8"),
        (8, np.int32(1), "its parameter has 8 bytes, and int32 is passed as 4"),
        (8, np.zeros(1, PAIR), "its parameter has 8 bytes, and .* is passed as 16"),
        (4, ANY, "its parameter has 4 bytes, and _Any is passed as 8"),
        (4, 1 << 32, "its parameter has 4 bytes, and int is passed as 8"),
        (1, -129, "its parameter has 1 bytes, and int is passed as 8"),
        (16, 1, "its parameter has 16 bytes, and int is passed as 8"),
        (4, True, "its parameter has 4 bytes, and bool is passed as 1"),
    ],
    ids=repr,
)
def test_an_argument_of_another_size_is_named(
    size: int, argument: Any, message: str
) -> None:
    """The kernel would read past it, or a part of it."""
    with pytest.raises(TypeError, match=f"'kernel' argument 1: {message}: pass a NumPy"):
        check("kernel", (8, size), (None, argument))


@pytest.mark.parametrize("args", [(), (None,), (None, None, None)], ids=len)
def test_too_few_and_too_many_arguments_are_refused(args: tuple[None, ...]) -> None:
    """The driver reads as many as there are parameters."""
    with pytest.raises(TypeError, match=f"takes 2 arguments, not {len(args)}"):
        check("kernel", (8, 8), args)


def test_without_a_driver_that_tells_parameters_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is checked."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)

    drivers = [import_driver(), import_driver()]
    assert [parameter_sizes(driver, 0) for driver in drivers] == [None, None]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("launches are not checked: no driver tells")


def test_arguments_are_laid_out_as_the_driver_reads_them(cupy: Any) -> None:
    """Arrays by their address, scalars by their bytes."""
    pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(64, 64, None, 0), 8)
    array = cupy.ndarray((4,), np.float32, pointer)
    pair = np.array((1.5, 7), PAIR)
    args = (pointer, array, None, 7, -1, 1.5, True, 1j, np.float32(2), pair, pair[()], 72)
    pointers, values = lay_out(args, cupy.cuda.function.CPointer)
    found = [
        ctypes.string_at(laid.ptr, passed_bytes(argument))
        for laid, argument in zip(pointers, args, strict=True)
    ]
    own = (np.int64(7), np.int64(-1), np.float64(1.5), np.bool_(1), np.complex128(1j))
    expected = [np.int64(72), np.int64(72), np.int64(0), *own, np.float32(2), pair, pair]
    assert found == [value.tobytes() for value in (*expected, np.int64(72))]
    assert len(values) == len(args)


class Pointer:
    """As `cupy.cuda.function.CPointer`."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Launches:
    """A device, a module and CuPy's function, which records what it is given."""

    def __init__(self, artifact: Artifact, sizes: tuple[int, ...] | None) -> None:
        self.memory = Memory()
        self.current = ORDINAL
        self.calls: list[tuple[Any, ...]] = []
        runtime = SimpleNamespace(getDevice=lambda: self.current)
        function = SimpleNamespace(CPointer=Pointer)
        cuda = SimpleNamespace(runtime=runtime, Device=self.on, function=function)
        self.cupy = SimpleNamespace(cuda=cuda)
        self.name, self.ordinal = f"cuda:{ORDINAL}", ORDINAL
        self.streams = Streams(ORDINAL, (Stream,))
        self.arguments = Converter(ORDINAL, self.memory)
        self.raw = SimpleNamespace(attributes={LIMIT: 100}, kernel=self.launch)
        device: Any = self
        self.kernel = CudaKernel(device, artifact, None, self.raw, sizes)

    def launch(self, *given: Any) -> None:
        taken = float | int | np.generic | Pointer
        if not all(isinstance(argument, taken) for argument in given[2]):
            raise TypeError("Unsupported type")
        self.calls.append((self.current, *given))

    def on(self, ordinal: int) -> Any:
        """A context in which that device is the current one."""
        launches, before = self, self.current

        class On:
            def __enter__(self) -> None:
                launches.current = ordinal

            def __exit__(self, *_: object) -> None:
                launches.current = before

        return On()


@pytest.fixture
def launches() -> Launches:
    """A kernel of a pointer and an `int`."""
    return Launches(artifact(), (8, 4))


def artifact() -> Artifact:
    """An artifact of which only the symbol is asked."""
    return cast("Artifact", SimpleNamespace(symbol="k"))


def test_the_first_launch_is_checked_and_the_second_costs_nothing_more(
    launches: Launches,
) -> None:
    """CuPy's function gets the caller's own tuple."""
    kernel, args = launches.kernel, (1.5, np.int32(1))
    with pytest.raises(TypeError, match="<Kernel k on cuda:1> takes 2 arguments") as caught:
        kernel((1,), (1,), (1.5,))
    assert caught.value.__context__ is None
    with pytest.raises(TypeError, match=r"<Kernel k on cuda:1> argument 1: .* 4 bytes"):
        kernel((1,), (1,), (1.5, np.int64(1)))
    assert launches.calls == []

    kernel((1,), (1,), args)
    kernel((2,), (1,), args)
    assert launches.calls == [
        (ORDINAL, (1,), (1,), list(args), 0, None),
        (ORDINAL, (2,), (1,), args, 0, None),
    ]
    assert launches.calls[1][3] is args


def test_a_later_launch_is_checked_if_it_is_asked_for(launches: Launches) -> None:
    """Otherwise it is as undefined as in CUDA."""
    launches.kernel((1,), (1,), (1.5, np.int32(1)))
    launches.kernel((1,), (1,), (1.5,))
    with pytest.raises(TypeError, match="takes 2 arguments, not 1"):
        launches.kernel((1,), (1,), (1.5,), checked=True)
    launches.kernel((1,), (1,), (1.5, np.int32(1)), checked=True)

    assert len(launches.calls) == 3


def test_without_a_table_of_parameters_nothing_is_checked() -> None:
    """As with CuPy."""
    launches = Launches(artifact(), None)
    launches.kernel((1,), (1,), (1.5,), checked=True)

    assert launches.calls == [(ORDINAL, (1,), (1,), [1.5], 0, None)]


def test_other_libraries_arrays_are_converted_in_every_launch(launches: Launches) -> None:
    """The first, and those that are not checked; what is refused is not launched."""
    args = (Interfaced(0x10), np.int32(1))
    for _ in range(3):
        launches.kernel((1,), (1,), args)
    launches.kernel((1,), (1,), (1.5, np.int32(1)))
    assert [call[3][0] for call in launches.calls] == [0x10, 0x10, 0x10, 1.5]

    with pytest.raises(DeviceMismatchError, match="argument 0 lies on cuda:0"):
        launches.kernel((1,), (1,), (Interfaced(0x20), np.int32(1)))
    assert len(launches.calls) == 4


def test_what_is_refused_once_leaves_later_launches_as_they_were(
    launches: Launches,
) -> None:
    """They cost nothing more."""
    args = (1.5, np.int32(1))
    launches.kernel((1,), (1,), args)
    with pytest.raises(TypeError, match="argument 0 is a scalar or an array on a GPU"):
        launches.kernel((1,), (1,), ("text", np.int32(1)))  # type: ignore[arg-type]
    launches.kernel((1,), (1,), args)

    assert launches.calls[1][3] is args


def test_a_launch_from_another_device_goes_there_and_back(launches: Launches) -> None:
    """With all that it was given."""
    launches.current = 0
    stream = Stream(7)
    launches.kernel((1,), (2,), (1.5, np.int32(1)), 200, stream, checked=True)
    bound = launches.kernel.bind((1,), (2,), (1.5, np.int32(1)))
    bound(stream)

    assert [(c[0], c[4], c[5]) for c in launches.calls] == [
        (1, 200, stream),
        (1, 0, stream),
    ]
    assert launches.current == 0
    with pytest.raises(TypeError, match="takes 2 arguments, not 1"):
        launches.kernel((1,), (2,), (1.5,), checked=True)
    assert getattr(launches.raw, LIMIT) == 200


def test_a_bound_launch_is_checked_and_converted_once(launches: Launches) -> None:
    """Refused when it is bound, and repeated as it was."""
    with pytest.raises(TypeError, match="takes 2 arguments, not 1"):
        launches.kernel.bind((1,), (1,), (1.5,))
    with pytest.raises(TypeError):
        launches.kernel.bind((1.5,), (1,), (1.5, np.int32(1)))  # type: ignore[arg-type]
    bound = launches.kernel.bind((3,), (4, 2), (Interfaced(0x10), np.int32(1)), 64)
    launches.memory.places.clear()
    bound()
    bound()

    first, second = launches.calls
    assert first == second
    assert first[1:3] == ((3,), (4, 2))
    assert first[4:] == (64, None)
    assert repr(bound) == "<BoundKernel k on cuda:1>"
    assert bound.kernel is launches.kernel


def test_a_bound_launch_has_a_stream_of_its_own_or_the_current_one(
    launches: Launches,
) -> None:
    """`None` is CuPy's current stream at the launch; a stream in the call comes first."""
    args, own, other = (1.5, np.int32(1)), Stream(7), Stream(8)
    for bound in (
        launches.kernel.bind((1,), (1,), args),
        launches.kernel.bind((1,), (1,), args, stream=own),
    ):
        bound()
        bound(other)
        bound(stream=9)
        with pytest.raises(DeviceMismatchError):
            bound(Stream(7, 0))
    streams = [call[5] for call in launches.calls]
    assert streams[:2] + streams[3:5] == [None, other, own, other]
    assert [streams[2].ptr, streams[5].ptr] == [9, 9]


def test_a_bound_launch_keeps_its_numbers(launches: Launches) -> None:
    """In memory of its own, which nobody else gets."""
    bound = launches.kernel.bind((1,), (1,), (1.5, np.int32(7)))
    others = [(np.array(0.0), np.array(0, np.int32)) for _ in range(1000)]
    bound()
    first, second = launches.calls[0][3]

    assert ctypes.string_at(first.ptr, 8) == np.float64(1.5).tobytes()
    assert ctypes.string_at(second.ptr, 4) == np.int32(7).tobytes()
    del others


def test_a_bound_launch_keeps_its_arrays(launches: Launches) -> None:
    """As long as it lives itself."""
    array = Interfaced(0x10)
    alive = weakref.ref(array)
    bound = launches.kernel.bind((1,), (1,), (array, np.int32(1)))
    del array
    assert alive() is not None

    del bound
    assert alive() is None
