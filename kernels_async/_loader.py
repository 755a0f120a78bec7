"""Loads artifacts on one device, those that are ready together in one hop."""

from __future__ import annotations

from collections.abc import Sequence

from ._artifact import Artifact
from ._errors import ClosedError
from ._outcome import Outcome
from ._scope import Scope
from .devices import Device, Kernel, refused


class Loader:
    """The executables of one device, each loaded once.

    Artifacts of different requests whose bytes and entry are equal share one executable.
    What is ready while a load runs is loaded in the next hop, back to back.

    Attributes:
        executables: The loaded kernels, by digest of their bytes and entry.
    """

    def __init__(self, device: Device, scope: Scope) -> None:
        self._device = device
        self._scope = scope
        self.executables: dict[tuple[str, str], Kernel] = {}
        self._loads: dict[tuple[str, str], Outcome[Kernel]] = {}
        self._waiting: list[Artifact] = []
        self._running = False

    async def load(self, artifact: Artifact) -> Kernel:
        """The kernel of `artifact`, loaded if its executable is not.

        Raises:
            LoadError: The device refused it.
        """
        executable = _executable(artifact)
        if kernel := self.executables.get(executable):
            return kernel
        load = self._loads.get(executable)
        if load is None:
            load = self._loads[executable] = Outcome()
            self._waiting.append(artifact)
            if not self._running:
                self._running = True
                self._scope.start_soon(self._run)
        return await load.wait()

    async def _run(self) -> None:
        try:
            while self._waiting:
                artifacts, self._waiting = self._waiting, []
                outcomes = await self._load(artifacts)
                for artifact, outcome in zip(artifacts, outcomes, strict=True):
                    self._settle(_executable(artifact), outcome)
        finally:
            self._running = False
            for load in self._loads.values():
                load.fail(ClosedError("the cache closed while it loaded"))
            self._loads.clear()

    async def _load(self, artifacts: list[Artifact]) -> Sequence[Kernel | Exception]:
        try:
            return await self._device.load(artifacts)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait get it
            return [refused(self._device.name, a, error) for a in artifacts]

    def _settle(self, executable: tuple[str, str], outcome: Kernel | Exception) -> None:
        load = self._loads.pop(executable)
        if isinstance(outcome, Kernel):
            self.executables[executable] = outcome
            load.succeed(outcome)
        else:
            load.fail(outcome)


def _executable(artifact: Artifact) -> tuple[str, str]:
    return (artifact.output_digest, artifact.entry)
