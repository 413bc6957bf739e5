"""Chains leave the tokens and logits that llama.cpp's leave, token after token."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Tokenizer, packaged_model
from ggmlpy.sampling import Sampler, SamplingParams
from tests.unit.peer_samplers import (
    CASES,
    OFF,
    RECORDED,
    TEXT_CASES,
    history_of,
    logits_of,
    text_logits,
)

PEER: dict[str, list[tuple[dict[str, float], int]]] = json.loads(RECORDED.read_text("utf-8"))
N_VOCAB = 40


def check(s: Sampler, logits: NDArray[np.float32], want: dict[str, float]) -> None:
    """The probabilities of the recorded tokens; of a whole vocabulary only some are recorded."""
    ids, probs = s.probabilities(logits)
    found = dict(zip(ids.tolist(), probs.tolist(), strict=True))
    if len(found) <= 60:
        assert found.keys() == set(map(int, want))
    top = found[int(max(want, key=lambda token: want[token]))]
    for token, logit in want.items():
        if logit > -80:  # else nothing in f32
            assert math.log(found[int(token)] / top) == pytest.approx(logit, rel=2e-5, abs=2e-5)
        else:
            assert found[int(token)] < 1e-30


@pytest.mark.parametrize("name", CASES)
def test_as_llama_cpp(name: str) -> None:
    s = Sampler(SamplingParams(**{**OFF, **without_texts(CASES[name])}), N_VOCAB)
    for token in history_of(name, N_VOCAB):
        s.accept(token)
    for step, (want, token) in enumerate(PEER[name]):
        check(s, logits_of(name, step, N_VOCAB), want)
        s.accept(token)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(packaged_model())


@pytest.mark.parametrize("name", TEXT_CASES)
def test_as_llama_cpp_with_texts(name: str, tokenizer: Tokenizer) -> None:
    params = dict(TEXT_CASES[name])
    history = tokenizer.encode(params.pop("text"))
    near = [i for i in range(tokenizer.n_vocab) if tokenizer.text(i).startswith("Ġwa")]
    s = Sampler(SamplingParams(**{**OFF, **params}), tokenizer.n_vocab, tokenizer)
    for token in history:
        s.accept(token)
    for step, (want, token) in enumerate(PEER[name]):
        check(s, text_logits(name, step, tokenizer.n_vocab, near), want)
        s.accept(token)


def without_texts(params: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in params.items()}


def test_all_that_is_recorded_is_compared() -> None:
    assert PEER.keys() == CASES.keys() | TEXT_CASES.keys()
