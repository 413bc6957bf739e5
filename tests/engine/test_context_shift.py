"""A full context loses tokens and the text goes on, as llama.cpp's does, alone and among others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import DraftModel, Llama, PromptLookup
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.slots import Slots
from ggmlpy.errors import ArgumentError, GgmlpyError, SamplingError, Unsupported
from ggmlpy.memory.sequences import SequenceMemory
from tests.engine.test_shared_prefix import text
from tests.models.tiny import Tiny, write_model
from tests.shared import shared_path

N_CTX = 32
MODELS = {
    "llama": Tiny(n_ctx=128),
    "gemma3": Tiny(
        "gemma3", n_layer=3, window=8, windowed=(0, 2), qk_norm=True, post_norms=True, n_ctx=128
    ),
}
LAYOUTS = pytest.mark.parametrize("layout", ["split", "unified", "paged"])
N = 70  # tokens of an answer: five shifts
NO_END = {2: -np.inf}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder / f"{name}.gguf", tiny) for name, tiny in MODELS.items()}


def load(path: Path, **options: Any) -> Llama:
    return Llama(path, n_threads=1, **{"n_ctx_seq": N_CTX, "n_ubatch": 16, **options})


def by_hand(
    path: Path, prompt: list[int], n_keep: int, n: int = N, n_discard: int = 0
) -> list[int]:
    """The greedy tokens, with llama.cpp's rule in operations on a context."""
    found: list[int] = []
    with load(path) as llm:
        context = llm.engine.context
        logits = context.decode(prompt)
        n_past = len(prompt)
        while True:
            row = logits[-1].copy()
            row[2] = -np.inf
            found.append(int(row.argmax()))
            if len(found) == n:
                return found
            if n_past + 1 >= N_CTX:
                n_left = n_past - n_keep
                n_lost = min(n_discard, n_left - 1) if n_discard else n_left // 2
                context.seq_rm(0, n_keep, n_keep + n_lost)
                context.seq_add(0, n_keep + n_lost, None, -n_lost)
                n_past -= n_lost
            logits = context.decode([found[-1]])
            n_past += 1


def answers(
    llm: Llama, prompts: list[list[int]], n: int = N, n_discard: int = 0, **options: Any
) -> list[list[int]]:
    """The greedy tokens of requests that run together."""
    options = {"max_tokens": n, "temperature": 0, "logit_bias": NO_END, **options}
    requests = [llm.request(p, context_shift=True, **options) for p in prompts]
    ids = [llm.engine.add(replace(each, n_discard=n_discard)) for each in requests]
    found: dict[int, list[int]] = {id: [] for id in ids}
    while llm.engine.has_work:
        for output in llm.engine.step():
            if isinstance(output.piece, Exception):
                raise output.piece
            if output.piece.token is not None:
                found[output.id].append(output.piece.token)
    return list(found.values())


@pytest.mark.parametrize("n_keep", [0, 5, -1])
def test_the_text_is_llama_cpps(n_keep: int) -> None:
    """700 tokens, four shifts or more: llama-completion -c 256 --context-shift --ignore-eos
    -no-cnv --keep N -n 700 --temp 0 -t 1 -ctk f32 -ctv f32 -fa off, with the prompt below."""
    recorded = json.loads(Path(__file__).with_name("peer_shift.json").read_text())
    model = shared_path("stories260K.gguf")
    with (
        pytest.warns(UserWarning, match="trained with 128"),
        Llama(model, n_ctx=256, type_k="f32", type_v="f32", n_threads=1) as llm,
    ):
        never = dict.fromkeys(llm.tokenizer.eog_ids, -np.inf)
        made = llm.create_completion(
            "Once upon a time, there was a little girl",
            max_tokens=700,
            temperature=0,
            logit_bias=never,
            context_shift=True,
            n_keep=n_keep,
        )
    assert made["choices"][0]["text"] == recorded[str(n_keep)]


@LAYOUTS
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_keep", [0, 6, -1])
def test_tokens_are_those_of_the_rule(
    paths: dict[str, Path], model: str, layout: str, n_keep: int
) -> None:
    """Of prompts of several lengths, full ones among them, alone and together."""
    prompts = [[1, *text(seed, n)] for seed, n in enumerate((7, 12, N_CTX - 2, N_CTX - 1))]
    if n_keep == -1:  # of the others hardly anything would be left to lose
        prompts = prompts[:2]
    kept = [len(p) if n_keep < 0 else n_keep and n_keep + 1 for p in prompts]
    kept = [n or 1 for n in kept]  # BOS
    want = [by_hand(paths[model], p, n) for p, n in zip(prompts, kept, strict=True)]
    with load(paths[model], kv_layout=layout, n_seq_max=3) as llm:
        assert answers(llm, prompts, n_keep=n_keep) == want
        assert answers(llm, prompts[:1], n_keep=n_keep) == want[:1]


