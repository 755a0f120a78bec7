"""Tests of `Source`: content, and nothing but content."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from kernels_async import Compiler, Kernels, Source, SpecificationError
from kernels_async._source import as_source

TEXT = 'extern "C" __global__ void k(int* p) { *p = 1; }\n'


def test_sources_of_equal_content_are_equal() -> None:
    """Text, headers and name are what a source is; the order of headers is not."""
    one = Source(TEXT, {"a.h": "1", "b.h": "2"}, "k.cu")
    two = Source(TEXT, {"b.h": "2", "a.h": "1"}, "k.cu")

    assert (one, hash(one)) == (two, hash(two))
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301


@pytest.mark.parametrize(
    "other",
    [
        Source(TEXT + " "),
        Source(TEXT, {"a.h": "1"}),
        Source(TEXT, name="other.cu"),
    ],
)
def test_sources_of_other_content_differ(other: Source) -> None:
    """Each part of the content counts."""
    assert Source(TEXT) != other


def test_a_byte_order_mark_is_dropped() -> None:
    """NVRTC calls it an unrecognized token, in a source and in a header."""
    assert Source("\ufeff" + TEXT, {"a.h": "\ufeff1"}) == Source(TEXT, {"a.h": "1"})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Source(""),
        lambda: Source(" \n"),
        lambda: Source("kernels/saxpy.cu"),
        lambda: Source(TEXT, {"a": "", "a/b": ""}),
        lambda: Source(TEXT, {"a" * 300: ""}),
        lambda: Source(TEXT, name="a" * 300),
        lambda: Source("x" * (17 << 20)),
        lambda: Source(TEXT + "\0#error"),
        lambda: Source(TEXT, {"a.h": "\0"}),
        lambda: Source("// \ud800"),
        lambda: Source(TEXT, {"../a.h": ""}),
        lambda: Source(TEXT, {"/etc/a.h": ""}),
        lambda: Source(TEXT, {"a\n.h": ""}),
        lambda: Source(TEXT, name="dir/k.cu"),
        lambda: Source(TEXT, name=""),
        lambda: Source(TEXT, name=".."),
    ],
)
def test_a_source_that_cannot_be_right_is_refused(make: Any) -> None:
    """NVRTC stops at a NUL and reports success; names are no paths out of the source."""
    with pytest.raises(SpecificationError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Source(b"x"),  # type: ignore[arg-type]
        lambda: Source(None),  # type: ignore[arg-type]
        lambda: Source(TEXT, {"a.h": b""}),  # type: ignore[dict-item]
        lambda: Source(TEXT, ["a.h"]),  # type: ignore[arg-type]
        lambda: Source(TEXT, {1: ""}),  # type: ignore[dict-item]
        lambda: Source(TEXT, name=1),  # type: ignore[arg-type]
    ],
)
def test_a_source_that_is_no_string_is_a_type_error(make: Any) -> None:
    """Bytes may hold a 0xFF, where NVRTC ends the file silently."""
    with pytest.raises(TypeError):
        make()


def test_it_is_immutable_and_its_repr_does_not_show_the_text() -> None:
    """A source is a key, and may be a secret."""
    source = Source(TEXT, {"a.h": "1"})

    with pytest.raises(AttributeError):
        source.text = ""  # type: ignore[misc]
    with pytest.raises(TypeError):
        source.headers["a.h"] = ""  # type: ignore[index]
    assert repr(source) == f"<Source kernel.cu {len(TEXT)} characters, 1 headers>"


async def test_a_relative_include_means_one_header_wherever_it_is_compiled() -> None:
    """Also after a pickle, and in the worker: nothing is written out twice."""
    source = Source(
        '#include "a/m.h"\n__global__ void f(int* p) { *p = V; }\n',
        {"a/m.h": '#include "n.h"\n', "a/n.h": "#define V 1\n", "a/a/n.h": "#define V 2\n"},
    )
    assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301
    out = np.zeros(1, np.int32)
    async with Kernels.open("cpu", workers=1) as kernels:
        (await kernels.get(source, "f"))((1,), (1,), (out,))
    assert out[0] == 1
    text = source.text.replace("*p = V", "static_assert(V == 1)")
    async with Compiler("sm_90", workers=1) as compiler:
        await compiler.compile(Source(text, source.headers), "f")


def test_requests_with_one_text_share_its_source() -> None:
    """A text that is given again is not read, digested and kept again."""
    text = "__global__ void shared_text() {}"
    source = as_source(text)
    assert as_source("__global__ void " + "shared_text() {}") is source
    assert as_source(source) is source
    assert as_source(text + "\n") is not source


def test_headers_that_are_too_much_together_are_refused() -> None:
    """A small manifest may name one long text a thousand times, and a worker gets all."""
    header = "/" * (1 << 20)
    headers = {f"{number}.h": header for number in range(63)}
    assert len(Source("int x;", headers).headers) == 63
    with pytest.raises(SpecificationError, match="source and headers have"):
        Source("int x;", headers | {"63.h": header})
