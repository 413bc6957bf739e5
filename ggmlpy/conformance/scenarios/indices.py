"""Indices out of range: an error that names the node, and nothing is written past a result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.checks import NotSupported, check_case
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.run import Prepared, computing, unsupported
from ggmlpy.conformance.suite import Subject
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.tensor import Tensor

# A case, the source that has the indices, and how many things they count.
_CASES: list[tuple[Case, int, int]] = [
    *((Case("get_rows", ne=[(64, 13), (7,)], types=(t, "i32")), 1, 13)
      for t in ("f32", "f16", "q8_0", "q4_0")),
    *((Case("set_rows", ne=[(64, 17), (64, 5), (5,)], types=(t, "f32", i)), 1, 17)
      for t in ("f32", "f16", "q8_0", "q4_0") for i in ("i32", "i64")),
    *((Case("mul_mat_id", ne=[(256, 31, 6), (256, 1, n), (3, n)], types=(t, "f32", "i32")), 2, 6)
      for t in ("f32", "q4_0") for n in (1, 8)),
    (Case("add_id", ne=[(37, 3, 11), (37, 5), (3, 11)]), 2, 5),
    (Case("ssm_conv", ne=[(37, 9), (4, 37), (4, 7)], types=("f32", "f32", "i32")), 2, 9),
    (Case("rwkv_wkv6", ne=[*[(16, 2, 9)] * 3, (16, 2), (16, 2, 9), (512, 5), (2, 5)],
          types=("f32",) * 6 + ("i32",)), 6, 10),
    (Case("ssm_scan", types=("f32",) * 6 + ("i32",),
          ne=[(19, 5, 6, 4), (5, 6, 3, 3), (6, 3, 3), (1, 6), *[(19, 2, 3, 3)] * 2, (3,)]), 6, 4),
]  # fmt: skip
_BAD = ("-1", "n", "far")  # one below, one past the end, far past it


@dataclass(frozen=True, slots=True)
class IndexTest:
    """One index of a case's is bad; then, with good ones, the same backend is right."""

    case: Case
    source: int
    limit: int
    bad: str

    op = "bad index"

    @property
    def id(self) -> str:
        return f"bad index {self.bad} in {self.case.id}"

    def nodes(self, seed: int) -> list[Tensor]:
        return computing(build(self.case, seed))

    def check(self, subject: Subject) -> str:
        y = build(self.case, subject.seed).named("the_node")
        reason = unsupported(subject.backend, [y])
        if reason:
            raise NotSupported(reason)
        self._spoil(y.src[self.source])
        run = Prepared(subject.backend, [y])
        try:
            run.run()
        except IndexOutOfRange as error:
            if "the_node" not in str(error):
                return f'the error must have the name of the node, "the_node", is: {error}'
        else:
            return "the run must raise IndexOutOfRange: it raises nothing"
        wrong = run.wrongly_changed()
        return wrong or check_case(self.case, subject.backend, (), subject.seed)

    def _spoil(self, ids: Tensor) -> None:
        values = ids.array().reshape(-1)
        values[len(values) // 2] = {"-1": -1, "n": self.limit, "far": np.iinfo(np.int32).max}[
            self.bad
        ]


TESTS = [IndexTest(*case, bad) for case in _CASES for bad in _BAD]
