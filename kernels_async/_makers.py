"""The makers of one compiler: one for each event loop in which it is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ._errors import ClosedError, WrongLoopError
from ._maker import Maker
from ._outcome import Outcome
from ._outside import disown_in_children


class Makers:
    """Opens a maker for the first user in an event loop, and closes it with the last.

    Args:
        open_maker: Opens one in the running loop.
        name: What errors call their compiler.
    """

    def __init__(self, open_maker: Callable[[], Awaitable[Maker]], name: str) -> None:
        self._open_maker = open_maker
        self._name = name
        self._uses: dict[asyncio.AbstractEventLoop, _Use] = {}
        disown_in_children(self)

    def disown(self) -> None:
        """Have none, in a forked child: they are its parent's."""
        self._uses.clear()

    @property
    def are_open(self) -> bool:
        """Whether there is one in any loop."""
        return bool(self._uses)

    async def enter(self) -> None:
        """Count one more user in the running loop, and wait until the maker is open."""
        loop = asyncio.get_running_loop()
        for gone in [known for known in list(self._uses) if known.is_closed()]:
            self._uses.pop(gone, None)
        use = self._uses.get(loop)
        if use is None:
            use = self._uses[loop] = _Use()
            use.task = loop.create_task(self._open(use))
            use.task.add_done_callback(use.settle)
        use.users += 1
        try:
            await use.opening.wait()
        except BaseException:
            await self.leave()
            raise

    def is_last(self) -> bool:
        """Whether there is one user in the running loop."""
        use = self._uses.get(asyncio.get_running_loop())
        return use is not None and use.users == 1

    async def leave(self) -> None:
        """Count one user less in the running loop; the last closes what has opened."""
        loop = asyncio.get_running_loop()
        use = self._uses.get(loop)
        if use is None:
            return
        use.users -= 1
        if use.users:
            return
        del self._uses[loop]
        if use.opening.value is not None:
            await use.opening.value.scope.aclose()

    async def _open(self, use: _Use) -> None:
        try:
            maker = await self._open_maker()
        except Exception as error:  # noqa: BLE001 - whatever it is, those who enter get it
            use.opening.fail(error)
        else:
            use.opening.succeed(maker)
            if not use.users:
                await maker.scope.aclose()

    def any(self) -> Maker:
        """The maker of any loop: they all have one toolchain.

        Raises:
            ClosedError: There is none.
        """
        for use in list(self._uses.values()):
            if use.opening.value is not None:
                return use.opening.value
        raise ClosedError(f"{self._name} is not open: use it in 'async with'")

    def here(self) -> Maker:
        """The maker of the running loop.

        Raises:
            ClosedError: There is none.
            WrongLoopError: There is one in another loop.
        """
        use = self._uses.get(asyncio.get_running_loop())
        if use is not None and use.opening.value is not None:
            return use.opening.value
        self.any()
        raise WrongLoopError(f"{self._name} is open in another event loop")


@dataclass
class _Use:
    """How one event loop uses a compiler."""

    users: int = 0
    opening: Outcome[Maker] = field(default_factory=Outcome)
    task: asyncio.Task[None] | None = None

    def settle(self, _: asyncio.Task[None]) -> None:
        """However the opening ended, and if it never began, nobody waits for it."""
        self.opening.fail(ClosedError("the compiler was not opened"))
