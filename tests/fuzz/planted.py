"""Kinds with planted faults, by which the fuzzer itself is tested."""

from __future__ import annotations

import ctypes
import random
import threading
import warnings
from pathlib import Path

from ggmlpy.errors import GGUFError
from tests.fuzz.case import Kind, Limits, Recipe, Wrong
from tests.fuzz.command import main


class Planted(Kind):
    """Lists of steps, one of which is at fault in some."""

    name = "planted"
    about = "faults of all sorts"
    n_quick = 30
    needs_kernels = False
    group = 4
    limits = Limits(memory_mb=256, cpu_s=1, wall_s=1.5)
    parts = ("steps",)

    def draw(self, rng: random.Random) -> Recipe:
        return {"steps": [["fine", rng.randrange(100)] for _ in range(rng.randint(1, 8))]}

    def run(self, recipe: Recipe, folder: Path) -> None:
        for name, _ in recipe["steps"]:
            getattr(self, name)()

    def fine(self) -> None:
        pass

    def refuse(self) -> None:
        raise GGUFError("model.gguf: it is refused")

    def refuse_badly(self) -> None:
        raise GGUFError("model.gguf:\nit is refused")

    def wrong(self) -> None:
        raise Wrong("sum differs", "1 is not 2")

    def fail(self) -> None:
        raise ZeroDivisionError("of ours")

    def warn(self) -> None:
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)

    def crash(self) -> None:
        ctypes.string_at(1)

    def hang(self) -> None:
        while True:
            pass

    def wait(self) -> None:
        threading.Event().wait()

    def hog(self) -> None:
        bytearray(1 << 30)


class Faulty(Planted):
    """The same, with faults."""

    name = "faulty"
    faults = ("refuse", "refuse_badly", "wrong", "fail", "warn", "crash", "hog")

    def draw(self, rng: random.Random) -> Recipe:
        recipe = super().draw(rng)
        fault = [rng.choice(self.faults), rng.randrange(100)]
        recipe["steps"].insert(rng.randint(0, len(recipe["steps"])), fault)
        return recipe


class Paired(Kind):
    """Sound alone; what comes second in a process fails."""

    name = "paired"
    about = "a fault that one case leaves behind for another"
    n_quick = 2
    needs_kernels = False
    group = 2
    parts = ("steps",)
    _n_run = 0

    def draw(self, rng: random.Random) -> Recipe:
        return {"steps": [["fine", rng.randrange(100)]]}

    def run(self, recipe: Recipe, folder: Path) -> None:
        self._n_run += 1
        if self._n_run > 1:
            raise Wrong("second time")


if __name__ == "__main__":
    main([Planted(), Faulty(), Paired()])
