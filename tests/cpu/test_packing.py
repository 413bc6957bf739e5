"""Packing weights: the same bytes by any number of threads, and no second copy in memory."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy.backends.base import Place
from ggmlpy.backends.cpu import packing
from ggmlpy.backends.cpu.formats import base
from ggmlpy.backends.cpu.formats.base import GROUP, Format
from ggmlpy.backends.cpu.kernels.matmul import FORMATS
from ggmlpy.backends.cpu.packing import PackedWeights, Packing, Piece
from ggmlpy.gguf_file import GGUFFile
from ggmlpy.models.weights import Weights
from ggmlpy.progress import listening
from ggmlpy.quants import Bytes
from ggmlpy.storage import Storage
from ggmlpy.tensor import Tensor, from_bytes
from ggmlpy.types import TYPES
from tests.blocks import random_rows
from tests.gguf_builder import gguf_bytes
from tests.resident import linux, resident_bytes


@pytest.fixture(params=["threads", "inline"])
def few_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights on threads too, as large ones are."""
    if request.param == "threads":
        monkeypatch.setattr(packing, "_FEW_BYTES", 0)


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_FEW_BYTES", 0)


SHAPES = [(512, 16), (256, 37), (512, 1), (256, 33, 3, 2)]


def random_weight(type: str, ne: tuple[int, ...], seed: int = 0) -> Tensor:
    rows = random_rows(np.random.default_rng(seed), TYPES[type], int(np.prod(ne[1:])), ne[0])
    return from_bytes(rows, type, ne)


def format_of(type: str) -> Format:
    return next(format for format in FORMATS if format.type_name == type)


def packed(weight: Tensor, by: Packing, n_threads: int) -> Storage:
    assert weight.storage is not None
    weights = PackedWeights()
    storage = weights.get(weight, Place(weight.storage, 0), by)
    weights.make(n_threads)
    return storage


