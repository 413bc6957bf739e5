"""The timings of one answer, which come with its last piece, and of the last step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.engine.generation import Piece
from ggmlpy.engine.timings import AnswerTimings


def last_timings(llm: Llama, prompt: str, **options: object) -> AnswerTimings:
    """Of a request that has the engine for itself."""
    llm.engine.add(llm.request(prompt, temperature=0, **options))  # type: ignore[arg-type]
    pieces: list[Piece] = []
    while llm.engine.has_work:
        for output in llm.engine.step():
            assert isinstance(output.piece, Piece)
            pieces.append(output.piece)
    assert [piece.timings for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].timings is not None
    return pieces[-1].timings


def test_counts(tiny: Llama) -> None:
    first = last_timings(tiny, "abcabc", max_tokens=5)
    n_prompt = len(tiny.tokenize("abcabc", special=True))
    assert (first.n_prompt, first.n_reused, first.n_decoded) == (n_prompt, 0, 5)
    again = last_timings(tiny, "abcabc", max_tokens=3)
    assert (again.n_prompt, again.n_reused, again.n_decoded) == (n_prompt, n_prompt - 1, 3)
    assert (first.n_drafted, first.n_accepted) == (0, 0)


def test_durations_follow_each_other(tiny: Llama) -> None:
    """A request that has to wait for the only sequence has waited as long as the first ran."""
    ids = [tiny.engine.add(tiny.request("ab", max_tokens=n, temperature=0)) for n in (8, 2)]
    found: dict[int, AnswerTimings] = {}
    while tiny.engine.has_work:
        for output in tiny.engine.step():
            assert isinstance(output.piece, Piece)
            if output.piece.timings is not None:
                found[output.id] = output.piece.timings
    first, second = (found[id] for id in ids)
    assert second.waited_s >= first.prompt_s + first.decode_s > 0
    assert first.prompt_s > 0
    assert second.prompt_s > 0
    assert second.decode_s > 0


def test_a_prompt_alone_has_no_decoding(tiny: Llama) -> None:
    found = last_timings(tiny, "ab", max_tokens=1)
    assert (found.n_decoded, found.n_reused) == (1, 0)
    assert found.decode_s < found.prompt_s


def test_drafts_are_counted(tiny_path: Path) -> None:
    with Llama(tiny_path, backend="reference") as llm:
        prompt = llm.tokenize("ab", special=True)
        written = list(prompt)  # the text that it writes
        for _ in range(12):
            written.append(int(llm.logits(written)[-1].argmax()))

    def draft(tokens: NDArray[np.intc]) -> NDArray[np.intc]:
        n = len(tokens)
        right = written[n : n + 2]
        return np.array([*right, 0], np.intc)

    with Llama(tiny_path, backend="reference", draft_model=draft) as llm:
        found = last_timings(llm, "ab", max_tokens=12)
        assert found.n_drafted == llm.timings.n_drafted > found.n_accepted > 0
        assert found.n_accepted == llm.timings.n_accepted
        assert found.n_drafted / 3 <= found.n_drafts <= 12


@pytest.mark.parametrize("n", [1, 3])
def test_the_last_step(tiny_path: Path, n: int) -> None:
    with Llama(tiny_path, backend="reference", n_ctx_seq=64, n_seq_max=3) as llm:
        assert llm.engine.last_step.number == 0
        prompts = ["ab", "bcd", "c"][:n]
        for prompt in prompts:
            llm.engine.add(llm.request(prompt, max_tokens=2, temperature=0))
        llm.engine.step()
        step = llm.engine.last_step
        n_prompt = sum(len(llm.tokenize(prompt, special=True)) for prompt in prompts)
        assert (step.number, step.n_sequences, step.n_prompt, step.n_decoded) == (1, n, n_prompt, 0)
        llm.engine.step()
        assert llm.engine.last_step.n_decoded == n
        assert llm.engine.last_step.spent_s > 0
