"""Which waiting request starts next, so that a prefix that several have is run once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ggmlpy.common.prefix import n_common
from ggmlpy.engine.request_state import RequestState
from ggmlpy.memory.state import Changes

# A shorter prefix is not waited for: running it takes part of a step.
_LEAST_TOKENS = 16
_N_COMPARED = 16  # waiting requests that are compared with the running prompts in a step


def first_ready(
    waiting: Iterable[RequestState],
    advancing: Sequence[RequestState],
    n_held: Callable[[list[int], Changes], int],
) -> RequestState | None:
    """The first waiting request whose prefix no running prompt is about to provide.

    Those are the `advancing` ones: running requests that got tokens of the last step, or have just
    started. The others wait while the one that they share tokens with goes on, and are overtaken by
    those behind them. They do not wait for a prompt of a higher priority value, which runs only
    when others leave it tokens of a step, nor for one with other adapters. `n_held` tells how many
    of a prompt's first tokens are held already. None if all wait, as far as they could be compared.
    """
    prompts = {sequence.id: sequence for sequence in advancing if sequence.n_pending > 1}
    n_compared = 0
    for sequence in waiting:
        provider = prompts.get(sequence.provider)
        if provider is not None and provider.n_past < sequence.n_provided:
            continue
        if not sequence.request.reuses:
            return sequence
        if n_compared == _N_COMPARED:
            return None
        n_compared += 1
        reusable = sequence.reusable
        lengths = {
            id: n_common(other.tokens, reusable, 0)
            for id, other in prompts.items()
            if other.priority <= sequence.priority and other.changes == sequence.changes
        }
        best = max(lengths, key=lengths.__getitem__, default=-1)
        n = lengths.get(best, 0)
        if n < _LEAST_TOKENS or n <= n_held(reusable, sequence.changes):
            return sequence
        sequence.provider, sequence.n_provided = best, n
    return None
