"""Memory of a context: sizes that fit what the machine and devices have, and what graphs take."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ggmlpy import AllocationError, Context, ContextWarning, Llama
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.mock.memory import MockMemory
from ggmlpy.backends.mock.queue import Queue
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.common import system_memory
from ggmlpy.graph.buffer import HOST
from ggmlpy.graph.types import F16, F32
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import Sizes
from ggmlpy.models.memory import AttentionLayers, KVSizes, Memory, RecurrentLayers, Window
from ggmlpy.runtime import context_sizes
from tests.engine.described import table
from tests.models.tiny import Tiny, write_model

KIB = 1 << 10
LONG = 4096  # tokens of 256 bytes of K and V and 4 of the list of cells: 1040 KiB


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("long") / "long.gguf", Tiny(n_ctx=LONG))


def machine_of(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    for module in (system_memory, context_sizes):
        monkeypatch.setattr(module, "physical_memory", lambda: n_bytes)


@pytest.mark.parametrize(
    ("has", "options", "total", "most"),
    [
        (1040 * KIB, {}, 2048, 2048),
        (1040 * KIB - 2, {}, 1792, 1792),
        (1040 * KIB, {"n_seq_max": 2}, 2048, 1024),
        (1056 * KIB, {"n_seq_max": 2, "kv_unified": True}, 2048, 2048),  # 2 lists of all cells
        (1056 * KIB - 2, {"n_seq_max": 2, "kv_unified": True}, 1792, 1792),
        (1032 * KIB, {"type_k": "f32", "type_v": "f32"}, 1024, 1024),
        (100 * KIB, {}, 256, 256),  # more than half, and the least
    ],
)
def test_a_default_size_is_reduced_to_half_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, long_path: Path, has: int, options: Any, total: int, most: int
) -> None:
    machine_of(monkeypatch, has)
    with pytest.warns(ContextWarning) as caught:
        llm = Llama(long_path, backend="reference", **options)
    with llm:
        assert (llm.n_ctx(), llm.n_ctx_seq()) == (total, most)
        assert table(llm)["n_ctx"] == f"{total} tokens, those of all sequences together"
        assert llm([5, 6], max_tokens=2)["usage"]["prompt_tokens"] == 2
    assert [warning.filename for warning in caught] == [__file__]
    message = str(caught[0].message)
    assert message.startswith(f"n_ctx is {total}, not the {LONG} of the model's training: ")
    assert message.endswith("n_ctx or n_ctx_seq asks for another size")


def test_a_default_size_that_fits_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, long_path: Path
) -> None:
    machine_of(monkeypatch, 2080 * KIB)
    with Llama(long_path, backend="reference") as llm:
        assert llm.n_ctx() == LONG


@pytest.mark.placed
@pytest.mark.parametrize("name", ["n_ctx", "n_ctx_seq"])
def test_a_size_that_was_asked_for_is_had_or_refused(
    monkeypatch: pytest.MonkeyPatch, long_path: Path, name: str
) -> None:
    options: dict[str, Any] = {name: LONG}
    machine_of(monkeypatch, 1040 * KIB)
    with Llama(long_path, backend="reference", **options) as llm:
        assert llm.n_ctx() == LONG
    machine_of(monkeypatch, 1040 * KIB - 1)
    wanted = f"for n_ctx = {LONG} tokens: {1040 * KIB} bytes of memory cannot be had, this machine"
    with pytest.raises(AllocationError, match=wanted):
        Llama(long_path, backend="reference", **options)


HEADS = KVSizes(16, 16, 2)

MEMORIES: dict[str, Memory] = {
    "windows": (
        AttentionLayers({0: HEADS, 2: HEADS}),
        AttentionLayers({1: HEADS}, Window(400)),
    ),
    "states": (AttentionLayers({0: HEADS, 2: HEADS}), RecurrentLayers({1: (1000, 7), 2: (30,)}, 2)),
    "states alone": (RecurrentLayers({0: (1000,), 1: (40, 7)}),),
}


SIZES = Sizes(n_ctx=1024, n_ctx_seq=512, n_seq_max=2, layout="split", n_ubatch=8)


@pytest.mark.parametrize("name", MEMORIES)
def test_all_parts_of_a_memory_are_checked_together(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    memory = SequenceMemory(MEMORIES[name], SIZES, F16, F32)
    leaves = [leaf for cache in memory.caches for leaf in cache.store.leaves]
    leaves += [cache.cells.lists.leaf for cache in memory.caches]
    if memory.recurrent is not None:
        leaves += memory.recurrent.leaves.values()
    n_bytes = sum(leaf.array().nbytes for leaf in leaves)
    machine_of(monkeypatch, n_bytes)
    assert SequenceMemory(MEMORIES[name], SIZES, F16, F32).n_bytes == n_bytes
    machine_of(monkeypatch, n_bytes - 1)
    with pytest.raises(AllocationError, match=f"^{n_bytes} bytes of memory cannot be had, this"):
        SequenceMemory(MEMORIES[name], SIZES, F16, F32)


# --- memory of devices ---


class SizedMemory(MockMemory):
    """Memory of which a device says how much it has."""

    def __init__(self, queue: Queue, n_free: int | None) -> None:
        super().__init__(queue, 1 << 40)
        self.n_free = n_free

    def free_bytes(self) -> int | None:
        return self.n_free


def device_of(n_bytes: int | None) -> MockBackend:
    device = MockBackend()
    device.buffer_type = SizedMemory(device.queue, n_bytes)
    return device


@pytest.mark.parametrize("name", MEMORIES)
def test_each_memory_is_checked_against_what_it_has(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Layers 1 and 2 lie on a device, layer 0 on the host, as all lists of cells do."""
    on_host = SequenceMemory(MEMORIES[name], SIZES, F16, F32)
    store, leaves = on_host.caches[0].store, [c.cells.lists.leaf for c in on_host.caches]
    leaves += [kept[0] for kept in (store.k, store.v) if kept]
    if on_host.recurrent is not None:
        leaves += on_host.recurrent.states.get(0, ())
    on_first = sum(leaf.spec.n_bytes for leaf in leaves)
    on_device = on_host.n_bytes - on_first
    machine_of(monkeypatch, on_first)
    for n_free in (on_device, None):
        memory = device_of(n_free).buffer_type
        split = SequenceMemory(MEMORIES[name], SIZES, F16, F32, {1: memory, 2: memory})
        assert split.n_bytes == on_host.n_bytes
    memory = device_of(on_device - 1).buffer_type
    message = f"^{on_device} bytes of mock cannot be had, it has {on_device - 1}$"
    with pytest.raises(AllocationError, match=message):
        SequenceMemory(MEMORIES[name], SIZES, F16, F32, {1: memory, 2: memory})
    machine_of(monkeypatch, on_first - 1)
    with pytest.raises(AllocationError, match=f"^{on_first} bytes of memory cannot be had, this"):
        SequenceMemory(MEMORIES[name], SIZES, F16, F32, {1: memory, 2: memory})


