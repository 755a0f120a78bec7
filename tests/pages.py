"""The programs in the pages of the documentation, and how they are run.

A fence of the language `python` is a program of its own, and may await at its top, as in
a notebook. On a page that says `session: true` at its beginning all of them are
one program, in order. One with the title `On a GPU` is not run. A fence with the title
`Output` is what the program before it prints, where `...` stands for anything; with the
title `Output, such as` a number stands for any other.

`python -m tests.pages PAGE` runs a page's, and with `gpu` after it those for GPUs, with
those that they go on from.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_async import Specialization

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "pages").glob("*.md"))]

GPU, OUTPUT, SUCH_AS = "On a GPU", "Output", "Output, such as"
_FENCE = re.compile(
    r'^```(\w+)(?: title="([^"\n]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Fence:
    """One fence of a page.

    Attributes:
        language: What it is written in.
        title: What stands above it, or `""`.
        text: What is in it.
        line: How many lines of the page are before it.
        follows: Whether nothing but space is between the one before and this.
    """

    language: str
    title: str
    text: str
    line: int
    follows: bool


def fences(text: str) -> list[Fence]:
    """All fences of a page.

    Raises:
        ValueError: One is written so that it would be overlooked.
    """
    found: list[Fence] = []
    end = 0
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start(3))
        follows = not text[end : match.start()].strip()
        found.append(Fence(match[1], match[2] or "", match[3], line, follows))
        end = match.end()
    if text.count("```") != 2 * len(found):
        raise ValueError("a fence is indented, or has no language")
    return found


def programs(text: str, gpu: bool = False) -> list[tuple[Fence, Fence | None]]:
    """The programs that run here, each with what it prints if that is said.

    Args:
        text: The page.
        gpu: Whether there is a GPU here.
    """
    every = fences(text)
    told = [f if f.follows and f.title in (OUTPUT, SUCH_AS) else None for f in every]
    return [
        (fence, output)
        for fence, output in zip(every, [*told[1:], None], strict=False)
        if fence.language == "python" and (gpu or fence.title != GPU)
    ]


def kernels(program: str) -> list[tuple[str, Specialization]]:
    """What a program asks for: its sources' texts with its specializations.

    Both are found where they are made of literals.
    """
    calls = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call)]
    made = {ast.unparse(call.func): call for call in calls}
    asked = [
        Specialization(ast.literal_eval(call.args[1]))
        for call in calls
        if ast.unparse(call.func).endswith((".get", ".request"))
        and isinstance(call.args[1], ast.Constant)
    ]
    if "Source" not in made:
        return []
    text = ast.literal_eval(made["Source"].args[0])
    return [(text, specialization) for specialization in asked]


def is_session(text: str) -> bool:
    """Whether the programs of a page are one."""
    return re.match(r"---\n(?:.*\n)*?session: true\n", text) is not None


def run(page: Path, gpu: bool = False) -> None:
    """Run the programs of a page.

    Args:
        page: Its file.
        gpu: Whether to run those for GPUs, and in a session what is before them.

    Raises:
        AssertionError: One does not print what the page says.
    """
    text = page.read_text()
    session = is_session(text)
    names: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for fence, output in programs(text, gpu):
            if not session:
                names = {"__name__": "__main__"}
                if gpu and fence.title != GPU:
                    continue
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                code = compile(
                    "\n" * fence.line + fence.text,
                    page.name,
                    "exec",
                    flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                )
                result = eval(code, names)  # noqa: S307
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(result)
            if output is not None:
                where = f"{page.name}:{fence.line}"
                assert is_like(told.getvalue(), output), f"{where}:\n{told.getvalue()}"


def is_like(printed: str, output: Fence) -> bool:
    """Whether a program printed what its page says."""
    pattern = re.escape(output.text.rstrip()).replace(re.escape("..."), ".*")
    if output.title == SUCH_AS:
        pattern = re.sub(r"\d+(?:\\\.\d+)?", r"[\\d.]+", pattern)
    return re.fullmatch(pattern, printed.rstrip(), re.DOTALL) is not None


if __name__ == "__main__":
    run(Path(sys.argv[1]), gpu="gpu" in sys.argv[2:])
