"""Weights in a mapped file: packed past the map, or used where they are; rows looked up in them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.packing import PackedWeights
from ggmlpy.backends.step import Step
from ggmlpy.common.progress import listening
from ggmlpy.errors import FileError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import HostBuffer, Place, aligned_bytes
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import TYPES
from ggmlpy.models.weights import Weights
from tests.cpu.test_packing import (
    addresses,
    few_bytes,
    format_of,
    on_threads,
    packed,
    packed_at_once,
    random_weight,
)
from tests.gguf_builder import gguf_bytes
from tests.resident import linux, resident_bytes

__all__ = ["few_bytes", "on_threads"]  # fixtures

K = 1024  # elements of a row of a mapped weight
Q8_0 = format_of("q8_0")


def mapped_weight(path: Path, n_mb: int, type: str = "q8_0") -> Tensor:
    """A weight of that size, and a little more, in a file."""
    m = -(-(n_mb << 20) // TYPES[type].row_bytes(K))
    rows = np.random.default_rng(0).integers(0, 64, m * TYPES[type].row_bytes(K), np.uint8)
    path.write_bytes(gguf_bytes({}, {"w.weight": (type, (K, m), rows.tobytes())}))
    return Weights(GGUFFile.open(path)).take("w.weight", K, m)


def buffer_of(weight: Tensor) -> HostBuffer:
    assert weight.place is not None
    assert isinstance(weight.place.buffer, HostBuffer)
    return weight.place.buffer


@linux
@pytest.mark.parametrize("n_threads", [1, 2])
def test_packing_brings_nothing_of_a_mapped_file_into_memory(
    tmp_path: Path, n_threads: int
) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 16)
    assert weight.place is not None
    before = resident_bytes(path)
    got = packed(weight, Q8_0, n_threads)
    assert resident_bytes(path) <= before < 2 << 20  # the header's part
    assert np.array_equal(got.data, packed_at_once(weight, Q8_0))
    assert resident_bytes(path) > 15 << 20  # it comes when it is read


@pytest.mark.usefixtures("on_threads")
def test_where_nothing_is_read_past_the_map_it_is_read_from(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 2)
    buffer_of(weight).file = None
    got = packed(weight, Q8_0, 2)
    assert np.array_equal(got.data, packed_at_once(weight, Q8_0))


@linux
@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_file_cut_short_is_an_error_and_leaves_nothing(tmp_path: Path, n_threads: int) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 4)
    content = path.read_bytes()
    os.truncate(path, 3 << 20)
    with pytest.raises(FileError, match=r"w\.gguf: the file was cut short to 3145728 bytes"):
        packed(weight, Q8_0, n_threads)
    assert not [t for t in threading.enumerate() if t.name.startswith("ggmlpy-pack")]
    with path.open("r+b") as file:
        file.write(content)
    assert np.array_equal(packed(weight, Q8_0, 2).data, packed_at_once(weight, Q8_0))


PEAK = """
import re, sys
from pathlib import Path
from tests.cpu.test_mapped_weights import K, Q8_0, GGUFFile, Weights, packed

