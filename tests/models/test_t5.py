"""T5: buckets of distances, and a decoder that attends to what was encoded of its source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import BadBatch, CacheFull, Unsupported, WeightError, compute
from ggmlpy.backends import get_backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import F32
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.state import take_state
from ggmlpy.models import load_model
from ggmlpy.models.memory import Buckets
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.gguf_builder import build_gguf
from tests.models.checks import FLASH, nmse, repeated_names
from tests.models.seeded import N_VOCAB, Seeded, write_seeded
from tests.models.seeded_specs.encoders import RELATIVE
from tests.models.seeded_specs.keys import BASE, spec
from tests.oracle.t5 import T5

BUCKETS = {"attention.relative_buckets_count": 8}
UNGATED = r".*\.ffn_gate\.weight|output\.weight"
RNG = np.random.default_rng(3)
SOURCES = [RNG.integers(N_VOCAB, size=n).tolist() for n in (19, 3, 33, 1)]
TARGETS = [RNG.integers(N_VOCAB, size=n).tolist() for n in (4, 21, 1, 12)]


def of_layers(n_encoder: int, n_decoder: int) -> Seeded:
    keys = {"block_count": n_encoder, "decoder_block_count": n_decoder}
    return spec("t5", r".*blk\.1\.attn_rel_b\.weight", RELATIVE | BUCKETS | keys, without=UNGATED)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder with more layers than its encoder, which llama.cpp cannot load."""
    return write_seeded(tmp_path_factory.mktemp("t5"), "t5", of_layers(2, 3))


def opened(path: Path, **given: Any) -> Context:
    options: dict[str, Any] = {"n_ctx": 256, "n_ubatch": 96, "n_seq_max": 4}
    options |= {"type_k": F32, "type_v": F32} | given
    backend = options.pop("backend", "cpu")
    return Context(load_model(GGUFFile.open(path)), backends_for(backend, 2), **options)


def batch_of(sequences: dict[int, list[int]], start: int = 0) -> Batch:
    batch = Batch()
    for seq, tokens in sequences.items():
        batch.add_sequence(seq, tokens, start, all_outputs=True)
    return batch


def one_by_one(context: Context, seq: int, tokens: list[int]) -> NDArray[np.float32]:
    return np.concatenate([context.decode([token], seq=seq).copy() for token in tokens])


@pytest.mark.parametrize("is_causal", [False, True], ids=["both signs", "causal"])
@pytest.mark.parametrize("n", [4, 8, 32, 64])
def test_buckets_grow_with_the_distance(n: int, is_causal: bool) -> None:
    half = n if is_causal else n // 2
    near = half // 2
    for distance in range(-200, 201):
        (found,) = Buckets(n, is_causal).of(np.array([distance], np.int32))
        if is_causal and distance > 0:
            assert found == 0  # hidden, whatever it is
            continue
        bucket, far = (found - half, distance) if distance > 0 else (found, -distance)
        if far < near:
            assert bucket == far
            continue
        # Not at the borders, where f32 decides.
        exact = near + math.log(far / near) / math.log(128 / near) * (half - near)
        allowed = {min(half - 1, math.floor(exact + e)) for e in (-1e-5, 1e-5)}
        assert bucket in allowed, distance


@FLASH
@pytest.mark.parametrize("layers", [(2, 3), (3, 1)], ids=["2 and 3", "3 and 1"])
def test_sequences_attend_to_their_own_sources(
    tmp_path: Path, layers: tuple[int, int], flash_attn: bool
) -> None:
    """Sources and targets of unequal lengths, in one batch each."""
    path = write_seeded(tmp_path, "t5", of_layers(*layers))
    oracle, context = T5.of(path, 4), opened(path, flash_attn=flash_attn)
    embeddings = context.encode_batch(batch_of(dict(enumerate(SOURCES))))
    want = np.concatenate([oracle.embeddings(source) for source in SOURCES])
    assert nmse(embeddings, want) < 1e-10
    logits = context.decode_batch(batch_of(dict(enumerate(TARGETS)))).copy()
    each = [oracle.logits(s, [*t, 5, 6]) for s, t in zip(SOURCES, TARGETS, strict=True)]
    assert nmse(logits, np.concatenate([rows[:-2] for rows in each])) < 1e-10
    for step, token in enumerate([5, 6]):
        batch = Batch()
        for seq, target in enumerate(TARGETS):
            batch.add(token, len(target) + step, (seq,), output=True)
        assert nmse(context.decode_batch(batch), np.stack([r[step - 2] for r in each])) < 1e-10


