"""Random programs by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from ggmlpy.conformance.graphs import cases, elements, larger, patterns
from ggmlpy.conformance.graphs.drawing import MAX_NODES, Drawing
from ggmlpy.conformance.graphs.program import Program
from ggmlpy.errors import GgmlpyError

_SIZES = (3, 5, 8, 8, 12, 12, 16, 20, 28, MAX_NODES)
_MAX_MAKERS = 80  # most of which are refused before a drawing is given up at its size


def random_graph(seed: int | str) -> Program:
    """The program of a seed: 3 to 40 nodes."""
    rng = random.Random(f"graph {seed}")
    drawing = Drawing(rng)
    n_nodes = rng.choice(_SIZES)
    for _ in range(_MAX_MAKERS):
        if drawing.n_nodes >= n_nodes:
            break
        try:
            rng.choice(_MAKERS)(drawing)
        except GgmlpyError:
            continue
    return drawing.program()


_MAKERS: tuple[Callable[[Drawing], None], ...] = (
    *(elements.unary, elements.unary, elements.with_numbers, elements.binary, elements.binary),
    *(elements.glu, elements.get_rows, elements.copy, *[elements.view] * 4),
    *(
        patterns.norm,
        patterns.residual,
        patterns.product,
        patterns.product,
        patterns.experts,
        patterns.routing,
    ),
    *(
        patterns.rope,
        patterns.shift,
        patterns.cache,
        patterns.cache,
        patterns.write,
        patterns.write,
    ),
    *(larger.softmax, larger.attention, larger.shape, larger.reduce, larger.rare),
    *[cases.from_case] * 4,
)