@pytest.mark.parametrize("n_discard", [1, 5, N_CTX, 10**9])
def test_as_many_tokens_are_lost_as_a_request_says(paths: dict[str, Path], n_discard: int) -> None:
    """As far as one is left behind those that are kept, as in llama-server."""
    prompt = [1, *text(3, 12)]
    want = by_hand(paths["llama"], prompt, 4, n_discard=n_discard)
    assert want != by_hand(paths["llama"], prompt, 4), "this shows nothing"
    with load(paths["llama"]) as llm:
        assert answers(llm, [prompt], n_keep=3, n_discard=n_discard) == [want]
    with load(paths["gemma3"]) as llm, pytest.raises(Unsupported, match="window"):
        answers(llm, [prompt], n_keep=3, n_discard=10**9)


def test_without_bos_it_is_not_kept(paths: dict[str, Path]) -> None:
    prompt = text(5, 9)
    with load(paths["llama"]) as llm:
        assert answers(llm, [prompt]) == [by_hand(paths["llama"], prompt, 0)]
        assert answers(llm, [prompt], n_keep=3) == [by_hand(paths["llama"], prompt, 3)]


@LAYOUTS
@pytest.mark.parametrize("model", MODELS)
def test_nothing_behind_the_kept_tokens_is_reused(
    paths: dict[str, Path], model: str, layout: str
) -> None:
    """A prompt of the tokens that a shifted context ends with gives what it gives anew."""
    prompt = [1, *text(3, 12)]
    with load(paths[model], kv_layout=layout, n_seq_max=2) as llm:
        [answer] = answers(llm, [prompt], n_keep=4)
        held = llm.held_tokens
        assert held in ({}, {0: prompt[:5]})
        follow_up = [*prompt[:5], *answer[-14:]]
        found = llm.create_completion(follow_up, max_tokens=5, temperature=0, logit_bias=NO_END)
        assert llm.timings.n_reused == len(held.get(0, []))
    with load(paths[model]) as anew:
        again = anew.create_completion(follow_up, max_tokens=5, temperature=0, logit_bias=NO_END)
    assert found["choices"] == again["choices"]


@pytest.mark.parametrize("layout", ["unified", "paged"])
def test_sequences_that_share_a_prompt(paths: dict[str, Path], layout: str) -> None:
    """The cells that move are copied. In pages this takes more of them."""
    prompts = [[1, *text(3, 20)]] * 3
    want = by_hand(paths["llama"], prompts[0], 1)
    with load(paths["llama"], kv_layout=layout, n_seq_max=3, n_ctx=160) as llm:
        assert answers(llm, prompts) == [want] * 3
    with load(paths["llama"], kv_layout=layout, n_seq_max=3) as llm:
        assert answers(llm, prompts) == [want] * 3


