"""One conformance case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ggmlpy.graph.types import type_of

Shape = tuple[int, ...]

_DEFAULT_NMSE = 1e-7
_NMSE = {  # ggml's limits, where they are not the default
    "mul_mat": 5e-4,
    "mul_mat_id": 5e-4,
    "flash_attn_ext": 5e-4,
    "soft_max": 1e-6,
    "soft_max_ext": 1e-6,
    "gated_linear_attn": 1e-6,
}
_WRITERS = ("set_rows", "cpy", "cast")  # the type of the result is a quantised one at times


@dataclass(frozen=True, slots=True, init=False)
class Case:
    """A graph of one op with random inputs, seeded by the case's id.

    ne, types, layouts   of the sources in the order of the function's arguments; a missing type
                         is f32 (or the last one given), a missing layout contiguous; "permuted"
                         swaps dimensions 1 and 2, "transposed" 0 and 1, "view" is a window
    span                 the float inputs are uniform in it
    params               the function's other arguments, and what builders understand
    max_nmse             the largest error allowed
    """

    op: str
    ne: tuple[Shape, ...]
    types: tuple[str, ...]
    layouts: tuple[str, ...]
    span: tuple[float, float]
    params: dict[str, Any] = field(hash=False)
    max_nmse: float

    def __init__(
        self,
        op: str,
        *,
        ne: Sequence[Shape],
        types: Sequence[str] = ("f32",),
        layouts: Sequence[str] = (),
        span: tuple[float, float] = (-1, 1),
        max_nmse: float | None = None,
        **params: Any,
    ) -> None:
        filled = (*types, *[types[-1]] * (len(ne) - len(types)))[: len(ne)]
        laid = (*layouts, *[""] * (len(ne) - len(layouts)))
        for name, value in (
            ("op", op),
            ("ne", tuple(ne)),
            ("types", filled),
            ("layouts", laid),
            ("span", span),
            ("params", params),
        ):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "max_nmse", self._limit() if max_nmse is None else max_nmse)

    @property
    def id(self) -> str:
        """Says everything that makes the case: `mul_mat q4_0[256,32] f32[256,8]`."""
        sources = [
            f"{type}{list(ne)}{layout and ':' + layout}".replace(", ", ",")
            for ne, type, layout in zip(self.ne, self.types, self.layouts, strict=True)
        ]
        extra = [f"{k}={v}".replace(" ", "") for k, v in self.params.items()]
        if self.span != (-1, 1):
            extra.append(f"span={self.span[0]:g}..{self.span[1]:g}")
        return " ".join([self.op, *sources, *extra])

    def _limit(self) -> float:
        default = _NMSE.get(self.op, _DEFAULT_NMSE)
        if self.op not in _WRITERS:
            return default
        target = self.params.get("type", self.types[0 if self.op == "set_rows" else -1])
        if not type_of(target).is_quantized:
            return default
        # One element may come out a step off (a tie rounded the other way); the step is the range
        # over 8 for 4 bits, and a power of two smaller for more. From f16 a step is 4 times that.
        bits = {"q4_0": 0, "q4_1": 0, "iq4_nl": -1, "q5_0": 1, "q5_1": 1, "q8_0": 3}.get(target, 0)
        wider = 4 if "f16" in self.types else 1
        step = 2.0 ** -(3 + bits) * wider
        n_elements = math.prod(self.ne[0])
        return step**2 / (0.25 * n_elements)
