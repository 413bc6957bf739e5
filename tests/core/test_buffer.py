"""Memory of leaves, where it is a file's and where it is copied."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.common.open_file import FilePlace, OpenFile
from ggmlpy.graph.buffer import HostBuffer, address_of
from ggmlpy.graph.tensor import from_numpy


def stored_in(folder: Path) -> HostBuffer:
    """Ten bytes of a file, which are in memory too."""
    path = folder / "w.bin"
    path.write_bytes(bytes(range(10)))
    return HostBuffer(np.arange(10, dtype=np.uint8), file=FilePlace(OpenFile(path), 0))


def test_a_copy_points_to_its_own_bytes(tmp_path: Path) -> None:
    stored = stored_in(tmp_path)
    for copied in (copy.deepcopy(stored), pickle.loads(pickle.dumps(stored))):
        assert copied.data.tolist() == stored.data.tolist()
        assert copied.address == address_of(copied.data) != stored.address
        assert copied.file is None
    leaf = from_numpy(np.ones(3, np.float32))
    other = copy.deepcopy(leaf)
    other.array()[:] = 2
    assert leaf.numpy().tolist() == [1, 1, 1]
    assert other.place is not None
    assert other.place.address == address_of(other.place.host_bytes)


def test_a_file_is_closed_by_the_last_of_its_places_and_by_no_copy(tmp_path: Path) -> None:
    stored = stored_in(tmp_path)
    assert stored.file is not None
    place, out = stored.file, np.zeros(4, np.uint8)
    descriptor = place.file.descriptor
    copied = copy.copy(stored)
    del copied, stored
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.copy(place.file)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(place)
    place.read(3, out)
    assert out.tolist() == [3, 4, 5, 6]
    del place
    gc.collect()  # of what the errors refer to
    with pytest.raises(OSError):
        os.fstat(descriptor)
