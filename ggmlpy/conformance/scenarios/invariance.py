"""Batch invariance: a row has the same bits alone and among others.

For every case of an op whose rows (tokens, queries, sequences) do not depend on one another, some
rows are computed again in smaller batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases import CASES
from ggmlpy.conformance.checks import NotSupported
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.run import Array, Prepared, computing, initial_bytes, restore, unsupported
from ggmlpy.conformance.suite import Subject
from ggmlpy.graph.arrays import element_view
from ggmlpy.graph.spec import as_ne
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes
from ggmlpy.graph.types import BF16


@dataclass(frozen=True, slots=True)
class Batch:
    """Along which dimension, in ne order, each source and the result have the batch.

    A source whose dimension is None, or of one element, is whole in every part of the batch.
    """

    sources: tuple[int | None, ...]
    result: int


_BATCHES = {
    "mul_mat": Batch((None, 1), 1),
    "mul_mat_id": Batch((None, 2, 1), 2),
    "flash_attn_ext": Batch((1, None, None, 1), 2),
    "soft_max_ext": Batch((1, 1), 1),
    "soft_max": Batch((1,), 1),
    "rms_norm": Batch((1,), 1),
    "norm": Batch((1,), 1),
    "l2_norm": Batch((1,), 1),
    "rope_ext": Batch((2, 0), 2),
    "ssm_conv": Batch((2, None), 2),
    "lightning_indexer": Batch((2, None, 1, 1), 1),
    "dsv4_hc_comb": Batch((1, None, None), 2),
    "dsv4_hc_pre": Batch((2, 1), 1),
    "dsv4_hc_pre_gated": Batch((2, 2), 1),
}
_MOST = 200  # rows of a batch: the many rows of some cases are there for the grids of GPUs


def _batch_of(case: Case) -> Batch | None:
    """Where a case has its batch; None if it has none that can be divided."""
    batch = _BATCHES.get(case.op)
    if batch is None or "sections" in case.params or "lists" in case.params:
        return None
    first = next(i for i, dim in enumerate(batch.sources) if dim is not None)
    dim = batch.sources[first]
    assert dim is not None
    if case.op == "ssm_conv" and len(case.ne) == 3:
        return Batch((None, None, 1), 1) if case.ne[2][1] > 1 else None
    return batch if 1 < as_ne(case.ne[first])[dim] <= _MOST else None


@dataclass(frozen=True, slots=True)
class InvarianceTest:
    """A case, and the rows of its batch in parts: the first, the last, and two in the middle."""

    case: Case
    batch: Batch

    op = "batch invariance"

    @property
    def id(self) -> str:
        return f"batch invariance of {self.case.id}"

    def nodes(self, seed: int) -> list[Tensor]:
        y = build(self.case, seed)
        parts = [self._part(y, *span) for span in self._spans(y.ne[self.batch.result])]
        return computing(y, *parts)

    def check(self, subject: Subject) -> str:
        backend = subject.backend
        if not backend.batch_invariant:
            raise NotSupported(f"{backend.name} does not claim batch invariance")
        y = build(self.case, subject.seed)
        parts = {s: self._part(y, *s) for s in self._spans(y.ne[self.batch.result])}
        reason = unsupported(backend, [y, *parts.values()])
        if reason:
            raise NotSupported(reason)
        before = initial_bytes([y])
        whole = Prepared(backend, [y])
        whole.run()
        want = self._rows(element_view(whole.raw(y), y.spec))
        for (begin, end), part in parts.items():
            restore({leaf: data for leaf, data in before.items() if Flag.WEIGHT in leaf.flags})
            run = Prepared(backend, [part])
            run.run()
            got = self._rows(element_view(run.raw(part), part.spec))
            if got.tobytes() != want[begin:end].tobytes():
                n = int((got != want[begin:end]).any(axis=tuple(range(1, got.ndim))).sum())
                alone = f"rows {begin} to {end - 1} of {len(want)}"
                return f"{alone}: {n} have other bits when they are a batch of their own"
        return ""

    @staticmethod
    def _spans(n: int) -> list[tuple[int, int]]:
        spans = [(0, 1), (n - 1, n), (n // 2 - 1, n // 2 + 1)]
        return [
            (begin, end) for begin, end in dict.fromkeys(spans) if begin >= 0 and end - begin < n
        ]

    def _rows(self, values: Array) -> Array:
        """The result with the batch in front."""
        return np.ascontiguousarray(np.moveaxis(values, 3 - self.batch.result, 0))

    def _part(self, y: Tensor, begin: int, end: int) -> Tensor:
        """The same op on a part of the batch, over copies of these rows."""
        assert y.op is not None
        sources = []
        for i, source in enumerate(y.src):
            dim = self.batch.sources[i] if i < len(self.batch.sources) else None
            n = y.ne[self.batch.result]
            if dim is None or source.ne[dim] < n:
                sources.append(source)
            else:
                sources.append(_slice(source, dim, begin, end))
        return y.op.node(*sources)


def _slice(source: Tensor, dim: int, begin: int, end: int) -> Tensor:
    """A leaf with copies of some of the elements along a dimension."""
    root = source.root
    assert root.place is not None
    data = root.place.buffer.read(root.place.offset, root.spec.n_bytes)
    elements = element_view(data, source.spec, source.view_offs)
    cut = [slice(None)] * 4
    cut[3 - dim] = slice(begin, end)
    values = np.ascontiguousarray(elements[tuple(cut)])
    type = BF16 if source.type is BF16 else source.type
    return from_bytes(values.reshape(-1).view(np.uint8), type, values.shape[::-1])


TESTS = [InvarianceTest(case, batch) for case in CASES if (batch := _batch_of(case)) is not None]
