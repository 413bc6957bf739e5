"""Random graphs on the CPU: the same bits on any threads, fused or not, and node by node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ggmlpy.backends.base import Backend
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.conformance.graphs import Program, check_program, random_graph, smaller
from tests.fuzz.case import Kind, Recipe, Wrong
from tests.fuzz.kernels import load_kernels

_WAYS: tuple[tuple[int, str], ...] = ((1, "all"), (2, "all"), (1, "none"), (2, "none"))


class Graphs(Kind):
    """Programs of ggmlpy.conformance.graphs."""

    name = "graphs"
    about = "random graphs: cpu on 1 and 2 threads, passes on or off, each node by the reference"
    n_quick = 200
    share = 3.0
    group = 16
    parts = ("nodes",)

    def prepare(self, folder: Path) -> None:
        load_kernels()

    def draw(self, rng: random.Random) -> Recipe:
        return random_graph(rng.getrandbits(60)).to_json()

    def run(self, recipe: Recipe, folder: Path) -> None:
        program = Program.from_json(recipe)
        for n_threads, passes in _WAYS:
            backend = _backend(n_threads, passes == "all")
            alone = _backend(1, False)
            judged = (n_threads, passes) == _WAYS[0]
            wrong = check_program(
                program, [backend], one_by_one=[alone], passes=passes, judged=judged
            )
            if wrong:
                what, _, detail = wrong.partition(": ")
                raise Wrong(what, f"{n_threads} threads, passes {passes}: {detail}")

    def simpler(self, recipe: Recipe) -> Iterator[Recipe]:
        programs = smaller(Program.from_json(recipe)) if "nodes" in recipe else ()
        for program in programs:
            yield program.to_json()


@cache
def _backend(n_threads: int, share: bool) -> Backend:
    return CpuBackend(n_threads, share_activations=share)
