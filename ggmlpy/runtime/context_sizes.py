"""The sizes of a context, from two numbers that a user may give.

    n_ctx       tokens of all sequences together: what the KV cache holds
    n_ctx_seq   tokens that one sequence may have

Sizes are used as given; contradictory sizes raise ArgumentError. If none is given, the context is
as large as in the model's training, or as memory allows.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from ggmlpy.common.callers import warn_caller
from ggmlpy.common.system_memory import physical_memory
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.cell_table import KV_PAD
from ggmlpy.memory.sizes import Sizes, memory_bytes
from ggmlpy.memory.store import BufferTypes
from ggmlpy.models.memory import Memory

_MOST = 1 << 62  # its next multiple of 256 is still an integer of numpy
_STEP = 64  # tokens: a suggested size is a multiple of it
_SHORT = 256  # tokens of a sequence; a smaller default is hardly what was meant


def room_for(sizes: Sizes, n_tokens: int) -> str:
    """`n_ctx=1024`: what gives a sequence room for so many tokens."""
    n = -(-n_tokens // _STEP) * _STEP
    if sizes.layout == "split":
        return f"n_ctx={n * sizes.n_seq_max}"
    return f"n_ctx={n}" if n > sizes.n_ctx else f"n_ctx_seq={n}"


class ContextWarning(UserWarning):
    """A sequence may have more tokens than the model was trained with, or fewer than expected."""


def choose_sizes(
    n_ctx: int, n_ctx_seq: int, n_seq_max: int, one_stream: bool, n_ctx_train: int
) -> tuple[int, int]:
    """`n_ctx` and `n_ctx_seq`. One that is given as 0 follows from the other.

    With `one_stream` the sequences share `n_ctx`, else each has an equal part. If both are 0,
    `n_ctx` is what the model was trained with. Raises ArgumentError for contradictory sizes.
    """
    check_least("n_ctx", n_ctx, 0)
    check_least("n_ctx_seq", n_ctx_seq, 0)
    check_least("n_seq_max", n_seq_max, 1)
    choose = _shared if one_stream else _split
    return choose(n_ctx, n_ctx_seq, n_seq_max, n_ctx_train)


def warn_of_length(n_ctx: int, n_ctx_seq: int, n_seq_max: int, most: int, n_ctx_train: int) -> None:
    """Warn if a sequence may be longer than in the model's training, or much shorter: `most`, which
    `choose_sizes` gave for the other sizes."""
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


def reduce_to_memory(
    spec: Memory,
    sizes: Sizes,
    type_k: TensorType,
    type_v: TensorType,
    buffer_types: BufferTypes | None = None,
    kv_rotation: bool | None = None,
) -> Sizes:
    """Reduce default sizes so that the memory takes at most half of the machine's, and of each
    device's that says how much it has.

    The other half is for weights and results. Sizes that are too large become the largest multiple
    of KV_PAD tokens a sequence that fits, at least KV_PAD, with a warning. Raises Unsupported for
    types of K and V that the model cannot have.
    """

    def of(n_ctx_seq: int) -> Sizes:
        n_ctx = n_ctx_seq if sizes.one_stream else n_ctx_seq * sizes.n_seq_max
        return replace(sizes, n_ctx=n_ctx, n_ctx_seq=n_ctx_seq)

    def short(sizes: Sizes) -> list[BufferType]:
        """The memories of which these sizes take more than half."""
        taken = memory_bytes(spec, sizes, type_k, type_v, buffer_types, kv_rotation)
        return [at for at, n_bytes in taken.items() if at in has and n_bytes > has[at] // 2]

    needed = memory_bytes(spec, sizes, type_k, type_v, buffer_types, kv_rotation)
    known = {at: physical_memory() if at.is_host else at.free_bytes() for at in needed}
    has = {at: n_bytes for at, n_bytes in known.items() if n_bytes is not None}
    n_pads, too_small = sizes.n_ctx_seq // KV_PAD, short(sizes)
    if not too_small or n_pads == 0:
        return sizes
    pads = range(1, n_pads + 1)
    n_fit = bisect_right(pads, False, key=lambda n: bool(short(of(n * KV_PAD))))
    reduced = of(max(1, n_fit) * KV_PAD)
    at = too_small[0]
    _warn(
        f"n_ctx is {reduced.n_ctx}, not the {sizes.n_ctx} of the model's training: the memory of"
        f" those would take {needed[at] / 1e9:.1f} GB, more than half of"
        f" {'this machine' if at.is_host else at.name}'s {has[at] / 1e9:.1f} GB; n_ctx or n_ctx_seq"
        " asks for another size"
    )
    return reduced


def _warn(message: str) -> None:
    warn_caller(message, ContextWarning)


def _shared(n_ctx: int, n_ctx_seq: int, n_seq_max: int, n_ctx_train: int) -> tuple[int, int]:
    total = n_ctx or n_ctx_seq * n_seq_max or n_ctx_train
    if n_ctx_seq > total:
        raise ArgumentError(
            f"n_ctx_seq is {n_ctx_seq}: more than all sequences together may have, n_ctx = {n_ctx};"
            " make that larger"
        )
    return total, n_ctx_seq or total


def _split(n_ctx: int, n_ctx_seq: int, n_seq_max: int, n_ctx_train: int) -> tuple[int, int]:
    if not n_ctx and not n_ctx_seq:
        n_ctx_seq = max(1, n_ctx_train // n_seq_max)
    if not n_ctx_seq and n_ctx % n_seq_max:
        raise ArgumentError(
            f"n_ctx is {n_ctx}, of which {n_seq_max} sequences cannot have equal parts: say"
            ' n_ctx_seq, the tokens of one, or kv_layout="paged" to share'
        )
    most = n_ctx_seq or n_ctx // n_seq_max
    total = most * n_seq_max
    if n_ctx not in (0, total):
        can_share = n_seq_max > 1 and n_ctx_seq <= n_ctx
        share = ', or say kv_layout="paged" to share' if can_share else ""
        raise ArgumentError(
            f"n_ctx is {n_ctx}, but n_seq_max = {n_seq_max} times n_ctx_seq = {n_ctx_seq} is"
            f" {total}: leave one of them out{share}"
        )
    return total, most


def check_least(name: str, value: int, least: int) -> None:
    """Raise ArgumentError unless `least` <= `value` <= 2^62."""
    if value < least:
        raise ArgumentError(f"{name} is {value!r}: it must be a whole number, at least {least}")
    if value > _MOST:
        raise ArgumentError(f"{name} is {value!r}: it must be at most 2^62")
