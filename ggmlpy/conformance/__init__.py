"""Backend conformance: cases of every op, and how results are judged.

In: a backend. Out: what of it differs from the ops' references, case by case.
"""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases import CASES
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.judge import compare, nmse

__all__ = ["CASES", "Case", "build", "compare", "nmse"]
