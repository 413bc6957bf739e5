"""Scans fused with what reads and writes states in rows of a table, on the emulated device: the
bits of the nodes one by one, wherever the rows lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.base import Places
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.backends.cuda.plan import CudaPlan
from ggmlpy.backends.step import Step
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor, from_numpy, zeros
from ggmlpy.sched.executable import Executable
from tests.cuda.test_scans import EACH_SCAN, SCANS, parts

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

N_ROWS = 6
LENGTHS = (2, 1, 3)
FIRST = np.cumsum([0, *LENGTHS])


class Recording(CudaBackend):
    """Remembers the ops of its steps and the kernels that it launches."""

    def __init__(self) -> None:
        super().__init__(EmulatedDriver())
        self.ops: list[str] = []
        self.kernels: list[str] = []

    def plan(self, steps: Sequence[Step], places: Places) -> CudaPlan:
        plan = super().plan(steps, places)
        assert isinstance(plan, CudaPlan)
        self.ops = [step.op for step in steps]
        self.kernels = [launch.form.name for launch in plan.launches]
        return plan


DEVICE = Recording()


class Layers:
    """Layers of a scan, each with a table of its own, whose rows have the same numbers in all."""

    def __init__(self, name: str, ids: Sequence[int], to: Sequence[int], n_layers: int = 1) -> None:
        self.scan, self.rng = SCANS[name], np.random.default_rng(3)
        self.ids, self.to = (from_numpy(np.array(rows, np.int32)) for rows in (ids, to))
        spans = np.stack([FIRST[: len(ids)], LENGTHS[: len(ids)]], axis=1)
        self.spans = from_numpy(spans.astype(np.int32))
        self.n_tokens = int(spans[:, 1].sum())
        self.size = int(np.prod(self.scan.state))
        self.reads_rows = not name.startswith("ssm_scan")
        self.name = name.partition(",")[0]
        self.tables = [self._table() for _ in range(n_layers)]
        self.before = self._uniform(n_layers, N_ROWS, self.size)
        self.results = [y for table in self.tables for y in self.layer(table, table)]

    def run(self, passes: str) -> list[NDArray[np.uint32]]:
        """The outputs and the tables after a run."""
        executable = Executable(Graph(*self.results), [DEVICE], passes=passes)
        for table, before in zip(self.tables, self.before, strict=True):
            assert table.place is not None
            table.place.buffer.write(table.place.offset, before.reshape(-1).view(np.uint8))
        executable.run()
        read = [*self.results[1::2], *self.tables]
        return [executable.read(y).view(np.uint32).reshape(-1) for y in read]

    def fused(self) -> str:
        return f"{'get_rows+' * self.reads_rows}{self.name}+set_rows"

    def _uniform(self, *shape: int) -> NDArray[np.float32]:
        return self.rng.uniform(-1, 1, shape).astype(np.float32)

    def _table(self) -> Tensor:
        ne = self.size, N_ROWS
        return zeros("f32", ne, buffer_type=DEVICE.buffer_type, flags=Flag.STATE)

    def layer(self, table: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
        """The table with the new states, and the outputs: what is written comes first in models."""
        tokens = [from_numpy(self._uniform(self.n_tokens, *ne[::-1])) for ne in self.scan.tokens]
        rows = ops.get_rows(table, self.ids) if self.reads_rows else table
        states = ops.reshape_4d(rows, *(*self.scan.state, rows.ne[1], 1, 1)[:4])
        result = self.scan.make(tokens, states, self.ids, self.spans)
        outputs, after = parts(result, self.n_tokens, self.size, len(self.ids.numpy()))
        return ops.set_rows(stored, after, self.to), ops.cont(outputs)


CASES = {
    "where they are": ((4, 0, 2), (4, 0, 2)),
    "to free rows": ((4, 0, 2), (1, 3, 5)),
    "one row read by all": ((2, 2, 2), (2, 0, 1)),
    "one row read by all, written by the last": ((2, 2, 2), (1, 0, 2)),
    "round": ((0, 1, 2), (1, 2, 0)),
    "alone": ((3,), (3,)),
}


@EACH_SCAN
@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_the_nodes(name: str, case: str) -> None:
    """Layers ask once where the rows lie."""
    layers = Layers(name, *CASES[case], n_layers=2)
    want = layers.run("none")
    assert layers.fused() not in DEVICE.ops
    found = layers.run("scan")
    assert DEVICE.ops.count(layers.fused()) == 2
    assert DEVICE.kernels.count("scan_rows") == 1
    for got, expected in zip(found, want, strict=True):
        assert np.array_equal(got, expected)


@EACH_SCAN
def test_one_row_that_all_write_has_the_last_of_the_states(name: str) -> None:
    found = Layers(name, (0, 1, 2), (4, 4, 4)).run("scan")
    last = Layers(name, (0, 1, 2), (3, 5, 4)).run("none")
    size = int(np.prod(SCANS[name].state))
    assert np.array_equal(found[1][4 * size : 5 * size], last[1][4 * size : 5 * size])


@EACH_SCAN
@pytest.mark.parametrize("bad", [-1, N_ROWS])
@pytest.mark.parametrize("which", ["read", "written"])
def test_a_bad_row_is_an_error_and_nothing_is_stored(name: str, bad: int, which: str) -> None:
    rows = ((0, bad, 2), (3, 4, 5)) if which == "read" else ((0, 1, 2), (3, bad, 5))
    layers = Layers(name, *rows)
    with pytest.raises(IndexOutOfRange, match=f"index {bad} is out of range"):
        layers.run("scan")
    (table,) = layers.tables
    assert table.place is not None
    raw = table.place.buffer.read(table.place.offset, table.spec.n_bytes)
    assert raw.tobytes() == layers.before.tobytes()


def test_rows_of_another_part_of_the_table_are_not_fused() -> None:
    """Their numbers say nothing of whether they are the same."""
    layers = Layers("rwkv_wkv6", (0, 1), (0, 1))
    (table,) = layers.tables
    row = table.nb[1]
    first, last = (ops.view_2d(table, layers.size, 4, row, i * row) for i in (0, 2))
    layers.results = [*layers.layer(first, last)]
    want = layers.run("none")
    found = layers.run("scan")
    assert DEVICE.ops.count(layers.fused()) == 0
    assert all(np.array_equal(got, expected) for got, expected in zip(found, want, strict=True))
