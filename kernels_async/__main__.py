"""The command line, as `kernels-async` and as `python -m kernels_async`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from .cli._ends import CANNOT, ending

_MISSING = "the command line needs Typer: pip install 'kernels_async[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The command and its arguments; by default those of the process.

    Returns:
        The exit code, as `kernels-async --help` lists them.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    with ending() as end:
        try:
            from .cli._app import run
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
                raise
            end.code = CANNOT
            _say_missing(given)
        else:
            end.code = run(given)
    return end.code


def _say_missing(arguments: Sequence[str]) -> None:
    if "--json" in arguments:
        error = {"kind": "ModuleNotFoundError", "message": _MISSING}
        document = {"command": None, "exit_code": CANNOT, "error": error}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stderr.write(f"kernels-async: {_MISSING}\n")


if __name__ == "__main__":
    sys.exit(main())
