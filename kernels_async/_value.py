"""What makes an immutable value cheap to look up in a dictionary, and to name."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

from blake3 import blake3

LONGEST_SECONDS = 1e9
"""The longest time that a compile is believed to have taken; sums of it stay finite."""


def digest(data: bytes) -> str:
    """The digest of some bytes, as 64 hexadecimal digits."""
    return blake3(data).hexdigest()


class Value:
    """Equal and hashed by `_parts`, whose hash is taken once.

    Two of different classes are never equal.
    """

    @property
    @abstractmethod
    def _parts(self) -> tuple[object, ...]:
        """What it is made of."""

    @cached_property
    def _compared(self) -> tuple[object, ...]:
        return (type(self), *self._parts)

    @cached_property
    def _hash(self) -> int:
        return hash(self._compared)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Value):
            return NotImplemented
        return self._compared == other._compared
