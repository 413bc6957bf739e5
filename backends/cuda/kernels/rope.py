"""Rotary position embedding, alone and with what is written to a cache beside it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cuda.args import SPAN, TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Scratch, Work, kernel
from ggmlpy.backends.cuda.kernels.quantize import TYPES as QUANTIZED
from ggmlpy.backends.cuda.shapes import blocks, rows_ok
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import I64
from ggmlpy.ops.rope import Rope, RopeMode

PAIRS = np.dtype([("n_pairs", "i4"), ("n_offs", "i4"), ("are_neighbours", "i4")])
_TABLE_PAIRS = 256  # of a launch: they are among its arguments
TABLE_ARGS = np.dtype(
    [
        ("table", SPAN),
        ("pos", TENSOR),
        ("freq_factors", TENSOR),
        ("angles", "f8", (_TABLE_PAIRS,)),
        ("axes", "u1", (_TABLE_PAIRS,)),
        ("first_pair", "i4"),
        ("n_pairs", "i4"),
        ("n_axes", "i4"),
        ("magnitude", "f4"),
    ],
    align=True,
)
ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("table", SPAN), ("pairs", PAIRS)], align=True)
_IDS = [("ids", TENSOR), ("ids_are_i64", "i4"), ("unused", "i4")]
SET_ARGS = np.dtype(
    [("y", TENSOR), ("x", TENSOR), *_IDS, ("table", SPAN), ("pairs", PAIRS), ("y_type", "i4")],
    align=True,
)
STORE_ARGS = np.dtype(
    [
        *((name, TENSOR) for name in ("q_y", "q", "k_y", "k", "v_y", "v")),
        *_IDS,
        ("table", SPAN),
        ("pairs", PAIRS),
        *((name, "i4") for name in ("k_type", "v_type", "q_blocks", "k_blocks", "v_blocks")),
    ],
    align=True,
)
TABLE = Form("rope.cu", "rope_table")
SET_QUANTIZED = Form("rope.cu", "rope_set_rows_quantized")
STORE, STORE_QUANTIZED = Form("rope.cu", "rope_store"), Form("rope.cu", "rope_store_quantized")

_TABLE_THREADS = 128
_TOKENS = 8  # of a thread that makes the table: one power serves them
_THREADS = 256
_MOST_TOKENS = 4096
_PIECE = 4  # values of a row, for a thread
_PLAIN = ("f32", "f16", "bf16")


# --- the table ----------------------------------------------------------------------------------


def _table(w: Work, op: Rope) -> tuple[Scratch, list[Launch]]:
    """The table of cosines and sines, and the launches that make it: none if there is one."""
    pos, factors = w["pos"], w.step.operands.get("freq_factors")
    n_tokens = int(pos.ne[0]) // op.mode.n_axes
    table, missing = w.derived(_kind(w, op, factors), pos, 8 * op.n_pairs * n_tokens)
    if not missing and _is_constant(factors):
        return table, []
    angles, axes, magnitude = _unit_angles(op)
    launches = []
    for first in range(0, op.n_pairs, _TABLE_PAIRS):
        part = slice(first, first + _TABLE_PAIRS)
        values = {
            "table": table,
            "angles": _filled(angles[part]),
            "axes": _filled(axes[part]),
            "first_pair": first,
            "n_pairs": op.n_pairs,
            "n_axes": op.mode.n_axes,
            "magnitude": magnitude,
        }
        n_pairs = min(_TABLE_PAIRS, op.n_pairs - first)
        grid = blocks(n_tokens, _TOKENS), blocks(n_pairs, _TABLE_THREADS), 1
        launches.append(Launch(TABLE, TABLE_ARGS, grid, _TABLE_THREADS, values=values))
    return table, launches


def _filled(values: NDArray[Any]) -> NDArray[Any]:
    return np.pad(values, (0, _TABLE_PAIRS - len(values)))


def _is_constant(factors: Tensor | None) -> bool:
    """Whether the factors are those of every step: no step writes weights."""
    return factors is None or Flag.WEIGHT in factors.flags


def _kind(w: Work, op: Rope, factors: Tensor | None) -> str:
    """All that a table depends on besides the positions."""
    params = {name: value for name, value in op.params().items() if name != "n_offs"}
    address = 0 if factors is None else w.address(factors)
    return f"{op.name} {params} factors at {address}"


@lru_cache(maxsize=256)
def _unit_angles(op: Rope) -> tuple[NDArray[np.float64], NDArray[np.uint8], float]:
    """Each pair's angle at a position of 1 on its axis, its axis, and the scale of cos and sin."""
    angles = []
    magnitude = 1.0
    for position in np.eye(op.mode.n_axes):
        of_axis, magnitude = op.angles(position, None)
        angles.append(of_axis[0])
    axes = np.argmax(np.abs(angles), axis=0).astype(np.uint8)
    return np.sum(angles, axis=0), axes, magnitude


