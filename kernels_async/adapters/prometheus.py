"""The numbers of caches for Prometheus; needs the extra `prometheus`."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from .._cache import Cache
from .._events import Event
from .._kernels import Kernels
from ._numbers import NUMBERS, OF_CACHE, Labels, Number, labels_of, numbers_of

_PREFIX = "kernels_async_"
_SLOW = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_BUILD = (0.001, 0.005, *_SLOW)
_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_HISTOGRAMS = {
    "compile_duration": ("How long workers took to compile a kernel.", _SLOW),
    "load_duration": ("How long the device took to load a kernel.", _FAST),
    "build_duration": ("From the first request of a kernel until it was loaded.", _BUILD),
}


class KernelsCollector:
    """Tells Prometheus the numbers of caches, at each scrape as they are then.

    It exists so that one line gives a server its metrics, labelled by device and target::

        REGISTRY.register(KernelsCollector(kernels))

    Registering it collects nothing. It may be scraped from any thread, whatever the caches
    do meanwhile. Hits are counted whether there is a collector or not, and cost no more
    with one. Histograms begin when the collector gets a cache; everything else counts
    from when the cache was made. Caches of equal device and target are told as one.

    Several processes, as under gunicorn: each has caches and numbers of its own, so a
    scrape of a port that they share tells those of whichever process answers. The
    multi-process mode of `prometheus_client` (`PROMETHEUS_MULTIPROC_DIR`) adds up files
    that no collector writes: these metrics are not in it. Give each process a port of its
    own, as with `start_http_server(9100 + number)`, or push. A server that forks opens its
    caches, and makes their collector, in the children.

    Args:
        caches: Of which to tell; it holds them until `remove`.
    """

    def __init__(self, *caches: Kernels) -> None:
        self._times: dict[Cache, _Times] = {}
        for kernels in caches:
            self.add(kernels)

    def add(self, kernels: Kernels) -> None:
        """Tell of one more cache, once: its clones are the same cache."""
        if kernels._cache not in self._times:
            self._times[kernels._cache] = _Times(kernels)

    def remove(self, kernels: Kernels) -> None:
        """Tell of that cache no more, and let go of it."""
        times = self._times.pop(kernels._cache, None)
        if times is not None:
            times.stop()

    def describe(self) -> Iterator[Metric]:
        """Every metric, without its numbers."""
        yield from map(_family, NUMBERS)
        yield from map(_histogram, _HISTOGRAMS)

    def collect(self) -> Iterator[Metric]:
        """Every metric, with its numbers as they are now; from any thread."""
        times = list(self._times.values())
        for number, values in numbers_of(one.kernels for one in times):
            family = _family(number)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family
        for name in _HISTOGRAMS:
            yield _collected(name, times)


class _Times:
    """How long what happens in one cache takes, as histograms.

    The event loop writes them. Another thread may read them: of what is added meanwhile
    it sees the count or not, and never half of one.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.counts = {
            name: [0] * (len(bounds) + 1) for name, (_, bounds) in _HISTOGRAMS.items()
        }
        self.seconds = dict.fromkeys(_HISTOGRAMS, 0.0)
        self._began: dict[str, float] = {}
        self.stop = kernels.listen(self._listen)

    def _listen(self, event: Event) -> None:
        match event.kind:
            case "requested":
                self._began[event.key] = event.time
            case "compiled" if event.seconds is not None:
                self._add("compile_duration", event.seconds)
            case "loaded":
                if event.seconds is not None:
                    self._add("load_duration", event.seconds)
                began = self._began.pop(event.key, None)
                if began is not None:
                    self._add("build_duration", max(0.0, event.time - began))
            case "failed":
                self._began.pop(event.key, None)

    def _add(self, name: str, seconds: float) -> None:
        _, bounds = _HISTOGRAMS[name]
        self.counts[name][bisect_left(bounds, seconds)] += 1
        self.seconds[name] += seconds


def _family(number: Number) -> CounterMetricFamily | GaugeMetricFamily:
    make = CounterMetricFamily if number.kind == "counter" else GaugeMetricFamily
    name = _PREFIX + number.name
    return make(name, number.help, labels=number.labels, unit=number.unit)


def _histogram(name: str) -> HistogramMetricFamily:
    about, _ = _HISTOGRAMS[name]
    return HistogramMetricFamily(_PREFIX + name, about, labels=OF_CACHE, unit="seconds")


def _collected(name: str, times: Iterable[_Times]) -> HistogramMetricFamily:
    family = _histogram(name)
    by_labels: dict[Labels, list[_Times]] = defaultdict(list)
    for one in times:
        by_labels[labels_of(one.kernels)].append(one)
    _, bounds = _HISTOGRAMS[name]
    edges = [*map(str, bounds), "+Inf"]
    for labels, equal in by_labels.items():
        counts = map(sum, zip(*(list(one.counts[name]) for one in equal), strict=True))
        seconds = sum(one.seconds[name] for one in equal)
        buckets = list(zip(edges, accumulate(counts), strict=True))
        family.add_metric(labels, buckets, seconds)
    return family
