"""States of a `Llama`: saved here, loaded into one of another kind, and of use there."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import (
    ArgumentError,
    CacheFull,
    FileError,
    GgmlpyError,
    Llama,
    LlamaState,
    MissingFile,
    StateError,
)
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.spans import Spans
from ggmlpy.memory.state_file import VERSION
from tests.models.tiny import Tiny, write_model

STORY = "a cab had a bag"
MODELS = {
    "attention": Tiny(n_head=2, n_head_kv=1, n_rot=32),  # heads that q8_0's blocks divide
    "windows": Tiny(
        "gemma3", n_rot=32, head_size=32, window=4, windowed=(0,), qk_norm=True, post_norms=True
    ),
    "recurrent": Tiny("lfm2", n_layer=3, head_size=32, n_rot=32, qk_norm=True, convolutions=(0, 2)),
}
ENDLESS: dict[str, Any] = {"temperature": 0, "logit_bias": {2: -1000.0}}  # never the end


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder / f"{name}.gguf", tiny) for name, tiny in MODELS.items()}


def load(path: Path, **options: Any) -> Llama:
    return Llama(path, **{"backend": "reference", "type_k": "f32", "type_v": "f32", **options})


def text_of(llm: Llama, prompt: str, n: int = 8) -> str:
    return str(llm(prompt, max_tokens=n, **ENDLESS)["choices"][0]["text"])


TARGETS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "more context": {"n_ctx": 100},
    "unified": {"n_seq_max": 3, "kv_unified": True},
    "split": {"n_seq_max": 3, "n_ctx_seq": 64},
    "paged": {"n_seq_max": 3, "kv_layout": "paged"},
    "f16": {"type_k": "f16", "type_v": "f16"},
    "q8_0": {"type_k": "q8_0", "type_v": "q8_0"},
    "separate ops": {"flash_attn": False},
    "cpu": {"backend": "cpu", "n_threads": 1},
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_prompt_that_begins_like_a_loaded_sequence_goes_on_from_it(
    paths: dict[str, Path], tmp_path: Path, kind: str, target: dict[str, Any]
) -> None:
    with load(paths[kind]) as source:
        text_of(source, STORY, n=1)
        saved = source.save_state(tmp_path / "a.state")
        n_held = len(source.tokenize(STORY))
        assert saved.tokens == {0: source.tokenize(STORY)}
    with load(paths[kind], **target) as llm:
        fresh = text_of(llm, STORY + " and")
        llm.reset()
        llm.load_state(tmp_path / "a.state")
        assert list(llm.held_tokens.values()) == list(saved.tokens.values())
        assert text_of(llm, STORY + " and") == fresh
        assert llm.timings.n_reused == n_held


def test_the_loaded_sequence_is_what_the_next_token_sees(paths: dict[str, Path]) -> None:
    """A prompt reused from another text's K and V would get that text's logits: it does."""
    with load(paths["attention"]) as llm:
        text_of(llm, STORY, n=1)
        saved = llm.save_state()
        want = text_of(llm, STORY + " and")
        state = saved.sequences[0]
        layers = {
            i: replace(rows, k=np.zeros_like(rows.k), v=np.zeros_like(rows.v))
            for i, rows in state.layers.items()
        }
        llm.load_state(replace(saved, sequences={0: replace(state, layers=layers)}))
        assert text_of(llm, STORY + " and") != want
        llm.load_state(saved)
        assert text_of(llm, STORY + " and") == want


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_sequences_come_back(paths: dict[str, Path], layout: str) -> None:
    prompts = [STORY + end for end in ("", " dad", " bed", " egg")]
    options = {"n_ctx_seq": 64, "n_seq_max": 4}
    with load(paths["attention"], **options) as source:
        list(source.generate(prompts, max_tokens=3, **ENDLESS))
        saved = LlamaState.from_bytes(source.save_state().to_bytes())
        held = source.held_tokens
        assert saved.tokens == held
        assert len(held) == 4
    with load(paths["attention"], kv_layout=layout, **options) as llm:
        text_of(llm, "else")
        llm.load_state(saved)
        assert llm.held_tokens == held
        wanted = [tokens + llm.tokenize("go", add_bos=False) for tokens in held.values()]
        got = list(llm.generate(wanted, max_tokens=4, **ENDLESS))
        assert llm.timings.n_reused == sum(map(len, held.values()))
        llm.reset()
        alone = [llm(tokens, max_tokens=4, **ENDLESS) for tokens in wanted]
    assert [g["choices"][0]["text"] for g in got] == [a["choices"][0]["text"] for a in alone]


def test_what_sequences_share_they_share_again(paths: dict[str, Path]) -> None:
    """Eight sequences with one beginning fit where it takes cells only once."""
    with load(paths["attention"], n_seq_max=8, kv_unified=True, n_ctx_seq=64) as llm:
        text_of(llm, STORY, n=1)
        prompts = [STORY + end for end in ("a", "b", "c", "d", "e", "f", "g", "h")]
        list(llm.generate(prompts, max_tokens=2, **ENDLESS))
        memory = llm.engine.context.memory
        n_used, held = memory.n_used(), llm.held_tokens
        assert sum(map(len, held.values())) > 3 * n_used
        saved = llm.save_state()
        llm.reset()
        llm.load_state(saved)
        assert (memory.n_used(), llm.held_tokens) == (n_used, held)
        memory.seq_rm(0)  # the others keep theirs
        assert [memory.seq_pos_max(s) + 1 for s in range(1, 8)] == [
            len(held[s]) for s in range(1, 8)
        ]
    options = {"n_seq_max": 8, "kv_unified": True}
    with load(paths["attention"], n_ctx=n_used, **options) as just:
        just.load_state(saved)
        assert just.held_tokens == held
    with load(paths["attention"], n_ctx=n_used - 1, **options) as small:
        refused(small, saved, CacheFull, f"the states take {n_used} cells of the KV cache")


def test_one_sequence_is_saved_and_takes_the_place_of_one(paths: dict[str, Path]) -> None:
    with load(paths["attention"], n_seq_max=3, n_ctx_seq=64) as llm:
        list(llm.generate(["ab", "cd", "ef"], max_tokens=2, **ENDLESS))
        held = llm.held_tokens
        saved = llm.save_state(seq=1)
        assert saved.tokens == {1: held[1]}
        llm.load_state(saved, seq=2)
        assert llm.held_tokens == {**held, 2: held[1]}
        llm.load_state(saved)  # it alone, and where it was
        assert llm.held_tokens == {1: held[1]}
        assert llm.save_state(seq=0).tokens == {0: []}
    with load(paths["attention"], n_seq_max=1) as small:
        small.load_state(saved)  # there is no sequence 1
        assert small.held_tokens == {0: held[1]}


def refused(llm: Llama, state: Any, error: type[Exception], message: str, **options: Any) -> None:
    """Loading raises one line, and leaves everything as it was."""
    held, rows = llm.held_tokens, contents(llm)
    with pytest.raises(error, match=message) as raised:
        llm.load_state(state, **options)
    assert "\n" not in str(raised.value)
    assert llm.held_tokens == held
    assert contents(llm) == rows


def contents(llm: Llama) -> list[bytes]:
    """Everything that the memory stores, and where."""
    memory = llm.engine.context.memory
    states = [memory.seq_pos_max(s) for s in range(memory.sizes.n_seq_max)]
    leaves = [leaf for c in memory.caches for leaf in c.store.leaves]
    return [bytes(str(states), "ascii"), *(leaf.tobytes() for leaf in leaves)]


def test_what_does_not_fit_is_refused_and_changes_nothing(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    with load(paths["attention"], n_seq_max=3, n_ctx_seq=64) as source:
        list(source.generate([STORY, "cd", "ef"], max_tokens=2, **ENDLESS))
        saved, one = source.save_state(), source.save_state(seq=0)
    with load(paths["attention"], n_seq_max=2, n_ctx_seq=8) as llm:
        text_of(llm, "ab", n=2)
        refused(llm, saved, ArgumentError, "the state has 3 sequences, n_seq_max is 2")
        refused(llm, saved, ArgumentError, "has 3 sequences, only one can become sequence 1", seq=1)
        refused(
            llm, one, ArgumentError, "the sequence is 2: it must be 0 to 1, n_seq_max is 2", seq=2
        )
        refused(llm, one, CacheFull, r"the state has \d+ tokens, a sequence may have n_ctx_seq = 8")
        refused(llm, one, CacheFull, r"the state has \d+ tokens, a sequence may", seq=0)
        refused(llm, tmp_path / "nothing.state", MissingFile, "nothing.state: there is no such")
        refused(llm, b"GGUF" * 40, StateError, "not a ggmlpy state")
        refused(llm, one.to_bytes()[:-1], StateError, "damaged or cut short")
        refused(llm, 5, ArgumentError, "state is an int: it must be a LlamaState, bytes or a path")
        with pytest.raises(ArgumentError, match="the sequence is 5: it must be 0 to 1"):
            llm.save_state(seq=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "weights differ"),
        ({"freq_base": 500.0}, 'key "llama.rope.freq_base" is 500.0'),
    ],
)
def test_a_state_of_another_model_is_refused(
    paths: dict[str, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    other = write_model(tmp_path / "other.gguf", replace(MODELS["attention"], **changes))
    with load(other) as llm:
        text_of(llm, STORY, n=1)
        foreign = llm.save_state()
    with load(paths["attention"]) as llm:
        message = rf'with "other\.gguf", another model than attention\.gguf: {message}'
        refused(llm, foreign, StateError, message)


def test_one_byte_of_the_weights_makes_another_model(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "attention.gguf"
    data = bytearray(paths["attention"].read_bytes())
    data[GGUFFile.open(paths["attention"]).tensors["blk.0.attn_k.weight"].offset + 1] ^= 1
    other.write_bytes(data)
    with load(other) as llm:
        foreign = llm.save_state().to_bytes()
    with load(paths["attention"]) as llm:
        refused(llm, foreign, StateError, "weights differ")


def test_a_state_whose_parts_do_not_belong_together_is_refused(paths: dict[str, Path]) -> None:
    """Even if its digest is right: a prompt must never go on from another text."""
    with load(paths["attention"]) as llm:
        text_of(llm, STORY, n=1)
        saved = llm.save_state()
        state = saved.sequences[0]
        first = state.layers[0]
        moved = {i: replace(r, positions=r.positions + 1) for i, r in state.layers.items()}
        for bad, message in (
            (replace(state, tokens=state.tokens[:-1]), "tokens, but not the K and V of layer 0"),
            (replace(state, tokens=[*state.tokens, 5]), "tokens, but not the K and V of layer 0"),
            (replace(state, tokens=[999] * len(state.tokens)), "tokens outside the vocabulary"),
            (replace(state, layers=moved), "not the K and V of layer 0"),
            (replace(state, layers={0: first}), "K and V of 1 layers, the model of 2"),
            (replace(state, layers={}), "not the K and V of layer 0"),
        ):
            for seq in (None, 0):
                refused(llm, replace(saved, sequences={0: bad}), StateError, message, seq=seq)


def test_tokens_behind_a_window_must_be_said_to_be_forgotten(paths: dict[str, Path]) -> None:
    """A prompt with a shorter beginning in common would go on without their K and V."""
    with load(paths["windows"]) as llm:
        text_of(llm, STORY, n=1)
        saved = llm.save_state()
        state = saved.sequences[0]
        near = state.layers[0]
        n_gone = int(near.positions[0])
        assert near.evicted == Spans((range(n_gone),))
        for spans in (Spans(), Spans((range(n_gone - 1),)), Spans((range(n_gone + 1),))):
            bad = replace(state, layers={**state.layers, 0: replace(near, evicted=spans)})
            message = "tokens, but not the K and V of layer 0"
            refused(llm, replace(saved, sequences={0: bad}), StateError, message)


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e38])
def test_values_that_are_not_finite_are_refused(paths: dict[str, Path], value: float) -> None:
    """In separate ops, other sequences of a shared stream would become NaN by them."""
    with load(paths["recurrent"], type_k="f32", type_v="f32") as llm:
        text_of(llm, STORY, n=1)
        saved = llm.save_state()
    state = saved.sequences[0]
    rows = state.layers[1]
    floats = rows.v.view(np.float32).copy()
    floats[3, 5] = value
    broken = replace(state, layers={1: replace(rows, v=floats.view(np.uint8))})
    options: dict[str, Any] = {"n_seq_max": 2, "n_ctx_seq": 64, "kv_unified": True}
    with load(paths["recurrent"], type_v="f16", flash_attn=False, **options) as llm:
        bad = replace(saved, sequences={0: broken})
        refused(llm, bad, StateError, "V of layer 1 has values too large for f16")
        llm.load_state(saved)
        recurrent = {i: row.copy() for i, row in state.recurrent.items()}
        recurrent[0, 0][7] = math.nan
        bad = replace(saved, sequences={0: replace(state, recurrent=recurrent)})
        message = "recurrent layer 0 has values that are not finite"
        refused(llm, bad.to_bytes(), StateError, message)
    if not math.isfinite(value):
        with load(paths["recurrent"], type_k="f32", type_v="f32", **options) as llm:
            bad = replace(saved, sequences={0: broken})
            message = "V of layer 1 has values that are not finite"
            refused(llm, bad.to_bytes(), StateError, message)


def test_an_interrupted_load_leaves_no_tokens_that_are_not_held(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with load(paths["attention"], n_seq_max=2, n_ctx_seq=64) as llm:
        list(llm.generate([STORY, "cd"], max_tokens=2, **ENDLESS))
        saved, held = llm.save_state(), llm.held_tokens
        for seq, left in ((0, {1: held[1]}), (None, {})):
            llm.load_state(saved)
            with monkeypatch.context() as patch:
                patch.setattr("ggmlpy.memory.store.KVStore.write_rows", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    llm.load_state(saved if seq is None else saved.sequence(seq), seq=seq)
            assert llm.held_tokens == left


def test_files_that_do_not_say_whose_they_are_are_refused(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    header = json.dumps({"about": {"model": 3}, "sequences": {}}).encode()
    body = struct.pack("<13sIQ", b"ggmlpy state\0", VERSION, len(header)) + header
    (tmp_path / "x.state").write_bytes(body + hashlib.sha256(body).digest())
    with load(paths["attention"]) as llm:
        message = r"x\.state: does not say which model it belongs to"
        refused(llm, tmp_path / "x.state", StateError, message)


def test_a_file_that_cannot_be_written(paths: dict[str, Path], tmp_path: Path) -> None:
    with load(paths["attention"]) as llm, pytest.raises(FileError, match="cannot be written"):
        llm.save_state(tmp_path / "nowhere" / "a.state")


def test_states_while_texts_are_written(paths: dict[str, Path]) -> None:
    """Saving is possible at any time; loading would take the ground from under them."""
    with load(paths["attention"], n_seq_max=2, n_ctx_seq=64) as llm:
        want = text_of(llm, STORY, n=6)
        stream = llm(STORY, max_tokens=6, stream=True, **ENDLESS)
        got = next(stream)["choices"][0]["text"]
        saved = llm.save_state()
        refused(llm, saved, GgmlpyError, "requests are running")
        (busy,) = [slot.seq for slot in llm.engine.slots.running()]
        one = llm.save_state(seq=busy)
        refused(llm, one, GgmlpyError, f"sequence {busy} has a running request", seq=busy)
        llm.load_state(one, seq=1 - busy)
        assert got + "".join(chunk["choices"][0]["text"] for chunk in stream) == want


def test_a_state_can_be_pickled_and_tells_what_it_is(paths: dict[str, Path]) -> None:
    with load(paths["attention"]) as llm:
        text_of(llm, STORY, n=1)
        saved = llm.save_state()
        n = len(llm.tokenize(STORY))
        assert repr(saved) == (
            f"LlamaState('attention.gguf', 1 sequence, {n} tokens, {n * 2 * 2 * 32 * 4} bytes)"
        )
        llm.reset()
        llm.load_state(pickle.loads(pickle.dumps(saved)))
        assert llm.held_tokens == saved.tokens
