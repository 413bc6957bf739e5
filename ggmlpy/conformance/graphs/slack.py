"""How a node's result is judged by its op's reference on the node's own sources."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.judge import compare
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.arrays import read_array, write_array
from ggmlpy.graph.tensor import Tensor
from ggmlpy.ops.norm import GroupNorm, Norm

_LARGEST_QUANTISED = 65504.0  # a block's scale is f16
_UNDERFLOW = 1e-37  # below the normal numbers of f32, where what is left is 0 or not by a rounding
_LARGE = 1e15  # beyond it sums of squares and products overflow in f32, and not in the reference
_ONE_BY_ONE = {"get_rows", "set_rows", "cpy", "cont", "dup", "cast", "concat", "repeat", "pad"}
_EXACT = {"get_rows", "cont", "dup", "concat", "repeat", "pad", "argmax", "arange"}

counted = {"judged": 0, "wild": 0}  # nodes that were judged, and those that cannot be

Array = NDArray[Any]


def judge_node(node: Tensor, sources: Sequence[Array], got: Array) -> str:
    """Empty, or what is wrong with a node's result. Arrays are as read_array gives them."""
    if _is_wild(node, sources):
        counted["wild"] += 1
        return ""
    counted["judged"] += 1
    try:
        want = expected(node, sources)
    except GgmlpyError as error:
        return f"{_name(node)}: the reference refuses what the backend has run: {error}"
    if got.tobytes() == want.tobytes():
        return ""
    if _name(node) not in _EXACT and got.dtype.kind == "f":
        got = np.where((want == 0) & (np.abs(got) < _UNDERFLOW), want, got)
    wrong = compare(_case(node), got, want)
    if wrong and not (wrong.startswith("NMSE") and _within(node, sources, got, want)):
        return f"{_name(node)} differs: {node}: {wrong}"
    return ""


def expected(node: Tensor, sources: Sequence[Array]) -> Array:
    """What the op's reference makes of the sources, in the node's type."""
    assert node.op is not None
    with np.errstate(all="ignore"):  # inf and nan are valid results
        values = node.op.reference(*sources)
        raw = np.zeros(node.spec.n_bytes, np.uint8)
        write_array(raw, node.spec, 0, values)
        rows = node.op.written_rows(*sources)
    want = read_array(raw, node.spec)
    if rows is not None and node.op.view_of is not None:
        want[~rows] = sources[node.op.view_of][~rows]
    return want


def _name(node: Tensor) -> str:
    assert node.op is not None
    return node.op.name


@cache
def _known_case(op: str, ne: tuple[Any, ...], types: tuple[str, ...], type: str) -> Case:
    if op == "cast":
        return Case(op, ne=ne, types=types, type=type)
    return Case(op, ne=ne, types=types)


def _case(node: Tensor) -> Case:
    types = tuple(source.type.name for source in node.src) or ("f32",)
    return _known_case(_name(node), tuple(s.ne for s in node.src), types, node.type.name)


def _floats(sources: Sequence[Array]) -> list[NDArray[np.float64]]:
    return [a.astype(np.float64) for a in sources if a.dtype.kind == "f"]


def _is_wild(node: Tensor, sources: Sequence[Array]) -> bool:
    """Whether f32 and the reference's f64 may rightly part: in sums of what is not finite, or huge.

    A mask's -inf is none of that. What a quantised block holds of such a number is not defined.
    """
    op = _name(node)
    if node.type.block_size > 1:
        return any(bool((~(np.abs(x) <= _LARGEST_QUANTISED)).any()) for x in _floats(sources[:1]))
    if op in _ONE_BY_ONE:
        return False
    values = _floats(sources[:1] if "max" in op else sources[:3])
    return any(bool((~np.isfinite(x) | (np.abs(x) > _LARGE)).any()) for x in values)


def _slack_of_mean(node: Tensor, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the rounding of a mean in f32 comes to where a row, or group, hardly differs from it."""
    op = node.op
    assert isinstance(op, GroupNorm | Norm)
    groups: list[NDArray[np.float64]] = [x]
    axes: tuple[int, ...] = (-1,)
    if isinstance(op, GroupNorm):
        step = -(-x.shape[1] // op.n_groups)
        groups = [x[:, i : i + step] for i in range(0, x.shape[1], step)]
        axes = (1, 2, 3)
    parts = []
    for group in groups:
        deviation = np.sqrt(group.var(axis=axes, keepdims=True) + op.eps)
        rounding = np.finfo(np.float32).eps * np.abs(group).max(axis=axes, keepdims=True)
        parts.append(np.broadcast_to(rounding / deviation, group.shape))
    return np.concatenate(parts, axis=1)


def _within(node: Tensor, sources: Sequence[Array], got: Array, want: Array) -> bool:
    """Whether each element is as near as it can be expected to be where few make up the NMSE."""
    values = _floats(sources)
    largest = max(
        (float(np.abs(x).max(initial=0, where=np.isfinite(x))) for x in values), default=1
    )
    step = {"f16": 2.0**-10, "bf16": 2.0**-7}.get(node.type.name, 1e-5)
    slack = step * np.abs(want) + 1e-6 * max(largest, 1.0)
    op = _name(node)
    if op in ("mul_mat", "mul_mat_id"):
        n = node.src[0].ne[0]
        weights, x = values[0], values[1]
        slack = slack + 0.01 * n**0.5 * float(np.abs(weights).max()) * float(np.abs(x).max())
    elif op in ("flash_attn_ext", "soft_max", "soft_max_ext"):
        slack = slack + 4e-3 * max(1.0, float(np.abs(values[-1 if len(values) < 3 else 2]).max()))
    elif op in ("sum", "sum_rows", "mean", "cumsum", "norm", "l2_norm", "group_norm"):
        slack = slack + 1e-5 * largest * node.src[0].spec.n_elements ** 0.5
    if op in ("norm", "group_norm"):
        slack = slack + _slack_of_mean(node, values[0])
    return bool((np.abs(got.astype(np.float64) - want) <= slack).all())
