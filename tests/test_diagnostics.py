"""Tests of the compilers' logs, taken apart."""

from __future__ import annotations

import pytest

from kernels_async import Diagnostic, Resources, Severity
from kernels_async._diagnostics import printable, summarize
from kernels_async.toolchains import _gnu_log, _nvrtc_log

E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE


def test_severities_compare() -> None:
    """NOTE < WARNING < ERROR."""
    assert Severity.NOTE < Severity.WARNING < Severity.ERROR


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'kern.cu(1): error: identifier "f" is undefined',
            Diagnostic(E, 'identifier "f" is undefined', "", "kern.cu", 1),
        ),
        (
            "/inc/a (b)/x.h(17): catastrophic error: out of memory",
            Diagnostic(E, "out of memory", "", "/inc/a (b)/x.h", 17),
        ),
        (
            'kern.cu(2): warning #177-D: variable "u" was declared',
            Diagnostic(W, 'variable "u" was declared', "177-D", "kern.cu", 2),
        ),
        (
            "kern.cu(3): note #3453-D: the final comparison was 1 == 0",
            Diagnostic(N, "the final comparison was 1 == 0", "3453-D", "kern.cu", 3),
        ),
        ("k.cu(4): remark: inlined", Diagnostic(N, "inlined", "", "k.cu", 4)),
        ("k.cu(4): doom #9: unknown", Diagnostic(E, "unknown", "9", "k.cu", 4)),
        (
            "kern.cu(2): Error: Formal parameter space overflowed",
            Diagnostic(E, "Formal parameter space overflowed", "", "kern.cu", 2),
        ),
        (
            "ptxas application ptx input, line 26; error   : Unknown modifier '.op'",
            Diagnostic(E, "Unknown modifier '.op'", "", "ptxas application ptx input", 26),
        ),
        (
            "ptxas error   : Entry function 'k' uses too much shared data",
            Diagnostic(E, "Entry function 'k' uses too much shared data"),
        ),
        (
            "ptxas fatal   : Unresolved extern function '_Z3exti'",
            Diagnostic(E, "Unresolved extern function '_Z3exti'"),
        ),
        (
            "ptxas warning : Stack size for entry function 'k' cannot be determined",
            Diagnostic(W, "Stack size for entry function 'k' cannot be determined"),
        ),
        (
            "nvrtc: error: unrecognized option --zork found",
            Diagnostic(E, "unrecognized option --zork found"),
        ),
        (
            "Command-line error: invalid macro definition: VAL =6",
            Diagnostic(E, "invalid macro definition: VAL =6"),
        ),
        ("what is this", Diagnostic(N, "what is this")),
    ],
)
def test_each_message_of_nvrtc_and_ptxas_is_understood(
    line: str, expected: Diagnostic
) -> None:
    """Nothing is lost: an unknown severity is an ERROR, an unknown line a NOTE."""
    assert _nvrtc_log.parse(line).diagnostics == [expected]


def test_what_follows_a_message_belongs_to_it() -> None:
    """Source line, caret and instantiation chain are the excerpt; the caret's column."""
    log = _nvrtc_log.parse(
        'k.cu(1): error: identifier "foo" is undefined\n'
        "  { foo(p); }\n"
        "    ^\n"
        '          detected during instantiation of "void s(T *) [with T=int]"\n'
        "\n"
        "1 error detected\n"
    )

    first, last = log.diagnostics
    assert (first.column, first.place) == (3, "k.cu:1:3")
    assert first.excerpt.count("\n") == 2
    assert "with T=int" in str(first)
    assert last == Diagnostic(N, "1 error detected")


