"""What one kernel needs of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel needs of a multiprocessor, as ptxas tells it, before any load.

    Attributes:
        registers: Registers of each thread.
        spill_stores: Bytes of registers stored to local memory, each thread; those of
            functions that were not inlined added up.
        spill_loads: Bytes loaded back, each thread.
        stack: Bytes of stack frame of each thread.
        shared: Bytes of static shared memory of each block.
        constant: Bytes of `__constant__` variables, as the cubin has them.
        barriers: Barriers of each block.
        max_threads: The threads of a block that `__launch_bounds__` allows; 0 if it does
            not say.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    constant: int
    barriers: int
    max_threads: int = 0

    @property
    def spills(self) -> int:
        """Bytes of registers that each thread stores to local memory and loads back."""
        return self.spill_stores + self.spill_loads

    def to_record(self) -> dict[str, int]:
        """The JSON form, read by `from_record`."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Resources:
        """Rebuild one from its JSON form; anything else raises `ValueError`."""
        numbers = {name: value for name, value in record.items() if type(value) is int}
        if len(record) != len(numbers) or numbers.keys() != set(cls.__slots__):
            raise ValueError(f"not resources: {sorted(record)}")
        return cls(**numbers)
