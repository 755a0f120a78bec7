"""Tests of `Source.load`: files become content, the user's headers with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernels_async import (
    CompileError,
    Compiler,
    Kernels,
    Source,
    Specialization,
    SpecificationError,
)

KERNEL = 'extern "C" __global__ void k(int* p) { *p = VAL; }\n'


Write = Callable[[dict[str, str]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files by name; the folder that has them."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


async def value_of(source: Source, symbol: str = "k") -> int:
    """What the kernel writes, on the cpu device; it must compile for CUDA too."""
    async with Compiler("sm_90", workers=1) as compiler:
        await compiler.compile(source, symbol)
    async with Kernels.open("cpu", workers=1) as kernels:
        out = np.zeros(1, np.int32)
        (await kernels.get(source, symbol))((1,), (1,), (out,))
    return int(out[0])


LOADS = {
    "beside the file": ({"k.cu": '#include "v.h"\n', "v.h": "#define VAL 1\n"}, [], 1),
    "beside the including header": (
        {
            "k.cu": '#include "d/a.h"\n',
            "d/a.h": '#include "v.h"\n',
            "d/v.h": "#define VAL 2\n",
            "v.h": "#define VAL 3\n",
        },
        [],
        2,
    ),
    "above the including header": (
        {
            "k.cu": '#include "d/a.h"\n',
            "d/a.h": '#include "../v.h"\n',
            "v.h": "#define VAL 4\n",
        },
        [],
        4,
    ),
    "in the first folder": (
        {
            "k.cu": "#include <v.h>\n",
            "b/v.h": "#define VAL 2\n",
            "a/v.h": "#define VAL 1\n",
        },
        ["b", "a"],
        2,
    ),
    "angled skips the file's own folder": (
        {"k.cu": "#include <v.h>\n", "v.h": "#define VAL 1\n", "a/v.h": "#define VAL 2\n"},
        ["a"],
        2,
    ),
    "quoted takes the file's own folder first": (
        {"k.cu": '#include "v.h"\n', "v.h": "#define VAL 1\n", "a/v.h": "#define VAL 2\n"},
        ["a"],
        1,
    ),
    "one name in two folders": (
        {
            "k.cu": '#include "a/x.h"\n#include "b/x.h"\n#define VAL (A + B)\n',
            "a/x.h": '#include "v.h"\n#define A V1\n',
            "b/x.h": '#include "v.h"\n#define B V2\n',
            "a/v.h": "#pragma once\n#define V1 10\n",
            "b/v.h": "#pragma once\n#define V2 20\n",
        },
        [],
        30,
    ),
    "one file by two names": (
        {
            "k.cu": '#include "a/v.h"\n#include "b/x.h"\nenum { VAL = F };\n',
            "a/v.h": "#pragma once\nenum { F = 5 };\n",
            "b/x.h": '#include "../a/v.h"\n',
        },
        [],
        5,
    ),
    "asked for and there": (
        {
            "k.cu": '#if __has_include("v.h")\n#include "v.h"\n#else\n#define VAL 2\n#endif\n',
            "v.h": "#define VAL 1\n",
        },
        [],
        1,
    ),
    "asked for and not there": (
        {
            "k.cu": '#if __has_include("v.h")\n#include "v.h"\n#else\n#define VAL 2\n#endif\n'
        },
        [],
        2,
    ),
    "by a plain macro": (
        {"k.cu": '#define HDR "v.h"\n#include HDR\n', "v.h": "#define VAL 6\n"},
        [],
        6,
    ),
    "in dead code": ({"k.cu": '#if 0\n#include "no.h"\n#endif\n#define VAL 7\n'}, [], 7),
    "by a macro in dead code": (
        {"k.cu": "#if 0\n#include NOWHERE\n#elif 1\n#define VAL 7\n#endif\n"},
        [],
        7,
    ),
    "in a comment": (
        {"k.cu": '/*\n#include "no.h"\n*/ // \\\n#include "no.h"\n#define VAL 8\n'},
        [],
        8,
    ),
    "in a string": (
        {
            "k.cu": '__device__ const char* s = "/*"; // no comment\n#define VAL 9\n/* " */\n'
        },
        [],
        9,
    ),
    "with a byte-order mark": (
        {"k.cu": '\ufeff#include "v.h"\n', "v.h": "\ufeff#define VAL 1\n"},
        [],
        1,
    ),
    "guarded": (
        {
            "k.cu": '#include "v.h"\n#include "v.h"\n',
            "v.h": "#ifndef V_H\n#define V_H\n#define VAL 3\n#endif\n",
        },
        [],
        3,
    ),
}


@pytest.mark.parametrize("case", LOADS)
async def test_a_header_is_found_as_a_compiler_finds_it(case: str, write: Write) -> None:
    """Quoted, angled, relative, asked for, by macro; the same numbers on both toolchains."""
    files, folders, value = LOADS[case]
    root = write(files | {"k.cu": files["k.cu"] + KERNEL})
    source = await Source.load(root / "k.cu", [root / folder for folder in folders])

    assert await value_of(source) == value


async def test_the_source_is_content_from_then_on(write: Write) -> None:
    """An edited header is another source; a touched or moved file is the same."""
    root = write({"k.cu": f'#include "v.h"\n{KERNEL}', "v.h": "#define VAL 1\n"})
    first = await Source.load(root / "k.cu")
    os.utime(root / "v.h", (0, 0))
    assert await Source.load(root / "k.cu") == first
    (root / "v.h").write_text("#define VAL 2\n")
    os.utime(root / "v.h", (0, 0))

    assert await Source.load(root / "k.cu") != first
    assert dict(first.headers) == {"v.h": "#define VAL 1\n"}
    assert first.name == "k.cu"


async def test_a_new_header_that_shadows_another_is_another_source(write: Write) -> None:
    """The order of folders decides, at the time of loading."""
    root = write(
        {"k.cu": f"#include <v.h>\n{KERNEL}", "b/v.h": "#define VAL 2\n", "a/x": ""}
    )
    folders = [root / "a", root / "b"]
    first = await Source.load(root / "k.cu", folders)
    (root / "a/v.h").write_text("#define VAL 1\n")

    assert await Source.load(root / "k.cu", folders) != first


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"k.cu": '\n#include "no.h"\n'}, r"k\.cu:2 includes 'no\.h'"),
        (
            {"k.cu": '#include "a.h"\n', "a.h": "#ifndef A\n#define A\n#include <x>\n"
             '#include "no.h"\n#endif\n'},
            r"a\.h:4 includes 'no\.h'",
        ),
        ({"k.cu": "#include HDR\n"}, r"k\.cu:1 includes the macro HDR.*Source\(headers="),
        (
            {"k.cu": '#define X(x) "v.h"\n#include X(1)\n', "v.h": ""},
            r"k\.cu:2 includes the macro X",
        ),
    ],
)  # fmt: skip
async def test_a_header_that_cannot_be_found_names_file_and_line(
    files: dict[str, str],
    message: str,
    write: Write,
) -> None:
    """And says what to do where the name is hidden behind a macro."""
    root = write(files)

    with pytest.raises(SpecificationError, match=message):
        await Source.load(root / "k.cu")


async def test_a_missing_header_under_a_condition_is_left_to_the_compiler(
    write: Write,
) -> None:
    """Its error names the file and the line."""
    root = write({"k.cu": f'#ifdef X\n#include "no.h"\n#endif\n#define VAL 1\n{KERNEL}'})
    source = await Source.load(root / "k.cu")
    assert await value_of(source) == 1

    async with Compiler("sm_90", workers=1) as compiler:
        with pytest.raises(CompileError, match=r'k\.cu:2.*cannot open source file "no\.h"'):
            await compiler.compile(source, Specialization("k", {"X": 1}))


async def test_headers_that_include_one_another_end(write: Write) -> None:
    """The walk ends; without guards the compiler says what is wrong."""
    root = write(
        {
            "k.cu": f'#include "a.h"\n{KERNEL}',
            "a.h": '#include "b.h"\n',
            "b.h": '#include "a.h"\n',
        }
    )
    source = await Source.load(root / "k.cu")

    async with Compiler("sm_90", workers=1) as compiler:
        with pytest.raises(CompileError, match="includes itself"):
            await compiler.compile(source, "k")


async def test_the_toolkits_headers_are_left_to_the_toolkit(write: Write) -> None:
    """Quoted or angled."""
    root = write(
        {"k.cu": f'#include "cuda_fp16.h"\n#include <cub/cub.h>\n#define VAL 1\n{KERNEL}'}
    )

    assert dict((await Source.load(root / "k.cu")).headers) == {}


async def test_a_symbolic_link_is_the_file_that_it_points_to(write: Write) -> None:
    """`#pragma once` joins them, as in a compiler."""
    root = write(
        {
            "k.cu": f'#include "a.h"\n#include "l.h"\n{KERNEL}',
            "a.h": "#pragma once\nenum { VAL = 3 };\n",
        }
    )
    (root / "l.h").symlink_to(root / "a.h")

    assert await value_of(await Source.load(root / "k.cu")) == 3


async def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    """The caller named it."""
    with pytest.raises(FileNotFoundError):
        await Source.load(tmp_path / "no.cu")
