"""How large a context is: the two numbers a user may give, held against each other.

    n_ctx       tokens of all sequences together: what the KV cache holds
    n_ctx_seq   tokens that one sequence may have

Nothing is rounded: numbers that contradict each other are refused.
"""

from __future__ import annotations

import warnings
from numbers import Integral

from ggmlpy.errors import BadBatch


class ContextWarning(UserWarning):
    """More context was asked for than the model was trained with."""


def choose_sizes(
    n_ctx: int, n_ctx_seq: int, n_seq_max: int, kv_unified: bool, n_ctx_train: int
) -> tuple[int, int]:
    """`n_ctx` and `n_ctx_seq`, each 0 for whatever the other one makes it.

    Both 0: `n_ctx` is what the model was trained with. Raises BadBatch for a contradiction, and
    warns of a sequence that may outgrow what the model was trained with.
    """
    check_whole("n_ctx", n_ctx, 0)
    check_whole("n_ctx_seq", n_ctx_seq, 0)
    check_whole("n_seq_max", n_seq_max, 1)
    if kv_unified:
        total, most = _shared(n_ctx, n_ctx_seq, n_seq_max, n_ctx_train)
    else:
        total, most = _split(n_ctx, n_ctx_seq, n_seq_max, n_ctx_train)
    if most > n_ctx_train:
        warnings.warn(
            f"{'n_ctx' if most == n_ctx else 'n_ctx_seq'} is {most}, the model was trained with"
            f" {n_ctx_train}: text beyond that may not make sense",
            ContextWarning,
            stacklevel=3,
        )
    return total, most


def _shared(n_ctx: int, n_ctx_seq: int, n_seq_max: int, n_ctx_train: int) -> tuple[int, int]:
    total = n_ctx or n_ctx_seq * n_seq_max or n_ctx_train
    if n_ctx_seq > total:
        raise BadBatch(
            f"n_ctx_seq is {n_ctx_seq}: more than all sequences together may have, n_ctx = {n_ctx}"
        )
    return total, n_ctx_seq or total


def _split(n_ctx: int, n_ctx_seq: int, n_seq_max: int, n_ctx_train: int) -> tuple[int, int]:
    if not n_ctx and not n_ctx_seq:
        n_ctx_seq = max(1, n_ctx_train // n_seq_max)
    if not n_ctx_seq and n_ctx % n_seq_max:
        raise BadBatch(
            f"n_ctx is {n_ctx}, of which {n_seq_max} sequences cannot have equal parts: say"
            " n_ctx_seq, the tokens of one, or kv_unified=True to share"
        )
    most = n_ctx_seq or n_ctx // n_seq_max
    total = most * n_seq_max
    if n_ctx not in (0, total):
        raise BadBatch(
            f"n_ctx is {n_ctx}, but {n_seq_max} sequences of n_ctx_seq = {n_ctx_seq} take {total}:"
            " leave one of them out, or say kv_unified=True to share"
        )
    return total, most


def check_whole(name: str, value: object, least: int) -> None:
    """Raise BadBatch unless it is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise BadBatch(f"{name} is {value!r}: it must be a whole number, at least {least}")
