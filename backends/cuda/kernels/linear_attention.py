"""Linear attention with a matrix for each head: gated, RWKV-6 and -7, the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Requires, Work, kernel
from ggmlpy.backends.cuda.kernels.scan_teams import (
    LISTS,
    SCAN_ROWS,
    launch_teams,
    team_fits,
)
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.count import has_counts

_VECTORS = 4  # of a team, as in linear_attention.cuh


def _declare(
    op: str,
    kernel_name: str,
    operands: tuple[str, ...],
    fields: tuple[tuple[str, str], ...] = (),
    requires: Requires = lambda step: True,
) -> None:
    form = Form("linear_attention.cu", kernel_name)
    tensors = [(name, TENSOR) for name in ("y", *operands, "ids")]
    args = np.dtype([*tensors, *LISTS, *fields, ("lanes", "i4")], align=True)

    def fits(step: Step) -> bool:
        """The size of heads and their number do not vary: states have no gaps."""
        n, n_heads = step.operands["v"].ne[:2]
        sizes_fit = team_fits(n) and not has_counts((n, n_heads))
        return sizes_fit and requires(step)

    types, stored = ("f32",) * len(operands), f"get_rows+{op}+set_rows"

    @kernel(op, types, forms=[form], requires=fits)
    @kernel(op, (*types, "i32"), forms=[form], requires=fits)
    @kernel(stored, (*types, *("i32",) * 3, "f32"), forms=[form, SCAN_ROWS], requires=fits)
    def launch(w: Work) -> Iterator[Launch]:
        n, n_heads = w["v"].ne[:2]
        of_states = w["state"].ne[3 if op == "gated_delta_net" else 1]
        n_seqs = w["ids"].ne[0] if "ids" in w.step.operands else of_states
        yield from launch_teams(w, form, args, n, int(n_heads) * blocks(n, _VECTORS), n_seqs)


def _gates(one: bool) -> Callable[[Step], bool]:
    return lambda step: (step.operands["g"].ne[0] == 1) is one


_DELTA = ("q", "k", "v", "g", "beta", "state")
_declare(
    "gated_linear_attn", "gated_linear_attn", ("k", "v", "q", "g", "state"), (("scale", "f4"),)
)
_declare("rwkv_wkv6", "rwkv_wkv6", ("k", "v", "r", "tf", "td", "state"))
_declare("rwkv_wkv7", "rwkv_wkv7", ("r", "w", "k", "v", "a", "b", "state"))
_declare("gated_delta_net", "delta_of_heads", _DELTA, (("K", "i4"),), _gates(True))
_declare("gated_delta_net", "delta_of_elements", _DELTA, (("K", "i4"),), _gates(False))
