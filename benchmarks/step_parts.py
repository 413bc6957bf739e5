"""Where the time of a decode step goes: the compiled plan, and Python's share part by part.

    python benchmarks/step_parts.py [model.gguf] [--sequences 1,32] [--temperature 0,0.8] [--save]

Each sequence writes a token a step through the engine, as under `Llama.generate`. A part's time is
its own: what it calls of another part counts there. Shown are medians over the steps in which all
sequences write, of the parts that most of them have: checking, cells and inputs are for steps that
do not go on from the one before. The clocks themselves cost some 0.2 us a part. --save writes
benchmarks/results/step_parts.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from unittest.mock import patch

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

import ggmlpy
from benchmarks import report
from ggmlpy import Llama
from ggmlpy.backends.cpu.threads import ThreadPool
from ggmlpy.engine.engine import Engine
from ggmlpy.errors import GgmlpyError
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import ContextWarning
from ggmlpy.runtime.steady import SteadyStep
from ggmlpy.sampling import Sampler
from ggmlpy.text.stopping import StopChecker
from ggmlpy.text.tokenizer.stream import StreamDecoder

RESULTS = report.RESULTS / "step_parts.json"
PLAN = "compiled plan"
STEP = "engine: choosing, counting, handing out"
PARTS: dict[str, list[tuple[type, str]]] = {
    PLAN: [(ThreadPool, "run")],
    "checking and arranging the batch": [(Context, "_check"), (Context, "_ubatches_of")],
    "cells of the cache": [(SequenceMemory, "apply")],
    "inputs of the graph": [(Context, "_run")],
    "what is new in a step that goes on": [(SteadyStep, "run")],
    "sampling": [(Sampler, "sample"), (Sampler, "accept")],
    "text of tokens": [(StreamDecoder, "push"), (StopChecker, "push")],
    STEP: [(Engine, "advance")],
}
PROMPT = "Once upon a time"
N_WARM = 8  # steps at the start that do not count


class Clock:
    """Nanoseconds of each part, step by step. A part that calls another stops its own time."""

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self._now: dict[str, int] = {}
        self._open: list[str] = []
        self._since = 0

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time on this clock."""

        def call(*args: Any, **options: Any) -> Any:
            self._enter(part)
            try:
                return function(*args, **options)
            finally:
                self._leave()

        return call

    def _enter(self, part: str) -> None:
        self._turn()
        self._open.append(part)

    def _leave(self) -> None:
        self._turn()
        self._open.pop()
        if not self._open:
            self.steps.append(self._now)
            self._now = {}

    def _turn(self) -> None:
        """Give the time that has passed to the part that was running."""
        now = perf_counter_ns()
        if self._open:
            part = self._open[-1]
            self._now[part] = self._now.get(part, 0) + now - self._since
        self._since = now

    def medians(self, n_steps: int) -> dict[str, float]:
        """Microseconds of each part: medians over the last `n_steps`."""
        steps = self.steps[-n_steps:]
        return {part: statistics.median(s.get(part, 0) for s in steps) / 1000 for part in PARTS}


@contextmanager
def clocked() -> Iterator[Clock]:
    """Every part of a step with a clock on it."""
    clock = Clock()
    with ExitStack() as stack:
        for part, functions in PARTS.items():
            for owner, name in functions:
                timed = clock.timed(part, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
        yield clock


def measure(llm: Llama, n_sequences: int, temperature: float, n_steps: int) -> dict[str, float]:
    """Microseconds of each part of a step in which `n_sequences` write."""
    options: dict[str, Any] = {"temperature": temperature, "seed": 1, "max_tokens": 10**9}
    # Nothing ends a text before all have been measured: no end token is ever the likeliest.
    options["logit_bias"] = dict.fromkeys(llm.tokenizer.eog_ids, float("-inf"))
    llm.reset()
    engine = llm.engine
    for _ in range(n_sequences):
        engine.add(llm.request(PROMPT, **options))
    for _ in range(N_WARM):
        engine.step()
    with clocked() as clock:
        for _ in range(n_steps):
            engine.step()
    llm.reset()
    return clock.medians(n_steps)


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="microseconds of a decode step")
    table.add_column("part")
    for row in rows:
        n = row["sequences"]
        title = f"{n} sequence{'s' * (n > 1)},\ntemperature {row['temperature']:g}"
        table.add_column(title, justify="right")
    for part in PARTS:
        if any(row["us"][part] for row in rows):
            table.add_row(part, *(f"{row['us'][part]:.1f}" for row in rows))
    table.add_section()
    table.add_row("Python in all", *(f"{python_us(row['us']):.1f}" for row in rows))
    report.show(table)


def python_us(us: dict[str, float]) -> float:
    """All but the plan."""
    return sum(us.values()) - us[PLAN]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", type=Path, default=ggmlpy.packaged_model())
    parser.add_argument("--sequences", type=report.counts, default=[1, 32], help="at a time (1,32)")
    parser.add_argument("--temperature", default="0,0.8", help="0: the likeliest token")
    parser.add_argument("--steps", type=report.count, default=100)
    parser.add_argument("--threads", type=report.count, default=1)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ContextWarning)  # the text does not matter
    rows = []
    try:
        for n in options.sequences:
            n_ctx = n * (N_WARM + options.steps + 64)
            with Llama(
                options.model, n_ctx=n_ctx, n_seq_max=n, n_threads=options.threads, backend="cpu"
            ) as llm:
                for temperature in map(float, report.words(options.temperature)):
                    report.tell(f"{n} sequences, temperature {temperature:g}")
                    us = measure(llm, n, temperature, options.steps)
                    rows.append({"sequences": n, "temperature": temperature, "us": us})
    except (GgmlpyError, ValueError) as error:
        return report.fail(error)
    show(rows)
    if options.save:
        entry = {**report.about_run(options.threads, []), "rows": rows}
        report.save(RESULTS, options.model.name, entry)
    return 0


if __name__ == "__main__":
    sys.exit(main())
