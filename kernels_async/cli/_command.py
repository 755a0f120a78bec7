"""What every command is: it gives an answer, for people or, with `--json`, for programs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec, cast

import typer

from .._diagnostics import printable
from .._errors import KernelsError, SpecificationError
from .._record import Seal
from .._store import Store, default_cache_dir
from .._tiers import Place
from ._ends import BROKEN_PIPE, CANNOT, GOOD, PROBLEMS, USAGE, interruption
from ._screen import Screen

P = ParamSpec("P")

CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="The cache directory; by default $KERNELS_ASYNC_CACHE_DIR, else the user's.",
        show_default=False,
    ),
]
_Json = Annotated[
    bool,
    typer.Option("--json", help="Write one JSON document to standard output."),
]


class NotFoundError(KernelsError):
    """What was asked for is not there."""


class CannotError(KernelsError):
    """It cannot be done here."""


@dataclass(frozen=True)
class Answer:
    """What a command has to say.

    Attributes:
        document: For programs: what `--json` writes, beside `command` and `exit_code`.
        show: For people: writes it to a screen.
        code: The exit code.
    """

    document: Mapping[str, object]
    show: Callable[[Screen], None]
    code: int = GOOD


def command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Screen, P], Answer]], Callable[..., None]]:
    """Make a command of a function that gets a screen for its progress, and its options.

    It also has the option `--json`. What the library raises is told, as text or as JSON.

    Args:
        app: What the command belongs to.
        name: How it is called there.
    """

    def decorate(
        function: Callable[Concatenate[Screen, P], Answer],
    ) -> Callable[..., None]:
        work = cast(Callable[..., Answer], function)
        _, *parameters = inspect.signature(function, eval_str=True).parameters.values()

        @functools.wraps(function)
        def run(*, as_json: bool, **options: object) -> None:
            screen = Screen(as_json)
            called = f"{app.info.name} {name}" if isinstance(app.info.name, str) else name
            code = answer(screen, called, functools.partial(work, screen, **options))
            raise typer.Exit(code)

        given = inspect.Parameter(
            "as_json", inspect.Parameter.KEYWORD_ONLY, annotation=_Json, default=False
        )
        by_name = inspect.Parameter.KEYWORD_ONLY
        signature = [parameter.replace(kind=by_name) for parameter in parameters] + [given]
        run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in signature}
        app.command(name)(run)
        return run

    return decorate


def answer(screen: Screen, called: str, work: Callable[[], Answer]) -> int:
    """Do it, and write what came of it; the exit code."""
    try:
        with _logging_to(screen):
            given = work()
        if screen.as_json:
            screen.document({"command": called, "exit_code": given.code, **given.document})
        else:
            given.show(screen)
        sys.stdout.flush()
    except BrokenPipeError:
        return BROKEN_PIPE
    except (KeyboardInterrupt, typer.Abort):
        if screen.err.is_terminal:
            screen.tell("")  # what was pressed is shown there
        return fail(screen, called, InterruptedError("interrupted"), interruption())
    except (KernelsError, OSError) as error:
        return fail(screen, called, error, _code(error))
    except Exception as error:  # noqa: BLE001 - a mistake of ours still has an exit code
        traceback.print_exc()
        return fail(screen, called, error, CANNOT)
    return given.code


@contextlib.contextmanager
def _logging_to(screen: Screen) -> Iterator[None]:
    """Have the library's warnings told like everything that is no answer."""
    logger, handler = logging.getLogger("kernels_async"), _Handler(screen)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.tell(f"kernels-async: {printable(record.getMessage())}", "yellow")


def fail(screen: Screen, called: str | None, error: Exception, code: int) -> int:
    """Tell an error; the exit code."""
    text = printable(str(error)) or type(error).__name__
    if screen.as_json:
        told = {"kind": type(error).__name__, "message": text}
        screen.document({"command": called, "exit_code": code, "error": told})
    else:
        screen.tell(f"kernels-async: {text}", "red")
    return code


def _code(error: Exception) -> int:
    if isinstance(error, NotFoundError):
        return PROBLEMS
    return USAGE if isinstance(error, SpecificationError) else CANNOT


@contextlib.contextmanager
def told(doing: str, file: Path) -> Iterator[None]:
    """Have a file that the system refuses told by its name and the reason.

    Args:
        doing: What is done with the file in it: `read` or `write`.
        file: The file; the one that the system names, if it is read.

    Raises:
        CannotError: The system refused.
    """
    try:
        yield
    except OSError as error:
        named = error.filename if doing == "read" and error.filename else file
        reason = error.strerror or error
        raise CannotError(f"cannot {doing} {os.fsdecode(named)}: {reason}") from error


def open_store(cache_dir: Path | None) -> Store:
    """The store of a cache directory, for artifacts of every toolchain.

    Raises:
        SpecificationError: There is no such place.
    """
    if cache_dir is None and default_cache_dir() is None:
        raise SpecificationError("there is no home directory: give --cache-dir")
    place = Place.choose(cache_dir, (), None, None)
    assert place.root is not None  # noqa: S101 - it was chosen
    return Store(place.root, "kernel", seal=Seal(place.key))


def existing_store(cache_dir: Path | None) -> Store:
    """The store of a directory that is looked at, and must be there if it was given.

    The default one is made by the first build: until then it has no artifacts.

    Raises:
        SpecificationError: There is no such place.
        CannotError: There is no such directory.
    """
    store = open_store(cache_dir)
    if cache_dir is not None and not store.root.exists():
        raise CannotError(f"there is no directory {store.root}")
    return store
