"""How a change that fails is undone: the one way for batches, copies, removals and shifts."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVarTuple

Ts = TypeVarTuple("Ts")
Step = tuple[Callable[..., None], tuple[Any, ...]]  # a function and its arguments


class Transaction:
    """The steps that undo a change, called in reverse order if it fails.

        with Transaction() as change:
            change.on_failure(cells.restore, cells.snapshot(stream))
            cells.release(seq, some)

    An interrupt between the end of the block and that of the `with` leaves the change done. Where
    the caller needs more than the change, as logits, use `try`, and `undo` in `except`.

    A step is added before what it undoes. It must also work where that was not done, or only half,
    and when it is called again: an interrupt may come at any point, of the undoing too.
    """

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def on_failure(self, step: Callable[[*Ts], None], *arguments: *Ts) -> None:
        """Add `step(*arguments)` to what `undo` does."""
        self._steps.append((step, arguments))

    def after_undo(self, step: Callable[[*Ts], None], *arguments: *Ts) -> None:
        """Have `undo` call `step(*arguments)` when all that `on_failure` added is done."""
        self._steps.insert(0, (step, arguments))

    def undo(self) -> None:
        """Let everything be as it was.

        A step that is interrupted is called again, one that raises another error is left out. The
        other steps are done all the same; then the first error is raised.
        """
        _do_all(self._steps)

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


def _do_all(steps: list[Step]) -> None:
    """Call the steps, the last one first. Each is removed once it is done."""
    first: BaseException | None = None
    while steps:
        step, arguments = steps[-1]
        try:
            step(*arguments)
            steps.pop()
        except KeyboardInterrupt as error:
            first = first or error
        except BaseException as error:
            first = first or error
            steps.pop()
    if first is not None:
        raise first
