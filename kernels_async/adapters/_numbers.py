"""The numbers of caches as monitoring has them: each once, with its name and labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from .._kernels import Kernels
from .._stats import Stats
from .._warm import Progress

Values = Mapping[str, float | None]
Labels = tuple[str, ...]

_ERRORS = (
    "CompileError",
    "CompileMemoryError",
    "CompileTimeout",
    "LoadError",
    "QuarantinedError",
    "ReporterError",
    "SpillError",
    "SymbolNotFoundError",
    "ToolchainError",
    "WorkerCrashed",
)


class Number(NamedTuple):
    """A number, or several that one label tells apart.

    Attributes:
        name: Its name, without unit.
        help: What it counts.
        read: Gives it, by the value of the label; `None` is not told.
        kind: `counter`: it only grows; `level`: those of several caches add up;
            `longest`: of several caches the longest counts.
        label: What tells several apart.
        unit: `seconds`, or nothing.
        of_compiler: Whether it is the compiler's, which several caches may share: then it
            has no device, and counts once.
    """

    name: str
    help: str
    read: Callable[[Stats, Progress], Values]
    kind: Literal["counter", "level", "longest"] = "level"
    label: str = ""
    unit: Literal["seconds", ""] = ""
    of_compiler: bool = False

    @property
    def labels(self) -> Labels:
        """The names of its labels."""
        names = ("target", self.label) if self.of_compiler else (*OF_CACHE, self.label)
        return tuple(filter(None, names))


OF_CACHE = ("device", "target")

NUMBERS = (
    Number(
        "requests",
        "Requests: of loaded kernels, of those that were being built, and the rest.",
        lambda stats, _: {
            "hit": stats.memory_hits,
            "coalesced": stats.coalesced,
            "miss": stats.misses,
        },
        "counter",
        "result",
    ),
    Number(
        "artifacts",
        "Artifacts that misses got, by where they came from.",
        lambda stats, _: {
            "disk": stats.disk_hits,
            "remote": stats.remote_hits,
            "compiled": stats.compiles,
        },
        "counter",
        "origin",
    ),
    Number(
        "failures",
        "Builds that failed, by the error's class.",
        lambda stats, _: {**dict.fromkeys(_ERRORS, 0), **stats.failures},
        "counter",
        "error",
    ),
    Number(
        "dropped_builds",
        "Builds that ended as all who waited had left, the cache closed, or it is frozen.",
        lambda stats, _: {"": stats.dropped},
        "counter",
    ),
    Number(
        "refused_requests",
        "Requests that were refused, or of a cache that is frozen with 'warn' reported.",
        lambda stats, _: {"frozen": stats.refused, "overloaded": stats.overloaded},
        "counter",
        "reason",
    ),
    Number(
        "compile",
        "Time that compiles took.",
        lambda stats, _: {"": stats.compile_seconds},
        "counter",
        unit="seconds",
    ),
    Number(
        "saved",
        "Time that compiles of what was read or fetched once took.",
        lambda stats, _: {"": stats.seconds_saved},
        "counter",
        unit="seconds",
    ),
    Number(
        "load",
        "Time that loads took.",
        lambda stats, _: {"": stats.load_seconds},
        "counter",
        unit="seconds",
    ),
    Number(
        "loop_delay",
        "Time that the event loop was late in samples, taken while kernels are built.",
        lambda stats, _: {"": stats.loop_delay_seconds},
        "counter",
        unit="seconds",
    ),
    Number(
        "loop_delay_samples",
        "Samples of the event loop's delay.",
        lambda stats, _: {"": stats.loop_delay_samples},
        "counter",
    ),
    Number(
        "longest_loop_delay",
        "The longest delay of the event loop in a sample.",
        lambda stats, _: {"": stats.longest_loop_delay},
        "longest",
        unit="seconds",
    ),
    Number(
        "longest_load",
        "What the longest load took.",
        lambda stats, _: {"": stats.longest_load_seconds},
        "longest",
        unit="seconds",
    ),
    Number(
        "loaded_kernels",
        "Kernels that are loaded.",
        lambda stats, _: {"": stats.loaded},
    ),
    Number(
        "outstanding_requests",
        "Requests that nothing builds yet.",
        lambda stats, _: {"": stats.outstanding},
    ),
    Number(
        "building_requests",
        "Requests that are being built.",
        lambda stats, _: {"": stats.building},
    ),
    Number(
        "reading_artifacts",
        "Artifacts that are about to be read.",
        lambda stats, _: {"": stats.reading},
        of_compiler=True,
    ),
    Number(
        "queued_compiles",
        "Compiles that wait for a worker.",
        lambda stats, _: {"": stats.queued},
        of_compiler=True,
    ),
    Number(
        "running_compiles",
        "Compiles that run.",
        lambda stats, _: {"": stats.compiling},
        of_compiler=True,
    ),
    Number(
        "workers",
        "Worker processes that there are.",
        lambda stats, _: {"": stats.workers},
        of_compiler=True,
    ),
    Number(
        "warm_up_kernels",
        "Kernels of warm-ups, by what became of them.",
        lambda _, progress: {
            "loaded": progress.loaded,
            "failed": progress.failed,
            "waiting": progress.total - progress.loaded - progress.failed,
        },
        label="state",
    ),
    Number(
        "warm_ups_running",
        "Whether a warm-up is going on.",
        lambda _, progress: {"": progress.running},
    ),
    Number(
        "warm_up",
        "How long the warm-up has taken, or took.",
        lambda _, progress: {"": progress.seconds},
        "longest",
        unit="seconds",
    ),
    Number(
        "warm_up_remaining",
        "How long the warm-up may still take, once something is known of that.",
        lambda _, progress: {"": progress.seconds_left},
        "longest",
        unit="seconds",
    ),
)


def numbers_of(
    caches: Iterable[Kernels], wanted: Iterable[Number] = NUMBERS
) -> Iterator[tuple[Number, Mapping[Labels, float]]]:
    """Each number with its values by the values of its labels; from any thread.

    Those of caches with equal labels are one.
    """
    told = [(one, one.stats(), one.progress()) for one in caches]
    of_compilers = list({id(one[0].compiler): one for one in told}.values())
    for number in wanted:
        values: dict[Labels, list[float]] = defaultdict(list)
        for cache, stats, progress in of_compilers if number.of_compiler else told:
            own = labels_of(cache)[1:] if number.of_compiler else labels_of(cache)
            for label, value in number.read(stats, progress).items():
                if value is not None:
                    values[(*own, label) if number.label else own].append(value)
        join = max if number.kind == "longest" else sum
        yield number, {labels: join(each) for labels, each in values.items()}


def labels_of(cache: Kernels) -> Labels:
    """The values of the labels that every number of a cache has: `OF_CACHE`."""
    return (cache.device, cache.compiler.target)