def test_resources_are_read_for_each_kernel() -> None:
    """Registers, spills, stack, shared memory and barriers of each entry.

    A function that was not inlined follows its kernel, and its spills are the kernel's.
    """
    log = _nvrtc_log.parse(
        "ptxas info    : Overriding maximum register limit 256 for 'k' with  24 of max\n"
        "ptxas info    : 200 bytes gmem\n"
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
        "ptxas info    : Function properties for a\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 12 registers, used 1 barriers, 16 bytes smem, 400 bytes cmem[0]\n"
        "ptxas info    : Compile time = 17.031 ms\n"
        "ptxas info    : Compiling entry function 'k' for 'sm_90'\n"
        "ptxas info    : Function properties for k\n"
        "    720 bytes stack frame, 772 bytes spill stores, 852 bytes spill loads\n"
        "ptxas info    : Used 24 registers, used 0 barriers, 720 bytes cumulative stack size\n"
        "ptxas info    : Function properties for _Z1ff\n"
        "ptxas         .     9 bytes stack frame, 9 bytes spill stores, 9 bytes spill loads\n"
    )

    assert log.kernels == {
        "a": Resources(12, 0, 0, 0, 16, 0, 1),
        "k": Resources(24, 781, 861, 720, 0, 0, 0),
    }
    assert log.diagnostics == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "k.cu:3:7: error: 'x' was not declared",
            Diagnostic(E, "'x' was not declared", "", "k.cu", 3, 7),
        ),
        (
            "k.cu:1:2: fatal error: cuda_fp16.h: No such file or directory",
            Diagnostic(E, "cuda_fp16.h: No such file or directory", "", "k.cu", 1, 2),
        ),
        (
            "k.cu:3:7: warning: unused variable 'u' [-Wunused-variable]",
            Diagnostic(W, "unused variable 'u'", "unused-variable", "k.cu", 3, 7),
        ),
        ("k.cu:3:7: note: declared here", Diagnostic(N, "declared here", "", "k.cu", 3, 7)),
        (
            "{standard input}:20: Error: no such instruction: `bogus.op'",
            Diagnostic(E, "no such instruction: `bogus.op'", "", "{standard input}", 20),
        ),
        (
            "c++: error: unrecognized option",
            Diagnostic(E, "unrecognized option", "", "c++"),
        ),
        ("In file included from x", Diagnostic(N, "In file included from x")),
    ],
)
def test_each_message_of_the_host_compiler_is_understood(
    line: str, expected: Diagnostic
) -> None:
    """GCC and Clang write alike."""
    assert _gnu_log.parse(line) == [expected]


def test_where_a_message_of_the_host_compiler_is_belongs_to_it() -> None:
    """The lines before it say from where it was included and in which function."""
    (only,) = _gnu_log.parse(
        "In file included from .entry.cpp:1:\n"
        "k.cu: In function 'void k()':\n"
        "k.cu:3:7: error: no\n"
        "    3 | x\n"
        "      | ^\n"
    )

    assert (only.message, only.place) == ("no", "k.cu:3:7")
    assert only.excerpt.splitlines()[-1] == "k.cu: In function 'void k()':"


def test_the_summary_leads_with_the_first_error_and_counts_the_rest() -> None:
    """A person reads the first error; the rest is data."""
    diagnostics = [
        Diagnostic(W, "w"),
        Diagnostic(E, "first", file="k.cu", line=3, column=7, excerpt="  x\n  ^"),
        Diagnostic(E, "second"),
        Diagnostic(E, "third"),
    ]

    assert summarize(diagnostics) == "k.cu:3:7: error: first\n  x\n  ^\n(and 2 more errors)"
    assert summarize(diagnostics[:2]) == "k.cu:3:7: error: first\n  x\n  ^"


def test_hostile_text_is_made_visible_and_bounded() -> None:
    """A log repeats what a source says: escapes, direction marks, megabytes."""
    assert printable("a\x1b[31m\x07\r\u202eb\x85") == (
        "a\\u001b[31m\\u0007\\u000d\\u202eb\\u0085"
    )
    assert printable("tab\tand\r\nline é 日本") == "tab\tand\nline é 日本"
    long = printable("x" * 10_000, limit=100)
    assert len(long) < 200
    assert "9900 characters cut" in long


def test_a_diagnostic_survives_json() -> None:
    """It is stored with the artifact and crosses the worker's pipe."""
    diagnostic = Diagnostic(W, "m", "1", "f", 2, None, "x\ny")
    record = diagnostic.to_record()

    assert Diagnostic.from_record(record) == diagnostic
    for name in record:
        with pytest.raises(ValueError, match="not a diagnostic"):
            Diagnostic.from_record(record | {name: 1.5})
