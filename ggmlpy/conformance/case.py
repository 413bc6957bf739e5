"""One conformance case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, init=False)
class Case:
    """A graph of one op with random inputs, seeded by the case's id.

    ne, types, layouts   of the sources in the order of the function's arguments; a missing type
                         is f32 (or the last one given), a missing layout contiguous; "permuted"
                         swaps dimensions 1 and 2, "transposed" 0 and 1, "0321" and so on is any
                         order; "view" is a window, "offset" contiguous on odd addresses,
                         "repeated" one row with strides of 0
    span                 the float inputs are uniform in it
    params               the function's other arguments, and what inputs and builders understand:
                         ties (quarters), values="special" (inf, denormals, ...) or "finite" (those
                         but inf), weights (numbers of the sources that are weights)
    """

    op: str
    ne: tuple[Shape, ...]
    types: tuple[str, ...]
    layouts: tuple[str, ...]
    span: tuple[float, float]
    params: dict[str, Any] = field(hash=False)

    def __init__(
        self,
        op: str,
        *,
        ne: Sequence[Shape],
        types: Sequence[str] = ("f32",),
        layouts: Sequence[str] = (),
        span: tuple[float, float] = (-1, 1),
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
