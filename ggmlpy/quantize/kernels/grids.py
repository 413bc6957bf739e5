"""The grids of the iq1, iq2 and iq3 types as their searches take them: points, and for every other
place the points near it.

A place has a level in each of its elements: 0 to 7 in four (iq3), 0 to 2 in eight (iq1, iq2). The
map has for each place (3 or 2 bits for each element) the point that it is, or -1 less the offset of
its list of neighbours: their number, then the points at the least distances, the nearest first.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.kernels.dequantize_iq import byte_table
from ggmlpy.backends.cpu.simd.core import Intrinsic

Whole = NDArray[np.int64]


def _levels(type: Any) -> Whole:
    """The levels of a type's points, [points, elements]."""
    type.init_grid()
    grid = type.grid.reshape(type.grid_shape)
    points: Whole = np.searchsorted(np.array(type.grid_map), grid)
    return points


@cache
def _map_and_lists(name: str, n_distances: int) -> tuple[bytes, bytes]:
    """The map i32 and the lists u16 of a grid; lists have the points of so many distances."""
    levels = _levels(getattr(gguf.quants, name))
    n_elements = levels.shape[1]
    n_levels, bits = (8, 3) if n_elements == 4 else (3, 2)
    shifts = bits * np.arange(n_elements)
    at = np.full(1 << (bits * n_elements), -1)
    at[(levels << shifts).sum(axis=1)] = np.arange(len(levels))
    lists: list[int] = []
    for place in product(range(n_levels), repeat=n_elements):
        number = int((np.array(place) << shifts).sum())
        if at[number] >= 0:
            continue
        distances = np.square(levels - place).sum(axis=1)
        limit = np.unique(distances)[:n_distances][-1]
        order = np.argsort(distances, kind="stable")
        near = order[distances[order] <= limit]
        at[number] = -1 - len(lists)
        lists += [len(near), *near.tolist()]
    return at.astype(np.int32).tobytes(), np.array(lists, np.uint16).tobytes()


def _points(name: str) -> bytes:
    """The levels of the points, a byte each."""
    return _levels(getattr(gguf.quants, name)).astype(np.uint8).tobytes()


def _tables(name: str, n_distances: int) -> tuple[Intrinsic, Intrinsic, Intrinsic]:
    """Points, map and lists; each gives its address."""
    return (
        byte_table(f"points_{name}", lambda: _points(name)),
        byte_table(f"map_{name}", lambda: _map_and_lists(name, n_distances)[0]),
        byte_table(f"lists_{name}", lambda: _map_and_lists(name, n_distances)[1]),
    )


iq3_xxs_points, iq3_xxs_map, iq3_xxs_lists = _tables("IQ3_XXS", 2)
iq3_s_points, iq3_s_map, iq3_s_lists = _tables("IQ3_S", 3)
iq2_xxs_points, iq2_xxs_map, iq2_xxs_lists = _tables("IQ2_XXS", 2)
iq2_xs_points, iq2_xs_map, iq2_xs_lists = _tables("IQ2_XS", 2)
iq2_s_points, iq2_s_map, iq2_s_lists = _tables("IQ2_S", 1)
iq1_points, iq1_map, iq1_lists = _tables("IQ1_S", 3)
