"""A PyTorch operator whose kernels come from `kernels_async`: SwiGLU, with its gradient.

`swiglu(gate, value)` is `silu(gate) * value`, the activation of most language models, as
one kernel forward and one backward. They read and write PyTorch's own memory on PyTorch's
current stream; only what is not contiguous is copied. It is differentiable, and
`torch.compile` takes it as it is::

    pip install torch
    python examples/torch_op.py --device cuda:0

PyTorch calls an operator synchronously, and a cache belongs to an event loop. So the cache
lives in the loop of a thread of its own, from `with serving(...)` to its end. The kernels
are built at its beginning, and then `from_thread` in the operator is a look-up. In a
program that is asynchronous anyway, open the cache there, and call the operator in threads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from anyio.from_thread import start_blocking_portal
from torch import Tensor

from kernels_async import Kernels, Source, Specialization

SWIGLU = Source(
    name="swiglu.cu",
    text=r"""
template <class T>
__global__ void forward(const T* gate, const T* value, T* y, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = gate[i] / (1 + exp(-gate[i])) * value[i];
}

template <class T>
__global__ void backward(const T* dy, const T* gate, const T* value,
                         T* dgate, T* dvalue, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T sigmoid = 1 / (1 + exp(-gate[i]));
    T silu = gate[i] * sigmoid;
    dgate[i] = dy[i] * value[i] * (sigmoid + silu * (1 - sigmoid));
    dvalue[i] = dy[i] * silu;
}
""",
)
TYPES = {torch.float32: "float", torch.float64: "double"}
BLOCK = 256

caches: dict[torch.device, Kernels] = {}


@cache
def specialize(name: str, dtype: torch.dtype) -> Specialization:
    """The kernel `forward` or `backward` for tensors of that type."""
    return Specialization(f"{name}<{TYPES[dtype]}>")


@contextlib.contextmanager
def serving(device: str) -> Iterator[Kernels]:
    """Have the operator work on that device: `cpu`, or such as `cuda:0`."""

    async def build(kernels: Kernels) -> None:
        wanted = [specialize(n, t) for n in ("forward", "backward") for t in TYPES]
        await asyncio.gather(*(kernels.get(SWIGLU, one) for one in wanted))

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Kernels.open(device)) as kernels,
    ):
        portal.call(build, kernels)
        caches[torch.device(device)] = kernels
        try:
            yield kernels
        finally:
            del caches[torch.device(device)]


def launch(name: str, *tensors: Tensor) -> None:
    """Launch a kernel on contiguous tensors, of the type and on the device of the first."""
    device, count = tensors[0].device, tensors[0].numel()
    if not count:
        return
    kernel = caches[device].from_thread(SWIGLU, specialize(name, tensors[0].dtype))
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
    kernel((-(-count // BLOCK),), (BLOCK,), (*tensors, np.int64(count)), stream=stream)


def like(tensor: Tensor) -> Tensor:
    """An empty contiguous tensor of that shape, type and device."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "kernels_async::swiglu",
    mutates_args=(),
    schema="(Tensor gate, Tensor value) -> Tensor",
)
def swiglu(gate: Tensor, value: Tensor) -> Tensor:
    """`silu(gate) * value`, of two tensors that are alike."""
    if (gate.shape, gate.dtype, gate.device) != (value.shape, value.dtype, value.device):
        raise ValueError("gate and value must be of one shape, type and device")
    y = like(gate)
    launch("forward", gate.contiguous(), value.contiguous(), y)
    return y


@torch.library.custom_op(
    "kernels_async::swiglu_backward",
    mutates_args=(),
    schema="(Tensor dy, Tensor gate, Tensor value) -> (Tensor, Tensor)",
)
def swiglu_backward(dy: Tensor, gate: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `gate` and `value`, from that of the result."""
    dgate, dvalue = like(gate), like(value)
    inputs = (dy.contiguous(), gate.contiguous(), value.contiguous())
    launch("backward", *inputs, dgate, dvalue)
    return dgate, dvalue


@swiglu.register_fake
def _(gate: Tensor, value: Tensor) -> Tensor:
    return like(gate)


@swiglu_backward.register_fake
def _(dy: Tensor, gate: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return like(gate), like(value)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = swiglu_backward(dy, *ctx.saved_tensors)
    return gradients


swiglu.register_autograd(_differentiate, setup_context=_keep)


def reference(gate: Tensor, value: Tensor) -> Tensor:
    """The same, of PyTorch's own operators."""
    return torch.nn.functional.silu(gate) * value


def gradients(
    operator: Callable[[Tensor, Tensor], Tensor], inputs: list[Tensor], dy: Tensor
) -> tuple[Tensor, ...]:
    """The result of an operator, and the gradients of its inputs."""
    y = operator(*inputs)
    return (y.detach(), *torch.autograd.grad(y, inputs, dy))


def check(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> float:
    """Compare with PyTorch's own, forward and backward; the largest difference."""
    torch.manual_seed(0)
    gate, value, dy = torch.randn(3, *shape, dtype=dtype, device=device)
    inputs = [gate.requires_grad_(), value.requires_grad_()]
    ours, theirs = (gradients(one, inputs, dy) for one in (swiglu, reference))
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def seconds(operator: Callable[[Tensor, Tensor], Tensor], device: str) -> float:
    """What a call on 16 million numbers takes, of ten after the first."""
    inputs = torch.randn(2, 1 << 12, 1 << 12, device=device)
    for repeats in (1, 10):
        wait(device)
        began = time.perf_counter()
        for _ in range(repeats):
            operator(*inputs)
        wait(device)
    return (time.perf_counter() - began) / repeats


def wait(device: str) -> None:
    """Until the device has done everything."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def main() -> None:
    """Check the operator and say how fast it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="'cpu' or such as 'cuda:0'")
    device = parser.parse_args().device
    if device is None:
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    with serving(device) as kernels:
        print(kernels)
        for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
            error = check(device, dtype, (100, 333))
            print(f"{dtype}: off from PyTorch's own by at most {error:.1e}")
            if not error < limit:
                raise SystemExit("that is too much")
        tensors = torch.randn(2, 7, 5, dtype=torch.float64, device=device)
        opaque = [tensor.requires_grad_() for tensor in tensors.unbind()]
        torch.library.opcheck(swiglu, tuple(opaque))
        torch.autograd.gradcheck(swiglu, tuple(opaque))
        print("torch.library.opcheck and torch.autograd.gradcheck pass")
        for name, operator in (("this operator", swiglu), ("PyTorch's own", reference)):
            print(f"{name}: {seconds(operator, device) * 1e6:.0f} µs for 2 x 64 MB")


if __name__ == "__main__":
    main()
