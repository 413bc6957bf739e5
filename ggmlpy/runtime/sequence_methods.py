"""The methods of `Context` that change which tokens sequences hold, with llama.cpp's names."""

from __future__ import annotations

from ggmlpy.backends.base import Backend
from ggmlpy.common.arguments import checked
from ggmlpy.errors import ArgumentError
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.shift import move_positions
from ggmlpy.models import Model
from ggmlpy.runtime.context_sizes import check_least
from ggmlpy.runtime.plans import PlanCache


class SequenceMethods:
    """Operations on the sequences of a context."""

    model: Model
    memory: SequenceMemory
    backends: list[Backend]
    plans: PlanCache

    @checked
    def seq_rm(self, seq: int, start: int = 0, stop: int | None = None) -> None:
        """Remove positions `start` up to `stop` (None: to the end); `seq` -1 means every sequence.

        Raises ArgumentError for a sequence that does not exist, Unsupported for a part that
        recurrent layers or a window do not allow to remove; nothing is changed then.
        """
        self.memory.seq_rm(seq, *_span(start, stop))

    @checked
    def seq_cp(self, source: int, target: int, start: int = 0, stop: int | None = None) -> None:
        """Let `target` hold what `source` holds at positions `start` up to `stop`.

        In a shared stream both have the same cells from then on, between streams K and V are
        copied. Raises ArgumentError, CacheFull or Unsupported; nothing is changed then.
        """
        self.memory.seq_cp(source, target, *_span(start, stop))

    @checked
    def seq_keep(self, seq: int) -> None:
        """Remove every sequence but one."""
        self.memory.seq_keep(seq)

    @checked
    def seq_pos_min(self, seq: int) -> int:
        """The lowest position held of a sequence, -1 if none is."""
        return self.memory.seq_pos_min(seq)

    @checked
    def seq_pos_max(self, seq: int) -> int:
        """The highest position held of a sequence, -1 if none is."""
        return self.memory.seq_pos_max(seq)

    def clear(self) -> None:
        """Remove every sequence."""
        self.memory.clear()

    @checked
    def seq_add(self, seq: int, start: int, stop: int | None, delta: int) -> None:
        """Add `delta` to a sequence's positions `start` up to `stop`; below 0 they are removed.

        Raises ArgumentError where a position is taken, Unsupported, CacheFull; nothing is changed
        then.
        """
        check_least("delta", delta, -(2**31))
        start, stop = _span(start, stop)
        move_positions(
            self.model, self.memory, self.backends, self.plans.arenas, seq, start, stop,
            lambda p: p + delta,
        )  # fmt: skip

    @checked
    def seq_shift(self, seq: int, start: int, n: int) -> None:
        """Remove `n` positions of a sequence from `start` on, and close the gap: a context shift.

        Raises Unsupported, CacheFull; nothing is changed then.
        """
        check_least("n", n, 1)
        start, _ = _span(start, None)
        move_positions(
            self.model, self.memory, self.backends, self.plans.arenas, seq, start, None,
            lambda p: p - n, n_dropped=n,
        )  # fmt: skip

    @checked
    def seq_div(self, seq: int, start: int, stop: int | None, divisor: int) -> None:
        """Divide positions by a whole number; several tokens may get the same position."""
        check_least("divisor", divisor, 1)
        start, stop = _span(start, stop)
        move_positions(
            self.model, self.memory, self.backends, self.plans.arenas, seq, start, stop,
            lambda p: p // divisor, may_meet=True,
        )  # fmt: skip


def _span(start: int, stop: int | None) -> tuple[int, int | None]:
    """Positions as llama.cpp takes them: below 0 means from the start, to the end.

    Raises ArgumentError if the range ends before it starts.
    """
    start, stop = max(0, start), None if stop is None or stop < 0 else stop
    if stop is not None and stop < start:
        raise ArgumentError(f"start is {start}, stop is {stop}: stop must not be below start")
    return start, stop