@pytest.mark.parametrize("layout", ["unified", "paged"])
@pytest.mark.parametrize("model", MODELS)
def test_a_shifted_sequence_waits_with_a_copy(
    paths: dict[str, Path], model: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others need the cells, and goes on as if nothing had been."""
    prompts = [[1, *text(seed, 8)] for seed in range(5)]
    with load(paths[model]) as llm:
        want = [answers(llm, [p], 70)[0] for p in prompts]
    n_taken = 0
    take = Slots.take_away

    def counted(self: Slots[Any], slot: Any) -> Any:
        nonlocal n_taken
        n_taken += 1
        return take(self, slot)

    monkeypatch.setattr(Slots, "take_away", counted)
    monkeypatch.setattr("ggmlpy.engine.admission._N_RESERVED", 0)  # they meet all the time
    sizes = {"n_ctx": 2 * N_CTX - 8, "n_ctx_seq": N_CTX, "kv_layout": layout, "n_seq_max": 3}
    with load(paths[model], **sizes) as llm:
        assert answers(llm, prompts, 70) == want
    # With pages, llama's sequences never need all at once; above they do.
    assert n_taken > 0 or (model, layout) == ("llama", "paged")


@pytest.mark.parametrize("layout", ["unified", "paged"])
def test_a_preempted_sequence_goes_on_as_if_nothing_had_been(
    paths: dict[str, Path], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was not shifted yet waits for cells, however it is resumed."""
    prompts = [[1, *text(seed, 8)] for seed in range(3)]
    want = [by_hand(paths["llama"], p, 1, 40) for p in prompts]
    shifts: list[int] = []
    note = Engine._shift_full

    def counted(self: Engine) -> None:
        before = sum(slot.is_shifted for slot in self.slots.all)
        note(self)
        shifts.append(sum(slot.is_shifted for slot in self.slots.all) - before)

    monkeypatch.setattr(Engine, "_shift_full", counted)
    sizes = {"n_ctx": 48, "n_ctx_seq": N_CTX, "kv_layout": layout, "n_seq_max": 3}
    with load(paths["llama"], **sizes) as llm:
        assert answers(llm, prompts, 40) == want
        assert llm.engine.timings.n_preempted > 0
        assert sum(shifts) > 0


@pytest.mark.parametrize("model", MODELS)
def test_drafts_end_where_the_context_does(paths: dict[str, Path], model: str) -> None:
    """Drafts of which all tokens are right, and of which some are wrong."""
    prompt = [1, *text(4, 10)]
    want = by_hand(paths[model], prompt, 1)

    def draft(tokens: Any, *, spoilt: bool) -> list[int]:
        n = len(asked) if asked else 0
        asked.append(n)
        last = tokens.tolist()[-6:]
        whole = [*prompt, *want]
        at = next(i for i in range(len(whole)) if whole[i : i + 6] == last) + 6
        right = whole[at : at + 7]
        return [*right[:2], 5, *right[3:]] if spoilt and n % 3 == 0 else right

    for spoilt in (False, True):
        asked: list[int] = []

        def drafting(tokens: Any, spoilt: bool = spoilt) -> list[int]:
            return draft(tokens, spoilt=spoilt)

        with load(paths[model], draft_model=drafting) as llm:
            assert answers(llm, [prompt]) == [want]
            assert llm.timings.n_accepted > 20
            share = llm.timings.n_accepted / llm.timings.n_drafted
            assert (share < 0.9) == spoilt


def test_lookup_and_draft_models_follow_a_shift(paths: dict[str, Path]) -> None:
    prompts = [[1, *text(4, 10)], [1, *text(5, 6)]]
    want = [by_hand(paths["llama"], prompt, 1, 300) for prompt in prompts]
    for draft in (PromptLookup(min_ngram_size=1), DraftModel(paths["llama"], p_min=0.0)):
        with load(paths["llama"], draft_model=draft, n_seq_max=2) as llm:
            assert answers(llm, prompts, 300) == want
            assert llm.timings.n_drafted > 20


def test_a_grammar_may_force_more_than_a_context(paths: dict[str, Path]) -> None:
    forced = "a text that is longer than the whole context, and is never chosen by the model: " * 2
    with load(paths["llama"]) as llm:
        made = llm.create_completion(
            "b", max_tokens=400, context_shift=True, grammar=f'root ::= "{forced}"'
        )
    assert made["choices"][0]["text"] == forced
    assert made["choices"][0]["finish_reason"] == "stop"


def test_until_a_limit_or_without_one(paths: dict[str, Path]) -> None:
    prompt = [1, *text(3, 12)]
    with load(paths["llama"]) as llm:
        common: dict[str, Any] = {"temperature": 0, "logit_bias": NO_END}
        plain = llm.create_completion(prompt, max_tokens=None, **common)
        assert plain["usage"]["completion_tokens"] == N_CTX - len(prompt) + 1
        chunks = llm.create_completion(
            prompt, max_tokens=None, context_shift=True, stream=True, **common
        )
        for _, chunk in zip(range(200), chunks, strict=False):
            assert chunk["choices"][0]["finish_reason"] is None
        with pytest.raises(GgmlpyError, match="whose context was shifted: there is no state"):
            llm.save_state()
        chunks.close()
        assert not llm.engine.is_running
        llm.save_state()


def test_what_cannot_be_shifted(
    tmp_path: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recurrent = write_model(
        tmp_path / "lfm2.gguf", Tiny("lfm2", n_layer=3, qk_norm=True, convolutions=(0, 2))
    )
    cannot = "context_shift: a full context cannot lose tokens: positions cannot move: "
    with load(recurrent) as llm:
        with pytest.raises(Unsupported, match=f"{cannot}the model has recurrent layers"):
            llm.request([1, 2], context_shift=True)
        llm.request([1, 2])
    with load(paths["llama"]) as llm:
        monkeypatch.setattr(llm.model, "fixed_by", "they are learned", raising=False)
        with pytest.raises(Unsupported, match=f"{cannot}they are learned"):
            llm.request([1, 2], context_shift=True)
    window = "layers have a window of 8, and 7 tokens would move, of a context of 16"
    with load(paths["gemma3"], n_ctx_seq=16) as llm, pytest.raises(Unsupported, match=window):
        llm.request([1, 2], context_shift=True, n_keep=1)
    with load(paths["gemma3"], n_ctx_seq=8) as llm:  # the window sees all of it
        llm.request([1, 2], context_shift=True)
    with load(paths["llama"], n_ctx_seq=3) as llm:
        with pytest.raises(ArgumentError, match="n_ctx_seq is 3: it must be at least 4"):
            llm.request([1, 2], context_shift=True)
        with pytest.raises(SamplingError, match="n_keep is -2: must be an integer >= -1"):
            llm.request([1, 2], n_keep=-2)


def test_a_shift_is_whole_or_nothing(paths: dict[str, Path], monkeypatch: Any) -> None:
    with load(paths["llama"], n_ctx_seq=64) as llm:
        context = llm.engine.context
        context.decode([1, *text(3, 30)])
        before = context.memory.caches[0].cells.positions_of(
            0, context.memory.caches[0].cells.of(0)
        )
        monkeypatch.setattr(
            "ggmlpy.memory.shift._rope_keys", lambda *given: (_ for _ in ()).throw(MemoryError)
        )
        with pytest.raises(MemoryError):
            context.seq_shift(0, 4, 10)
        memory: SequenceMemory = context.memory
        after = memory.caches[0].cells.positions_of(0, memory.caches[0].cells.of(0))
        assert np.array_equal(before, after)
