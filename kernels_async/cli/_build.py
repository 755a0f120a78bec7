"""`kernels-async build`: compiles the kernels of a manifest, for images and pipelines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .._artifact import Artifact
from .._collector import BuildCollector
from .._compiler import Compiler
from .._events import Listener
from .._manifest import Manifest
from ._building import Building, TargetBuild
from ._command import Answer, CacheDir, CannotError, command, open_store, told
from ._ends import GOOD, PROBLEMS, run
from ._outputs import TraceFile, check_outputs, write_report
from ._progress import Progress, kernel_name
from ._screen import Screen
from ._targets import chosen_targets
from ._words import count, first_line, line, seconds, size


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "build")(build)


def build(
    screen: Screen,
    manifest: Annotated[
        Path, typer.Argument(metavar="MANIFEST", help="The file that names the kernels.")
    ],
    target: Annotated[
        list[str],
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET,...",
            help="What to compile for, such as sm_80,sm_90,cpu.",
            show_default=False,
        ),
    ],
    workers: Annotated[
        int | None,
        typer.Option(
            help="How many compiles run at once; by default what the machine can."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a compile is killed.")
    ] = 300.0,
    slim: Annotated[
        bool, typer.Option("--slim", help="Leave out what a kernel does not use.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page of the build, as HTML."),
    ] = None,
    trace: TraceFile = None,
    cache_dir: CacheDir = None,
) -> Answer:
    """Compile a manifest's kernels into the cache.

    No GPU is needed. What is there already is not compiled again. One kernel that fails
    fails alone.
    """
    store = open_store(cache_dir)
    compilers = [
        Compiler(
            name,
            cache_dir=store.root,
            workers=workers,
            timeout=timeout,
            slim=slim and name != "cpu",
        )
        for name in chosen_targets(target)
    ]
    check_outputs(report, trace, [manifest])
    collector = BuildCollector(limit=sys.maxsize)
    building = run(_build(screen, manifest, compilers, collector))
    write_report(collector.build(), report, trace)
    lost = building.not_kept(store.root)
    if lost:
        raise CannotError(
            f"{count(len(lost), 'artifact')} could not be kept in {store.root}: see "
            "kernels-async doctor"
        )
    failed = any(one.failures for one in building.targets)
    document = {
        "manifest": str(manifest),
        "directory": str(store.root),
        "targets": [_document(one) for one in building.targets],
    }

    def show(screen: Screen) -> None:
        _show(screen, building.targets)
        found = set().union(*(one.keys for one in building.targets))
        files = ", ".join(str(file) for file in (report, trace) if file is not None)
        wrote = f"; wrote {files}" if files else ""
        screen.print(line(f"{count(len(found), 'artifact')} in {store.root}{wrote}"))

    return Answer(document, show, PROBLEMS if failed else GOOD)


async def _build(
    screen: Screen, path: Path, compilers: Sequence[Compiler], listener: Listener
) -> Building:
    progress = Progress(screen)
    with told("read", path):
        manifest = await Manifest.load(path)
    building = Building(manifest, compilers, progress.settled)
    with progress.watching(building):
        await building.run(listener)
    return building


def _document(build: TargetBuild) -> dict[str, object]:
    return {
        "target": build.target,
        "kernels": len(build.kernels),
        "skipped": build.skipped,
        "compiled": len(build.of_origin("compiled")),
        "from_disk": len(build.of_origin("disk")),
        "failed": len(build.failures),
        "seconds": build.seconds,
        "compile_seconds": build.compile_seconds,
        "saved_seconds": build.saved_seconds,
        "artifacts": [_artifact(one) for one in build.artifacts.values()],
        "failures": [
            {
                "symbol": build.kernels[place].specialization.symbol,
                "defines": dict(build.kernels[place].specialization.defines),
                "kind": type(error).__name__,
                "message": str(error),
            }
            for place, error in build.failures.items()
        ],
    }


def _artifact(artifact: Artifact) -> dict[str, object]:
    return {
        "key": artifact.digest,
        "symbol": artifact.symbol,
        "origin": artifact.origin,
        "bytes": len(artifact.bytes),
        "compile_seconds": artifact.compile_seconds,
        "warnings": [warning.to_record() for warning in artifact.warnings],
        "spills": artifact.resources.spills if artifact.resources else 0,
    }


def _show(screen: Screen, builds: Sequence[TargetBuild]) -> None:
    numbers = ("COMPILED", "FROM DISK", "FAILED", "BYTES", "TIME", "SAVED")
    screen.table(("TARGET", *numbers), [_row(one) for one in builds], right=numbers)
    for one in builds:
        if one.skipped:
            skipped = count(one.skipped, "kernel")
            screen.print(f"{one.target}: {skipped} of the manifest for another target")
        _show_failures(screen, one)
        _show_remarks(screen, one)


def _row(build: TargetBuild) -> tuple[str, ...]:
    made = size(sum(len(one.bytes) for one in build.artifacts.values()))
    return (
        build.target,
        str(len(build.of_origin("compiled"))),
        str(len(build.of_origin("disk"))),
        str(len(build.failures)),
        made,
        seconds(build.seconds),
        seconds(build.saved_seconds),
    )


def _show_failures(screen: Screen, build: TargetBuild) -> None:
    for place, error in build.failures.items():
        name = kernel_name(build.kernels[place])
        screen.print(f"{build.target} {name} failed: {first_line(error)}", "red")


def _show_remarks(screen: Screen, build: TargetBuild) -> None:
    """Those that spill registers, and each warning of the compiler once."""
    warned: dict[str, list[str]] = {}
    for place, artifact in sorted(build.artifacts.items()):
        name = kernel_name(build.kernels[place])
        if artifact.resources is not None and artifact.resources.spills:
            spills = f"{artifact.resources.spills} bytes a thread"
            screen.print(f"{build.target} {name} spills registers: {spills}", "yellow")
        for warning in artifact.warnings:
            names = warned.setdefault(line(str(warning).splitlines()[0]), [])
            names.append(name)
    for text, names in warned.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        screen.print(f"{build.target} {names[0]}{more}: {text}", "yellow")
