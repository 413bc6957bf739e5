"""How a request runs, where it says so: in which slot, without the cache, telling its progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ggmlpy import ArgumentError, Llama
from ggmlpy.engine.generation import Piece, Request
from tests.models.tiny import Tiny, write_model

LONG = "abc def " * 12
NO_END = {2: -np.inf}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """With three sequences, of whose prompts a step takes 16 tokens."""
    path = write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny(n_ctx=512))
    with Llama(path, n_ctx_seq=256, n_seq_max=3, n_ubatch=16, n_threads=1) as made:
        yield made


@pytest.fixture(autouse=True)
def _empty(llm: Llama) -> None:
    llm.reset()


def request(llm: Llama, prompt: str, **more: Any) -> Request:
    made = llm.request(prompt, max_tokens=6, temperature=0, logit_bias=NO_END)
    return replace(made, **more)


def run(llm: Llama, *requests: Request) -> list[list[Piece]]:
    """The pieces of requests that run together."""
    ids = [llm.engine.add(each) for each in requests]
    found: dict[int, list[Piece]] = {id: [] for id in ids}
    while llm.engine.has_work:
        for output in llm.engine.step():
            assert isinstance(output.piece, Piece), output.piece
            found[output.id].append(output.piece)
    return list(found.values())


def seqs(answers: list[list[Piece]]) -> list[int]:
    return [pieces[-1].timings.seq for pieces in answers if pieces[-1].timings is not None]


def texts(answers: list[list[Piece]]) -> list[str]:
    return ["".join(piece.text for piece in pieces) for pieces in answers]


def test_a_request_runs_in_its_slot(llm: Llama) -> None:
    for seq in (2, 0, 1, 1):
        assert seqs(run(llm, request(llm, "abc", slot=seq))) == [seq]
        assert len(llm.engine.slots.all[seq].tokens) > 6


def test_requests_for_one_slot_run_one_after_another_and_others_beside_them(llm: Llama) -> None:
    """None of the others waits for it, and all have the text that they have alone."""
    prompts = [f"{c}{c} {LONG}" for c in "abcdef"]
    alone = [text for p in prompts for text in texts(run(llm, request(llm, p)))]
    llm.reset()
    slots = [1, 1, 1, None, None, 1]
    together = run(llm, *(request(llm, p, slot=s) for p, s in zip(prompts, slots, strict=True)))
    assert texts(together) == alone
    assert [seq == 1 for seq in seqs(together)] == [slot == 1 for slot in slots]
    order = [pieces[-1].timings for pieces in together]
    waited = [each.waited_s for each in order if each is not None]
    assert waited[0] < waited[1] < waited[2] < waited[5]
    assert max(waited[3], waited[4]) < waited[1]


def test_a_slot_takes_what_others_hold(llm: Llama) -> None:
    run(llm, request(llm, LONG, slot=0))
    (pieces,) = run(llm, request(llm, LONG, slot=2))
    assert pieces[-1].timings is not None
    assert pieces[-1].timings.n_reused == pieces[-1].timings.n_prompt - 1


@pytest.mark.parametrize("slot", [3, -1])
def test_there_is_no_such_slot(llm: Llama, slot: int) -> None:
    with pytest.raises(ArgumentError, match=f"slot is {slot}: the context has 0 to 2"):
        llm.engine.check(request(llm, "abc", slot=slot))


def test_without_the_cache_all_of_the_prompt_is_run(llm: Llama) -> None:
    (first,) = run(llm, request(llm, LONG))
    (second,) = run(llm, request(llm, LONG, reuses=False))
    (third,) = run(llm, request(llm, LONG))
    reused = [p[-1].timings.n_reused for p in (first, second, third) if p[-1].timings]
    assert reused == [0, 0, len(llm.request(LONG).prompt) - 1]
    both = run(llm, *(request(llm, f"x{LONG}", reuses=False) for _ in "12"))
    timings = [pieces[-1].timings for pieces in both if pieces[-1].timings is not None]
    assert [each.n_reused for each in timings] == [0, 0]
    assert timings[1].waited_s < timings[0].prompt_s  # it has not waited for the first prompt
    assert texts([first, second, third]) == texts([first]) * 3


def test_progress_is_told_from_what_is_held_to_the_end_of_the_prompt(llm: Llama) -> None:
    run(llm, request(llm, LONG[:24]))
    made = request(llm, LONG, reports_progress=True)
    (pieces,) = run(llm, made)
    told = [piece.progress for piece in pieces if piece.progress is not None]
    n, n_reused = len(made.prompt), told[0].n_reused
    assert n_reused > 8
    assert [each.n_held for each in told] == [*range(n_reused, n, 16), n]
    assert {(each.n_total, each.n_reused) for each in told} == {(n, n_reused)}
    spent = [each.spent_s for each in told]
    assert spent == sorted(spent)
    first = next(i for i, piece in enumerate(pieces) if piece.token is not None)
    assert all(piece.progress is None for piece in pieces[first:])
    (plain,) = run(llm, request(llm, LONG))
    assert all(piece.progress is None for piece in plain)
    assert texts([pieces]) == texts([plain])


def test_timings_come_with_each_piece(llm: Llama) -> None:
    (pieces,) = run(llm, request(llm, LONG, reports_timings=True))
    timings = [piece.timings for piece in pieces if piece.timings is not None]
    assert [each.n_decoded for each in timings] == [1, 2, 3, 4, 5, 6]
    assert all(each.prompt_s > 0 for each in timings)
    assert [each.decode_s for each in timings] == sorted(each.decode_s for each in timings)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_probabilities_are_those_that_tokens_are_drawn_with(llm: Llama, temperature: float) -> None:
    """Of tokens that `top_k` and `min_p` leave; computed here from those before."""
    k, min_p = 8, 0.02
    options: dict[str, Any] = {"temperature": temperature, "top_k": k, "min_p": min_p}
    made = llm.request(
        LONG, max_tokens=12, seed=3, top_p=1.0, logprobs=20, logit_bias=NO_END, **options
    )
    (before,) = run(llm, made)
    (drawn,) = run(llm, replace(made, scores_sampled=True))
    assert texts([before]) == texts([drawn])
    n_alone = 0
    for model, sampled in zip(before, drawn, strict=True):
        if model.token is None:
            continue
        (top,), (found,) = model.logprobs, sampled.logprobs
        left = dict(list({t: v for t, v in top.top.items() if t != 2}.items())[:k])
        best = max(left.values())
        left = {t: np.exp(v) for t, v in left.items() if np.exp(v - best) >= min_p}
        if temperature == 0:
            left = {found.token: 1.0}
        want = {t: v / sum(left.values()) for t, v in left.items()}
        assert {t: np.exp(v) for t, v in found.top.items()} == pytest.approx(want, rel=1e-5)
        assert np.exp(found.logprob) == pytest.approx(want[found.token], rel=1e-5)
        assert list(found.top.values()) == sorted(found.top.values(), reverse=True)
        n_alone += len(want) == 1
    assert (n_alone == 12) == (temperature == 0), "this shows nothing"
