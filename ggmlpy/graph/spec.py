"""Shape, strides and type of a tensor, on which shape rules work.

`ne` counts elements and `nb` counts bytes, fastest dimension first, always four of each, as in
ggml. For a quantised type `nb[0]` is the size of a block, and dimension 0 is whole blocks.

A count of `ne` may be a Count (count.py), a bound. Strides never are: they are those of the bounds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from ggmlpy.errors import ShapeError
from ggmlpy.graph.count import Count, Counts, value_of
from ggmlpy.graph.types import TensorType

Dims = tuple[int, int, int, int]
MAX_DIMS = 4
_PLAIN = frozenset({int})


def as_ne(ne: Sequence[int]) -> Dims:
    """Up to four counts, padded with ones. Raises ShapeError for more, or for a count below one."""
    counts = tuple(ne)
    least = counts
    if not _PLAIN.issuperset(map(type, counts)):
        counts = tuple(n if isinstance(n, Count) else operator.index(n) for n in counts)
        least = tuple(n.least if isinstance(n, Count) else n for n in counts)
    if not 1 <= len(counts) <= MAX_DIMS or min(least) < 1:
        raise ShapeError(f"ne is {list(counts)}: it must be 1 to {MAX_DIMS} counts of at least 1")
    a, b, c, d = counts + (1,) * (MAX_DIMS - len(counts))
    return (a, b, c, d)


def contiguous_nb(ne: Dims, type: TensorType) -> Dims:
    """The byte strides of a tensor without gaps. Raises ShapeError unless rows are whole blocks."""
    a, b, c = int(ne[0]), int(ne[1]), int(ne[2])
    row = type.row_bytes(a)
    return (type.type_size, row, row * b, row * b * c)


@dataclass(frozen=True, slots=True, init=False)
class Spec:
    """`ne`, `nb` and `type` of a tensor; contiguous unless `nb` is given."""

    ne: Dims
    type: TensorType
    nb: Dims

    def __init__(self, ne: Sequence[int], type: TensorType, nb: Dims | None = None) -> None:
        object.__setattr__(self, "ne", as_ne(ne))
        object.__setattr__(self, "type", type)
        object.__setattr__(self, "nb", contiguous_nb(self.ne, type) if nb is None else nb)

    def __str__(self) -> str:
        return f"{self.type} {self.shape_text}"

    @property
    def n_dims(self) -> int:
        """Dimensions up to the last that is not one; at least one."""
        return max((i + 1 for i, n in enumerate(self.ne) if n != 1), default=1)

    @property
    def shape_text(self) -> str:
        """`[4096, 7]`: trailing ones left out."""
        return str(list(self.ne[: self.n_dims]))

    @property
    def n_elements(self) -> int:
        return math.prod(self.ne)

    @property
    def n_rows(self) -> int:
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row without gaps."""
        return self.type.row_bytes(self.ne[0])

    @property
    def n_bytes(self) -> int:
        """Bytes from the first element to the end of the last, gaps included; those of bounds."""
        a, b, c, d = self.ne
        if not type(a) is type(b) is type(c) is type(d) is int:
            a, b, c, d = int(a), int(b), int(c), int(d)
        if self.type.is_quantized:
            inner = a // self.type.block_size * self.nb[0]
        else:
            inner = self.type.type_size + (a - 1) * self.nb[0]
        _, b_bytes, c_bytes, d_bytes = self.nb
        return inner + (b - 1) * b_bytes + (c - 1) * c_bytes + (d - 1) * d_bytes

    @property
    def rows_contiguous(self) -> bool:
        """Whether the elements of each row lie one after another; rows may have any strides."""
        return self.nb[0] == self.type.type_size

    @property
    def contiguous(self) -> bool:
        """Whether elements lie in ne order without gaps. Strides of dimensions of 1 are ignored.

        In every run: a count that varies leaves gaps unless all dimensions after it are 1.
        """
        expected = contiguous_nb(self.ne, self.type)
        if self.ne[0] // self.type.block_size != 1 and self.nb[0] != expected[0]:
            return False
        gapless = all(
            n == 1 or stride == gapless
            for n, stride, gapless in zip(self.ne[1:], self.nb[1:], expected[1:], strict=True)
        )
        return gapless and not self._may_have_gaps

    @property
    def _may_have_gaps(self) -> bool:
        if _PLAIN.issuperset(map(type, self.ne)):
            return False
        inner = self.ne[: self.n_dims - 1]
        return any(isinstance(n, Count) and n.varies for n in inner)

    def at(self, counts: Counts) -> Spec:
        """The spec in a run with these values: its counts, and the strides of the bounds."""
        if _PLAIN.issuperset(map(type, self.ne)):
            return self
        return Spec([value_of(n, counts) for n in self.ne], self.type, self.nb)

    @property
    def transposed(self) -> bool:
        return self.nb[0] > self.nb[1]

    @property
    def permuted(self) -> bool:
        return self.nb[0] > self.nb[1] or self.nb[1] > self.nb[2] or self.nb[2] > self.nb[3]

    def same_layout(self, other: Spec) -> bool:
        """Whether type, shape and strides are equal, so that one may overwrite the other."""
        return self.type is other.type and self.ne == other.ne and self.nb == other.nb

    def can_repeat_to(self, other: Spec) -> bool:
        """Whether whole copies of this shape tile `other` (ggml's broadcast rule)."""
        return all(n % m == 0 for n, m in zip(other.ne, self.ne, strict=True))


def require(condition: bool, message: str) -> None:
    """Raise ShapeError unless `condition`. `Op.node` adds the op and the shapes to the message."""
    if not condition:
        raise ShapeError(message)
