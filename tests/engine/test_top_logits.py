"""Sampling from the largest logits, found on the device: the same tokens as from all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy import Llama
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import SamplingError
from ggmlpy.runtime.plans import Plan
from ggmlpy.sampling import Candidates, Filter, Sampler, SamplingParams
from ggmlpy.sampling.names import DEFAULT_SAMPLERS
from tests.engine.test_streams import LONG

N_VOCAB = 97

pytestmark = pytest.mark.placed


class Odd(Filter):
    """Keep tokens of odd ids, if there are any."""

    def apply(self, candidates: Candidates) -> Candidates:
        is_odd = candidates.token_ids % 2 == 1
        return candidates.keep(is_odd) if is_odd.any() else candidates


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1e-30]),
    top_k=st.integers(1, 40),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.05]),
    typical_p=st.sampled_from([1.0, 0.7]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    presence_penalty=st.sampled_from([0.0, -0.5]),
    penalty_last_n=st.sampled_from([-1, 0, 5]),
    logit_bias=st.dictionaries(
        st.integers(0, N_VOCAB - 1), st.sampled_from([-float("inf"), -2.0, 3.0]), max_size=12
    ),
    seed=st.integers(0, 1000),
    samplers=st.sampled_from(
        [
            DEFAULT_SAMPLERS,
            ("top_k", "temperature", "penalties", "dry", "min_p"),
            ("dry", "top_k", "penalties", Odd(), "typ_p", "temperature"),
            ("top_k", "xtc", Odd(), "adaptive_p"),
        ]
    ),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    dynatemp_range=st.sampled_from([0.0, 0.5]),
    dry_multiplier=st.sampled_from([0.0, 1.0]),
    dry_allowed_length=st.just(1),
    dry_sequence_breakers=st.just(()),
)


@settings(max_examples=300, deadline=None)
@given(params=params, seed=st.integers(0, 2**32 - 1), levels=st.integers(2, 200))
def test_what_is_wanted_decides_the_token(params: SamplingParams, seed: int, levels: int) -> None:
    """With equal logits at every cut, where `levels` are few, and logits of -inf."""
    rng = np.random.default_rng(seed)
    whole, among = Sampler(params, N_VOCAB), Sampler(params, N_VOCAB)
    for _ in range(6):
        logits = (rng.integers(-levels, levels, N_VOCAB) / 8).astype(np.float32)
        logits[rng.random(N_VOCAB) < 0.1] = np.float32(-np.inf)
        wanted = among.wanted()
        assert wanted is not None
        k, ids = wanted
        top = np.argsort(-logits, kind="stable")[:k]
        seen = np.union1d(top, ids).astype(np.int64)
        try:
            token = whole.sample(logits)
        except SamplingError:
            with pytest.raises(SamplingError):
                among.sample_among(seen, logits[seen])
            return
        assert among.sample_among(seen, logits[seen]) == token
        whole.accept(token)
        among.accept(token)


@pytest.mark.parametrize(
    "options", [{"top_k": 0}, {"top_k": 0, "min_p": 0.2}, {"temperature": 0, "logit_bias": {3: 1}}]
)
def test_chains_without_a_first_cut_want_all(options: dict[str, Any]) -> None:
    wanted = Sampler(SamplingParams(**options), N_VOCAB).wanted()
    assert (wanted is None) == (options.get("temperature") != 0)


class Reads:
    """Counts rows of logits that a device hands out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        read = Plan.read_logits

        def counted(plan: Plan, first: int, n: int) -> Any:
            self.n += 0 if plan.on_host else n
            return read(plan, first, n)

        monkeypatch.setattr(Plan, "read_logits", counted)


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "penalties": {"temperature": 0, "repeat_penalty": 1.4, "frequency_penalty": 0.3},
    "usual": {"repeat_penalty": 1.1, "logit_bias": {7: 2.0, 9: -float("inf")}},
    "without top_k": {"top_k": 0},
    "logprobs": {"logprobs": 3},
    "processor": {"logits_processor": lambda tokens, logits: logits},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_device_gives_the_tokens_of_the_host(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    reads, options = Reads(monkeypatch), {"max_tokens": 12, "seed": 5, **OPTIONS[name]}
    answers = []
    for backend in (ReferenceBackend(), [MockBackend(), ReferenceBackend()]):
        with Llama(tiny_path, backend=backend, n_ctx=64) as llm:
            answers.append(llm(LONG[:9], **options)["choices"][0])
    assert answers[0]["text"] == answers[1]["text"]
    assert (reads.n > 0) == (name in ("without top_k", "logprobs", "processor"))


def test_several_sequences_at_once(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them wants all logits: only its rows are read."""
    reads = Reads(monkeypatch)
    texts = []
    for backend in (ReferenceBackend(), [MockBackend(), ReferenceBackend()]):
        with Llama(tiny_path, backend=backend, n_ctx_seq=32, n_seq_max=4) as llm:
            ids = [
                llm.engine.add(
                    llm.request(LONG[i : i + 3 + i], max_tokens=5, seed=i, top_k=0 if i == 2 else 5)
                )
                for i in range(4)
            ]
            found: dict[int, list[int]] = {id: [] for id in ids}
            while llm.engine.is_running:
                for output in llm.engine.step():
                    assert not isinstance(output.piece, Exception)
                    if output.piece.token is not None:
                        found[output.id].append(output.piece.token)
            texts.append([found[id] for id in ids])
    assert texts[0] == texts[1]
    assert reads.n == len(texts[0][2])


def test_logits_that_are_no_numbers_are_an_error_as_on_the_host(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = []
    for backend in (ReferenceBackend(), [MockBackend(), ReferenceBackend()]):
        with Llama(tiny_path, backend=backend, n_ctx=64) as llm:
            leaf = llm.model.weights.leaves["output_norm.weight"]
            assert leaf.place is not None
            leaf.place.buffer.write(
                leaf.place.offset, np.array([np.nan], np.float32).view(np.uint8)
            )
            with pytest.raises(SamplingError) as caught:
                llm(LONG[:4], max_tokens=2)
            messages.append(str(caught.value))
    assert messages[0] == messages[1]
