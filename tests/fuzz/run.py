"""Running the kinds side by side: who does what next, findings told apart, shrunk and saved."""

from __future__ import annotations

import select
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.case import Case, Kind, Outcome, Recipe
from tests.fuzz.isolate import Zygote
from tests.fuzz.shrink import shrink

_BATCH_S = 3.0  # of cases that a zygote is asked for at a time
_SHRINK_S = 60.0  # for one finding


@dataclass
class Tally:
    """What came of one kind's cases."""

    kind: Kind
    n_wanted: int | None  # None: as many as there is time for
    n_asked: int = 0
    spent_s: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    findings: dict[tuple[str, str], tuple[Path, int]] = field(default_factory=dict)

    @property
    def n_cases(self) -> int:
        return self.statuses.total()

    @property
    def n_left(self) -> int | None:
        return None if self.n_wanted is None else self.n_wanted - self.n_asked

    def batch(self, n_lanes: int) -> int:
        """How many cases to ask for next."""
        rate = self.n_cases / self.spent_s if self.spent_s else 0.0
        n = max(int(rate * _BATCH_S), self.kind.group)
        return n if self.n_left is None else min(n, max(1, self.n_left // n_lanes), self.n_left)


class Lane:
    """One process at a time that works: a zygote of each kind, made when it is first wanted."""

    def __init__(self) -> None:
        self.zygotes: dict[str, Zygote] = {}
        self.tally: Tally | None = None  # what it works at
        self.seeds: list[str] = []  # asked for and not answered
        self.since_s = 0.0

    def zygote(self, kind: Kind) -> Zygote:
        """The one of this kind."""
        if kind.name not in self.zygotes:
            self.zygotes[kind.name] = Zygote(kind)
        return self.zygotes[kind.name]

    def close(self) -> None:
        """End the processes, one that works in the middle of it."""
        for name, zygote in self.zygotes.items():
            zygote.close(at_once=self.tally is not None and self.tally.kind.name == name)
        self.zygotes.clear()


class Run:
    """One run of the fuzzer. `say` shows a line, `show` the counts so far."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        *,
        seed: str,
        n_jobs: int,
        n_cases: dict[str, int] | None,
        seconds: float,
        out: Path,
    ) -> None:
        self.tallies = {
            kind.name: Tally(kind, None if n_cases is None else n_cases[kind.name])
            for kind in kinds
        }
        self.lanes = [Lane() for _ in range(n_jobs)]
        self._shrinking = Lane()  # beside them
        self.seed = seed
        self.out = out
        self.begun_s = time.monotonic()
        self._deadline_s = self.begun_s + seconds

    def events(self) -> Generator[str, None, None]:
        """Work until all is done; a line for each new finding, an empty one after each batch."""
        try:
            while any([self._begin(lane) for lane in self.lanes if lane.tally is None]) or any(
                lane.tally for lane in self.lanes
            ):
                for lane in self._ready():
                    yield from self._take(lane)
        finally:
            for lane in (*self.lanes, self._shrinking):
                lane.close()

    def _begin(self, lane: Lane) -> bool:
        tally = self._choose(lane)
        if tally is None:
            return False
        n = tally.batch(len(self.lanes))
        lane.seeds = [f"{self.seed}.{tally.n_asked + i}" for i in range(n)]
        tally.n_asked += n
        zygote = lane.zygote(tally.kind)
        lane.tally, lane.since_s = tally, time.monotonic()
        zygote.ask(lane.seeds)
        return True

    def _choose(self, lane: Lane) -> Tally | None:
        """With counts one kind after another, which saves zygotes; else what had least time."""
        if time.monotonic() > self._deadline_s:
            return None
        left = [tally for tally in self.tallies.values() if tally.n_left != 0]
        taken = [other.tally for other in self.lanes]

        def rank(tally: Tally) -> tuple[float, ...]:
            if tally.n_wanted is None:
                return (tally.spent_s / tally.kind.share + taken.count(tally),)
            return (tally.kind.name not in lane.zygotes, taken.count(tally))

        return min(left, key=rank, default=None)

    def _ready(self) -> list[Lane]:
        working = [lane for lane in self.lanes if lane.tally is not None]
        by_pipe = {lane.zygote(lane.tally.kind): lane for lane in working if lane.tally}
        ready, _, _ = select.select(list(by_pipe), [], [], 1.0)
        return [by_pipe[zygote] for zygote in ready]

    def _take(self, lane: Lane) -> Iterator[str]:
        """The answers that a lane has for us."""
        tally = lane.tally
        assert tally is not None
        zygote = lane.zygote(tally.kind)
        new: list[Case] = []
        for recipe, outcome in zygote.answers():
            seed = lane.seeds.pop(0)
            tally.statuses[outcome.status] += 1
            if outcome.status == "refused":
                tally.refusals[outcome.what] += 1
            if outcome.status == "finding":
                assert recipe is not None
                if self._is_new(tally, outcome):
                    new.append(Case(tally.kind.name, recipe, seed, outcome))
        now_s = time.monotonic()
        tally.spent_s += now_s - lane.since_s
        lane.since_s = now_s
        if not lane.seeds:
            lane.tally = None
        for case in new:
            yield self._save(tally, case)
        lane.since_s = time.monotonic()
        yield ""

    def _is_new(self, tally: Tally, outcome: Outcome) -> bool:
        path, n = tally.findings.get(outcome.key, (Path(), 0))
        tally.findings[outcome.key] = path, n + 1
        return n == 0

    def _save(self, tally: Tally, case: Case) -> str:
        """Shrink a finding and write it down."""
        shrunk = shrunk_case(self._shrinking.zygote(tally.kind), case)
        path = shrunk.save(self.out)
        tally.findings[case.outcome.key] = path, tally.findings[case.outcome.key][1]
        outcome = shrunk.outcome
        return f"{case.kind}: {outcome.what} in {outcome.where}: {outcome.message}\n  {path}"


def shrunk_case(zygote: Zygote, case: Case) -> Case:
    """The smallest case found that fails as this one does."""
    kind = zygote.kind
    deadline_s = time.monotonic() + _SHRINK_S
    key = case.outcome.key

    def fails(recipe: Recipe) -> bool:
        return time.monotonic() < deadline_s and zygote.outcome(recipe).key == key

    parts = ("several", *kind.parts)
    recipe = shrink(case.recipe, parts, fails, kind.simpler)
    several = recipe.get("several", [])
    recipe = several[0] if len(several) == 1 else recipe
    outcome = zygote.outcome(recipe) if recipe != case.recipe else case.outcome
    return Case(case.kind, recipe, case.seed, outcome, case.about)


def replay(kinds: dict[str, Kind], paths: Sequence[Path]) -> Iterator[tuple[Path, Outcome]]:
    """What comes of saved cases, a kind at a time."""
    files = [
        f for path in paths for f in (sorted(path.rglob("*.json")) if path.is_dir() else [path])
    ]
    for name in dict.fromkeys(file.parent.name for file in files):
        if name not in kinds:
            sys.exit(f"{name}: no such kind; there are {', '.join(kinds)}")
        zygote = Zygote(kinds[name])
        try:
            for file in (file for file in files if file.parent.name == name):
                yield file, zygote.outcome(Case.load(file).recipe)
        finally:
            zygote.close()
