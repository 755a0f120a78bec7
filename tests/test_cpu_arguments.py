"""Tests of what kernels on the cpu device take, and of launches that are bound."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import numpy as np
import pytest

from kernels_async import DeviceMismatchError, Kernel, Kernels, LaunchError
from tests.arrays import Exported, Tensor

ADD = (
    'extern "C" __global__ void k(const int* x, int* y, int n) { atomicAdd(y, *x * n); }\n'
)
FAIL = (
    "__global__ void k(int* p) {\n"
    "  if (*p && threadIdx.x < 3) __syncthreads();\n"
    "  else if (*p) { __syncthreads(); }\n"
    "}\n"
)


@pytest.fixture
async def add(kernels: Kernels) -> Kernel:
    """Adds a product, of what its arguments point at."""
    return await kernels.get(ADD, "k")


def numbers(value: int) -> Any:
    """An array of one number."""
    return np.array([value], np.int32)


def tensor(array: Any, **told: Any) -> Tensor:
    """The same memory, as a tensor of PyTorch's."""
    found = Tensor(array.ctypes.data, **({"kind": "cpu", "index": None} | told))
    found.owner = array
    return found


async def test_other_libraries_arrays_are_passed_without_a_copy(add: Kernel) -> None:
    """By DLPack, and PyTorch's by their address."""
    out = numbers(0)
    add((1,), (1,), (Exported(numbers(5)), tensor(out), np.int32(1)))
    add((1,), (1,), (tensor(numbers(5)), Exported(out), np.int32(10)), checked=True)
    add((1,), (1,), (Exported(numbers(5), (3, 0)), out, np.int32(100)))

    assert out[0] == 555


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "cuda"}, r"lies on another device \(Tensor\)"),
        ({"contiguous": False}, "is a pointer, which knows no strides"),
        ({"lazy": "conj"}, r"resolve_conj\(\) it"),
        ({"lazy": "sparse"}, "has no address: it has no storage"),
    ],
    ids=str,
)
async def test_a_tensor_that_the_kernel_could_not_read_is_refused(
    add: Kernel, change: dict[str, Any], message: str
) -> None:
    """It is named by its place."""
    array = numbers(1)
    with pytest.raises(TypeError, match=f"argument 1.*{message}"):
        add((1,), (1,), (array, tensor(array, **change), np.int32(1)))


async def test_an_array_on_a_gpu_or_read_only_is_refused(add: Kernel) -> None:
    """As a NumPy array is; where it is only read, it may be read-only."""
    constant, out = np.frombuffer(bytes(4), np.int32), numbers(0)
    with pytest.raises(TypeError, match=r"argument 0 lies on another device \(Exported\)"):
        add((1,), (1,), (Exported(out, (2, 0)), out, np.int32(1)))
    with pytest.raises(TypeError, match=r"argument 1 cannot be had by DLPack: of no type"):
        add((1,), (1,), (out, Exported(np.zeros(1, np.float16)), np.int32(1)))
    with pytest.raises(TypeError, match=r"argument 1 may be written.*read-only"):
        add((1,), (1,), (out, constant, np.int32(1)))
    add((1,), (1,), (constant, out, np.int32(1)))


async def test_a_bound_launch_is_repeated(add: Kernel) -> None:
    """It sees what is in the arrays then, and the numbers of when it was bound."""
    x, out = numbers(1), numbers(0)
    bound = add.bind((1,), (1,), (x, out, np.int32(2)))
    bound()
    x[0] = 10
    bound()

    assert out[0] == 22
    assert bound.kernel is add
    assert repr(bound) == "<BoundKernel k on cpu>"
    with pytest.raises(DeviceMismatchError, match="stream"):
        bound(stream=7)


async def test_a_launch_that_does_not_fit_is_not_bound(add: Kernel) -> None:
    """It is refused as a call is."""
    x = numbers(1)
    with pytest.raises(TypeError, match="takes 3 arguments, not 2"):
        add.bind((1,), (1,), (x, x))
    with pytest.raises(LaunchError, match="block is 1025"):
        add.bind((1,), (1025,), (x, x, np.int32(1)))
    with pytest.raises(DeviceMismatchError, match="stream"):
        add.bind((1,), (1,), (x, x, np.int32(1)), stream=7)


async def test_a_bound_launch_keeps_its_arrays(add: Kernel) -> None:
    """As long as it lives itself."""
    x, out = Exported(numbers(3)), numbers(0)
    alive = weakref.ref(x)
    bound = add.bind((1,), (1,), (x, out, np.int32(1)))
    del x
    bound()
    assert out[0] == 3
    assert alive() is not None

    del bound
    assert alive() is None


async def test_a_view_that_an_array_gives_is_kept(add: Kernel) -> None:
    """It may be of memory that only the view has."""

    class Copying(Exported):
        def __dlpack__(self, **options: Any) -> object:
            copy = self.array.copy()
            copies.append(weakref.ref(copy))
            return copy.__dlpack__(**options)

    copies: list[weakref.ref[Any]] = []
    out = numbers(0)
    bound = add.bind((1,), (1,), (Copying(numbers(3)), out, np.int32(1)))
    assert copies[0]() is not None
    bound()
    assert out[0] == 3

    del bound
    assert copies[0]() is None


async def test_any_thread_may_repeat_a_bound_launch(add: Kernel) -> None:
    """Also at the same time: each launch runs all its blocks."""
    blocks, times, out = 64, 50, numbers(0)
    bound = add.bind((blocks,), (1,), (numbers(1), out, np.int32(1)))

    def repeat() -> None:
        for _ in range(times):
            bound()

    await asyncio.gather(*(asyncio.to_thread(repeat) for _ in range(4)))
    assert out[0] == 4 * times * blocks


async def test_a_bound_launch_that_failed_may_be_repeated(kernels: Kernels) -> None:
    """The error is that launch's alone."""
    kernel, fails = await kernels.get(FAIL, "k"), numbers(1)
    bound = kernel.bind((1,), (8,), (fails,))
    with pytest.raises(LaunchError, match="<Kernel k on cpu>"):
        bound()
    fails[0] = 0
    bound()


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, where it is."""
    return pytest.importorskip("torch")


async def test_pytorchs_own_tensors_are_passed(add: Kernel, torch: Any) -> None:
    """Those of the host; one that requires a gradient too."""
    x = torch.tensor([4], dtype=torch.int32)
    out = torch.zeros(1, dtype=torch.int32)
    add((1,), (1,), (x, out, np.int32(2)))
    add.bind((1,), (1,), (x, out, np.int32(3)))()
    assert out.tolist() == [20]

    parameter = torch.nn.Parameter(torch.zeros(1))
    add((1,), (1,), (x, parameter, np.int32(2)))
    assert parameter.detach().view(torch.int32).tolist() == [8]
    with pytest.raises(TypeError, match="argument 0 is a pointer, which knows no strides"):
        add((1,), (1,), (torch.zeros(4, 4)[:, 0], out, np.int32(1)))
