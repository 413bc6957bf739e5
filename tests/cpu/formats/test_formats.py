"""What all packed formats promise of their blocks."""

from __future__ import annotations

import pytest

from ggmlpy.backends.cpu.formats.base import GROUP, PackedFormat
from ggmlpy.backends.cpu.kernels.matmul import FORMATS
from ggmlpy.graph.types import TYPES

BY_NAME = {format.type_name: format for format in FORMATS if isinstance(format, PackedFormat)}


@pytest.fixture(params=BY_NAME)
def format(request: pytest.FixtureRequest) -> PackedFormat:
    return BY_NAME[request.param]


def test_stored_blocks_are_those_of_the_type(format: PackedFormat) -> None:
    type = TYPES[format.type_name]
    assert (format.block, format.stored.itemsize) == (type.block_size, type.type_size)


def test_packed_blocks_are_hardly_larger(format: PackedFormat) -> None:
    """Decoding is as fast as the bytes come from memory; tq1_0 gives up base 3 for two bits."""
    most = 1.25 if format.type_name == "tq1_0" else 1.04
    assert format.packed.itemsize <= most * GROUP * format.stored.itemsize