def packed_at_once(weight: Tensor, format: Format) -> Bytes:
    """Each matrix filled up with rows of zeros and repacked as a whole."""
    assert weight.storage is not None
    k, m = weight.ne[:2]
    matrices = weight.storage.data.view(format.stored).reshape(-1, m, k // format.block)
    n_groups = -(-m // GROUP)
    out = np.empty((len(matrices), n_groups, k // format.block), format.packed)
    for matrix, groups in zip(matrices, out, strict=True):
        filled = np.zeros((n_groups * GROUP, k // format.block), format.stored)
        filled[:m] = matrix
        format.repack(filled.reshape(n_groups, GROUP, -1), groups)
    return out.reshape(-1).view(np.uint8)


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.type_name)
@pytest.mark.parametrize("ne", SHAPES, ids=str)
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_pieces_on_threads_give_the_bytes_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, format: Format, ne: tuple[int, ...], n_threads: int
) -> None:
    weight = random_weight(format.type_name, ne)
    wanted = packed_at_once(weight, format)
    for piece_bytes in (1, 1 << 20):
        monkeypatch.setattr(base, "_CHUNK_BYTES", piece_bytes)
        got = packed(random_weight(format.type_name, ne), format, n_threads)
        assert np.array_equal(got.data, wanted)
        assert got.address % 64 == 0


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.type_name)
def test_pieces_are_the_stored_bytes_one_after_another(
    monkeypatch: pytest.MonkeyPatch, format: Format
) -> None:
    monkeypatch.setattr(base, "_CHUNK_BYTES", 1)
    for ne in SHAPES:
        weight = random_weight(format.type_name, ne)
        out = np.zeros(format.packed_bytes(weight), np.uint8)
        pieces = list(format.pieces(weight, out))
        assert len(pieces) == -(-weight.ne[1] // GROUP) * weight.ne[2] * weight.ne[3]
        assert pieces[0].begin == 0
        assert pieces[-1].end == weight.spec.n_bytes
        assert all(a.end == b.begin for a, b in pairwise(pieces))


@pytest.mark.usefixtures("few_bytes")
def test_weights_of_any_size_share_memory_without_touching() -> None:
    """Each keeps its bytes when the next ones are packed."""
    weights = [random_weight("q8_0", (256, m), seed=m) for m in (16, 300, 5, 1000, 17, 16)]
    q8_0 = format_of("q8_0")
    plan = PackedWeights()
    storages = []
    for weight in weights:
        assert weight.storage is not None
        storages.append(plan.get(weight, Place(weight.storage, 0), q8_0))
    plan.make(2)
    for weight, storage in zip(weights, storages, strict=True):
        assert storage.n_bytes == q8_0.packed_bytes(weight)
        assert np.array_equal(storage.data, packed_at_once(weight, q8_0))


class Steps:
    """A packing of one byte a piece; `at` is called with the number of each."""

    def __init__(self, n: int, at: Any = lambda i: None) -> None:
        self.n = n
        self.at = at
        self.n_run = 0

    def packed_bytes(self, weight: Tensor) -> int:
        return self.n

    def pieces(self, weight: Tensor, out: Bytes) -> Iterator[Piece]:
        for i in range(self.n):
            yield Piece(i, i + 1, lambda i=i: self._run(i, out))  # type: ignore[misc]

    def _run(self, i: int, out: Bytes) -> None:
        self.at(i)
        out[i] = i + 1
        self.n_run += 1


def bytes_weight(n: int) -> Tensor:
    return from_bytes(np.zeros(n, np.uint8), "i8", (n,))


@pytest.mark.usefixtures("few_bytes")
def test_a_weight_is_packed_once_for_all_plans_and_its_copy_goes_with_it() -> None:
    weight, steps = bytes_weight(8), Steps(8)
    first, again = packed(weight, steps, 1), packed(weight, steps, 2)
    assert first is again
    assert steps.n_run == 8
    other = packed(weight, Steps(8), 1)
    assert other is not first
    copies = [weakref.ref(first), weakref.ref(other)]
    del first, again, other
    gc.collect()
    assert all(copy() is not None for copy in copies)
    del weight
    gc.collect()
    assert all(copy() is None for copy in copies)


@pytest.mark.usefixtures("few_bytes")
def test_an_error_ends_it_and_leaves_nothing() -> None:
    def fail(i: int) -> None:
        if i == 3:
            raise ValueError("piece 3")

    weight, steps = bytes_weight(100), Steps(100, fail)
    for n_threads in (1, 3):
        with pytest.raises(ValueError, match="piece 3"):
            packed(weight, steps, n_threads)
    assert not [t for t in threading.enumerate() if t.name.startswith("ggmlpy-pack")]
    steps.at = lambda i: None
    assert packed(weight, steps, 3).data.tolist() == list(range(1, 101))


@pytest.mark.usefixtures("few_bytes")
def test_an_interrupt_ends_it_soon_and_leaves_nothing() -> None:
    def interrupt(i: int) -> None:
        time.sleep(0.01)
        if i == 2:
            signal.raise_signal(signal.SIGINT)

    weight, steps = bytes_weight(200), Steps(200, interrupt)
    with pytest.raises(KeyboardInterrupt):
        packed(weight, steps, 2)
    assert steps.n_run < 100
    assert not [t for t in threading.enumerate() if t.name.startswith("ggmlpy-pack")]
    steps.at = lambda i: None
    assert packed(weight, steps, 2).data.tolist() == list(range(1, 201))


@pytest.mark.usefixtures("on_threads")
def test_progress_is_told_and_ends_at_one() -> None:
    told: list[tuple[str, float]] = []
    with listening(lambda what, share: told.append((what, share))):
        packed(bytes_weight(40), Steps(40, lambda i: time.sleep(0.01)), 2)
    packed(bytes_weight(4), Steps(4), 2)  # nobody listens any more
    shares = [share for _, share in told]
    assert {what for what, _ in told} == {"packing weights"}
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert any(0 < share < 1 for share in shares)


def mapped_weight(path: Path, n_mb: int) -> Tensor:
    """An f16 weight in a file."""
    k, m = 1024, 512 * n_mb
    values = np.random.default_rng(0).integers(0, 1 << 14, k * m).astype(np.uint16)
    path.write_bytes(gguf_bytes({}, {"w.weight": ("f16", (k, m), values.tobytes())}))
    return Weights(GGUFFile.open(path)).take("w.weight", k, m)


@linux
@pytest.mark.parametrize("n_threads", [1, 2])
def test_what_is_packed_of_a_mapped_file_leaves_the_memory(tmp_path: Path, n_threads: int) -> None:
    path = tmp_path / "w.gguf"
    weight = mapped_weight(path, 16)
    assert weight.storage is not None
    before = weight.storage.data.copy()
    assert resident_bytes(path) > 15 << 20
    got = packed(weight, format_of("f16"), n_threads)
    assert resident_bytes(path) < 1 << 20
    assert np.array_equal(got.data, packed_at_once(weight, format_of("f16")))
    assert np.array_equal(weight.storage.data, before)  # it comes back when it is read


PEAK = """
import re, sys
from pathlib import Path
from tests.cpu.test_packing import GGUFFile, Weights, format_of, packed

def memory(key):
    return int(re.search(rf"{key}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

weight = Weights(GGUFFile.open(sys.argv[1])).take("w.weight", 1024, 512 * 64)
before = memory("VmRSS")
packed(weight, format_of("f16"), 2)
print((memory("VmHWM") - before) * 1024)
"""


@linux
def test_a_weight_is_never_in_memory_twice(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    mapped_weight(path, 64)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True
    )
    assert 64 << 20 <= int(done.stdout) < 80 << 20


@linux
def test_a_closed_file_is_left_alone(tmp_path: Path) -> None:
    """Arrays that were taken stay valid: there is nothing to be let go by."""
    path = tmp_path / "w.gguf"
    path.write_bytes(gguf_bytes({}, {"w.weight": ("f16", (1024, 16), bytes(1024 * 16 * 2))}))
    file = GGUFFile.open(path)
    weight = Weights(file).take("w.weight", 1024, 16)
    file.close()
    assert not packed(weight, format_of("f16"), 2).data.any()
