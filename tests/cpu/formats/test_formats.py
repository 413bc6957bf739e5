"""What all packed formats promise of their blocks."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlpy
from ggmlpy.backends.cpu.formats.base import GROUP, Format
from ggmlpy.backends.cpu.kernels.matmul import FORMATS
from ggmlpy.types import TYPES
from tests.blocks import random_rows

NAMES = [format.type_name for format in FORMATS]
BY_NAME = dict(zip(NAMES, FORMATS, strict=True))


@pytest.fixture(params=NAMES)
def format(request: pytest.FixtureRequest) -> Format:
    return BY_NAME[request.param]


def test_stored_blocks_are_those_of_the_type(format: Format) -> None:
    type = TYPES[format.type_name]
    assert (format.block, format.stored.itemsize) == (type.block_size, type.type_size)


def test_packed_blocks_are_hardly_larger(format: Format) -> None:
    """Decoding is as fast as the bytes come from memory; tq1_0 gives up base 3 for two bits."""
    most = 1.25 if format.type_name == "tq1_0" else 1.04
    assert format.packed.itemsize <= most * GROUP * format.stored.itemsize


def test_packing_leaves_the_weight_as_it_is(format: Format) -> None:
    k = format.block
    raw = random_rows(np.random.default_rng(4), TYPES[format.type_name], GROUP, k)
    weight = ggmlpy.from_bytes(raw.copy(), format.type_name, (k, GROUP))
    for piece in format.pieces(weight, np.zeros(format.packed_bytes(weight), np.uint8)):
        piece.pack()
    np.testing.assert_array_equal(np.frombuffer(weight.tobytes(), np.uint8), raw.reshape(-1))
