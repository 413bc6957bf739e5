"""Layouts of the KV cache: how sequences share its cells.

split     each sequence has a stream of cells of its own
unified   all sequences share one stream; a token gets any empty cell
paged     all sequences share one stream, cut into pages of a set number of cells, which belong
          to one sequence or are shared by several (Kwon et al., 2023)
"""

from __future__ import annotations

from typing import Literal, get_args

from ggmlpy.errors import ArgumentError

KVLayout = Literal["split", "unified", "paged"]
LAYOUTS: tuple[KVLayout, ...] = get_args(KVLayout)


def choose_layout(kv_layout: str | None, kv_unified: bool = False) -> KVLayout:
    """The layout that two options ask for. Raises ArgumentError for one that does not exist, and
    if they contradict each other."""
    if kv_layout is None:
        return "unified" if kv_unified else "split"
    if kv_layout not in LAYOUTS:
        raise ArgumentError(f"kv_layout is {kv_layout!r}: it must be one of {', '.join(LAYOUTS)}")
    if kv_unified and kv_layout != "unified":
        raise ArgumentError(
            f'kv_layout is "{kv_layout}", but kv_unified is True, which asks for "unified": leave'
            " one of them out"
        )
    return kv_layout
