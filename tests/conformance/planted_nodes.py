"""Mistakes of kernels, planted to be found by the cases of the table: op -> what is done wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ggmlpy.graph.arrays import read_array, row_view
from ggmlpy.graph.quants import to_float
from tests.conformance.faulty import Array, Mistake, Work

VECTOR = 16  # elements that a kernel would take at once


def with_values(values: Callable[[Work], Array | None]) -> Mistake:
    """A mistake that gives wrong values; None for a node that it leaves alone."""

    def mistake(work: Work) -> bool:
        wrong = values(work)
        if wrong is not None:
            work.write(wrong)
        return wrong is not None

    return mistake


def last_vector_off_by_one(work: Work) -> Array | None:
    """What follows the whole vectors of a row is taken from one element before."""
    values = work.op.reference(*work.sources()).copy()
    n = values.shape[-1]
    tail = n - n % VECTOR
    if tail in (0, n):
        return None
    values[..., tail:] = values[..., tail - 1 : n - 1]
    return values


def scale_of_the_next_block(work: Work) -> Array | None:
    """Codes of a block of q8_0 or q4_0 weights are multiplied by the scale of the next one."""
    weight = work.node.src[0]
    if weight.type.name not in ("q8_0", "q4_0") or weight.ne[0] == weight.type.block_size:
        return None
    data, offset = work.memory(weight)
    rows = row_view(data, weight.spec, offset)
    blocks = rows.reshape(*rows.shape[:3], -1, weight.type.type_size).copy()
    blocks[..., :-1, :2] = blocks[..., 1:, :2].copy()  # both formats begin with the scale, f16
    wrong = to_float(blocks.reshape(rows.shape), weight.type)
    return work.op.reference(wrong, *work.sources()[1:])


def heads_by_modulo(work: Work) -> Array | None:
    """Heads of x take turns with those of the weights instead of sharing them in groups."""
    weights, x = work.sources()
    if weights.shape[1] in (1, x.shape[1]):
        return None
    return work.op.reference(weights[:, np.arange(x.shape[1]) % weights.shape[1]], x)


def last_row_left_out(work: Work) -> Array:
    """The last row that is fetched stays 0."""
    values = work.op.reference(*work.sources()).copy()
    values[-1, -1, -1] = 0
    return values


def half_of_an_index(work: Work) -> Array | None:
    """i64 indices are read as if they were i32."""
    rows, ids, target = work.sources()
    if ids.dtype != np.int64 or ids.shape[-1] < 2:
        return None
    halves = np.ascontiguousarray(ids).view(np.int32)[..., : ids.shape[-1]]
    return work.op.reference(rows, halves, target)


def a_row_too_many(work: Work) -> bool:
    """The row behind the last one that is named is overwritten too."""
    written = work.op.written_rows(*work.sources())
    assert written is not None
    after = int(np.flatnonzero(written[0, 0])[-1]) + 1
    if after == written.shape[-1]:
        return False
    work.run()
    data, offset = work.memory(work.node)
    row_view(data, work.node.spec, offset)[0, 0, after] ^= 1
    return True


def masked_cells_are_read(work: Work) -> Array | None:
    """Values of masked cells are multiplied by 0 instead of being skipped."""
    sources = work.sources()
    if len(sources) < 4 or np.isfinite(sources[2]).all():
        return None
    values: Array = work.op.reference(*sources) + 0 * sources[2].sum()
    return values


def no_maximum_subtracted(work: Work) -> Array | None:
    """exp(x) overflows."""
    if len(work.node.src) > 1:
        return None
    (x,) = work.sources()
    with np.errstate(all="ignore"):
        e = np.exp(x.astype(np.float32) * np.float32(work.op.params()["scale"]))
        shares: Array = e / e.sum(-1, keepdims=True)
    return shares


def last_position_off_by_one(work: Work) -> Array | None:
    """The last token is rotated as if it were one later."""
    x, positions, *factors = work.sources()
    positions = positions.copy()
    positions[..., -1] += 1
    return work.op.reference(x, positions, *factors)


def no_eps(work: Work) -> Array:
    """A row of small values is divided by its own size."""
    return dataclasses.replace(work.op, eps=0.0).reference(*work.sources())  # type: ignore[type-var]


def last_of_equals(work: Work) -> Array:
    """The last of equal values, where the first is right."""
    (x,) = work.sources()
    values: Array = x.shape[-1] - 1 - work.op.reference(x[..., ::-1])
    return values


def nan_lost(work: Work) -> Array:
    """max(x, -x) gives the other operand for a NaN, here 0."""
    (x,) = work.sources()
    return np.fmax(np.fmax(x, -x), 0)


def past_the_end(work: Work) -> bool:
    """The byte behind the result changes."""
    work.run()
    data, offset = work.memory(work.node)
    data[offset + work.node.spec.n_bytes] ^= 1
    return True


def offset_ignored(work: Work) -> Array | None:
    """A source that is a view is read from where its memory begins."""
    source = work.node.src[0]
    if source.view_offs == 0:
        return None
    sources = work.sources()
    data, offset = work.memory(source)
    return work.op.reference(read_array(data, source.spec, offset - source.view_offs), *sources[1:])


def added_to_what_was_there(work: Work) -> Array:
    """Sums begin with what the memory held."""
    values: Array = work.read(work.node) + work.op.reference(*work.sources())
    return values


# What it is called -> the op whose cases it is in, and the mistake.
PLANTED: dict[str, tuple[str, Mistake]] = {
    "off by one in a last vector": ("silu", with_values(last_vector_off_by_one)),
    "the scale of the next block": ("mul_mat", with_values(scale_of_the_next_block)),
    "heads by modulo": ("mul_mat", with_values(heads_by_modulo)),
    "a last row left out": ("get_rows", with_values(last_row_left_out)),
    "half of an index": ("set_rows", with_values(half_of_an_index)),
    "a row too many": ("set_rows", a_row_too_many),
    "masked cells are read": ("flash_attn_ext", with_values(masked_cells_are_read)),
    "no maximum subtracted": ("soft_max", with_values(no_maximum_subtracted)),
    "a last position off by one": ("rope_ext", with_values(last_position_off_by_one)),
    "no eps": ("rms_norm", with_values(no_eps)),
    "the last of equals": ("argmax", with_values(last_of_equals)),
    "NaN lost": ("abs", with_values(nan_lost)),
    "past the end": ("add", past_the_end),
    "an offset ignored": ("mul", with_values(offset_ignored)),
    "added to what was there": ("sum_rows", with_values(added_to_what_was_there)),
}
