"""Packing weights: the same bytes by any number of threads, and no second copy in memory."""

from __future__ import annotations

import ctypes
import gc
import mmap
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.cpu import packing
from ggmlpy.backends.cpu.formats import base
from ggmlpy.backends.cpu.formats.base import GROUP, PackedFormat
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.kernels.matmul import FORMATS
from ggmlpy.backends.cpu.packing import PackedWeights, Packing
from ggmlpy.backends.cpu.pieces import PIECE
from ggmlpy.common.progress import listening
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.errors import AllocationError, BackendError
from ggmlpy.graph.buffer import HostBuffer, address_of
from ggmlpy.graph.quants import Bytes
from ggmlpy.graph.tensor import Tensor, from_bytes
from ggmlpy.graph.types import TYPES
from tests.cpu.conftest import ISAS, jit_for
from tests.cpu.formats.repacked import REPACK
from tests.processes import interruptible, no_start


@pytest.fixture(params=["threads", "inline"])
def few_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights on threads too, as large ones are."""
    if request.param == "threads":
        monkeypatch.setattr(packing, "_FEW_BYTES", 0)


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_FEW_BYTES", 0)


PACKED = [format for format in FORMATS if isinstance(format, PackedFormat)]
SHAPES = [(512, 16), (256, 37), (512, 1), (256, 33, 3, 2)]


def random_weight(type: str, ne: tuple[int, ...], seed: int = 0) -> Tensor:
    rows = random_rows(np.random.default_rng(seed), TYPES[type], int(np.prod(ne[1:])), ne[0])
    return from_bytes(rows, type, ne)


def format_of(type: str) -> PackedFormat:
    return next(format for format in PACKED if format.type_name == type)


def packed(weight: Tensor, by: Packing, n_threads: int, jit: Jit | None = None) -> HostBuffer:
    assert weight.place is not None
    weights = PackedWeights()
    buffer = weights.get(weight, weight.place, by)
    weights.make(n_threads, addresses(weights.entries, jit))
    return buffer


def addresses(entries: set[Entry], jit: Jit | None = None) -> dict[Entry, int]:
    """Of compiled entries, all formats' together, and of the callbacks of `Steps`."""
    compiled = (entries - STEPS.keys()) | {format.entry for format in PACKED}
    return {**STEPS, **(jit or jit_for(ISAS[0])).load(compiled)}


