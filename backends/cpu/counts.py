"""Fields of a plan's records whose values are counts (`ggmlpy.graph.count`): written before a run.

The builder notes them while it fills records: `ne` of operands and results, and what a kernel's
`bind` returns as a Count. Everything else in a record is that of the bounds, so a kernel takes
numbers of rows and elements from `ne`, or from fields that `bind` computes by +, - and * alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.cpu.kernel import RECORD_BYTES, TENSOR
from ggmlpy.graph.count import Count, Counts


@dataclass(frozen=True, slots=True)
class CountField:
    """A number in the record of this index: where it is in it, its type, and the form."""

    record: int
    offset: int
    dtype: np.dtype[Any]
    count: Count


def count_fields(
    record: int, dtype: np.dtype[Any], field: str, value: object
) -> Iterator[CountField]:
    """The counts in a field that was set to `value`: a number, or an operand that has this `ne`."""
    fields, parts = dtype.fields, TENSOR.fields
    assert fields is not None
    assert parts is not None
    of, offset = fields[field][:2]
    if isinstance(value, Count):
        yield CountField(record, offset, of, value)
    elif isinstance(value, tuple):
        for i, n in enumerate(value):
            if isinstance(n, Count):
                part, at = parts[f"ne{i}"][:2]
                yield CountField(record, offset + at, part, n)


class CountWriter:
    """Writes the values of counts into `memory`, where the records of a plan are, one after
    another."""

    def __init__(self, fields: Iterable[CountField], memory: NDArray[np.uint8]) -> None:
        forms: dict[str, int] = {}  # index of `_forms`, by text: a graph's symbols have one name
        self._forms: list[Count] = []
        found: dict[np.dtype[Any], list[tuple[int, int]]] = {}  # place and form, by type
        for field in fields:
            which = forms.setdefault(str(field.count), len(forms))
            if which == len(self._forms):
                self._forms.append(field.count)
            at = field.record * RECORD_BYTES + field.offset
            assert at % field.dtype.itemsize == 0, "fields are aligned"
            found.setdefault(field.dtype, []).append((at // field.dtype.itemsize, which))
        self._numbers = [
            (memory.view(dtype), *np.array(places, np.intp).T.copy())
            for dtype, places in found.items()
        ]

    def write(self, counts: Counts) -> None:
        """Write what the forms are with these values."""
        values = np.array([form.at(counts) for form in self._forms], np.int64)
        for numbers, places, which in self._numbers:
            numbers[places] = values[which]
