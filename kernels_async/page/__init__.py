"""The page of a build, what changed between two, and the build as a trace."""

from ._diff import Change, Comparison, Verdict, compare_builds
from ._page import is_page, read_build, render_page
from ._trace import is_trace, trace_build

__all__ = [
    "Change",
    "Comparison",
    "Verdict",
    "compare_builds",
    "is_page",
    "is_trace",
    "read_build",
    "render_page",
    "trace_build",
]
