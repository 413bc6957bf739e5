"""Sampling steps of requests that run together: each has its own state and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ggmlpy import Llama, SamplingError, packaged_model
from ggmlpy.sampling import Candidates, Filter, Sampler, SamplingParams, Setting

BEGIN = "One day, Tom and Lily went to the park. Tom and Lily"


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(packaged_model(), n_ctx_seq=128, n_threads=1) as llm:
        yield llm


def text_of(result: Any) -> str:
    return str(result["choices"][0]["text"])


@dataclass
class Rhythm(Filter):
    """Every second token must begin with a space, as the tokenizer says."""

    n_accepted: int = 0
    spaced: list[bool] = field(default_factory=list)

    def begin(self, setting: Setting) -> None:
        assert setting.tokenizer is not None
        tokens = range(setting.n_vocab)
        self.spaced = [setting.tokenizer.token_bytes(i).startswith(b" ") for i in tokens]

    def accept(self, token: int) -> None:
        self.n_accepted += 1

    def apply(self, candidates: Candidates) -> Candidates:
        if self.n_accepted % 2 == 0:
            return candidates
        return candidates.keep(np.array([self.spaced[i] for i in candidates.token_ids.tolist()]))


CHAINS: dict[str, dict[str, Any]] = {
    "dry": {"dry_multiplier": 3.0, "dry_allowed_length": 0},
    "xtc": {"xtc_probability": 0.5},
    "mirostat 1": {"mirostat_mode": 1, "mirostat_tau": 2.0},
    "mirostat 2": {"mirostat_mode": 2, "mirostat_tau": 2.0},
    "adaptive_p": {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.3},
    "dynatemp": {"dynatemp_range": 0.6, "top_n_sigma": 1.5},
    "infill": {"samplers": ["top_k", "top_p", "infill"]},
    "own": {"samplers": ["penalties", Rhythm(), "top_k", "temperature"]},
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_text_is_the_same_beside_others_and_after_preemption(llm: Llama, name: str) -> None:
    options = {"max_tokens": 24, "logit_bias": {1: -1000.0}, **CHAINS[name]}
    prompts = [BEGIN, "A little dog", "The sun was very", "Mia said"]
    alone = [text_of(llm(p, seed=i, **options)) for i, p in enumerate(prompts)]
    sizes = {"n_seq_max": 4, "kv_layout": "paged", "n_ctx": 104, "n_ctx_seq": 64}
    with Llama(packaged_model(), n_threads=1, **sizes) as together:  # type: ignore[arg-type]
        requests = [together.request(p, seed=i, **options) for i, p in enumerate(prompts)]
        assert [text_of(r) for r in together.generate(requests)] == alone
        assert together.timings.n_preempted > 0 or name == "infill"  # whose text may end soon
    plain: dict[str, Any] = {"max_tokens": 24, "logit_bias": {1: -1000.0}}
    assert alone != [text_of(llm(p, seed=i, **plain)) for i, p in enumerate(prompts)]


def test_the_engine_draws_what_a_sampler_draws(llm: Llama) -> None:
    params: dict[str, Any] = {"seed": 4, "temperature": 1.2, "xtc_probability": 0.4,
                              "dry_multiplier": 2.0, "top_k": 30}  # fmt: skip
    tokens = llm.tokenize(BEGIN)
    sampler = Sampler(SamplingParams(**params), llm.n_vocab(), llm.tokenizer)
    for token in tokens:
        sampler.accept(token)
    drawn: list[int] = []
    for _ in range(10):
        drawn.append(sampler.sample(llm.logits([*tokens, *drawn])[-1]))
        sampler.accept(drawn[-1])
    llm.reset()
    pieces = llm.pieces(tokens, SamplingParams(**params), max_tokens=10)
    assert [piece.token for piece in pieces] == drawn


def test_dry_follows_repetitions_up_to_a_breaker(llm: Llama) -> None:
    """A negative penalty makes the text go on as before, unless a breaker ends the comparison."""
    prompt = "Tom was sad. He cried. Tom was sad. He cried. Tom was sad."
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
    plain = text_of(llm(prompt, **options))
    looped = text_of(llm(prompt, **options, dry_multiplier=-50.0))
    broken = text_of(llm(prompt, **options, dry_multiplier=-50.0, dry_sequence_breakers=["."]))
    assert looped.startswith(" He cried")
    assert plain == broken != looped


def test_a_step_that_fails_ends_its_request_alone(llm: Llama) -> None:
    class Nothing(Filter):
        def apply(self, candidates: Candidates) -> Candidates:
            return candidates.keep(candidates.logits > np.inf)

    good = llm("A cat", max_tokens=4, seed=1)
    with pytest.raises(SamplingError, match="left no token"):
        llm("A cat", max_tokens=4, samplers=[Nothing()])
    assert text_of(llm("A cat", max_tokens=4, seed=1)) == text_of(good)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samplers": ["top_q"]}, "samplers names 'top_q': did you mean"),
        ({"mirostat_mode": 3}, "mirostat_mode is 3"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers is"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(
    llm: Llama, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SamplingError, match=message):
        llm.request("A cat", **options)
