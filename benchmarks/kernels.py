"""Every product and attention kernel of the CPU backend by itself, beside what the CPU can do.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --only "q4_0*rows=512" --isa avx512,avx2 --threads 1
    python benchmarks/kernels.py --sizes 2048x2048,8192x2048,1536x1001

Kernels run in plans of the backend, with random weights and caches that take up --memory-mb each,
for every instruction set of this CPU and every number of --threads. Sizes are [k, m] of weights;
x is f32, and is quantised once a plan, as products in a row share it in a model. Attention has the
heads of Llama-3.2-1B: one query at each of --depths; --streams sequences at the first of them,
split, unified and interleaved; a prompt of --prompt tokens without any before it, and behind as
many as the last depth.

All kernels take turns, --repeat times, so that noise falls on all alike; those of one instruction
set and number of threads follow each other, behind the ceilings of both (kernel_ceilings.py): the
bytes a second of plain loads, and the multiply-adds a second of a loop of nothing else. Shown are
medians, and the best of each ceiling. "limit" is the share of the ceiling that is nearer: "r" of
reading, else of multiply-adds. Reading may exceed what plain loads bring where caches help. For
bf16 weights in AMX tiles x is split into three bf16, so that a third is the most that there is.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from benchmarks.kernel_cases import (
    WEIGHT_TYPES,
    Case,
    Measured,
    Sources,
    attention,
    memory_bytes,
    prepare,
    products,
)
from benchmarks.kernel_ceilings import Machine, best
from benchmarks.report import count, counted, counts, words
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.backends.cpu.isa import available
from ggmlpy.bench.bandwidth import last_level_cache_bytes
from ggmlpy.common.system_memory import check_memory
from ggmlpy.errors import AllocationError, GgmlpyError
from ggmlpy.graph.types import type_of

RESULTS = report.RESULTS / "kernels.json"
CACHE_TYPES = ("f16", "f32", "q8_0")
READ_BYTES = 1 << 28  # by which the bandwidth is measured, unless the caches are larger
# --quick: what changes most often, in little time.
QUICK_TYPES = ("q4_0", "q8_0", "q4_K", "f16")
QUICK_ROWS = (1, 64)

Way = tuple[str, int]  # instruction set, threads


@dataclass(frozen=True, slots=True)
class Speed:
    """A kernel's figures: medians."""

    id: str
    isa: str
    threads: int
    seconds: float  # of a node
    products_per_s: float
    bytes_per_s: float
    unit: str
    share_of_products: float
    share_of_reading: float

    @property
    def share(self) -> float:
        return max(self.share_of_products, self.share_of_reading)

    @property
    def shown(self) -> tuple[str, str, str]:
        mark = "r " if self.share_of_reading > self.share_of_products else ""
        rates = self.products_per_s / 1e9, self.bytes_per_s / 1e9
        return report.rounded(rates[0]), report.rounded(rates[1]), f"{mark}{self.share:.0%}"


def cases_of(options: argparse.Namespace) -> list[Case]:
    """Those that the pattern matches. Raises ValueError where there are none, and for a size that
    a type does not have."""
    for type in options.types:
        for k, m in options.sizes:
            if k % type_of(type).block_size:
                raise ValueError(
                    f"--sizes {k}x{m}: rows of {type} are multiples of {type_of(type).block_size}"
                )
    found = products(options.types, options.sizes, options.rows)
    found += attention(options.kv_types, options.depths, options.streams, options.prompt)
    chosen = [case for case in found if fnmatch.fnmatchcase(case.id, f"*{options.only}*")]
    if not chosen:
        raise ValueError(f"--only {options.only}: no kernel is called so, but {found[0].id!r}, ...")
    return chosen


