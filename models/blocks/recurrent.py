"""What state-space layers, delta nets, short convolutions and token shifts have in common: columns
of the tokens before the ubatch.

Letters in shapes: C channels, K taps, T tokens of R sequences.
"""

from __future__ import annotations

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.inputs import GraphInputs, RecurrentView


def recurrent_of(inputs: GraphInputs) -> RecurrentView:
    """The states of a model that has recurrent layers."""
    assert inputs.recurrent is not None
    return inputs.recurrent


def convolve(x: Tensor, conv: Tensor, inputs: GraphInputs, layer: int, i: int = 0) -> Tensor:
    """A causal convolution of each channel over the last taps of its sequence.

    x [C, T], conv [at most K, C] -> [C, T]. The layer's state leaf i is that of `keep_columns`.
    """
    columns = keep_columns(x, inputs, layer, i)
    return ops.ssm_conv(columns, conv, taps=_last_taps(inputs, conv.ne[0])).named("conv")


def keep_columns(x: Tensor, inputs: GraphInputs, layer: int, i: int = 0) -> Tensor:
    """The columns that taps refer to: x [C, T] -> [C, (K-1)*R + T]

    K is the layers' `n_taps`. The layer's state leaf i, [(K-1)*C] a sequence, holds the columns
    before the ubatch, each channel's side by side as in llama.cpp. It gets the new ones.
    """
    recurrent = recurrent_of(inputs)
    assert recurrent.taps is not None and recurrent.taps_out is not None
    C, K, R = x.ne[0], recurrent.taps.ne[0], recurrent.rows.ne[0]
    states = recurrent.load(layer, i).named("state_before")  # [(K-1)*C, R]
    states = ops.reshape_3d(states, K - 1, C, R).named("states")  # [K-1, C, R]
    old = ops.cont_2d(ops.transpose(states), C, (K - 1) * R).named("old")  # [C, (K-1)*R]
    columns = ops.concat(old, x, 1).named("columns")  # [C, (K-1)*R + T]
    last = ops.get_rows(columns, recurrent.taps_out).named("last")  # [C, (K-1)*R]
    last = ops.reshape_3d(last, C, K - 1, R).named("last_by_sequence")  # [C, K-1, R]
    after = ops.cont_2d(ops.transpose(last), (K - 1) * C, R).named("state_after")  # [(K-1)*C, R]
    inputs.write(recurrent.store(layer, after, i).named("state_stored"))
    return columns


def column_before(columns: Tensor, back: int, inputs: GraphInputs) -> Tensor:
    """The column of the token `back` before each one, zeros before the sequence: columns of
    `keep_columns` -> [C, T]"""
    taps = recurrent_of(inputs).taps
    assert taps is not None and 0 <= back < taps.ne[0]
    with scope(f"before_{back}"):
        row = ops.view_2d(taps, 1, taps.ne[1], taps.nb[1], (taps.ne[0] - 1 - back) * taps.nb[0])
        row = ops.cont(row.named("row_of_taps")).named("row")
        return ops.get_rows(columns, ops.reshape_1d(row, taps.ne[1])).named("column")


def _last_taps(inputs: GraphInputs, n: int) -> Tensor:
    """The last n of each token's taps: [n, T]"""
    taps = recurrent_of(inputs).taps
    assert taps is not None
    K, T = taps.ne[:2]
    if n == K:
        return taps
    last = ops.view_2d(taps, n, T, taps.nb[1], (K - n) * taps.nb[0]).named("last_taps")
    return ops.cont(last).named("taps")


def previous_columns(x: Tensor, inputs: GraphInputs, layer: int, i: int = 0) -> Tensor:
    """The column of the token before each one, zeros for the first of a sequence: RWKV's shift.

    x [C, T] -> [C, T]. The layer's state leaf i, [C] a sequence, holds the last column before the
    ubatch, and gets the new one. The layers' `n_taps` is 2.
    """
    T = x.ne[1]
    recurrent = recurrent_of(inputs)
    taps, taps_out = recurrent.taps, recurrent.taps_out
    assert taps is not None and taps_out is not None and taps.ne[0] == 2
    states = recurrent.load(layer, i).named("state_before")  # [C, R]
    columns = ops.concat(states, x, 1).named("columns")  # [C, R + T]
    before = ops.view_2d(taps, 1, T, taps.nb[1], 0).named("row_of_taps")
    before = ops.cont(before).named("row")  # [1, T]
    shifted = ops.get_rows(columns, ops.reshape_1d(before, T)).named("shifted")  # [C, T]
    last = ops.get_rows(columns, taps_out).named("state_after")  # [C, R]
    inputs.write(recurrent.store(layer, last, i).named("state_stored"))
    return shifted


def load_states(inputs: GraphInputs, layer: int, i: int, *ne: int) -> Tensor:
    """The states of a layer's leaf i before the ubatch, as a scan takes them: [*ne, R]."""
    recurrent = recurrent_of(inputs)
    states = recurrent.load(layer, i).named("state_before")  # [n, R]
    dims = (*ne, recurrent.rows.ne[0], 1, 1, 1)[:4]
    return states if len(ne) == 1 else ops.reshape_4d(states, *dims)


def state_rows(inputs: GraphInputs, layer: int, i: int, *ne: int) -> Tensor:
    """All rows of a layer's state leaf i, for a scan that takes the sequences' `rows` as its ids:
    [*ne, rows]."""
    leaf = recurrent_of(inputs).states[layer][i]
    dims = (*ne, leaf.ne[1], 1, 1, 1)[:4]
    return ops.reshape_4d(leaf, *dims).named("state_rows")


def scanned(result: Tensor, n: int, inputs: GraphInputs, layer: int, i: int) -> Tensor:
    """The outputs [n, T] of a scan with spans (K 1), whose new states the layer's leaf i gets."""
    recurrent = recurrent_of(inputs)
    T, R = inputs.tokens.ne[0], recurrent.rows.ne[0]
    size, row_bytes = recurrent.states[layer][i].ne[0], n * result.nb[0]
    states = ops.view_2d(result, size, R, size * result.nb[0], int(T) * row_bytes)  # [size, R]
    inputs.write(recurrent.store(layer, states.named("state_after"), i).named("state_stored"))
    return ops.view_2d(result, n, T, row_bytes, 0).named("scanned")  # [n, T]
