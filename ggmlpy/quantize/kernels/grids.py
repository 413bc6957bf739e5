"""The grids of the iq3 types as the search takes them: points, and for every other place the points
near it.

A place has a level 0 to 7 in each of four elements, of which the number is 2 level + 1. The map has
for each place (3 bits for each element) the point that it is, or -1 less the offset of its list of
neighbours: their number, then the points at the least distances, the nearest first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.kernels.dequantize_iq import byte_table
from ggmlpy.backends.cpu.simd.core import Intrinsic

_N_PLACES = 8**4
Whole = NDArray[np.int64]


def _levels(type: Any) -> Whole:
    """The levels of a type's points, [points, 4]."""
    type.init_grid()
    points: Whole = np.searchsorted(np.array(type.grid_map), type.grid.reshape(-1, 4))
    return points


@cache
def _map_and_lists(name: str, n_distances: int) -> tuple[bytes, bytes]:
    """The map i32 and the lists u16 of a grid; lists have the points of so many distances."""
    levels = _levels(getattr(gguf.quants, name))
    places = np.arange(_N_PLACES)[:, None] >> np.arange(0, 12, 3) & 7
    shifts = np.arange(0, 12, 3)
    at = np.full(_N_PLACES, -1)
    at[(levels << shifts).sum(axis=1)] = np.arange(len(levels))
    lists: list[int] = []
    for place in np.flatnonzero(at < 0):
        distances = 4 * np.square(levels - places[place]).sum(axis=1)
        limit = np.unique(distances)[:n_distances][-1]
        order = np.argsort(distances, kind="stable")
        near = order[distances[order] <= limit]
        at[place] = -1 - len(lists)
        lists += [len(near), *near.tolist()]
    return at.astype(np.int32).tobytes(), np.array(lists, np.uint16).tobytes()


def _points(name: str) -> bytes:
    """2 level + 1 of each element, a byte each."""
    return (2 * _levels(getattr(gguf.quants, name)) + 1).astype(np.uint8).tobytes()


def _tables(name: str, n_distances: int) -> tuple[Intrinsic, Intrinsic, Intrinsic]:
    """Points, map and lists; each gives its address."""
    return (
        byte_table(f"points_{name}", lambda: _points(name)),
        byte_table(f"map_{name}", lambda: _map_and_lists(name, n_distances)[0]),
        byte_table(f"lists_{name}", lambda: _map_and_lists(name, n_distances)[1]),
    )


xxs_points, xxs_map, xxs_lists = _tables("IQ3_XXS", 2)
s_points, s_map, s_lists = _tables("IQ3_S", 3)