def memory(key):
    return int(re.search(rf"{key}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

from ggmlpy.graph.tensor import from_bytes
packed(from_bytes(bytes(1088), "q8_0", (64, 16)), Q8_0, 1)  # code is linked by then
weight = Weights(GGUFFile.open(sys.argv[1])).take("w.weight", K, int(sys.argv[2]))
before = memory("VmRSS")
packed(weight, Q8_0, 2)
print((memory("VmHWM") - before) * 1024)
"""


@linux
def test_a_weight_is_never_in_memory_twice(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    m = mapped_weight(path, 64).ne[1]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), str(m)], capture_output=True, text=True, check=True
    )
    assert 64 << 20 <= int(done.stdout) < 72 << 20


def test_a_small_weight_is_packed_as_it_is_in_memory(tmp_path: Path) -> None:
    """It was copied, so who changes it changes what every op reads of it."""
    path = tmp_path / "w.gguf"
    path.write_bytes(gguf_bytes({}, {"w.weight": ("q8_0", (64, 16), bytes(16 * 68))}))
    weight = Weights(GGUFFile.open(path)).take("w.weight", 64, 16)
    assert weight.place is not None
    weight.place.host_bytes[:] = 1
    got = packed(weight, Q8_0, 1)
    assert (got.data.view(Q8_0.packed)["d"] == 0x0101).all()
    assert np.array_equal(got.data, packed_at_once(weight, Q8_0))


@linux
def test_a_closed_and_deleted_file_is_still_read(tmp_path: Path) -> None:
    """What was taken of it stays readable, also when the file is gone from its folder."""
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 1)
    path.unlink()
    got = packed(weight, Q8_0, 2)
    assert got.data.any()
    assert np.array_equal(got.data, packed_at_once(weight, Q8_0))


def brought(weight: Tensor, n_threads: int = 2) -> PackedWeights:
    """The weight used as it is stored."""
    assert weight.place is not None
    weights = PackedWeights()
    weights.use_stored(weight, weight.place)
    weights.make(n_threads, addresses(weights.entries))
    return weights


@linux
@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_weight_used_as_stored_is_brought_from_its_file(tmp_path: Path, n_threads: int) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 16, "f16")
    told = []
    with listening(lambda what, share: told.append(what)):
        brought(weight, n_threads)
    assert resident_bytes(path) >= 16 << 20
    assert set(told) <= {"reading weights"}
    again = PackedWeights()
    assert weight.place is not None
    again.use_stored(weight, weight.place)
    assert not again.entries


def test_a_weight_in_memory_is_used_as_it_is() -> None:
    assert not brought(random_weight("f16", (64, 16))).entries


@linux
def test_a_file_cut_short_is_not_used_as_it_is(tmp_path: Path) -> None:
    """Reading where it was mapped would end the process."""
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 4, "f16")
    os.truncate(path, 3 << 20)
    with pytest.raises(FileError, match=r"w\.gguf: the file was cut short to 3145728 bytes"):
        brought(weight)


def look_up(weight: Tensor, ids: NDArray[np.int32], n_threads: int = 2) -> NDArray[np.float32]:
    rows = ops.get_rows(weight, ggmlpy.from_numpy(ids))
    got: NDArray[np.float32] = ggmlpy.compute(rows, backend=CpuBackend(n_threads))
    return got


@linux
@pytest.mark.parametrize("type", ["q8_0", "q4_0", "q6_K"])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_looking_up_rows_brings_nothing_of_a_mapped_file_into_memory(
    tmp_path: Path, type: str, n_threads: int
) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 16, type)
    m = weight.ne[1]
    ids = np.random.default_rng(0).integers(0, m, 600).astype(np.int32)
    ids[:2] = 0, m - 1
    before = resident_bytes(path)
    got = look_up(weight, ids, n_threads)
    assert resident_bytes(path) <= before < 2 << 20
    assert weight.place is not None
    rows = weight.place.host_bytes.reshape(m, -1)[ids]
    want = to_float(np.ascontiguousarray(rows), TYPES[type])
    np.testing.assert_allclose(got, want, rtol=1e-6)
    buffer_of(weight).file = None
    assert look_up(weight, ids).tobytes() == got.tobytes()


def test_rows_of_a_view_are_those_of_the_map(tmp_path: Path) -> None:
    weight = mapped_weight(tmp_path / "w.gguf", 1)
    ids = np.array([0, 3], np.int32)
    view = ops.view_2d(weight, K, 10, weight.nb[1], 2 * weight.nb[1])
    assert look_up(view, ids).tobytes() == look_up(weight, ids + 2).tobytes()


@linux
def test_rows_that_are_not_in_the_file_any_more_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 4)
    first, last = np.array([0], np.int32), np.array([weight.ne[1] - 1], np.int32)
    want = look_up(weight, first)
    os.truncate(path, 3 << 20)
    assert look_up(weight, first).tobytes() == want.tobytes()
    with pytest.raises(FileError, match=r"w\.gguf: the file was cut short to 3145728 bytes"):
        look_up(weight, last)


@linux
def test_a_plan_keeps_the_file_open_that_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 1)
    plan_of = CpuBackend(1)
    rows = ops.get_rows(weight, ggmlpy.from_numpy(np.array([5], np.int32)))
    result = HostBuffer(aligned_bytes(rows.spec.n_bytes))
    places = {rows: Place(result)}
    for source in rows.src:
        assert source.place is not None
        places[source] = source.place
    plan = plan_of.plan([Step.of(rows)], places)
    want = look_up(weight, np.array([5], np.int32))
    path.unlink()
    weight.place = None
    del places, source
    gc.collect()
    plan.submit()
    plan.check()
    assert result.data.tobytes() == want.tobytes()