def measure(
    cases: Sequence[Case], ways: Sequence[Way], options: argparse.Namespace
) -> tuple[list[Speed], dict[Way, dict[str, float]], list[str]]:
    """Figures, ceilings, and what is not supported. Raises AllocationError for more memory than
    the machine has, before any is taken."""
    each = options.memory_mb << 20
    source = Sources(each)
    n_read = max(READ_BYTES, 4 * (last_level_cache_bytes() or 0))
    try:
        check_memory(n_read + max(each, memory_bytes(cases, source, len(ways))))
    except AllocationError as error:
        raise AllocationError(f"--memory-mb {options.memory_mb}: {error}") from None
    lines = np.ones(n_read, np.uint8)
    plans: dict[Way, list[Measured]] = {}
    machines: dict[Way, Machine] = {}
    refused: list[str] = []
    for way in ways:
        isa, n_threads = way
        backend = CpuBackend(n_threads, isa)
        doing = f"planning {counted(len(cases), 'kernel')}"
        report.tell(f"{isa}, {counted(n_threads, 'thread')}: {doing}")
        machines[way] = Machine(backend.isa, n_threads, lines)
        made = [prepare(case, backend, source) for case in cases]
        refused += [f"{isa}: {reason}" for reason in made if isinstance(reason, str)]
        plans[way] = [plan for plan in made if isinstance(plan, Measured)]
    samples: dict[Way, list[Mapping[str, float]]] = {way: [] for way in ways}
    n_runs = options.repeat * sum(map(len, plans.values()))
    report.tell(counted(n_runs, "run"))
    with report.progress("kernels", n_runs) as advance:
        for _ in range(options.repeat):
            for way in ways:
                samples[way].append(machines[way].measure())
                for plan in plans[way]:
                    began = perf_counter()
                    plan.plan.again()
                    plan.seconds.append(perf_counter() - began)
                advance(len(plans[way]))
    ceilings = {way: best(samples[way]) for way in ways}
    speeds = [speed_of(plan, ceilings[way]) for way in ways for plan in plans[way]]
    return speeds, ceilings, list(dict.fromkeys(refused))


def speed_of(measured: Measured, ceilings: Mapping[str, float]) -> Speed:
    case = measured.case
    seconds = statistics.median(measured.seconds) / measured.n_nodes
    products_per_s, bytes_per_s = case.n_products / seconds, case.n_bytes / seconds
    unit = case.unit(measured.isa)
    return Speed(
        case.id,
        measured.isa.name,
        measured.n_threads,
        seconds,
        products_per_s,
        bytes_per_s,
        unit,
        products_per_s / ceilings[unit],
        bytes_per_s / ceilings["read"],
    )


def doubts_of(cases: Sequence[Case], options: argparse.Namespace) -> list[str]:
    """Weights that stay in the caches are not read from memory."""
    cache = last_level_cache_bytes() or 0
    if options.memory_mb << 20 >= 2 * cache or len(cases) * options.memory_mb << 20 >= 4 * cache:
        return []
    return [
        f"the weights of a kernel may stay in the caches, {cache / 1e6:.0f} MB:"
        f" --memory-mb {2 * cache >> 20} is more than those hold"
    ]


# --- showing ------------------------------------------------------------------------------------


def show(speeds: Sequence[Speed], ceilings: Mapping[Way, Mapping[str, float]]) -> None:
    """A table for each instruction set and number of threads."""
    for (isa, n_threads), found in ceilings.items():
        title = f"kernels, {counted(n_threads, 'thread')}, {isa}"
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("kernel", no_wrap=True)
        for column in ("G/s", "GB/s", "limit"):
            table.add_column(column, justify="right", no_wrap=True)
        for name, value in found.items():
            rate = report.rounded(value / 1e9)
            cells = ("", rate) if name == "read" else (rate, "")
            table.add_row(f"ceiling: {name}", *cells, "", style="bold")
        table.add_section()
        for speed in speeds:
            if (speed.isa, speed.threads) == (isa, n_threads):
                table.add_row(speed.id, *speed.shown)
        report.show(table)


# --- the command --------------------------------------------------------------------------------


