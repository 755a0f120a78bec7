"""Other libraries' arrays: where they lie, whatever their type is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_LAZY = {"is_conj": "resolve_conj", "is_neg": "resolve_neg"}


def is_tensor(argument: object) -> bool:
    """Whether it is PyTorch's, or tells its address as those do."""
    return callable(getattr(argument, "data_ptr", None))


def address(what: str, tensor: Any) -> int:
    """The address of a tensor; it may require a gradient, which is not looked at.

    Raises:
        TypeError: What lies there is not what the tensor says.
    """
    for lazy, remedy in _LAZY.items():
        if hasattr(tensor, lazy) and getattr(tensor, lazy)():
            raise TypeError(f"{what} is a view that is not computed yet: {remedy}() it")
    try:
        return int(tensor.data_ptr())
    except RuntimeError as error:  # a sparse one has no address
        raise TypeError(f"{what} has no address: {error}") from error


def viewed(what: str, view: Callable[[], T]) -> T:
    """What DLPack gives.

    Raises:
        TypeError: The array's library, or who asked it, would not.
    """
    try:
        return view()
    except Exception as error:
        raise TypeError(f"{what} cannot be had by DLPack: {error}") from error
