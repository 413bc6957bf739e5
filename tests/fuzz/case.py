"""A fuzz case as readable JSON, what a kind of cases is, and what may come of one."""

from __future__ import annotations

import hashlib
import json
import random
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ggmlpy.errors import GgmlpyError

Recipe = dict[str, Any]  # of lists, dicts, strings and numbers: it goes through JSON unchanged
Status = Literal["ok", "refused", "finding"]

MAX_MESSAGE = 2000  # characters of an error's line


class Wrong(Exception):
    """A check failed: `what` in two or three words, by which findings are told apart."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.what = what


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case; `refused` is one of ggmlpy's errors, as one clean line."""

    status: Status
    what: str = ""  # the exception's type, the signal, the check that failed
    where: str = ""  # the innermost function of ggmlpy, `ggmlpy/gguf/file.py:open`
    message: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells one finding from another."""
        return self.what, self.where


@dataclass(frozen=True, slots=True)
class Case:
    """One input, and whether anything came of it. `seed` is the number that it was drawn from."""

    kind: str
    recipe: Recipe
    seed: str = ""
    outcome: Outcome = Outcome("ok")
    about: str = ""

    def save(self, folder: Path) -> Path:
        """Write the case to a file of the kind's own folder, and return it."""
        path = folder / self.kind / f"{self._name()}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        about = self.about or f"{self.outcome.what} in {self.outcome.where}: {self.outcome.message}"
        content = {"about": about[:300], "seed": self.seed, "recipe": self.recipe}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Case:
        """A saved case; its folder is its kind."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(path.parent.name, content["recipe"], content["seed"], about=content["about"])

    def _name(self) -> str:
        digest = hashlib.sha256(json.dumps(self.recipe).encode()).hexdigest()[:6]
        words = f"{self.outcome.what} {self.outcome.where.rpartition('/')[2]}"
        return "-".join([*re.findall(r"[A-Za-z0-9]+", words), digest]).lower()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one case may take, beside what its process had before."""

    memory_mb: int = 1024
    cpu_s: int = 10
    wall_s: float = 60.0  # for what waits; on a busy machine also for what works


class Kind(ABC):
    """Cases of one kind: how they are drawn, and what must hold of each.

    `prepare` runs once, in the process from which those of all cases are forked: it makes what
    cases share, and starts no threads. `run` runs in a process of its own, in an empty folder. It
    ends quietly, or with one of ggmlpy's errors (which is checked), or raises Wrong; anything else
    is a finding.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    n_quick: ClassVar[int]  # cases of a quick run
    share: ClassVar[float] = 1.0  # of the time of a long one
    group: ClassVar[int] = 1  # cases that one process runs, one after another
    limits: ClassVar[Limits] = Limits()
    needs_kernels: ClassVar[bool] = True  # of the CPU backend, which are compiled before all else
    parts: ClassVar[tuple[str, ...]] = ()  # the recipe's lists from which shrinking takes away

    def prepare(self, folder: Path) -> None:  # noqa: B027  (some need nothing)
        """Make what all cases share; files for them in the folder, which stays as long."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Recipe:
        """A case, by the generator alone."""

    @abstractmethod
    def run(self, recipe: Recipe, folder: Path) -> None:
        """Try the case."""

    def simpler(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes to try in place of this one, while a finding is shrunk."""
        return iter(())

    def recipe_of(self, seed: str) -> Recipe:
        """The recipe that a seed stands for."""
        recipe = self.draw(random.Random(f"{self.name} {seed}"))
        copy: Recipe = json.loads(json.dumps(recipe))  # as it will be replayed
        return copy


def check_refusal(error: GgmlpyError) -> str:
    """The message of a refusal. Raises Wrong unless it is one line that can be shown."""
    message = str(error)
    if not message:
        raise Wrong("empty message", repr(error))
    odd = sorted({c for c in message if unicodedata.category(c) in ("Cc", "Zl", "Zp")})
    if odd:
        raise Wrong("control characters", f"{type(error).__name__} with {odd}: {message[:200]!r}")
    if len(message) > MAX_MESSAGE:
        raise Wrong("long message", f"{len(message)} characters: {message[:200]!r}")
    return message


def to_json(outcome: Outcome) -> dict[str, str]:
    """The outcome for a pipe; messages are cut."""
    return asdict(outcome) | {"message": outcome.message[:500]}
