"""What launches take, by the table of what iterations of the loops of hot kernels cover.

A loop of machine code does not say how often it runs. COVERS knows it for the kernels of products
(`gpu_cover_products.py`) and of attention (`gpu_cover_attention.py`). Of other kernels the way
through is executed once by each warp, and every loop once: enough for those that take a few
microseconds whatever they do. Where there is no loop with an mma, or one that is no whole number of
tiles, the kernel has changed: ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.gpu_cover_attention import attend
from benchmarks.gpu_cover_products import few_columns, many_columns, one_column, wide_columns
from benchmarks.gpu_executed import (
    Cells,
    Code,
    Covered,
    Executed,
    accessed,
    is_there,
    n_blocks,
    n_warps,
)
from benchmarks.gpu_limits import L2_S, Demand
from ggmlpy.backends.cuda.builder import Prepared

Cover = Callable[[Prepared, Code, Cells], Covered]
COVERS: Mapping[str, Cover] = {
    "multiply_one_column": one_column,
    "multiply_few_columns": few_columns,
    "multiply_many_columns": many_columns,
    "multiply_wide_columns": wide_columns,
    "attention_mma": attend,
}


def covered(launch: Prepared, code: Code, cells: Cells) -> Covered:
    """What a launch takes. Raises ValueError for a kernel that is not as the table says."""
    for name, cover in COVERS.items():
        if launch.form.name.startswith(name):
            return cover(launch, code, cells)
    return _other(launch, code, cells)


def _other(launch: Prepared, code: Code, cells: Cells) -> Covered:
    name = launch.form.name
    is_plain = name == "finish_product" and not is_there(launch, "up")
    warps = n_warps(launch)
    executed = Executed()
    for loop in code.body("usual" if is_plain else "longest").walk():
        executed.add(loop.mix, warps)
    n_bytes = _bytes_of(launch)
    demand = Demand(
        n_bytes,
        n_bytes,
        executed.clocks(),
        warp_instructions=executed.n / warps,
        wait_s=L2_S * _ROUNDS.get(name, 2),
        n_blocks=n_blocks(launch),
    )
    return Covered(demand, executed.n)


_ROUNDS = {"attention_plan": 8, "rope_table": 3}


def _bytes_of(launch: Prepared) -> float:
    """What a launch moves. Of tables that it takes rows of, only these."""
    name = launch.form.name
    if name == "get_rows":
        return 2.0 * accessed(launch, "y")
    if "set_rows" in name:
        return 1.5 * accessed(launch, "x")
    if name.startswith("rope_store"):
        of = {access.what: access.n_bytes for access in launch.accesses}
        return 2.0 * of["q"] + 1.5 * (of["k"] + of["v"])
    if name == "attention_plan":
        return float(accessed(launch, "seen") + accessed(launch, "plan"))
    if name == "finish_product":
        return float(accessed(launch, "sums") + accessed(launch, "y"))
    if name.startswith("round_to"):
        return float(accessed(launch, "x"))  # "x" and "x as int8 …"
    return float(sum(access.n_bytes for access in launch.accesses))
