"""The commands together, and how one of them is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from .._errors import SpecificationError
from . import _build, _cache, _doctor, _explain, _report, _transfer
from ._command import fail
from ._ends import CODES, USAGE
from ._screen import Screen
from ._words import own_version

_NAME = "kernels-async"
_IS_RICH = Screen().out.is_terminal
_EPILOG = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in CODES.items())
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])
"""What Typer raises for wrong usage; it exports only this kind of it."""

app = typer.Typer(
    help="Looks after kernels_async: its toolchains, its cache of compiled GPU kernels.",
    epilog=_EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown" if _IS_RICH else None,
    pretty_exceptions_enable=False,
)
app.add_typer(_cache.app, name="cache")
for module in (_doctor, _build, _explain, _report):
    module.add_to(app)
_transfer.add_to(_cache.app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{_NAME} {own_version()}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    """Looks after kernels_async: its toolchains, its cache of compiled GPU kernels."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code."""
    given = list(arguments)
    try:
        return int(app(given, prog_name=_NAME, standalone_mode=False) or 0)
    except _UsageError as error:
        wrong = cast(Any, error)
        if "--json" in given:
            told = SpecificationError(wrong.format_message())
            return fail(Screen(as_json=True), None, told, USAGE)
        wrong.show()
        return USAGE
