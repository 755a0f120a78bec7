"""What changed from one build to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from .._build import Build, BuiltKernel
from .._digest import Difference, differences

Verdict = Literal[
    "fails",
    "spills",
    "registers",
    "new",
    "removed",
    "slower",
    "larger",
    "better",
    "differs",
    "same",
]
"""What became of a kernel between two builds; see `Change`."""

_SLOWER = 1.25
_SLOWER_SECONDS = 0.05


@dataclass(frozen=True)
class Change:
    """One kernel in two builds.

    Attributes:
        verdict: The gravest of what changed: it `fails` now; `spills` more; has more
            `registers`; is `new` or `removed`; is `slower` to compile, by a quarter and
            50 ms; is `larger`; is `better` in one of these; `differs` only in what
            entered its key; is the `same`.
        kernel: The kernel in the second build or, if it is `removed`, in the first.
        before: The kernel in the first build, if it is there.
        entries: The entries of the keys that differ.
    """

    verdict: Verdict
    kernel: BuiltKernel
    before: BuiltKernel | None = None
    entries: tuple[Difference, ...] = ()

    @property
    def after(self) -> BuiltKernel | None:
        """The kernel in the second build, unless it is `removed`."""
        return None if self.verdict == "removed" else self.kernel


@dataclass(frozen=True)
class Comparison:
    """Two builds, kernel by kernel.

    Attributes:
        before: The first build.
        after: The second.
        changes: What became of each kernel, the gravest first.
        everywhere: The entries in which all kernels that are in both builds differ, in
            the same way, such as the toolchain; no change repeats them.
    """

    before: Build
    after: Build
    changes: tuple[Change, ...]
    everywhere: tuple[Difference, ...]

    def of(self, verdict: Verdict) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.verdict == verdict)


ORDER: tuple[Verdict, ...] = get_args(Verdict)


def compare_builds(before: Build, after: Build) -> Comparison:
    """What changed from one build to another.

    Kernels are matched by symbol, defines, options, target and the source's name, as
    their keys change with every edit of the source. One that failed before it had an
    artifact has only symbol and target to be matched by.

    Args:
        before: The first build.
        after: The second.
    """
    pairs, new, removed = _pairs(before, after)
    found = [
        (old, now, tuple(differences(old.entries, now.entries)))
        if old.entries and now.entries
        else (old, now, ())
        for old, now in pairs
    ]
    counts = Counter(entry for _, _, entries in found for entry in entries)
    compared = sum(bool(old.entries and now.entries) for old, now, _ in found)
    common = {entry for entry, count in counts.items() if count == compared > 1}
    changes = []
    for old, now, entries in found:
        own = tuple(entry for entry in entries if entry not in common)
        changes.append(Change(verdict(old, now, own), now, old, own))
    changes += [Change("fails" if k.state == "failed" else "new", k) for k in new]
    changes += [Change("removed", k, k) for k in removed]
    changes.sort(key=lambda change: (ORDER.index(change.verdict), -_weight(change)))
    everywhere = tuple(entry for entry in counts if entry in common)
    return Comparison(before, after, tuple(changes), everywhere)


def verdict(
    old: BuiltKernel, now: BuiltKernel, entries: tuple[Difference, ...] = ()
) -> Verdict:
    """The gravest of what changed in a kernel that is in both builds."""
    if now.state == "failed" or old.state == "failed":
        if now.state != old.state:
            return "fails" if now.state == "failed" else "better"
        return "differs" if entries or now.error != old.error else "same"
    if now.spills > old.spills:
        return "spills"
    registers = _registers(now) - _registers(old)
    if registers > 0:
        return "registers"
    compile_seconds = (old.compile_seconds or 0.0, now.compile_seconds or 0.0)
    if slower(*compile_seconds):
        return "slower"
    if (now.size or 0) > (old.size or 0):
        return "larger"
    smaller = now.spills < old.spills or registers < 0 or (now.size or 0) < (old.size or 0)
    if smaller or slower(*reversed(compile_seconds)):
        return "better"
    return "differs" if entries else "same"


def slower(before: float, after: float) -> bool:
    """Whether a compile takes longer than chance would have it."""
    return after > before * _SLOWER and after > before + _SLOWER_SECONDS


def _registers(kernel: BuiltKernel) -> int:
    return 0 if kernel.resources is None else kernel.resources.registers


def _weight(change: Change) -> float:
    """How much of its verdict it is."""
    old, now = change.before, change.after
    if old is None or now is None:
        return 0.0
    match change.verdict:
        case "spills":
            return now.spills - old.spills
        case "registers":
            return _registers(now) - _registers(old)
        case "slower":
            return (now.compile_seconds or 0.0) - (old.compile_seconds or 0.0)
        case "larger":
            return (now.size or 0) - (old.size or 0)
    return 0.0


Pair = tuple[BuiltKernel, BuiltKernel]


def _pairs(
    before: Build, after: Build
) -> tuple[list[Pair], list[BuiltKernel], list[BuiltKernel]]:
    """The kernels that are in both, those only in the second, those only in the first."""
    pairs: list[Pair] = []
    removed, new = list(before.kernels), list(after.kernels)
    for identity in (_key, _request, _name):
        removed, new = _match(removed, new, identity, pairs)
    return pairs, new, removed


def _match(
    before: list[BuiltKernel],
    after: list[BuiltKernel],
    identity: Callable[[BuiltKernel], object],
    pairs: list[Pair],
) -> tuple[list[BuiltKernel], list[BuiltKernel]]:
    """Add the pairs of one identity, and return what has no partner."""
    waiting: dict[object, list[BuiltKernel]] = {}
    for kernel in before:
        waiting.setdefault(identity(kernel), []).append(kernel)
    single = []
    for kernel in after:
        held = waiting.get(identity(kernel), [])
        found = next((old for old in held if _comparable(old, kernel, identity)), None)
        if found is None:
            single.append(kernel)
        else:
            held.remove(found)
            pairs.append((found, kernel))
    return [kernel for held in waiting.values() for kernel in held], single


def _comparable(
    old: BuiltKernel, now: BuiltKernel, identity: Callable[[BuiltKernel], object]
) -> bool:
    """A name alone will do only where no more is known of one of them."""
    return identity is not _name or not (old.entries and now.entries)


def _key(kernel: BuiltKernel) -> object:
    return kernel.key


def _request(kernel: BuiltKernel) -> object:
    if not kernel.entries:
        return kernel.key
    defines = tuple(sorted(kernel.defines.items()))
    source = kernel.entries.get("source name")
    return kernel.symbol, defines, kernel.options, kernel.target, source


def _name(kernel: BuiltKernel) -> object:
    return kernel.symbol, kernel.target