def _pairs(op: Rope) -> tuple[int, int, bool]:
    return op.n_pairs, op.n_offs, op.mode is RopeMode.NORMAL


# --- rotations ----------------------------------------------------------------------------------


def _rows(step: Step) -> bool:
    return rows_ok(step.operands["x"]) and rows_ok(step.results["y"])


def _declare(op: str, type: str) -> None:
    form = Form("rope.cu", f"rope_{type}")

    def launch(w: Work) -> Iterator[Launch]:
        rope = w.step.node.op
        assert isinstance(rope, Rope)
        table, launches = _table(w, rope)
        yield from launches
        x = w["x"]
        n_slots = int(x.ne[0]) - rope.n_pairs
        grid = blocks(n_slots * int(x.spec.n_rows), _THREADS), 1, 1
        values = {"table": table, "pairs": _pairs(rope)}
        yield Launch(form, ARGS, grid, _THREADS, values=values)

    for factors in ((), ("f32",)):
        kernel(op, (type, "i32", *factors), forms=[TABLE, form], requires=_rows)(launch)


for _op in ("rope", "rope_back"):
    for _type in ("f32", "f16"):
        _declare(_op, _type)


def _rope_of(step: Step) -> Rope:
    """The rotation of a step that sets rows too."""
    rope = step.nodes[0].op
    assert isinstance(rope, Rope)
    return rope


def _rows_to_set(step: Step) -> bool:
    """Every block looks at the indices of all tokens: set_rows by itself is made for more."""
    return _rows(step) and int(step.operands["x"].ne[2]) <= _MOST_TOKENS


def _declare_set_rows(type: str, form: Form) -> None:
    def launch(w: Work) -> Iterator[Launch]:
        rope = _rope_of(w.step)
        table, launches = _table(w, rope)
        yield from launches
        D, Hk, T, _ = w["x"].ne
        # A thread for each slot, or for each element where a warp makes a block of them.
        n_threads = (int(D) - (0 if form is SET_QUANTIZED else rope.n_pairs)) * int(Hk)
        values = {
            "table": table,
            "pairs": _pairs(rope),
            "ids_are_i64": w["ids"].type is I64,
            "unused": 0,
            "y_type": w["y"].type.id,
        }
        grid = int(T), blocks(n_threads, _THREADS), 1
        yield Launch(form, SET_ARGS, grid, _THREADS, values=values)

    for ids in ("i64", "i32"):
        for factors in ((), ("f32",)):
            types = ("f32", "i32", *factors, ids, type)
            kernel("rope+set_rows", types, forms=[TABLE, form], requires=_rows_to_set)(launch)


for _type in _PLAIN:
    _declare_set_rows(_type, Form("rope.cu", f"rope_set_rows_{_type}"))
for _type in QUANTIZED:
    _declare_set_rows(_type, SET_QUANTIZED)


# --- queries, keys and values of a step -----------------------------------------------------------


def _rows_to_store(step: Step) -> bool:
    return all(map(rows_ok, step.tensors)) and int(step.operands["k"].ne[2]) <= _MOST_TOKENS


def _declare_stores(k: str, v: str, form: Form) -> None:
    def launch(w: Work) -> Iterator[Launch]:
        rope = _rope_of(w.step)
        table, launches = _table(w, rope)
        yield from launches
        q, (D, Hk, T, _), n = w["q"], w["k"].ne, int(w["v"].ne[0])
        n_slots = int(D) - rope.n_pairs
        is_quantized = form is STORE_QUANTIZED  # then a thread has an element
        q_blocks = blocks(int(q.ne[0] - rope.n_pairs) * int(q.spec.n_rows), _THREADS)
        k_blocks = blocks((int(D) if is_quantized else n_slots) * int(Hk), _THREADS)
        v_blocks = blocks(n if is_quantized else blocks(n, _PIECE), _THREADS)
        values = {
            "table": table,
            "pairs": _pairs(rope),
            "ids_are_i64": w["ids"].type is I64,
            "unused": 0,
            "k_type": w["k_y"].type.id,
            "v_type": w["v_y"].type.id,
            "q_blocks": q_blocks,
            "k_blocks": k_blocks,
            "v_blocks": v_blocks,
        }
        grid = q_blocks + int(T) * (k_blocks + v_blocks), 1, 1
        yield Launch(form, STORE_ARGS, grid, _THREADS, values=values)

    for ids in ("i64", "i32"):
        for factors in ((), ("f32",)):
            types = ("f32", "i32", *factors, "f32", ids, k, "f32", v)
            kernel(
                "rope+rope+set_rows+set_rows", types, forms=[TABLE, form], requires=_rows_to_store
            )(launch)


for _types, _form in ((_PLAIN, STORE), (QUANTIZED, STORE_QUANTIZED)):
    for _k in _types:
        for _v in _types:
            _declare_stores(_k, _v, _form)
