"""Plain objects that look as other libraries' arrays and streams do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt


class Interfaced:
    """An array with `__cuda_array_interface__`, as Numba's."""

    def __init__(self, address: int, **entries: Any) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (4,),
            "typestr": "<f4",
            "data": (address, False),
            **entries,
        }


class Exported:
    """A host array with DLPack alone, as TensorFlow's; or that says it lies elsewhere."""

    def __init__(
        self, array: npt.NDArray[np.number[Any]], device: tuple[int, int] = (1, 0)
    ) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> object:
        if self.array.dtype == np.float16:
            raise BufferError("of no type that it knows")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Tensor:
    """A tensor as PyTorch's, of a type that no other library has."""

    def __init__(
        self,
        address: int,
        kind: str = "cuda",
        index: int | None = 0,
        *,
        lazy: str = "",
        contiguous: bool = True,
    ) -> None:
        self.device = SimpleNamespace(type=kind, index=index)
        self.owner: object = None
        self._address = address
        self._lazy = lazy
        self._contiguous = contiguous

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable")

    def data_ptr(self) -> int:
        if self._lazy == "sparse":
            raise RuntimeError("it has no storage")
        return self._address

    def is_conj(self) -> bool:
        return self._lazy == "conj"

    def is_neg(self) -> bool:
        return self._lazy == "neg"

    def is_contiguous(self) -> bool:
        return self._contiguous
