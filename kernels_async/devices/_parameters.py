"""What a CUDA kernel's parameters are, by the driver, and whether arguments fit them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

_NUMBER_BYTES = {bool: 1, int: 8, float: 8, complex: 16}
_POINTER_BYTES = 8

logger = logging.getLogger("kernels_async")


def import_driver() -> Any:
    """The driver's own calls, or `None`; it takes its time, and holds up every thread."""
    try:
        from cuda.bindings import driver
    except Exception as error:  # noqa: BLE001 - for want of a check no device must fail
        _log_once(f"{type(error).__name__}: {error}")
        return None
    return driver


def parameter_sizes(driver: Any, function: int) -> tuple[int, ...] | None:
    """The bytes of each parameter of a `CUfunction`; its device must be the current one.

    Args:
        driver: What `import_driver` gave.
        function: Its address.

    Returns:
        `None` where it cannot be known: `cuFuncGetParamInfo` came with CUDA 12.4.
    """
    if driver is None:
        return None
    try:
        end = driver.CUresult.CUDA_ERROR_INVALID_VALUE
        handle = driver.CUfunction(function)
        sizes: list[int] = []
        while True:
            status, _, size = driver.cuFuncGetParamInfo(handle, len(sizes))
            if status == end:
                return tuple(sizes)
            if status != driver.CUresult.CUDA_SUCCESS:
                raise RuntimeError(f"cuFuncGetParamInfo: {status!r}")
            sizes.append(int(size))
    except Exception as error:  # noqa: BLE001 - for want of a check no load must fail
        _log_once(f"{type(error).__name__}: {error}")
        return None


@cache
def _log_once(reason: str) -> None:
    logger.warning("launches are not checked: no driver tells parameters: %s", reason)


def check(kernel: object, sizes: Sequence[int], args: Sequence[Any]) -> None:
    """Refuse arguments whose number or sizes are not those of the parameters.

    A Python `int` fits every size that can hold it: CuPy passes eight bytes, of which
    the kernel reads the lower ones.

    Args:
        kernel: Named in the error.
        sizes: The bytes of each parameter.
        args: As CuPy's launch takes them.

    Raises:
        TypeError: They do not fit.
    """
    if len(args) != len(sizes):
        raise TypeError(f"{kernel!r} takes {len(sizes)} arguments, not {len(args)}")
    for index, (size, argument) in enumerate(zip(sizes, args, strict=True)):
        given = passed_bytes(argument)
        if given == size or (type(argument) is int and _holds(size, argument)):
            continue
        raise TypeError(
            f"{kernel!r} argument {index}: its parameter has {size} bytes, and "
            f"{_described(argument)} is passed as {given}: pass a NumPy scalar of the "
            "parameter's own type, or for a pointer an array"
        )


def passed_bytes(argument: Any) -> int:
    """How many bytes CuPy's launch passes for an argument that it takes.

    Arrays, `None` and addresses are pointers; of a scalar, or a NumPy array of size one,
    it is the item. A Python number is what NumPy makes of it.
    """
    import numpy as np

    if isinstance(argument, np.generic | np.ndarray):
        return argument.dtype.itemsize
    return _NUMBER_BYTES.get(type(argument), _POINTER_BYTES)


def _holds(size: int, number: int) -> bool:
    return size <= 8 and -(1 << (8 * size - 1)) <= number < 1 << 8 * size


def _described(argument: Any) -> str:
    dtype = getattr(argument, "dtype", None)
    return type(argument).__name__ if dtype is None else str(dtype)