def packed_at_once(weight: Tensor, format: PackedFormat) -> Bytes:
    """By numpy: each matrix filled up with rows of zeros and repacked as a whole."""
    assert weight.place is not None
    k, m = weight.ne[:2]
    matrices = weight.place.host_bytes.view(format.stored).reshape(-1, m, k // format.block)
    n_groups = -(-m // GROUP)
    out = np.empty((len(matrices), n_groups, k // format.block), format.packed)
    for matrix, groups in zip(matrices, out, strict=True):
        filled = np.zeros((n_groups * GROUP, k // format.block), format.stored)
        filled[:m] = matrix
        REPACK[format.type_name](filled.reshape(n_groups, GROUP, -1), groups)
    return out.reshape(-1).view(np.uint8)


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.type_name)
@pytest.mark.parametrize("ne", SHAPES, ids=str)
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_pieces_on_threads_give_the_bytes_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, format: PackedFormat, ne: tuple[int, ...], n_threads: int
) -> None:
    weight = random_weight(format.type_name, ne)
    wanted = packed_at_once(weight, format)
    for piece_bytes in (1, 1 << 20):
        monkeypatch.setattr(base, "_PIECE_BYTES", piece_bytes)
        again = random_weight(format.type_name, ne)
        got = packed(again, format, n_threads)
        assert np.array_equal(got.data, wanted)
        assert again.tobytes() == weight.tobytes()  # it is only read
        assert got.address % 64 == 0


def random_bytes(format: PackedFormat, k: int, m: int) -> Tensor:
    """A weight of blocks that may be anything."""
    type = TYPES[format.type_name]
    raw = np.random.default_rng(k).integers(0, 256, type.row_bytes(k) * m, np.uint8)
    return from_bytes(raw, format.type_name, (k, m))


@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.type_name)
def test_every_instruction_set_packs_the_same_bytes(jit: Jit, format: PackedFormat) -> None:
    for n_blocks in (1, 3):
        weight = random_bytes(format, n_blocks * format.block, 33)
        assert np.array_equal(
            packed(weight, format, 1, jit).data, packed_at_once(weight, format)
        ), n_blocks


@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.type_name)
def test_packing_stays_inside_its_memory(jit: Jit, format: PackedFormat) -> None:
    """Stored bytes end where a page ends that may not be touched, packed ones among guards."""
    k = 3 * format.block
    weight = random_bytes(format, k, GROUP)
    assert weight.place is not None
    n, row_bytes = weight.spec.n_bytes, weight.spec.n_bytes // GROUP
    pages = mmap.mmap(-1, (-(-n // mmap.PAGESIZE) + 1) * mmap.PAGESIZE)
    memory = np.frombuffer(pages, np.uint8)
    stored = memory[len(memory) - mmap.PAGESIZE - n : -mmap.PAGESIZE]
    stored[:] = weight.place.host_bytes
    libc = ctypes.CDLL(None, use_errno=True)
    end = ctypes.c_void_p(address_of(stored) + n)
    out = np.full(format.group_bytes(k) + 128, 7, np.uint8)
    pack = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(
        addresses(set(), jit)[format.entry]
    )
    assert libc.mprotect(end, mmap.PAGESIZE, 0) == 0
    try:
        end_of_out = pack(address_of(stored), row_bytes, address_of(out) + 64, 1, 3)
    finally:
        libc.mprotect(end, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    assert end_of_out == address_of(out) + len(out) - 64
    assert (out[:64] == 7).all()
    assert (out[-64:] == 7).all()
    assert np.array_equal(out[64:-64], packed_at_once(weight, format))


@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.type_name)
def test_pieces_are_the_stored_bytes_one_after_another(
    monkeypatch: pytest.MonkeyPatch, format: PackedFormat
) -> None:
    monkeypatch.setattr(base, "_PIECE_BYTES", 1)
    for ne in SHAPES:
        weight = random_weight(format.type_name, ne)
        n_groups = -(-ne[1] // GROUP)
        pieces = format.pieces(weight, out=1000)
        assert len(pieces) == n_groups * weight.ne[2] * weight.ne[3]
        begin = pieces["rows"]
        assert begin[0] == 0
        end = begin + pieces["n_rows"] * pieces["row_bytes"]
        assert end[-1] == weight.spec.n_bytes
        assert (end[:-1] == begin[1:]).all()
        assert np.array_equal(
            pieces["out"], 1000 + np.arange(len(pieces)) * format.group_bytes(ne[0])
        )


@pytest.mark.usefixtures("few_bytes")
def test_weights_of_any_size_share_memory_without_touching() -> None:
    """Each keeps its bytes when the next ones are packed."""
    weights = [random_weight("q8_0", (256, m), seed=m) for m in (16, 300, 5, 1000, 17, 16)]
    q8_0 = format_of("q8_0")
    plan = PackedWeights()
    copies = []
    for weight in weights:
        assert weight.place is not None
        copies.append(plan.get(weight, weight.place, q8_0))
    plan.make(2, addresses(plan.entries))
    for weight, buffer in zip(weights, copies, strict=True):
        assert buffer.n_bytes == q8_0.packed_bytes(weight)
        assert np.array_equal(buffer.data, packed_at_once(weight, q8_0))


_Callback = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)
STEPS: dict[Entry, int] = {}  # callbacks, by what they stand for


class Steps:
    """A packing of 16 bytes a piece, by Python: `at` is called with the number of each."""

    def __init__(self, n: int, at: Callable[[int], None] = lambda i: None) -> None:
        self.n = n
        self.at = at
        self.n_run = 0
        self.entry = Entry(f"steps_{len(STEPS)}", self._pack, ())
        self._callback = _Callback(self._pack)
        STEPS[self.entry] = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def packed_bytes(self, weight: Tensor) -> int:
        return GROUP * self.n

    def pieces(self, weight: Tensor, out: int) -> NDArray[np.void]:
        pieces = np.zeros(self.n, PIECE)
        pieces["rows"] = GROUP * np.arange(self.n)
        pieces["n_rows"] = GROUP
        pieces["row_bytes"] = 1
        pieces["n_blocks"] = np.arange(self.n)  # tells which piece it is
        pieces["out"] = out + pieces["rows"]
        return pieces

    def _pack(self, rows: int, row_bytes: int, out: int, n_groups: int, i: int) -> int:
        if n_groups:
            self.at(i)
            ctypes.memset(out, i + 1, GROUP)
            self.n_run += 1
        return out


def steps_done(n: int) -> list[int]:
    return np.repeat(np.arange(1, n + 1), GROUP).tolist()


def bytes_weight(n: int) -> Tensor:
    """As many bytes as `n` steps pack."""
    return from_bytes(np.zeros(GROUP * n, np.uint8), "i8", (GROUP * n,))


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


def test_memory_that_cannot_be_had_is_named_with_its_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = bytes_weight(1).named("blk.3.ffn_up.weight")
    steps = Steps(1)
    monkeypatch.setattr(steps, "packed_bytes", lambda weight: 1 << 62)
    text = rf"^packed weights, from blk\.3\.ffn_up\.weight on: {1 << 62} bytes of memory cannot"
    with pytest.raises(AllocationError, match=text):
        packed(weight, steps, 1)


@pytest.mark.usefixtures("on_threads")
def test_an_interrupt_ends_it_soon_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, go_on, leave = threading.Event(), threading.Event(), ThreadPoolExecutor.__exit__

    def wait_for_threads(*args: Any) -> Any:
        waits.set()  # all of them have been started
        return wait(*args)

    def interrupt(i: int) -> None:
        if i == 2:
            waits.wait()
            signal.raise_signal(signal.SIGINT)
        if i >= 2:
            go_on.wait()

    def leave_pool(*args: Any) -> bool | None:
        go_on.set()  # the interrupt has come, and threads are waited for
        return leave(*args)

    monkeypatch.setattr(packing, "wait", wait_for_threads)
    monkeypatch.setattr(ThreadPoolExecutor, "__exit__", leave_pool)
    weight, steps = bytes_weight(200), Steps(200, interrupt)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        packed(weight, steps, 2)
    assert 2 < steps.n_run < 5
    assert not [t for t in threading.enumerate() if t.name.startswith("ggmlpy-pack")]
    steps.at = lambda i: None
    assert packed(weight, steps, 2).data.tolist() == steps_done(200)


@pytest.mark.usefixtures("on_threads")
def test_without_threads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, steps = bytes_weight(20), Steps(20)
    monkeypatch.setattr(threading.Thread, "start", no_start)
    with pytest.raises(BackendError, match="no thread can be started"):
        packed(weight, steps, 2)
    monkeypatch.undo()
    assert packed(weight, steps, 2).data.tolist() == steps_done(20)


@pytest.mark.usefixtures("on_threads")
def test_threads_left_behind_keep_what_they_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second interrupt, while the first one waits for threads to end with their pieces."""
    begun, go_on = threading.Event(), threading.Event()

    def interrupted(*args: object) -> None:
        begun.wait()
        raise KeyboardInterrupt

    def hold(i: int) -> None:
        begun.set()
        go_on.wait()

    weight, weights, steps = bytes_weight(4), PackedWeights(), Steps(4, hold)
    assert weight.place is not None
    copy = weakref.ref(weights.get(weight, weight.place, steps))
    code = addresses(weights.entries)
    monkeypatch.setattr(packing, "wait", interrupted)
    monkeypatch.setattr(ThreadPoolExecutor, "__exit__", interrupted)
    with suppress(KeyboardInterrupt):
        weights.make(1, code)
    del weight, weights
    gc.collect()
    assert copy() is not None
    go_on.set()
    (thread,) = [t for t in threading.enumerate() if t.name.startswith("ggmlpy-pack")]
    thread.join(10)
    gc.collect()
    assert copy() is None


@pytest.mark.usefixtures("on_threads")
def test_progress_is_told_and_ends_at_one() -> None:
    told: list[tuple[str, float]] = []
    has_told = threading.Event()

    def listen(what: str, share: float) -> None:
        told.append((what, share))
        if share > 0:
            has_told.set()

    def at(i: int) -> None:
        if i == 20:
            has_told.wait()

    with listening(listen):
        packed(bytes_weight(40), Steps(40, at), 2)
    packed(bytes_weight(4), Steps(4), 2)  # nobody listens any more
    shares = [share for _, share in told]
    assert {what for what, _ in told} == {"packing weights"}
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert any(0 < share < 1 for share in shares)