@FLASH
@pytest.mark.parametrize("layout", ["split", "unified", "paged"])
def test_bits_do_not_depend_on_others_layouts_and_cuts(
    path: Path, layout: str, flash_attn: bool
) -> None:
    alone = opened(path, n_seq_max=1, flash_attn=flash_attn)
    want = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        alone.encode(source)
        want.append(alone.decode(target, all_logits=True).copy())
        alone.encode(source)  # begins anew
        np.testing.assert_array_equal(one_by_one(alone, 0, target), want[-1])
    among = opened(path, kv_layout=layout, flash_attn=flash_attn)
    among.encode_batch(batch_of({0: SOURCES[0], 2: SOURCES[2]}))
    among.encode_batch(batch_of({3: SOURCES[3], 1: SOURCES[1]}))
    got = among.decode_batch(batch_of({seq: TARGETS[seq] for seq in (2, 0, 3, 1)}))
    np.testing.assert_array_equal(got, np.concatenate([want[seq] for seq in (2, 0, 3, 1)]))


@pytest.mark.placed
def test_bits_on_a_device_with_some_layers(path: Path) -> None:
    want = opened(path)
    cpu = get_backend("cpu", 2)
    half = opened(path, backend=[MockBackend(seed=1, inner=cpu), cpu], n_gpu_layers=3)
    for context in (want, half):
        context.encode_batch(batch_of(dict(enumerate(SOURCES))))
    targets = batch_of(dict(enumerate(TARGETS)))
    np.testing.assert_array_equal(half.decode_batch(targets), want.decode_batch(targets))
    assert half.encoder is not None
    (sources,) = half.encoder.memory.caches
    at = {slot: leaf.place.buffer.type.name for slot, leaf in sources.store.k.items() if leaf.place}
    # Of layers 0 to 2 the last two, and the output: what is kept of sources lies with its layer.
    assert {slot for slot, name in at.items() if name.startswith("mock")} == {1, 4, 5}


def test_the_source_stays_for_another_target(path: Path) -> None:
    context, want = opened(path, n_seq_max=1), T5.of(path, 4)
    context.encode(SOURCES[0])
    context.decode(TARGETS[0])
    context.seq_rm(0, 2)
    got = context.decode(TARGETS[1][:2], all_logits=True).copy()
    assert nmse(got, want.logits(SOURCES[0], TARGETS[0][:2] + TARGETS[1][:2])[2:]) < 1e-10
    context.seq_rm(0)
    got = context.decode(TARGETS[1], all_logits=True).copy()
    assert nmse(got, want.logits(SOURCES[0], TARGETS[1])) < 1e-10
    context.clear()
    with pytest.raises(BadBatch, match="no source"):
        context.decode([1])


@pytest.mark.parametrize("layout", ["split", "unified", "paged"])
def test_a_copy_has_the_source_too(path: Path, layout: str) -> None:
    context = opened(path, kv_layout=layout)
    context.encode_batch(batch_of({0: SOURCES[0], 1: SOURCES[1]}))
    context.decode(TARGETS[0], seq=0)
    context.decode(TARGETS[1], seq=1)
    context.seq_cp(0, 1)
    context.seq_cp(0, 2, 0, 2)
    want = context.decode([7], seq=0).copy()
    np.testing.assert_array_equal(context.decode([7], seq=1), want)
    context.encode(SOURCES[2], seq=0)  # no longer theirs
    context.decode(TARGETS[0][2:], seq=2)
    np.testing.assert_array_equal(context.decode([7], seq=2), want)
    with pytest.raises(Unsupported, match="which holds others: those were decoded with another"):
        context.seq_cp(2, 1, 0, 2)
    context.seq_keep(1)
    with pytest.raises(BadBatch, match="sequence 2, which has no source"):
        context.decode([7], seq=2)


