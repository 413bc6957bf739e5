"""How large a context is: the two numbers a user may give, held against each other.

    n_ctx       tokens of all sequences together: what the KV cache holds
    n_ctx_seq   tokens that one sequence may have

Numbers that are given are not rounded: those that contradict each other are refused.
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real

import numpy as np

from ggmlpy.errors import BadBatch

_MOST = 1 << 62  # of which numpy's integers hold the next multiple of 256, too
_SHORT = 256  # tokens of a sequence below which a default is not what was meant


class ContextWarning(UserWarning):
    """A sequence may have more tokens than the model was trained with, or hardly any."""


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
    name = "n_ctx" if most == n_ctx else "n_ctx_seq"
    if most > n_ctx_train:
        limit = f"; n_ctx_seq={n_ctx_train} keeps each within it" if n_seq_max > 1 else ""
        _warn(
            f"{name} is {most}, the model was trained with {n_ctx_train}: text beyond that may not"
            f" make sense{limit}"
        )
    elif not n_ctx and not n_ctx_seq and most < min(n_ctx_train, _SHORT):
        _warn(
            f"the {n_ctx_train} tokens that the model was trained with leave {most} for each of"
            f" {n_seq_max} sequences: n_ctx_seq says how many each may have"
        )
    return total, most


def _warn(message: str) -> None:
    warnings.warn(message, ContextWarning, stacklevel=4)


def _shared(n_ctx: int, n_ctx_seq: int, n_seq_max: int, n_ctx_train: int) -> tuple[int, int]:
    total = n_ctx or n_ctx_seq * n_seq_max or n_ctx_train
    if n_ctx_seq > total:
        raise BadBatch(
            f"n_ctx_seq is {n_ctx_seq}: more than all sequences together may have, n_ctx = {n_ctx};"
            " make that larger"
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
        share = ", or say kv_unified=True to share" if n_seq_max > 1 and n_ctx_seq <= n_ctx else ""
        raise BadBatch(
            f"n_ctx is {n_ctx}, but n_seq_max = {n_seq_max} times n_ctx_seq = {n_ctx_seq} is"
            f" {total}: leave one of them out{share}"
        )
    return total, most


def check_flag(name: str, value: object) -> None:
    """Raise BadBatch unless it is True or False (or 1 or 0)."""
    if not isinstance(value, Real | np.bool_) or value not in (True, False):
        raise BadBatch(f"{name} is {value!r}: it must be True or False")


def check_whole(name: str, value: object, least: int) -> None:
    """Raise BadBatch unless it is a whole number of at least `least`, and not beyond all sizes."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise BadBatch(f"{name} is {value!r}: it must be a whole number, at least {least}")
    if int(value) > _MOST:
        raise BadBatch(f"{name} is {value!r}: it must be at most 2^62")
