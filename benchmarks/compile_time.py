"""How long compiling takes: everything that the CPU backend has, into an empty cache.

    python benchmarks/compile_time.py [--isa avx512] [--save]

That is every kernel of every op, type and fusion, which the conformance table runs, and what packs
weights, runs plans and samples. A model needs some tens of them. Seconds by the clock, and of CPU
over all processes that compile (Windows does not count those). --save writes
benchmarks/results/compile_time.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from ggmlpy.backends.cpu.backend import CpuBackend  # noqa: F401 - declares all there is
from ggmlpy.backends.cpu.cache import Cache
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernel import Entry, Kernel, all_entries
from ggmlpy.errors import GgmlpyError

RESULTS = report.RESULTS / "compile_time.json"


def measure(entries: Sequence[Entry], isa: str) -> dict[str, Any]:
    """Compiles those of `entries` that an instruction set can run."""
    with tempfile.TemporaryDirectory() as folder:
        jit = Jit(isa, cache=Cache(Path(folder)))
        runnable = [
            entry
            for entry in entries
            if jit.isa.includes(entry.needs if isinstance(entry, Kernel) else "generic")
        ]
        cpu, start = _cpu_s(), time.perf_counter()
        jit.load(runnable)
        wall_s, cpu_s = time.perf_counter() - start, _cpu_s() - cpu
        n_bytes = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {
        "isa": jit.isa.name,
        "n_compiled": len(runnable),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "mb": round(n_bytes / 1e6, 2),
    }


def _cpu_s() -> float:
    """Of processes that have ended, as those that compile do."""
    used = os.times()
    return used.children_user + used.children_system


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", help="instruction set (default: the best one of this CPU)")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    try:
        isa = select(options.isa).name
        report.tell(f"compiling for {isa}")
        figures = measure(all_entries(), isa)
    except GgmlpyError as error:
        return report.fail(error)
    table = Table(title="compiling everything into an empty cache")
    for column in ("instruction set", "functions", "seconds", "of CPU", "MB"):
        table.add_column(column, justify="right")
    table.add_row(*map(str, figures.values()))
    report.show(table)
    if options.save:
        report.save(
            RESULTS, figures["isa"], {**report.about_run(default_n_threads(), []), **figures}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
