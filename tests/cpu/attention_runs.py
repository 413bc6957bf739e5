"""Which queries attention takes together: its own decisions, compiled for test_attention_blocks."""

from __future__ import annotations

from ggmlpy.backends.cpu.kernel import Int, Record, entry, record_dtype
from ggmlpy.backends.cpu.kernels.attention_blocks import run_at
from ggmlpy.backends.cpu.kernels.attention_memory import scratch_at
from ggmlpy.backends.cpu.kernels.attention_tasks import ARGS, cut_of, task_at
from ggmlpy.backends.cpu.simd.core import i64, void
from ggmlpy.backends.cpu.simd.memory import store_i64


@entry(void, i64, i64, i64, record=record_dtype(ARGS))
def attention_runs(p: Record, nth: Int, out: Int) -> None:
    """The address of the first thread's table of rows, then every task's runs for each head of
    K: the head, first query, number of queries."""
    cut = cut_of(p, 1, nth)
    store_i64(out, scratch_at(p, 0, cut.n_rows).rows)
    at = out + 8
    for outer in range(cut.n_outer):
        task = task_at(p, cut, outer)
        query, end = task.query, task.query + task.n_queries
        while query < end:
            run = run_at(p, cut, query, end, task.sequence)
            for i in range(task.n_kv):
                store_i64(at, task.first_kv + i)
                store_i64(at + 8, run.query)
                store_i64(at + 16, run.n)
                at += 24
            query += run.n
