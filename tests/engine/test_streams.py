"""Many sequences at once: each gets bitwise what it gets alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.conformance.judge import nmse
from ggmlpy.errors import ArgumentError, BadBatch, CacheFull, Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import type_of
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.tiny import Tiny, write_model

N_SEQ = 32
RNG = np.random.default_rng(3)
TEXTS = [RNG.integers(3, 288, int(n)).tolist() for n in RNG.integers(1, 24, N_SEQ)]

TURNED = {"plain": Tiny(), "YaRN": Tiny(yarn_factor=4.0, freq_base=500.0)}
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
LONG = RNG.integers(3, 288, 40).tolist()


def make(
    folder: Path,
    *,
    n_seq_max: int = N_SEQ,
    n_ctx_seq: int = 64,
    layout: str = "split",
    n_ubatch: int = 512,
    kv: str = "f16",
    flash_attn: bool = True,
    backend: str = "cpu",
    model: Tiny | None = None,
) -> Context:
    path = folder / "tiny.gguf"
    if not path.exists():
        write_model(path, model or Tiny())
    return Context(
        load_model(GGUFFile.open(path)),
        backends_for(backend, 2),
        n_ctx=n_ctx_seq * n_seq_max,
        n_ubatch=n_ubatch,
        n_seq_max=n_seq_max,
        kv_layout=layout,
        type_k=type_of(kv.split("/")[0]),
        type_v=type_of(kv.split("/")[-1]),
        flash_attn=flash_attn,
    )


def alone(folder: Path, tokens: list[int], **options: object) -> NDArray[np.float32]:
    run = make(folder, n_seq_max=1, **options)  # type: ignore[arg-type]
    return run.decode(tokens, all_logits=True).copy()


def everyone(seqs: list[int], starts: dict[int, int], stops: dict[int, int]) -> Batch:
    """A batch of tokens `starts[s]` to `stops[s]` of every sequence's text, all output."""
    batch = Batch()
    for s in seqs:
        batch.add_sequence(s, TEXTS[s][starts[s] : stops[s]], starts[s], all_outputs=True)
    return batch


