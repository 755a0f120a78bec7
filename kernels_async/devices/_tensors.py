"""PyTorch's tensors: where they lie, whatever their type is."""

from __future__ import annotations

from typing import Any

_LAZY = {"is_conj": "resolve_conj", "is_neg": "resolve_neg"}


def is_tensor(argument: object) -> bool:
    """Whether it tells its address as PyTorch's do."""
    return callable(getattr(argument, "data_ptr", None))


def address(what: str, tensor: Any) -> int:
    """The address of its first element; it may require a gradient, which is not looked at.

    Raises:
        TypeError: What lies there is not what the tensor says.
    """
    for lazy, remedy in _LAZY.items():
        if hasattr(tensor, lazy) and getattr(tensor, lazy)():
            raise TypeError(f"{what} is a view that is not computed yet: {remedy}() it")
    return int(tensor.data_ptr())
