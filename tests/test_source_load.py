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
    "one that an include beside another would take": (
        {
            "k.cu": '#include "a/m.h"\n#include <a/n.h>\n#define VAL (M * 10 + N)\n',
            "a/m.h": '#include "n.h"\n#define M N0\n',
            "i/n.h": "#define N0 1\n",
            "i/a/n.h": "#define N 2\n",
        },
        ["i"],
        12,
    ),
    "one name at several depths": (
        {
            "k.cu": "#include <a/a/n.h>\n#include <a/m.h>\n#define VAL (A * 10 + B)\n",
            "i/a/m.h": '#include "a/n.h"\n',
            "j/a/n.h": "#define B 2\n",
            "j/a/a/n.h": "#define A 1\n",
        },
        ["i", "j"],
        12,
    ),
    "asked for beside a header, and only elsewhere": (
        {
            "k.cu": '#include "a/x.h"\n#include "tune.h"\n',
            "a/x.h": '#if __has_include("tune.h")\n#define VAL 1\n#else\n#define VAL 2\n#endif\n',
            "tune.h": "",
        },
        [],
        2,
    ),
    "asked for in a define": (
        {
            "k.cu": '#define HAS __has_include("v.h")\n#if HAS\n#include "v.h"\n#endif\n',
            "v.h": "#define VAL 3\n",
        },
        [],
        3,
    ),
    "asked for by a macro with a name": (
        {
            "k.cu": '#define HAS(x) __has_include(x)\n#if HAS("v.h")\n#define VAL 1\n'
            "#else\n#define VAL 2\n#endif\n",
            "v.h": "",
        },
        [],
        1,
    ),
    "of the toolkit's own name": (
        {
            "k.cu": '#include "math_constants.h"\n#define VAL MINE\n',
            "math_constants.h": "#pragma once\n#define MINE 4\n",
        },
        [],
        4,
    ),
    "after a raw string": (
        {
            "k.cu": '__device__ const char text[] = R"x-y(\n#include "no.h"\n)x-y";\n#include "v.h"\n',
            "v.h": "#define VAL 5\n",
        },
        [],
        5,
    ),
    "after a character": (
        {
            "k.cu": '#define C \'"\' /* "\n#include "no.h"\n*/\n#include "v.h"\n',
            "v.h": "#define VAL 6\n",
        },
        [],
        6,
    ),
    "by a macro that changes": (
        {
            "k.cu": '#define F "a.h"\n#include F\n#undef F\n#define F "b.h"\n#include F\n'
            "#define VAL (A + B)\n",
            "a.h": "#define A 1\n",
            "b.h": "#define B 2\n",
        },
        [],
        3,
    ),
    "over several lines": (
        {
            "k.cu": '#include \\\n"v.h"\n# \\\n include "w.h"\n#define VAL (V + W)\n',
            "v.h": "#define V 1\n",
            "w.h": "#define W 2\n",
        },
        [],
        3,
    ),
    "with other blanks": (
        {
            "k.cu": '#\finclude\v"v.h"\n#define\tC\t"w.h"\n#include C\n#define VAL (V + W)\n',
            "v.h": "#define V 1\n",
            "w.h": "#define W 3\n",
        },
        [],
        4,
    ),
    "with a space in its name": (
        {"k.cu": '#include "a b.h"\n', "a b.h": "#define VAL 8\n"},
        [],
        8,
    ),
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


async def test_a_symbolic_link_beside_its_file_is_that_file(write: Write) -> None:
    """`#pragma once` joins them, as in a compiler."""
    root = write(
        {
            "k.cu": f'#include "a.h"\n#include "l.h"\n{KERNEL}',
            "a.h": "#pragma once\nenum { VAL = 3 };\n",
        }
    )
    (root / "l.h").symlink_to(root / "a.h")

    assert await value_of(await Source.load(root / "k.cu")) == 3


async def test_what_is_beside_a_link_is_beside_it(write: Write) -> None:
    """Build systems make farms of links: the target's folder does not count."""
    root = write(
        {
            "k.cu": f'#include "p/l.h"\n#include "q/l.h"\n#define VAL (P + Q)\n{KERNEL}',
            "a.h": '#include "d.h"\n',
            "p/d.h": "#define P 1\n",
            "q/d.h": "#define Q 2\n",
        }
    )
    for folder in "pq":
        (root / folder / "l.h").symlink_to(root / "a.h")

    assert await value_of(await Source.load(root / "k.cu")) == 3


async def test_a_long_chain_of_headers_is_read(write: Write) -> None:
    """However deep."""
    chain = {f"h{n}.h": f'#include "h{n + 1}.h"\n' for n in range(190)}
    root = write(
        {"k.cu": f'#include "h0.h"\n{KERNEL}', **chain, "h190.h": "#define VAL 5\n"}
    )

    assert await value_of(await Source.load(root / "k.cu")) == 5


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"// caf\xe9\n", r"v\.h is not UTF-8"),
        (b"\n#include_next <v.h>\n", "line 2: #include_next"),
    ],
)
async def test_a_header_that_cannot_become_content_says_why(
    write: Write, header: bytes, message: str
) -> None:
    """And which it is."""
    root = write({"k.cu": f'#include "v.h"\n{KERNEL}'})
    (root / "v.h").write_bytes(header)

    with pytest.raises(SpecificationError, match=message):
        await Source.load(root / "k.cu")


async def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    """The caller named it."""
    with pytest.raises(FileNotFoundError):
        await Source.load(tmp_path / "no.cu")