@pytest.mark.parametrize("order", ["as they are", "backwards", "shuffled"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", ["f16", "q8_0", "iq4_nl"])
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
def test_a_sequence_is_bitwise_the_same_alone_and_among_32(
    tmp_path: Path, order: str, layout: str, kv: str, flash_attn: bool
) -> None:
    model = Tiny(n_head=2, n_head_kv=1, n_rot=32)  # heads of 32: whole blocks of q8_0
    seqs = list(range(N_SEQ))
    if order != "as they are":
        seqs = seqs[::-1] if order == "backwards" else RNG.permutation(N_SEQ).tolist()
    options: dict[str, Any] = {"kv": kv, "flash_attn": flash_attn}
    check_all_are_as_alone(tmp_path, model, seqs, layout, options)


ARCHITECTURES = {
    "llama": Tiny(n_head=2, n_head_kv=1, n_rot=32),
    "qwen2": Tiny("qwen2", n_head=2, n_head_kv=1, n_rot=32, biases=True, neox=True),
    "qwen3": Tiny("qwen3", n_head=2, n_head_kv=1, n_rot=32, qk_norm=True, neox=True),
    "gemma3": Tiny(
        "gemma3", n_head=2, n_head_kv=1, n_rot=32, qk_norm=True, post_norms=True, window=8,
        windowed=(0,), neox=True,
    ),
    "lfm2": Tiny(
        "lfm2", n_head=2, n_head_kv=1, n_rot=32, convolutions=(0,), qk_norm=True, neox=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", ["f16", "q8_0/q4_0"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_the_same_alone_and_among_32(
    tmp_path: Path, architecture: str, kv: str, layout: str
) -> None:
    seqs = RNG.permutation(N_SEQ).tolist()
    model = ARCHITECTURES[architecture]
    check_all_are_as_alone(tmp_path, model, seqs, layout, {"kv": kv})


def check_all_are_as_alone(
    tmp_path: Path,
    model: Tiny,
    seqs: list[int],
    layout: str,
    options: dict[str, Any],
) -> None:
    """Every sequence's text in two batches with all others, and by itself: the same logits."""
    run = make(tmp_path, layout=layout, n_ubatch=64, model=model, **options)
    halves = {s: len(TEXTS[s]) // 2 for s in seqs}
    zeros = dict.fromkeys(seqs, 0)
    ends = {s: len(TEXTS[s]) for s in seqs}
    got: dict[int, list[NDArray[np.float32]]] = {s: [] for s in seqs}
    for starts, stops in ((zeros, halves), (halves, ends)):
        those = [s for s in seqs if stops[s] > starts[s]]
        logits = run.decode_batch(everyone(those, starts, stops))
        at = 0
        for s in those:
            got[s].append(logits[at : at + stops[s] - starts[s]].copy())
            at += stops[s] - starts[s]
    for s in seqs[::5]:
        want = alone(tmp_path, TEXTS[s], **options)
        have = np.concatenate(got[s])
        np.testing.assert_array_equal(have, want, f"sequence {s}")


# Each type as K and as V, with itself and with another; kernels of every pair: test_attention.py.
CACHE_PAIRS = [
    (k, CACHE_TYPES[(i + n) % len(CACHE_TYPES)]) for n in (0, 1) for i, k in enumerate(CACHE_TYPES)
]


@pytest.mark.parametrize("kv", ["/".join(pair) for pair in CACHE_PAIRS])
def test_pairs_of_cache_types(tmp_path: Path, kv: str) -> None:
    """All layouts and alone are one; separate ops agree; the reference runs the same graph."""
    model = Tiny(n_head=2, n_head_kv=1, n_rot=32)
    texts = {0: LONG[:5], 1: LONG[5:14], 2: LONG[14:17]}
    batch = Batch()
    for s, text in texts.items():
        batch.add_sequence(s, text, 0, all_outputs=True)
    want = np.concatenate([alone(tmp_path, text, kv=kv, model=model) for text in texts.values()])
    for layout in LAYOUTS:
        run = make(tmp_path, n_seq_max=3, layout=layout, kv=kv)
        np.testing.assert_array_equal(run.decode_batch(batch), want, layout)
        run = make(tmp_path, n_seq_max=3, layout=layout, kv=kv, flash_attn=False)
        assert nmse(run.decode_batch(batch), want) < 1e-6, layout
    run = make(tmp_path, n_seq_max=3, kv=kv, flash_attn=False, backend="reference")
    assert nmse(run.decode_batch(batch), want) < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_token_of_two_sequences(tmp_path: Path, layout: str) -> None:
    run = make(tmp_path, n_seq_max=2, layout=layout)
    batch = Batch()
    for i, token in enumerate(LONG[:4]):
        batch.add(token, i, (0, 1), i == 3)
    if layout == "split":
        with pytest.raises(Unsupported, match="kv_unified=True"):
            run.decode_batch(batch)
        return
    shared = run.decode_batch(batch).copy()
    np.testing.assert_array_equal(shared, alone(tmp_path, LONG[:4])[-1:])
    batch = Batch()
    batch.add(9, 4, (0,), True)
    batch.add(11, 4, (1,), True)
    both = run.decode_batch(batch).copy()
    np.testing.assert_array_equal(both[0], alone(tmp_path, [*LONG[:4], 9])[-1])
    np.testing.assert_array_equal(both[1], alone(tmp_path, [*LONG[:4], 11])[-1])


def test_a_recurrent_state_is_of_one_sequence(tmp_path: Path) -> None:
    model = Tiny(architecture="lfm2", convolutions=(0,), qk_norm=True, neox=True)
    run = make(tmp_path, n_seq_max=2, layout="unified", model=model)
    batch = Batch()
    batch.add(5, 0, (0, 1), True)
    with pytest.raises(Unsupported, match="recurrent layers, which keep one state a sequence"):
        run.decode_batch(batch)
    assert run.memory.seq_pos_max(0) == run.memory.seq_pos_max(1) == -1


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([(5, 1, (0,))], "index 0 is at position 1 of sequence 0, whose next position is 0"),
        (
            [(5, 0, (0,)), (5, 2, (0,))],
            "index 1 is at position 2 of sequence 0, whose next .* is 1",
        ),
        ([(5, 0, (4,))], "index 0 is of sequence 4: n_seq_max is 4"),
        ([(5, 0, (-1,))], "index 0 is of sequence -1"),
        ([(5, 0, ())], r"index 0 names sequences \[\]"),
        ([(5, 0, (1, 1))], r"index 0 names sequences \[1, 1\]"),
        ([(999, 0, (0,))], "token 999 at index 0"),
        ([], "no tokens"),
    ],
)
def test_batches_that_do_not_fit(
    tmp_path: Path, entries: list[tuple[int, int, tuple[int, ...]]], message: str
) -> None:
    run = make(tmp_path, n_seq_max=4, layout="unified", backend="null")
    batch = Batch()
    for token, position, seqs in entries:
        batch.add(token, position, seqs)
    with pytest.raises(BadBatch, match=message):
        run.decode_batch(batch)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_that_does_not_fit_changes_nothing(tmp_path: Path, layout: str) -> None:
    """Even where its first ubatches would have fitted."""
    run = make(tmp_path, n_seq_max=2, n_ctx_seq=16, layout=layout, n_ubatch=4)
    first = Batch()
    first.add_sequence(0, LONG[:4], 0)
    first.add_sequence(1, LONG[4:10], 0)
    run.decode_batch(first)
    too_much = Batch()
    too_much.add_sequence(0, [7] * 3, 4)
    too_much.add_sequence(1, [7] * 30, 6)
    with pytest.raises(CacheFull):
        run.decode_batch(too_much)
    assert [run.n_past(0), run.n_past(1)] == [4, 6]
    got = run.decode([9], seq=0).copy()
    np.testing.assert_array_equal(got[-1], alone(tmp_path, [*LONG[:4], 9])[-1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0", "iq4_nl"])
def test_copied_sequences_go_their_own_ways(tmp_path: Path, layout: str, kv: str) -> None:
    model = Tiny(n_head=2, n_head_kv=1, n_rot=32)
    run = make(tmp_path, n_seq_max=3, layout=layout, kv=kv, model=model)
    text = LONG[:12]
    run.decode(text, seq=0)
    run.memory.seq_cp(0, 2)
    run.memory.seq_cp(0, 1, 0, 8)  # a part
    assert [run.n_past(s) for s in range(3)] == [12, 8, 12]
    run.memory.seq_rm(0)
    got = run.decode([50], seq=2).copy()
    np.testing.assert_array_equal(got[-1], alone(tmp_path, [*text, 50], kv=kv)[-1])
    got = run.decode([60, 61], seq=1).copy()
    np.testing.assert_array_equal(got[-1], alone(tmp_path, [*text[:8], 60, 61], kv=kv)[-1])


def test_keep_and_clear(tmp_path: Path) -> None:
    run = make(tmp_path, n_seq_max=3, backend="null")
    for s in range(3):
        run.decode(LONG[:5], seq=s)
    run.memory.seq_keep(1)
    assert [run.n_past(s) for s in range(3)] == [0, 5, 0]
    run.memory.clear()
    assert run.memory.n_used() == 0


@pytest.mark.parametrize("model", TURNED.values(), ids=TURNED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_moved_tokens_are_as_if_decoded_where_they_are(
    tmp_path: Path, layout: str, model: Tiny
) -> None:
    """Drop the first three tokens and close the gap: keys are what they are at the new positions.

    Only in the first layer, whose keys depend on nothing but their token and position.
    """
    one_layer = replace(model, n_layer=1)
    run = make(tmp_path, n_seq_max=2, layout=layout, kv="f32", model=one_layer)
    run.decode(LONG[:12], seq=1)
    run.memory.seq_rm(1, 0, 3)
    run.seq_add(1, 3, None, -3)
    assert run.n_past(1) == 9
    fresh = make(tmp_path, n_seq_max=2, layout=layout, kv="f32", model=one_layer)
    want = fresh.decode(LONG[3:13], seq=1).copy()
    np.testing.assert_allclose(run.decode(LONG[12:13], seq=1), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", TURNED.values(), ids=TURNED)
def test_there_and_back_is_the_identity(tmp_path: Path, model: Tiny) -> None:
    run = make(tmp_path, n_seq_max=1, kv="f32", model=model)
    run.decode(LONG[:12])
    before = [leaf.numpy() for leaf in run.memory.caches[0].store.k.values()]
    run.seq_add(0, 4, None, 40)
    run.seq_add(0, 44, None, -40)
    for leaf, old in zip(run.memory.caches[0].store.k.values(), before, strict=True):
        np.testing.assert_allclose(leaf.numpy(), old, rtol=1e-5, atol=1e-5)


def test_moving_shared_tokens_leaves_the_others_alone(tmp_path: Path) -> None:
    run = make(tmp_path, n_seq_max=2, layout="unified")
    run.decode(LONG[:8], seq=0)
    run.memory.seq_cp(0, 1)
    run.seq_add(1, 0, None, 5)
    assert [run.memory.seq_pos_min(1), run.memory.seq_pos_max(1)] == [5, 12]
    got = run.decode([9], seq=0).copy()
    np.testing.assert_array_equal(got[-1], alone(tmp_path, [*LONG[:8], 9])[-1])


def test_moves_that_do_not_work_change_nothing(tmp_path: Path) -> None:
    run = make(tmp_path, n_seq_max=2, n_ctx_seq=5, layout="unified")
    run.decode(LONG[:8], seq=0)
    with pytest.raises(ArgumentError, match="position 3 of sequence 0 is taken"):
        run.seq_add(0, 4, None, -1)
    run.memory.seq_cp(0, 1)
    with pytest.raises(CacheFull, match="8 shared tokens must be copied, there is room for 2"):
        run.seq_add(1, 0, None, 1)
    with pytest.raises(ArgumentError, match="divisor is 0"):
        run.seq_div(0, 0, None, 0)
    assert run.memory.seq_pos_max(0) == run.memory.seq_pos_max(1) == 7
    run.memory.seq_rm(1)
    run.seq_div(0, 0, None, 2)
    assert run.memory.seq_pos_max(0) == 3
    run.seq_add(0, 0, None, -2)  # what goes below 0 is evicted
    assert [run.memory.seq_pos_min(0), run.memory.seq_pos_max(0)] == [0, 1]
    assert run.memory.n_used() == 4


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "unfused"])
@pytest.mark.parametrize("layout", ["unified", "paged"])
def test_sequences_that_went_back_to_where_they_parted_take_tokens_together(
    tmp_path: Path, layout: str, flash_attn: bool
) -> None:
    """Paged: one of them holds a copy of the last page that they shared."""
    run = make(tmp_path, n_seq_max=3, layout=layout, flash_attn=flash_attn)
    run.decode(LONG[:13])
    run.seq_cp(0, 1)
    run.decode([7, 8], seq=1)
    batch = Batch()
    batch.add(LONG[13], 13, (0, 1), True)
    with pytest.raises(BadBatch):
        run.decode_batch(batch)
    run.seq_rm(1, 13)
    got = [run.decode_batch(batch).copy()]
    batch = Batch()
    batch.add(LONG[14], 14, (0, 1), True)
    batch.add(LONG[15], 15, (0,), True)
    batch.add(LONG[15], 15, (1,), True)
    got.append(run.decode_batch(batch).copy())
    want = alone(tmp_path, LONG[:16], flash_attn=flash_attn)[13:]
    np.testing.assert_array_equal(np.concatenate(got), np.concatenate([want, want[-1:]]))
