"""Loading weights onto a device: from a file, past its map, in pieces; the host keeps none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.backends.base import Weight
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.errors import FileError
from ggmlpy.graph.buffer import Buffer, HostBufferType
from ggmlpy.graph.tensor import Tensor
from tests.cpu.test_mapped_weights import mapped_weight
from tests.resident import linux, resident_bytes


def load(device: MockBackend, weight: Tensor) -> None:
    device.load_weights([Weight(weight, frozenset({"mul_mat"}))])


@linux
def test_a_file_cut_short_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 2)
    os.truncate(path, 1 << 20)  # its map would end the process here
    with pytest.raises(FileError, match=r"w\.gguf: the file was cut short to 1048576 bytes"):
        load(MockBackend(), weight)


@linux
def test_loading_brings_nothing_of_a_mapped_file_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 20)  # more than a piece
    mapped, before = weight.place, resident_bytes(path)
    load(MockBackend(), weight)
    assert resident_bytes(path) <= before < 2 << 20
    assert mapped is not weight.place  # though the map is there still
    content = np.fromfile(path, np.uint8)
    assert weight.tobytes() == content[-weight.spec.n_bytes :].tobytes()


def test_pieces_are_read_into_one_buffer_of_the_devices_host_memory(tmp_path: Path) -> None:
    allocated = []

    class Pinned(HostBufferType):
        def allocate(self, n_bytes: int) -> Buffer:
            allocated.append(n_bytes)
            return super().allocate(n_bytes)

    device = MockBackend()
    device.host_buffer_type = Pinned("pinned")
    weights = [mapped_weight(tmp_path / f"{i}.gguf", 1) for i in range(2)]
    device.load_weights([Weight(weight, frozenset()) for weight in weights])
    assert allocated == [weights[0].spec.n_bytes]
