"""Many random graphs, one after another, by number or time; what fails is shrunk."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ggmlpy.backends import get_backend
from ggmlpy.backends.base import Backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.conformance.graphs.check import check_program, told
from ggmlpy.conformance.graphs.draw import random_graph
from ggmlpy.conformance.graphs.fit import fitted
from ggmlpy.conformance.graphs.program import Program
from ggmlpy.conformance.graphs.shrink import shrink

ALONE, SPLIT = "alone", "split"


@dataclass(frozen=True, slots=True)
class Finding:
    """A program that fails, as it was drawn and as small as it could be made."""

    seed: int
    mode: str
    drawn: Program
    program: Program
    wrong: str  # of the small one

    def save(self, folder: Path) -> Path:
        """Write the small program to a file of the folder, for Program.load."""
        path = folder / f"graph-{self.seed}-{self.mode}.json"
        self.program.save(path, wrong=self.wrong, seed=self.seed, mode=self.mode)
        return path

    def __str__(self) -> str:
        return f"graph {self.seed} ({self.mode}): {self.wrong}\n{self.program}"


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    n_graphs: int = 0
    n_nodes: int = 0
    n_left_out: int = 0  # nodes that no backend supports
    findings: list[Finding] = field(default_factory=list)
    elapsed_s: float = 0.0


class Checker:
    """Checks programs on a backend alone, or split with one or two others of other memory.

    Threads promise the same bits: on the CPU, graphs run on two and single nodes on one.
    `n_left_out` is the number of nodes of the last program that none of the backends supports.
    """

    def __init__(self, backend: str | Backend, mode: str = ALONE) -> None:
        self.mode = mode
        if isinstance(backend, Backend):
            self._first = self._alone = backend
        elif backend == "cpu":
            self._first, self._alone = get_backend(backend, 2), get_backend(backend, 1)
        else:
            self._first = self._alone = get_backend(backend)
        self._reference = ReferenceBackend()
        self.n_left_out = 0

    def backends(self, seed: int) -> tuple[Backend, ...]:
        """The backends of a program; `seed` is that of mock devices' delays."""
        if self.mode == ALONE:
            return (self._first,)
        if not self._first.buffer_type.is_host:
            return self._first, self._reference
        mocks = [MockBackend(f"mock:{i}", seed=seed + i) for i in range(1 + (seed % 3 == 0))]
        return self._first, *mocks

    def __call__(self, program: Program, seed: int = 0) -> str:
        """Empty, or what is wrong."""
        backends = self.backends(seed)
        try:
            program, self.n_left_out = fitted(program, backends)
        except Exception as error:  # of a backend's `supports`
            return f"failed when planned: {told(error)}"
        one_by_one = (self._alone, self._reference, self._reference)[: len(backends)]
        return check_program(program, backends, one_by_one=one_by_one, is_fitted=True)


def kind_of(wrong: str) -> str:
    """What tells one fault from another: the words before the first colon, and of an error its
    type."""
    words = wrong.split(":", 2)
    return ":".join(words[: 1 + words[0].endswith(("when run", "when planned"))])


def check_many(
    checkers: Sequence[Checker],
    *,
    n_graphs: int | None = None,
    max_s: float | None = None,
    first_seed: int = 0,
    shrink_s: float = 30.0,
    progress: Callable[[Progress], None] = lambda progress: None,
    draw: Callable[[int], Program] = random_graph,
) -> Iterator[Finding]:
    """Draw and check so many programs, or as many as there is time for, each by every checker.

    Findings are yielded as they come, shrunk for `shrink_s` each; `progress` is called after every
    program.
    """
    start_s = time.monotonic()
    state = Progress()
    seeds = itertools.count(first_seed)
    for seed in seeds if n_graphs is None else itertools.islice(seeds, n_graphs):
        if max_s is not None and time.monotonic() - start_s > max_s:
            return
        program = draw(seed)
        for checker in checkers:
            wrong = checker(program, seed)
            state.n_left_out += checker.n_left_out
            if wrong:
                finding = _finding(checker, seed, program, wrong, shrink_s)
                state.findings.append(finding)
                yield finding
        state.n_graphs += 1
        state.n_nodes += program.n_nodes
        state.elapsed_s = time.monotonic() - start_s
        progress(state)


def _finding(checker: Checker, seed: int, program: Program, wrong: str, shrink_s: float) -> Finding:
    kind = kind_of(wrong)
    small = shrink(program, lambda p: kind_of(checker(p, seed)) == kind, max_s=shrink_s)
    return Finding(seed, checker.mode, program, small, checker(small, seed))