def sizes(text: str) -> list[tuple[int, int]]:
    """`2048x8192,…` as pairs."""
    pairs = [part.split("x") for part in words(text)]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} must be sizes such as 2048x8192,1536x1001")
    return [(count(k), count(m)) for k, m in pairs]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    levels = [isa.name for isa in available()]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="PATTERN",
        help="kernels whose line contains it; * stands for anything",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true",
        help=f"{', '.join(QUICK_TYPES)} with {' and '.join(map(str, QUICK_ROWS))} rows of x, one"
        " depth, the best instruction set, 3 times",
    )  # fmt: skip
    parser.add_argument(
        "--isa", type=words, metavar="L,L…",
        help=f"instruction sets ({','.join(_usual(levels))})",
    )  # fmt: skip
    parser.add_argument("--threads", type=counts, help="1 and one for each core", metavar="N,N…")
    parser.add_argument("--types", type=words, metavar="T,T…", help=f"{','.join(WEIGHT_TYPES)}")
    parser.add_argument("--rows", type=counts, metavar="N,N…", help="of x (1,8,32,512)")
    parser.add_argument("--sizes", type=sizes, default=[(2048, 8192)], metavar="KxM,…")
    parser.add_argument(
        "--kv-types", type=words, default=CACHE_TYPES, metavar="T,T…",
        help=f"of K and V ({','.join(CACHE_TYPES)})",
    )  # fmt: skip
    parser.add_argument("--depths", type=counts, metavar="N,N…", help="(1024,8192)")
    parser.add_argument("--streams", type=count, default=32)
    parser.add_argument("--prompt", type=count, default=512)
    parser.add_argument("--repeat", type=count, help="(7)")
    parser.add_argument("--memory-mb", type=count, default=64, metavar="N")
    parser.add_argument(
        "--save", type=report.results_file, nargs="?", const=RESULTS, metavar="FILE",
        help=f"keep the figures (benchmarks/results/{RESULTS.name})",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    _fill(options, levels)
    for name, given, known in (
        ("--isa", options.isa, levels),
        ("--types", options.types, WEIGHT_TYPES),
        ("--kv-types", options.kv_types, CACHE_TYPES),
    ):
        for value in given:
            if value not in known:
                parser.error(f"{name}: there is no {value} here, but {', '.join(known)}")
    return options


def _usual(levels: Sequence[str]) -> list[str]:
    """All but generic, unless there is no other."""
    return [level for level in levels if level != "generic"] or list(levels)


def _fill(options: argparse.Namespace, levels: Sequence[str]) -> None:
    """What was not given."""
    quick = options.quick
    threads = sorted({1, default_n_threads()})
    for name, usual, short in (
        ("isa", _usual(levels), levels[:1]),
        ("threads", threads, threads[-1:]),
        ("types", WEIGHT_TYPES, QUICK_TYPES),
        ("rows", [1, 8, 32, 512], QUICK_ROWS),
        ("depths", [1024, 8192], [1024]),
        ("repeat", 7, 3),
    ):
        if getattr(options, name) is None:
            setattr(options, name, short if quick else usual)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    ways = [(isa, n) for n in options.threads for isa in options.isa]
    about = report.about_run(max(options.threads), [])
    try:
        cases = cases_of(options)
        speeds, ceilings, refused = measure(cases, ways, options)
    except (GgmlpyError, OSError, ValueError) as error:
        return report.fail(error)
    except KeyboardInterrupt:
        return 130
    show(speeds, ceilings)
    doubts = [*report.warnings_of(about, []), *doubts_of(cases, options), *refused]
    report.warn(doubts)
    if options.save:
        report.save(options.save, about["cpu"], as_entry(about, options, speeds, ceilings, doubts))
    return 0


def as_entry(
    about: Mapping[str, Any],
    options: argparse.Namespace,
    speeds: Sequence[Speed],
    ceilings: Mapping[Way, Mapping[str, float]],
    doubts: Sequence[str],
) -> dict[str, Any]:
    return {
        **about,
        "repeat": options.repeat,
        "memory_mb": options.memory_mb,
        "doubts": list(doubts),
        "ceilings": [{"isa": isa, "threads": n, **c} for (isa, n), c in ceilings.items()],
        "kernels": [
            {name: getattr(s, name) for name in s.__dataclass_fields__} | {"share": s.share}
            for s in speeds
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