def test_positions_move(path: Path) -> None:
    """Keys have no positions: distances do, and those stay the same."""
    context = opened(path, n_seq_max=1)
    context.encode(SOURCES[0])
    context.decode(TARGETS[1])
    context.seq_add(0, 0, None, 5)
    got = context.decode([3]).copy()
    assert nmse(got, T5.of(path, 4).logits(SOURCES[0], [*TARGETS[1], 3])[-1:]) < 1e-10


@pytest.mark.placed
def test_the_graph_of_the_last_step_runs_again(path: Path) -> None:
    context = opened(path, backend="reference")
    context.encode_batch(batch_of({0: SOURCES[0], 1: SOURCES[1]}))
    want = context.decode_batch(batch_of({0: TARGETS[0], 1: TARGETS[1]})).copy()
    graph = context.last_graph
    context.encode(SOURCES[2], seq=2)
    logits = graph.nodes[-1]
    compute(logits, backend="reference")
    np.testing.assert_array_equal(logits.numpy().reshape(want.shape), want)


REFUSED: dict[str, tuple[Callable[[Context], Any], type[Exception], str]] = {
    "decoding first": (lambda c: c.decode([1], seq=2), BadBatch, "sequence 2, which has no source"),
    "no tokens": (lambda c: c.encode([]), BadBatch, "no tokens"),
    "another position": (
        lambda c: c.encode_batch(batch_of({0: [1, 2]}, start=1)),
        BadBatch,
        "whose next position is 0",
    ),
    "a long source": (lambda c: c.encode([1] * 97), BadBatch, "n_ubatch is 96"),
    "more than there are cells": (
        lambda c: c.encode([1] * 65),
        CacheFull,
        "the source of sequence 0 has 65 tokens, there are cells for 64: open the context with"
        " n_ctx=260 and n_ctx_seq=65 or more",
    ),
    "no vocabulary": (lambda c: c.encode([N_VOCAB]), BadBatch, "not in the vocabulary"),
    "no such sequence": (lambda c: c.encode([1], seq=4), BadBatch, "n_seq_max is 4"),
    "a saved state": (lambda c: take_state(c.memory, 0), Unsupported, "cannot be saved"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done(path: Path, name: str) -> None:
    context = opened(path)
    context.encode(SOURCES[0], seq=0)
    want = context.decode(TARGETS[0], seq=0).copy()
    act, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        act(context)
    context.seq_rm(0)
    np.testing.assert_array_equal(context.decode(TARGETS[0], seq=0), want)


def test_a_token_of_several_sequences(path: Path) -> None:
    context = opened(path, kv_layout="unified")
    context.encode_batch(batch_of({0: [1, 2], 1: [1, 2]}))
    batch = Batch()
    batch.add(3, 0, (0, 1), output=True)
    with pytest.raises(Unsupported, match="each has a source of its own"):
        context.decode_batch(batch)


ADVICE = r"open the context with n_ctx=(\d+)(?: and n_ctx_seq=(\d+))? or more"
SHARED: dict[str, tuple[dict[int, int], str]] = {
    "unified": (
        {1: 19},
        "the source of sequence 1 has 19 tokens: of the 40 cells that all sources share 7 are free"
        " (33 by sequence 0); ",
    ),
    "paged": (
        {1: 3, 2: 4},
        "the sources of sequences 1, 2 have 7 tokens (16 cells in whole pages): of the 40"
        " cells that all sources share 0 are free (5 pages by sequence 0); ",
    ),
}


@pytest.mark.parametrize("layout", SHARED)
def test_sources_share_the_cells_of_a_stream(path: Path, layout: str) -> None:
    lengths, message = SHARED[layout]
    sources = batch_of({seq: SOURCES[0][:n] for seq, n in lengths.items()})
    context = opened(path, kv_layout=layout, n_ctx=40, n_ubatch=40)
    context.encode(SOURCES[2], seq=0)
    with pytest.raises(CacheFull, match=re.escape(message)) as caught:
        context.encode_batch(sources)
    with pytest.raises(BadBatch, match="no source"):
        context.decode([1], seq=1)
    context.decode(TARGETS[0], seq=0)  # the other is as it was
    larger = opened(path, kv_layout=layout, n_ctx=advised(caught.value)["n_ctx"], n_ubatch=40)
    larger.encode(SOURCES[2], seq=0)
    larger.encode_batch(sources)
    context.seq_keep(1)
    context.encode_batch(sources)


@pytest.mark.parametrize("layout", ["split", "unified", "paged"])
@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_a_source_of_more_tokens_than_there_are_cells(
    path: Path, layout: str, n_seq_max: int
) -> None:
    options: dict[str, Any] = {"kv_layout": layout, "n_seq_max": n_seq_max}
    n_cells = 8 if layout == "split" else 8 * n_seq_max
    context = opened(path, n_ctx=8 * n_seq_max, **options)
    context.encode([1] * n_cells)
    context.decode([2])
    with pytest.raises(CacheFull, match=f"has 30 tokens, there are cells for {n_cells}") as caught:
        context.encode([1] * 30)
    context.decode([2])  # nothing was changed
    opened(path, **advised(caught.value), **options).encode([1] * 30)


def advised(error: BaseException) -> dict[str, int]:
    """The options that a message asks for."""
    found = re.search(ADVICE, str(error))
    assert found is not None, error
    names = ("n_ctx", "n_ctx_seq")
    return {name: int(n) for name, n in zip(names, found.groups(), strict=True) if n}


def test_a_model_without_an_encoder_encodes_nothing(tmp_path: Path) -> None:
    other = write_seeded(tmp_path, "t5encoder", spec(
        "t5encoder", "", RELATIVE | BUCKETS, without=UNGATED
    ))  # fmt: skip
    with pytest.raises(Unsupported, match='a "t5encoder" model does not encode sources'):
        opened(other).encode([1])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"decoder_block_count": 9}, "decoder_block_count.* must be at most 3"),
        ({"decoder_block_count": 0}, "decoder_block_count.* must be at least 1"),
        ({"decoder_start_token_id": N_VOCAB}, "decoder_start_token_id.* must be below 72"),
        ({"attention.relative_buckets_count": 6}, "a multiple of 4, at most 252"),
        ({"attention.relative_buckets_count": 256}, "a multiple of 4, at most 252"),
    ],
)
def test_keys_out_of_range(tmp_path: Path, keys: dict[str, int], message: str) -> None:
    common = {"block_count": 3, "decoder_block_count": 2, "embedding_length": 64}
    named = {
        f"t5.{key}": value for key, value in (BASE | RELATIVE | BUCKETS | common | keys).items()
    }
    tensors: dict[str, Any] = {
        "token_embd.weight": ("f32", (64, N_VOCAB), bytes(4 * 64 * N_VOCAB)),
        "dec.output_norm.weight": ("f32", (64,), bytes(4 * 64)),
    }
    blocks = {f"enc.blk.{i}.stub": ("f32", (1,), bytes(4)) for i in range(3)}
    path = tmp_path / "t5.gguf"
    build_gguf(path, {"general.architecture": "t5"} | named, tensors | blocks)
    with pytest.raises(WeightError, match=message):
        load_model(GGUFFile.open(path))


@FLASH
def test_nodes_have_names_of_their_own(path: Path, flash_attn: bool) -> None:
    context = opened(path, n_seq_max=1, flash_attn=flash_attn)
    context.encode(SOURCES[0])
    context.decode(TARGETS[0])
    assert context.encoder is not None
    assert repeated_names(context.last_graph) == repeated_names(context.encoder.last_graph) == []
