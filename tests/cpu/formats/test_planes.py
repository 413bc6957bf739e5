"""The oracle's planes (repacked.py), read back by the rule that planes.py states."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cpu.formats.repacked import join, planes_of_runs

WIDTHS = (1, 2, 4)


def codes_of(plane: NDArray[np.uint32], width: int) -> NDArray[np.uint8]:
    """The codes [..., 16 rows, 32] in a plane [..., width, 16]."""
    vectors = np.ascontiguousarray(plane).view(np.uint8).reshape(*plane.shape, 4)
    codes = np.empty((*plane.shape[:-2], 16, 32), np.uint8)
    for element in range(32):
        j, t = divmod(element, 4)
        byte = vectors[..., j % width, :, t]
        codes[..., element] = byte >> width * (j // width) & ((1 << width) - 1)
    return codes


@pytest.mark.parametrize("width", WIDTHS)
def test_join(width: int) -> None:
    codes = np.random.default_rng(width).integers(0, 1 << width, (3, 16, 32)).astype(np.uint8)
    words = codes.view(np.uint32).swapaxes(1, 2)  # [3, 8, 16]
    np.testing.assert_array_equal(codes_of(join(words, width), width), codes)


@pytest.mark.parametrize("width", WIDTHS)
def test_planes_of_runs(width: int) -> None:
    """Runs that share bytes, each to a plane of its own; the stored bytes stay as they are."""
    n = width  # stretches of 32 bytes in a block of 256
    stored = np.random.default_rng(width).integers(0, 256, (2, 16, 3, n, 32)).astype(np.uint8)
    before = stored.copy()
    planes = planes_of_runs(stored.view(np.uint32), width)
    assert planes.shape == (2, 3, 8, width, 16)
    for run in range(8):
        stretch, i = divmod(run, 8 // n)
        want = stored[:, :, :, stretch] >> width * i & ((1 << width) - 1)  # [2, 16, 3, 32]
        np.testing.assert_array_equal(codes_of(planes[:, :, run], width), want.swapaxes(1, 2))
    np.testing.assert_array_equal(stored, before)


def test_a_single_block_is_copied_before_it_is_changed() -> None:
    """Where moving the axis of the rows leaves all bytes in place, too."""
    stored = np.full((1, 16, 1, 1, 8), 0x12345678, np.uint32)
    turned = np.moveaxis(np.full((1, 1, 1, 8, 16), 0x12345678, np.uint32), -1, 1)
    want = planes_of_runs(stored, 1)
    np.testing.assert_array_equal(planes_of_runs(turned, 1), want)
    assert (turned == 0x12345678).all()
