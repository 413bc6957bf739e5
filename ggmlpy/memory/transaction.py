"""How a change that fails is undone: the one way for batches, copies and shifts."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVarTuple

Ts = TypeVarTuple("Ts")


class Transaction:
    """The steps that undo a change, called in reverse order if it fails.

        with Transaction() as change:
            change.on_failure(cells.restore, cells.snapshot(stream))
            cells.release(seq, some)

    A step is added before what it undoes, and must also work where that was not done, or only
    half: an interrupt may come at any point.
    """

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def on_failure(self, step: Callable[[*Ts], None], *arguments: *Ts) -> None:
        """Add `step(*arguments)` to what `undo` does."""
        self._steps.append((step, arguments))

    def after_undo(self, step: Callable[[*Ts], None], *arguments: *Ts) -> None:
        """Have `undo` call `step(*arguments)` when all that `on_failure` added is done."""
        self._steps.insert(0, (step, arguments))

    def undo(self) -> None:
        """Let everything be as it was."""
        while self._steps:
            step, arguments = self._steps.pop()
            step(*arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.undo()
