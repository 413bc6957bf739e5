"""Every kind of attention, through a context's memory, against float64 over what tokens see."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.errors import BadBatch, Unsupported
from ggmlpy.graph.types import F32, type_of
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.memory.state_file import from_bytes, to_bytes
from ggmlpy.models.memory import Window
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.checks import FLASH, nmse
from tests.models.tiny import Tiny, write_model
from tests.oracle.attention_model import N_NAMES, AttentionModel, Kind
from tests.oracle.glass_model import Glass, attention_weights
from tests.seen import first_seen

KINDS = {
    "plain": Kind(),
    "sinks": Kind(has_sinks=True),
    "soft-cap": Kind(softcap=1.5),
    "soft-cap, sinks and a window": Kind(softcap=1.5, has_sinks=True, window=Window(5)),
    "ALiBi": Kind(max_bias=8.0),
    "ALiBi, not causal": Kind(max_bias=8.0, is_causal=False),
    "ALiBi and a window": Kind(max_bias=8.0, window=Window(6)),
    "not causal": Kind(is_causal=False),
    "chunks": Kind(window=Window(7, "chunked")),
    "symmetric": Kind(window=Window(6, "symmetric"), is_causal=False),
    "a window, not causal": Kind(window=Window(6), is_causal=False),
    "latent": Kind(H=4, Hk=1, D=24, Dv=16, is_latent=True, n_rot=8),
    "latent, odd": Kind(H=3, Hk=1, D=14, Dv=9, is_latent=True, n_rot=4),
    "V shorter than K": Kind(D=20, Dv=12, H=6, Hk=2, n_rot=20),
    "V longer than K": Kind(D=6, Dv=10, H=5, Hk=1),
    "read twice": Kind(is_read_twice=True, window=Window(9)),
    "M-RoPE": Kind(n_rot=8, sections=(1, 1, 1, 1)),
}
OF_ALL = pytest.mark.parametrize("name", KINDS)
N = 30  # tokens of the first sequence
RNG = np.random.default_rng(5)
TEXTS = [RNG.integers(N_NAMES, size=n).tolist() for n in (N, 11, 17)]

Rows = NDArray[np.float32]


def make(kind: Kind, backend: str = "cpu", **options: Any) -> Context:
    given: dict[str, Any] = {
        "n_ctx": 192,
        "n_ubatch": 40,
        "n_seq_max": 3,
        "type_k": F32,
        "type_v": F32,
    }
    return Context(AttentionModel(kind), backends_for(backend, 2), **(given | options))


def run(context: Context, seq: int, tokens: list[int], cuts: tuple[int, ...] = ()) -> Rows:
    """The logits of all tokens, which are run in parts."""
    edges = itertools.pairwise([0, *cuts, len(tokens)])
    parts = [tokens[a:b] for a, b in edges]
    return np.concatenate([context.decode(p, seq=seq, all_logits=True).copy() for p in parts])


def check(got: Rows, context: Context, tokens: list[int], bound: float = 1e-11) -> None:
    model: Any = context.model
    assert nmse(got, model.expected(tokens, list(range(len(tokens))))[-len(got) :]) < bound


@OF_ALL
@FLASH
@pytest.mark.parametrize("backend", ["reference", "cpu", "mock"])
def test_results_are_those_of_float64(name: str, backend: str, flash_attn: bool) -> None:
    kind = KINDS[name]
    context = make(kind, backend, flash_attn=flash_attn)
    check(run(context, 0, TEXTS[0]), context, TEXTS[0])
    if kind.is_causal:
        cut = run(context, 1, TEXTS[0], cuts=(3, 4, 15, *range(16, N)))
        check(cut, context, TEXTS[0])


@OF_ALL
@FLASH
def test_bits_do_not_depend_on_neighbours_layouts_and_cuts(name: str, flash_attn: bool) -> None:
    kind = KINDS[name]
    want = run(make(kind, flash_attn=flash_attn), 0, TEXTS[0])
    for layout in LAYOUTS:
        context = make(kind, kv_layout=layout, flash_attn=flash_attn)
        batch = Batch()
        n_first = 13 if kind.is_causal else N
        for seq, tokens in enumerate(TEXTS):
            n = n_first if seq == 0 else len(tokens)
            batch.add_sequence(seq, tokens[:n], 0, all_outputs=True)
        got = context.decode_batch(batch)[:n_first].copy()
        np.testing.assert_array_equal(got, want[:n_first])
        for i in range(n_first, N):  # all sequences go on, one token each
            batch = Batch()
            for seq in range(3):
                start = context.n_past(seq)
                batch.add_sequence(seq, [TEXTS[0][i]], start, all_outputs=True)
            np.testing.assert_array_equal(context.decode_batch(batch)[0], want[i])


@pytest.mark.parametrize("layout", LAYOUTS)
@FLASH
def test_alibi_goes_by_positions_where_some_are_removed(layout: str, flash_attn: bool) -> None:
    context = make(KINDS["ALiBi"], kv_layout=layout, flash_attn=flash_attn)
    run(context, 0, TEXTS[0])
    context.seq_rm(0, 4, 19)
    got = context.decode([7])
    model: Any = context.model
    left = [*range(4), *range(19, N + 1)]
    want = model.expected([[*TEXTS[0], 7][p] for p in left], left)[-1:]
    assert nmse(got, want) < 1e-11


@pytest.mark.parametrize("name", ["plain", "ALiBi", "V shorter than K", "latent", "M-RoPE"])
def test_moved_tokens_are_as_if_they_had_been_there(name: str) -> None:
    context = make(KINDS[name])
    run(context, 0, TEXTS[0])
    context.seq_rm(0, 2, 9)
    context.seq_add(0, 9, None, -7)
    tokens = [*TEXTS[0][:2], *TEXTS[0][9:], 5]
    check(context.decode([5]), context, tokens)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_chunks_of_a_long_text_in_few_cells(layout: str, size: int) -> None:
    kind = Kind(window=Window(size, "chunked"))
    tokens = RNG.integers(N_NAMES, size=700).tolist()
    context = make(kind, n_ctx=2100, n_ubatch=16, kv_layout=layout)
    assert context.memory.caches[0].cells.n_ctx < 700
    got = run(context, 0, tokens[:640])
    rest = [context.decode([token])[0].copy() for token in tokens[640:]]
    check(np.concatenate([got, rest]), context, tokens)


def test_what_a_chunk_has_lost_is_refused_and_its_beginning_is_not() -> None:
    context = make(Kind(window=Window(8, "chunked")), n_ctx=2100, n_ubatch=16)
    tokens = RNG.integers(N_NAMES, size=700).tolist()
    run(context, 0, tokens)
    with pytest.raises(Unsupported, match=r"would see .* with a window of 8 \(chunked\)"):
        context.seq_rm(0, 100)
    context.seq_rm(0, 696)  # the first of its chunk
    check(run(context, 0, tokens[696:]), context, tokens)


@OF_ALL
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_saved_sequence_goes_on(name: str, layout: str) -> None:
    kind = replace(KINDS[name], is_causal=True)
    first = make(kind)
    run(first, 2, TEXTS[0])
    second = make(kind, kv_layout=layout)
    run(second, 0, TEXTS[1])
    states, _ = from_bytes(to_bytes({2: take_state(first.memory, 2)}, {}))
    put_state(second.memory, 1, states[2])
    check(second.decode([3], seq=1), second, [*TEXTS[0], 3])


@FLASH
def test_layers_of_several_windows_have_inputs_of_their_own(flash_attn: bool) -> None:
    windows = (None, 4, Window(5, "chunked"), None, 3)
    context = Context(
        Glass(windows), backends_for("cpu", 2), n_ctx=64, type_k=F32, type_v=F32,
        flash_attn=flash_attn,
    )  # fmt: skip
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]
    parts = [context.decode(tokens[:7], all_logits=True).copy()]
    parts += [context.decode([token]).copy() for token in tokens[7:]]
    want = np.zeros((len(tokens), len(windows), 64))
    for i, j in np.ndindex(want.shape[:2]):
        window = windows[j]
        first = first_seen(i, Window(window) if isinstance(window, int) else window)
        seen = [(tokens[p], p) for p in range(first, i + 1)]
        want[i, j] = attention_weights(tokens[i], i, seen)
    assert nmse(np.concatenate(parts), want.reshape(len(tokens), -1)) < 1e-11
    lists = [cache.cells.lists.leaf.name for cache in context.memory.caches]
    suffixes = ["", "_swa", "_swa_2", "_2", "_swa_3"]
    assert lists == [f"attn_inp_cells{suffix}" for suffix in suffixes]
    tensors = {id(t): t for node in context.last_graph.nodes for t in node.src}.values()
    leaves = [t.name for t in tensors if t.op is None and t.name.startswith("attn_inp")]
    assert len(set(leaves)) == len(leaves) == (3 if flash_attn else 4) * len(windows)


@pytest.mark.parametrize("type_k", ["f16", "bf16", "q8_0", "q4_0", "q5_1", "iq4_nl"])
@pytest.mark.parametrize("is_latent", [True, False])
def test_heads_of_many_sizes_in_every_type(type_k: str, is_latent: bool) -> None:
    kind = Kind(H=8, Hk=1, D=576, Dv=512, is_latent=True, n_rot=64, has_sinks=True)
    if not is_latent:
        kind = Kind(H=6, Hk=2, D=192, Dv=128, n_rot=64, softcap=8.0)
    results = []
    for backend, flash_attn in (("reference", True), ("cpu", True), ("cpu", False)):
        context = make(
            kind, backend, flash_attn=flash_attn, type_k=type_of(type_k), type_v=type_of(type_k)
        )
        results.append(run(context, 0, TEXTS[1]))
    for got in results[1:]:
        assert nmse(got, results[0]) < 2e-5  # products round q to the type's partner


def test_a_sequence_that_sees_all_of_itself_must_fit_one_ubatch() -> None:
    context = make(KINDS["not causal"], n_ubatch=16)
    with pytest.raises(BadBatch, match=r"17 tokens of sequence 1: .* n_ubatch is 16"):
        context.decode(TEXTS[2], seq=1)
    batch = Batch()
    for seq in (0, 1):  # 11 tokens each, in ubatches of their own
        batch.add_sequence(seq, TEXTS[1], 0, all_outputs=True)
    check(context.decode_batch(batch)[:11], context, TEXTS[1])
    shared = make(KINDS["not causal"], kv_layout="unified")
    batch = Batch()
    batch.add(1, 0, (0, 1), True)
    with pytest.raises(Unsupported, match="decode it once for each"):
        shared.decode_batch(batch)


def test_a_file_that_is_not_causal_has_logits_and_no_answers(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", Tiny(), llama__attention__causal=False)
    with Llama(path, backend="reference", n_ctx=64) as llm:
        first, again = llm.logits([1, 260, 262]), llm.logits([1, 260, 270])
        assert not np.array_equal(first[0], again[0])  # it sees the tokens behind it
        with pytest.raises(Unsupported, match=r'"llama" whose .* generates no text'):
            llm("a")
