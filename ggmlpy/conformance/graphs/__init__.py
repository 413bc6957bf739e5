"""Random graphs: programs drawn by a seed, run on backends, checked, and shrunk where they fail.

In: backends. Out: the smallest programs whose results are wrong. Allocators, schedulers and passes
fail in graphs of several nodes, which a table of ops does not have.
"""

from __future__ import annotations

from ggmlpy.conformance.graphs.check import check_program
from ggmlpy.conformance.graphs.draw import random_graph
from ggmlpy.conformance.graphs.fit import fitted
from ggmlpy.conformance.graphs.many import Checker, Finding, Progress, check_many
from ggmlpy.conformance.graphs.program import Program
from ggmlpy.conformance.graphs.shrink import shrink, smaller

__all__ = [
    "Checker",
    "Finding",
    "Program",
    "Progress",
    "check_many",
    "check_program",
    "fitted",
    "random_graph",
    "shrink",
    "smaller",
]
