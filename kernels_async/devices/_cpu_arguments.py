"""Arguments of a kernel on the cpu device, whoever's arrays they are, without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

from ._foreign import address, is_tensor, viewed

_STRUCT, _POINTER, _SIGNED, _UNSIGNED, _FLOATING, _BOOL, _CONST_POINTER = range(7)
_KINDS = {
    _STRUCT: "a structure",
    _POINTER: "a pointer",
    _SIGNED: "a signed integer",
    _UNSIGNED: "an unsigned integer",
    _FLOATING: "a floating-point number",
    _BOOL: "a bool",
}
_SCALARS = {
    **{(_SIGNED, size): f"int{8 * size}" for size in (1, 2, 4, 8)},
    **{(_UNSIGNED, size): f"uint{8 * size}" for size in (1, 2, 4, 8)},
    **{(_FLOATING, size): f"float{8 * size}" for size in (4, 8)},
    (_BOOL, 1): "bool_",
}
_FITTING = {_SIGNED: "iu", _UNSIGNED: "iu", _FLOATING: "f", _BOOL: "b"}

_DLPACK_HOST = (1, 3)  # DLDeviceType: kDLCPU, kDLCUDAHost


def value_of(what: str, kind: int, size: int, argument: Any) -> Any:
    """`argument` as the memory that a parameter of that kind and size reads."""
    import numpy as np

    if kind in (_POINTER, _CONST_POINTER):
        return _address(what, argument, written=kind == _POINTER)
    if isinstance(argument, np.ndarray) and argument.ndim == 0:
        argument = argument[()]
    if isinstance(argument, bool | int | float) and not isinstance(argument, np.generic):
        argument = _scalar(what, kind, size, argument)
    if isinstance(argument, np.generic):
        fits = kind == _STRUCT or argument.dtype.kind in _FITTING[kind]
        if fits and argument.dtype.itemsize == size:
            return ctypes.create_string_buffer(argument.tobytes(), size)
    given = getattr(argument, "dtype", type(argument).__name__)
    fitting = _SCALARS.get((kind, size))
    remedy = f": pass np.{fitting}(...)" if fitting else ""
    raise TypeError(f"{what} is {_KINDS[kind]} of {size} bytes, not {given}{remedy}")


def _address(what: str, argument: Any, *, written: bool) -> _Address:
    import numpy as np

    if is_tensor(argument):
        _on_host(what, argument.device.type == "cpu", argument)
        _contiguous(what, argument.is_contiguous())
        return _Address.of(address(what, argument), argument)
    if not isinstance(argument, np.ndarray) and hasattr(argument, "__dlpack_device__"):
        _on_host(what, argument.__dlpack_device__()[0] in _DLPACK_HOST, argument)
        exported = argument
        argument = viewed(what, lambda: np.from_dlpack(exported))
    if isinstance(argument, np.ndarray):
        _contiguous(what, argument.flags.forc)
        if written and not argument.flags.writeable:
            raise TypeError(f"{what} may be written, and the array is read-only")
        return _Address.of(argument.ctypes.data, argument)
    if argument is None or (isinstance(argument, int) and not isinstance(argument, bool)):
        return _Address.of(argument, None)
    raise TypeError(
        f"{what} is a pointer: an array in the host's memory or an address, not "
        f"{type(argument).__name__}"
    )


class _Address(ctypes.c_void_p):
    """A pointer to memory that an owner keeps."""

    owner: object

    @classmethod
    def of(cls, number: int | None, owner: object) -> _Address:
        found = cls(number)
        found.owner = owner
        return found


def _on_host(what: str, holds: bool, argument: object) -> None:
    if not holds:
        raise TypeError(
            f"{what} lies on another device ({type(argument).__name__}): copy it to the "
            "host's memory"
        )


def _contiguous(what: str, holds: bool) -> None:
    if not holds:
        raise TypeError(
            f"{what} is a pointer, which knows no strides: pass a contiguous array"
        )


def _scalar(what: str, kind: int, size: int, argument: float) -> Any:
    """A Python number as the NumPy scalar that CuPy would make of it, or fitting it.

    CuPy passes a Python `float` as eight bytes, which a `float` parameter misreads, so
    it is refused there; an `int` is right in any integer that can hold it.
    """
    import numpy as np

    if isinstance(argument, bool) or kind not in (_SIGNED, _UNSIGNED):
        return np.array(argument)[()]
    if isinstance(argument, float):
        return np.float64(argument)
    try:
        return np.array(argument, f"{'i' if kind == _SIGNED else 'u'}{size}")[()]
    except OverflowError:
        raise TypeError(
            f"{what} is {_KINDS[kind]} of {size} bytes, too small for {argument}"
        ) from None
