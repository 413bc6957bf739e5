"""Requests with options of their own, readers side by side, and arguments that make no sense."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import (
    TYPES,
    AllocationError,
    ArgumentError,
    BadBatch,
    Batch,
    Context,
    ContextWarning,
    GgmlpyError,
    Llama,
    LlamaState,
    MissingFile,
    SamplingError,
    StateError,
    Unsupported,
)
from ggmlpy.engine.generation import Request
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.sampling import SamplingParams
from tests.models.tiny import Tiny, write_model

ALL = {"max_tokens": 9, "temperature": 1.0, "top_k": 0}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


@pytest.fixture
def llm(path: Path) -> Iterator[Llama]:
    with Llama(path, backend="cpu", n_threads=1, n_seq_max=3, n_ctx_seq=64) as llm:
        yield llm


def text(result: dict[str, Any]) -> str:
    found: str = result["choices"][0]["text"]
    return found


def test_prompts_with_options_of_their_own_get_what_they_get_alone(llm: Llama) -> None:
    own = [
        {"max_tokens": 9, "temperature": 1.0, "top_k": 0, "seed": 1},
        {"max_tokens": 4, "temperature": 0.0},
        {"max_tokens": 9, "temperature": 1.5, "top_k": 0, "seed": 2},
    ]
    alone = [text(llm([5, 6, 7], **options)) for options in own]  # type: ignore[call-overload]
    alone.append(text(llm([5, 6, 7], **ALL, seed=9)))  # type: ignore[call-overload]
    requests = [llm.request([5, 6, 7], **options) for options in own]  # type: ignore[arg-type]
    together = [text(r) for r in llm.generate([*requests, [5, 6, 7]], **ALL, seed=9)]  # type: ignore[arg-type]
    assert together == alone
    assert len(set(alone)) == 4


def drain(llm: Llama, id: int) -> str:
    """What `step` gives of one request, to its end."""
    found = ""
    while llm.engine.has_work:
        for output in llm.engine.step():
            assert output.id == id
            assert not isinstance(output.piece, Exception)
            found += output.piece.text
    return found


def test_no_piece_is_lost_to_another_reader(llm: Llama) -> None:
    wanted = text(llm([5, 6, 7], **ALL, seed=3))  # type: ignore[call-overload]
    other = text(llm([8, 9], **ALL, seed=4))  # type: ignore[call-overload]
    id = llm.engine.add(llm.request([5, 6, 7], **ALL, seed=3))  # type: ignore[arg-type]
    first = llm.engine.step()
    assert [output.id for output in first] == [id]
    # A completion in the middle runs the request's steps too, and a stream is left half read.
    assert text(llm([8, 9], **ALL, seed=4)) == other  # type: ignore[call-overload]
    stream = llm([8, 9], **ALL, seed=4, stream=True)  # type: ignore[call-overload]
    begun = next(stream)["choices"][0]["text"]
    assert not isinstance(first[0].piece, Exception)
    assert first[0].piece.text + drain(llm, id) == wanted
    assert begun + "".join(chunk["choices"][0]["text"] for chunk in stream) == other
    assert not llm.engine.has_work


def test_what_is_no_request(llm: Llama) -> None:
    with pytest.raises(ArgumentError, match="request is a dict: it must be a Request, which"):
        llm.engine.add({})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="max_tokens is -1: it must be a whole number, at"):
        llm.engine.add(Request([1, 2], -1, SamplingParams()))
    with pytest.raises(ArgumentError, match=r"^Request: max_tokens is a str: it must be a whole"):
        llm.engine.add(Request([1, 2], "9", SamplingParams()))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^Request: priority is a float: it must be a whole"):
        llm("ab", priority=0.5)  # type: ignore[call-overload]
    assert not llm.engine.has_work


def test_the_prompt_that_does_not_fit_is_named(llm: Llama) -> None:
    with pytest.raises(BadBatch, match=r"^prompts\[1\]: .* too long: 70 tokens.*n_ctx_seq"):
        llm.generate([[1, 2], [3] * 70])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1.5], "token id 1.5: it must be an integer"),
        (["a"], r"one text or token ids; see generate\(\)"),
    ],
)
def test_prompts_that_are_none(llm: Llama, prompt: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        llm(prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": 5}, "stop is 5: must be a string, or a list of strings"),
        ({"logits_processor": 5}, "logits_processor is 5: must be a function"),
        (
            {"logits_processor": lambda tokens, logits: None},
            "the logits_processor returned NoneType: it must return logits",
        ),
    ],
)
def test_options_that_make_no_sense(llm: Llama, options: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=re.escape(message)):
        llm([1, 2], **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"kv_unified": "no"},
            ArgumentError,
            "Llama: kv_unified is a str: it must be True or False",
        ),
        (
            {"flash_attn": "maybe"},
            ArgumentError,
            "Llama: flash_attn is a str: it must be True or False",
        ),
        ({"verbose": "no"}, ArgumentError, "Llama: verbose is a str: it must be True or False"),
        (
            {"n_threads": "2"},
            ArgumentError,
            "n_threads is a str: it must be a whole number or None",
        ),
        ({"n_threads": 0}, ArgumentError, "n_threads is 0: it must be a whole number, at least 1"),
        ({"n_ctx": 2.5}, ArgumentError, "n_ctx is a float: it must be a whole number"),
        ({"n_ctx_seq": "64"}, ArgumentError, "n_ctx_seq is a str: it must be a whole number"),
        ({"n_seq_max": True}, ArgumentError, "n_seq_max is a bool: it must be a whole number"),
        ({"seed": "x"}, ArgumentError, "seed is a str: it must be a whole number or None"),
        ({"seed": 2**70}, SamplingError, "seed is"),
        ({"type_k": "f64"}, Unsupported, "type_k is f64: K and V may be f32, f16, bf16, q8_0"),
        ({"type_v": "foo"}, Unsupported, "type_v is 'foo': must be one of f32, f16, bf16, q8_0"),
        ({"type_k": "mxfp4"}, Unsupported, "type_k is mxfp4: K and V may be f32"),
        ({"n_ctx": 10**12}, AllocationError, "a KV cache for n_ctx = 1000000000000 tokens: "),
    ],
)
@pytest.mark.filterwarnings("ignore::ggmlpy.ContextWarning")
def test_arguments_that_make_no_sense(
    path: Path, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        Llama(path, backend="cpu", **options)


def test_a_seed_of_minus_one_is_a_fresh_one(path: Path) -> None:
    with Llama(path, backend="cpu", n_threads=1, seed=-1) as llm:
        texts = {text(llm([5, 6], max_tokens=20, temperature=2.0, top_k=0)) for _ in range(4)}
        assert len(texts) > 1


def test_hardly_any_tokens_for_each_are_warned_of(path: Path) -> None:
    with pytest.warns(ContextWarning, match=r"leave \d+ for each of 16 sequences: n_ctx_seq says"):
        Llama(path, backend="cpu", n_seq_max=16).close()


def test_a_closed_model_says_so(path: Path) -> None:
    llm = Llama(path, backend="cpu", n_threads=1)
    llm.close()
    llm.close()
    for use in (
        lambda: llm([1, 2]),
        lambda: llm.generate([[1, 2]]),
        lambda: llm.logits([1, 2]),
        lambda: llm.save_state(),
        lambda: llm.load_state(b""),
    ):
        with pytest.raises(GgmlpyError, match=r"tiny\.gguf: the model is closed"):
            use()


def test_one_sequence_of_a_state_of_several(llm: Llama, path: Path, tmp_path: Path) -> None:
    list(llm.generate([[5, 6, 7, 8], [9, 10, 11]], max_tokens=2, temperature=0))
    state = llm.save_state()
    tokens = state.tokens
    with Llama(path, backend="cpu", n_threads=1, n_ctx=64) as other:
        with pytest.raises(ArgumentError, match=r"n_seq_max is 1: load .* state.sequence\(n\)"):
            other.load_state(state)
        with pytest.raises(ArgumentError, match=r"select it by state\.sequence\(n\)"):
            other.load_state(state, seq=0)
        with pytest.raises(StateError, match=r"holds no sequence 7, it holds 0, 1"):
            state.sequence(7)
        one = LlamaState.from_bytes(state.sequence(1).to_bytes())
        other.load_state(one, seq=0)
        assert other.held_tokens == {0: tokens[1]}
        with pytest.raises(
            ArgumentError, match=r"the sequence is 'a': it must be 0 to 0, n_seq_max is 1"
        ):
            other.load_state(one, seq="a")  # type: ignore[arg-type]
        with pytest.raises(MissingFile, match="is a folder"):
            other.load_state(tmp_path)


def test_bytes_are_text_too(llm: Llama) -> None:
    assert llm.tokenize("né".encode()) == llm.tokenize("né")


def test_sequences_by_hand(path: Path) -> None:
    """A copy goes on with the bits of its original; what is removed is gone."""
    context = Context.open(path, backend="cpu", n_threads=1, n_ctx=64, n_seq_max=2)
    context.decode([5, 6, 7], seq=0)
    context.seq_cp(0, 1)
    assert [context.seq_pos_max(seq) for seq in (0, 1)] == [2, 2]
    assert context.seq_pos_min(1) == 0
    batch = Batch()
    batch.add(8, 3, (0,), output=True)
    batch.add(8, 3, (1,), output=True)
    first, second = context.decode_batch(batch)
    np.testing.assert_array_equal(first, second)
    context.seq_rm(1, 2)
    assert context.seq_pos_max(1) == 1
    context.seq_keep(1)
    assert context.seq_pos_max(0) == -1
    context.clear()
    assert context.seq_pos_max(1) == -1


@pytest.mark.parametrize(
    "sizes", [{"n_ctx": 32}, {"n_ctx": 32, "kv_unified": True}, {"n_ctx_seq": 16, "n_ctx": 32}]
)
def test_no_request_outgrows_what_a_sequence_may_have(path: Path, sizes: dict[str, int]) -> None:
    """However many tokens are asked for, the answer ends where the sequence is full."""
    if "n_ctx_seq" in sizes:
        sizes = sizes | {"kv_unified": True}
    with Llama(path, backend="cpu", n_threads=1, n_seq_max=2, **sizes) as llm:  # type: ignore[arg-type]
        request = Request([5, 6, 7], 1000, SamplingParams(temperature=1.0, seed=1))
        ids = [llm.engine.add(request) for _ in range(3)]
        made: dict[int, list[Any]] = {id: [] for id in ids}
        while llm.engine.has_work:
            for output in llm.engine.step():
                made[output.id].append(output.piece)
        for pieces in made.values():
            assert pieces[-1].finish_reason in ("length", "stop")
            assert len(pieces) <= llm.n_ctx_seq() - 3 + 1
        assert max(map(len, made.values())) == llm.n_ctx_seq() - 3 + 1


def test_a_logits_processor_cannot_use_its_model(llm: Llama) -> None:
    """It ends its own request with an error, at once; others go on."""
    saved = llm.save_state()
    uses: list[Any] = [
        lambda: llm([1, 2], max_tokens=2),
        lambda: llm.reset(),
        lambda: llm.logits([1, 2]),
        lambda: llm.load_state(saved),
    ]
    wanted = text(llm([8, 9], max_tokens=3, temperature=0))
    for use in uses:

        def call(tokens: Any, logits: Any, use: Any = use) -> Any:
            use()
            return logits

        bad = llm.engine.add(llm.request([5, 6], logits_processor=call))
        good = llm.engine.add(llm.request([8, 9], max_tokens=3, temperature=0))
        found: dict[int, list[Any]] = {bad: [], good: []}
        while llm.engine.has_work:
            for output in llm.engine.step():
                found[output.id].append(output.piece)
        assert isinstance(found[bad][-1], GgmlpyError)
        assert "a step is running" in str(found[bad][-1])
        assert "".join(piece.text for piece in found[good]) == wanted


def test_more_sequences_than_a_ubatch_take_turns(path: Path) -> None:
    with Llama(path, backend="cpu", n_threads=1, n_seq_max=8, n_ctx_seq=32, n_ubatch=4) as llm:
        ids = [llm.engine.add(llm.request([i + 1], max_tokens=20, seed=i)) for i in range(8)]
        seen: set[int] = set()
        for _ in range(4):  # two steps for the prompts of all, two for a token of each
            seen |= {output.id for output in llm.engine.step()}
        assert seen == set(ids)
        counts = dict.fromkeys(ids, 0)
        for _ in range(10):
            for output in llm.engine.step():
                counts[output.id] += 1
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("kv_unified", [True, False])
def test_nothing_that_was_forgotten_is_seen(path: Path, flash_attn: bool, kv_unified: bool) -> None:
    """Not even as NaN times a weight of 0: what an overflow leaves in a cache ends with it."""
    context = Context.open(
        path, backend="cpu", n_threads=1, n_ctx=128, n_seq_max=2, flash_attn=flash_attn,
        kv_unified=kv_unified,
    )  # fmt: skip
    fresh = context.decode([5, 6, 7]).copy()
    for forget in (context.clear, lambda: context.seq_rm(0), lambda: context.seq_keep(1)):
        context.decode([8, 9, 10, 11], seq=1) if context.seq_pos_max(1) < 0 else None
        context.decode(list(range(1, 9)))
        for cache in context.memory.caches:
            cells = cache.cells.of(0)
            for leaf in cache.store.leaves:
                rows = np.full((len(cells), leaf.nb[1]), 0xFF, np.uint8)
                cache.store.write_rows(leaf, cache.cells.stream_of(0), cells, rows)
        forget()
        np.testing.assert_array_equal(context.decode([5, 6, 7]), fresh)
        context.seq_rm(0)


def test_positions_below_zero_are_llama_cpps(path: Path) -> None:
    context = Context.open(path, backend="cpu", n_threads=1, n_ctx=64, n_seq_max=2)
    context.decode([5, 6, 7, 8])
    context.seq_rm(0, 2, -1)
    assert context.seq_pos_max(0) == 1
    context.seq_cp(0, 1, -1, -1)
    assert context.seq_pos_max(1) == 1
    with pytest.raises(ArgumentError, match="start is 5, stop is 2: stop must not be below"):
        context.seq_rm(0, 5, 2)
    with pytest.raises(ArgumentError, match=r"seq_rm: start is a float: it must be a whole num"):
        context.seq_rm(0, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"delta is a float: it must be a whole number"):
        context.seq_add(0, 0, None, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"decode: tokens\[0\] is a float: it"):
        context.decode([1.5])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="3 sequences cannot have equal parts"):
        Context.open(path, backend="cpu", n_ctx=100, n_seq_max=3)


def test_a_state_of_a_type_that_no_cache_has_changes_nothing(path: Path) -> None:
    context = Context.open(path, backend="cpu", n_threads=1, n_ctx=64)
    context.decode([5, 6, 7])
    state = take_state(context.memory, 0, [5, 6, 7])
    wrong = {}
    for i, rows in state.layers.items():
        n_embd = rows.k.shape[1] // 2  # of f16
        assert n_embd % 32 == 0
        width = n_embd // 32 * TYPES["q8_1"].type_size
        wrong[i] = replace(rows, k_type=TYPES["q8_1"], k=np.zeros((3, width), np.uint8))
    with pytest.raises(StateError, match="K of layer 0 is q8_1: no cache is"):
        put_state(context.memory, 0, replace(state, layers=wrong))
    assert context.seq_pos_max(0) == 2
