"""The page of a build, what changed between two, and the build as a trace."""

from ._diff import Change, Comparison, Verdict, compare_builds
from ._page import read_build, render_page
from ._trace import trace_build

__all__ = [
    "Change",
    "Comparison",
    "Verdict",
    "compare_builds",
    "read_build",
    "render_page",
    "trace_build",
]
