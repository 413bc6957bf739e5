"""Context shift: a full context loses half of its tokens, and the text goes on.

The first `n_keep` tokens stay, the older half of the others is removed, or as many as a request
says, and those behind move to the positions that become free (llama.cpp's rule). What their layers
have computed still depends on the tokens that are gone, so nothing behind `n_keep` is what another
prompt could reuse.
"""

from __future__ import annotations

from ggmlpy.engine.generation import Request
from ggmlpy.errors import ArgumentError, Unsupported
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.shift import check_movable
from ggmlpy.models import Model
from ggmlpy.text.tokenizer import Tokenizer

_N_LEFT = 4  # tokens of a context that are never all of those to keep, as in llama-server


def n_kept(request: Request, tokenizer: Tokenizer, n_ctx_seq: int) -> int:
    """How many of a prompt's first tokens every shift leaves."""
    n = len(request.prompt)
    if 0 <= request.n_keep < n:
        starts_with_bos = tokenizer.add_bos and request.prompt[0] == tokenizer.bos_id
        n = min(n, request.n_keep + starts_with_bos)
    return max(0, min(n, n_ctx_seq - _N_LEFT))


def n_discarded(n_past: int, n_keep: int, n_discard: int = 0) -> int:
    """How many tokens a shift removes behind the first `n_keep`: `n_discard` as far as one is left,
    or with 0 half of them."""
    n_left = n_past - n_keep
    return min(n_discard, n_left - 1) if n_discard else n_left // 2


def check_can_shift(model: Model, memory: SequenceMemory, n_keep: int, n_discard: int = 0) -> None:
    """Raise Unsupported where a full context cannot be shifted, with the reason.

    Raises ArgumentError for a context that is too small.
    """
    if memory.sizes.n_ctx_seq < _N_LEFT:
        raise ArgumentError(
            f"context_shift: n_ctx_seq is {memory.sizes.n_ctx_seq}: it must be at least {_N_LEFT}"
        )
    what = "context_shift: a full context cannot lose tokens"
    if memory.source is not None:
        raise Unsupported(f"{what}: they were decoded with a source")
    try:
        check_movable(model, memory)
    except Unsupported as error:
        raise Unsupported(f"{what}: {error}") from None
    n_ctx_seq = memory.sizes.n_ctx_seq
    n_past = n_ctx_seq - 1  # when it is full
    n_moved = n_past - n_keep - n_discarded(n_past, n_keep, n_discard)
    for cache in memory.caches:
        window = cache.cells.window
        if window is None or window.size >= n_ctx_seq:
            continue
        if window.kind != "standard" or window.size > n_moved:
            raise Unsupported(
                f"{what}: layers have a window of {window}, and {n_moved} tokens would move, of a"
                f" context of {n_ctx_seq}"
            )
