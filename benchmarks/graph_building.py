"""What a new shape of ubatch costs in Python: its graph, by node, and its plan.

    python benchmarks/graph_building.py [model.gguf ...] [--repeat 20] [--save]

The graph of each model, by default of the small one in the package, is for any mixture of up to 512
tokens. Shown are medians of the processor time of one thread. "plan" is all that is done once for
a shape: the graph, passes, memory, records of kernels. --save writes
benchmarks/results/graph_building.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time_ns

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from ggmlpy.errors import GgmlpyError
from ggmlpy.packaged import packaged_model
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import ContextWarning

RESULTS = report.RESULTS / "graph_building.json"
N_TOKENS = 512


@dataclass(frozen=True)
class Cost:
    """Of one model's graph; times in us."""

    model: str
    architecture: str
    n_nodes: int  # views among them
    graph: float
    graph_per_node: float
    plan: float


def median_us(run: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        started = process_time_ns()
        run()
        times.append((process_time_ns() - started) / 1000)
    return statistics.median(times)


def measure(path: Path, repeat: int) -> Cost:
    """Raises GgmlpyError for a file that cannot be loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextWarning)
        context = Context.open(path, n_ctx=2 * N_TOKENS, n_threads=1)
    if context.encoder is not None:
        context.encode([0] * 8)
    context.decode([0] * N_TOKENS)  # compiles kernels, packs weights
    cache = context.plans
    (shape,) = cache.plans
    n_nodes = len(cache.graph_of(shape).nodes)
    graph = median_us(lambda: cache.graph_of(shape), repeat)

    def plan() -> None:
        cache.plans.clear()
        cache.get(shape)

    return Cost(
        path.name,
        context.model.hparams.architecture,
        n_nodes,
        graph,
        graph / n_nodes,
        median_us(plan, repeat),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=report.model_file, metavar="FILE")
    parser.add_argument("--repeat", type=report.count, default=20)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args(arguments)
    about = report.about_run(1, [])
    table = Table("model", "architecture", "nodes", "graph, ms", "us a node", "plan, ms")
    for path in options.models or [packaged_model()]:
        report.tell(path.name)
        try:
            cost = measure(path, options.repeat)
        except GgmlpyError as error:
            return report.fail(error)
        table.add_row(
            cost.model,
            cost.architecture,
            str(cost.n_nodes),
            f"{cost.graph / 1000:.1f}",
            f"{cost.graph_per_node:.1f}",
            f"{cost.plan / 1000:.1f}",
        )
        if options.save:
            report.save(RESULTS, cost.model, {"about": about, "us": asdict(cost)})
    report.show(table)
    report.warn(report.warnings_of(about, []))
    return 0


if __name__ == "__main__":
    sys.exit(main())