@pytest.mark.placed
@pytest.mark.parametrize(
    ("has", "n_free", "total"),
    [
        (32 * KIB, None, LONG),
        (32 * KIB, 2048 * KIB, LONG),
        (32 * KIB, 1024 * KIB - 2, 1792),
        (16 * KIB, None, 2048),
    ],
)
def test_a_default_size_follows_from_the_memory_that_the_layers_lie_in(
    monkeypatch: pytest.MonkeyPatch, long_path: Path, has: int, n_free: int | None, total: int
) -> None:
    """All on a device but the lists of cells, 4 bytes a token."""
    machine_of(monkeypatch, has)
    backends = [device_of(n_free), ReferenceBackend()]
    short = "mock" if total == 1792 else "this machine"
    if total == LONG:
        llm = Llama(long_path, backend=backends)
    else:
        with pytest.warns(ContextWarning, match=f"take 0.0 GB, more than half of {short}'s 0.0 GB"):
            llm = Llama(long_path, backend=backends)
    with llm:
        assert llm.n_ctx() == total
        assert llm([5, 6], max_tokens=2)["usage"]["prompt_tokens"] == 2


# --- memory of graphs ---


@pytest.mark.placed
@pytest.mark.filterwarnings("ignore:the 128 tokens that the model was trained with leave")
def test_compute_memory_is_what_runs_take(tiny_path: Path) -> None:
    """Said before any prompt has run; a full ubatch at full depth takes that much, or a sixteenth
    less where streams may be mixed."""
    layouts: list[dict[str, Any]] = [{}, {"n_seq_max": 4}, {"n_seq_max": 4, "kv_unified": True}]
    for options in layouts:
        with Llama(tiny_path, backend="reference", n_ubatch=64, flash_attn=False, **options) as llm:
            context = llm.engine.context
            taken, most = context.compute_bytes, context.largest_compute_bytes()
            assert list(taken) == list(most) == ["host"]
            is_mixed = context.sizes.n_seq_max > 1
            spare = most["host"] // 16 if is_mixed else 0
            assert taken["host"] == most["host"] + spare > 0
            assert f"{taken['host'] / 1e6:.2f} MB, for a full ubatch" in llm.describe()
            prompts = [[7 + i] * llm.n_ctx_seq() for i in range(4)]
            list(llm.generate(prompts, max_tokens=1, temperature=0))
            context.clear()
            context.decode([7] * llm.n_ctx_seq(), all_logits=True)
            assert context.compute_bytes == taken
            used = max(
                p.executable.allocation.arena_bytes[HOST] for p in context.plans.plans.values()
            )
            assert used == most["host"] or (is_mixed and used < most["host"])


MODELS = {
    "llama": Tiny("llama"),
    "gemma3": Tiny("gemma3", n_layer=3, window=5, windowed=(0, 2), qk_norm=True, post_norms=True),
    "lfm2": Tiny("lfm2", n_layer=3, qk_norm=True, convolutions=(0, 2)),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_batch_takes_more_memory(tmp_path: Path, name: str) -> None:
    """Whatever lengths come together, and however many of their tokens are output."""
    path, random = write_model(tmp_path / "m.gguf", MODELS[name]), Random(1)
    layouts = itertools.product((2, 4), (True, False), (True, False), (8, 33))
    for n_seq_max, unified, flash_attn, n_ubatch in layouts:
        context = Context.open(
            path,
            backend=["reference"],
            n_ctx=64 * n_seq_max,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            kv_unified=unified,
            flash_attn=flash_attn,
        )
        context.load_weights()
        taken = context.compute_bytes
        for _ in range(2):
            batch = Batch()
            for seq in range(n_seq_max):
                tokens = [2] * random.choice([0, 1, 1, 3, 8, 20])
                all_outputs = random.random() < 0.5
                batch.extend(seq, tokens, context.n_past(seq), all_outputs=all_outputs)
            if len(batch.tokens):
                context.decode_batch(batch)
        assert context.compute_bytes == taken, (n_seq_max, unified, flash_attn, n_ubatch)
