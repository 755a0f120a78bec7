"""How far a build is: bars and workers on a terminal, else a line for each compile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .._manifest import ManifestKernel
from ._building import Building, TargetBuild
from ._screen import Screen
from ._words import count, first_line, line, seconds

_BAR = 40
_NEXT = 3


def kernel_name(kernel: ManifestKernel) -> str:
    """The symbol and the macros of a kernel, on one line."""
    specialization = kernel.specialization
    macros = [f"-D{name}={text}" for name, text in specialization.defines.items()]
    return line(" ".join([specialization.symbol, *macros]))


class Progress:
    """Shows a build on standard error.

    Args:
        screen: Where.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._is_live = screen.err.is_terminal

    @contextlib.contextmanager
    def watching(self, building: Building) -> Iterator[None]:
        """Show it as long as it lasts."""
        if not self._is_live:
            for build in building.targets:
                kernels = count(len(build.kernels), "kernel")
                self._screen.tell(f"{build.target}: {kernels} to build")
            yield
            return
        view = _View(building)
        with Live(
            get_renderable=view.render,
            console=self._screen.err,
            refresh_per_second=8,
            transient=True,
        ):
            yield

    def settled(self, build: TargetBuild, place: int) -> None:
        """Say what became of a kernel that was compiled, where nobody watches bars."""
        if self._is_live:
            return
        failure = build.failures.get(place)
        of = len(build.kernels)
        number = f"[{build.done:>{len(str(of))}}/{of}]"
        head = f"{number} {build.target} {kernel_name(build.kernels[place])}"
        if failure is not None:
            self._screen.tell(f"{head} failed: {first_line(failure)}", "red")
        elif build.artifacts[place].origin == "compiled":
            took = seconds(build.artifacts[place].compile_seconds)
            self._screen.tell(f"{head} compiled in {took}")


class _View:
    def __init__(self, building: Building) -> None:
        self._building = building

    def render(self) -> RenderableType:
        """The bars of all targets, and what is going on for the one that is built."""
        bars = Table.grid(padding=(0, 2))
        for build in self._building.targets:
            bars.add_row(*self._bar(build))
        current = self._building.targets[self._building.current]
        return Group(bars, *self._work(current))

    def _bar(self, build: TargetBuild) -> list[RenderableType]:
        of, failed = len(build.kernels), len(build.failures)
        texts = [f"{build.done}/{of}"]
        found = build.done - failed - len(build.of_origin("compiled"))
        if found:
            texts.append(f"{found} from disk")
        if failed:
            texts.append(f"{failed} failed")
        bar = ProgressBar(
            total=max(1, of),
            completed=build.done,
            width=_BAR,
            complete_style="yellow" if failed else "green",
            finished_style="yellow" if failed else "green",
        )
        return [Text(build.target, "bold"), bar, Text(", ".join(texts)), self._time(build)]

    def _time(self, build: TargetBuild) -> Text:
        if build.seconds or not build.begun:
            return Text(seconds(build.seconds) if build.seconds else "")
        now = time.monotonic()
        left = build.seconds_left(self._building.workers, now)
        about = "" if left is None else f", about {seconds(left)} left"
        return Text(f"{seconds(now - build.begun)}{about}")

    def _work(self, build: TargetBuild) -> list[RenderableType]:
        workers = Table.grid(padding=(0, 2))
        running = sorted(build.running.items())
        for number, one in running:
            kernel = build.kernels[one.place]
            took, expected = time.monotonic() - one.since, kernel.seconds(build.target)
            of = "" if expected is None else f" of about {seconds(expected)}"
            name = Text(kernel_name(kernel), overflow="ellipsis", no_wrap=True)
            workers.add_row(f"  worker {number}", name, f"{seconds(took)}{of}")
        waiting = build.waiting()
        if not waiting:
            return [workers]
        names = ", ".join(map(kernel_name, waiting[:_NEXT]))
        head = f"  {len(waiting)} left"
        text = Text(f"{head}: {names}", "dim", overflow="ellipsis", no_wrap=True)
        return [workers, text]
