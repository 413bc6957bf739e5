"""Which waiting request starts next, so that a prefix that several have is run once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from ggmlpy.engine.prefix_tree import n_common
from ggmlpy.engine.request_state import RequestState

# A shorter prefix is not waited for: running it takes part of a step.
_LEAST_TOKENS = 16
_N_LOOKED_AT = 16  # waiting requests of which one may start


def first_ready(
    waiting: Sequence[RequestState],
    running: Sequence[RequestState],
    n_held: Callable[[list[int]], int],
) -> RequestState | None:
    """The first waiting request whose beginning no running prompt is about to provide.

    The others wait for that, and are overtaken by those behind them: for as long as the prompt
    takes that they share tokens with, no more. `n_held` tells how many of a prompt's first tokens
    are held already. None if none of the first waiting requests is ready.
    """
    prompts = [sequence for sequence in running if sequence.n_pending > 1]
    for sequence in islice(waiting, _N_LOOKED_AT):
        reusable = sequence.tokens[:-1]
        to_come = max((n_common(other.tokens, reusable, 0) for other in prompts), default=0)
        if to_come < _LEAST_TOKENS or to_come <= n_held(reusable):
            return sequence
    return None
