"""Devices: each loads an artifact into a kernel, in the server's process.

Which one serves is decided here and known nowhere else.
"""

from __future__ import annotations

import logging
import re

from .._errors import DeviceError
from .._types import DeviceLike
from ._base import BoundKernel, Device, Kernel, refused
from ._cpu import CpuDevice
from ._cuda import count_devices, import_cupy, open_cuda

__all__ = ["BoundKernel", "Device", "DeviceLike", "Kernel", "open_device", "refused"]

logger: logging.Logger = logging.getLogger("kernels_async")


def open_device(device: DeviceLike | None = None) -> Device:
    """Open a device; blocks, as the first use of CuPy takes its time.

    Args:
        device: `"cuda:1"`, `1`, a `cupy.cuda.Device`, `"cpu"`, or `None` for the first
            CUDA device, else the CPU.

    Raises:
        DeviceError: There is no such device.
        TypeError: `device` is none of these.
    """
    match device:
        case None:
            return _first()
        case "cpu":
            return CpuDevice()
        case "cuda":
            return open_cuda(0)
        case str() if match := re.fullmatch(r"cuda:(\d+)", device):
            return open_cuda(int(match[1]))
        case str():
            raise DeviceError(f"a device is 'cpu' or such as 'cuda:0', not {device!r}")
        case bool():
            pass
        case int():
            return open_cuda(device)
    ordinal = getattr(device, "id", None)
    if isinstance(ordinal, int):
        return open_cuda(ordinal)
    raise TypeError(f"a device is a name, a number or a CuPy device, not {device!r}")


def _first() -> Device:
    try:
        cupy = import_cupy()
    except DeviceError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            logger.warning("the cpu device is used, as CUDA cannot be: %s", error)
        return CpuDevice()
    return open_cuda(0) if count_devices(cupy) else CpuDevice()
