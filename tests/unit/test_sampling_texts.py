"""DRY and infill, which read the texts of tokens, against their definitions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ggmlpy.errors import SamplingError
from ggmlpy.sampling import Sampler, SamplingParams
from ggmlpy.sampling.dry import Dry, repeats
from tests.unit import naive_steps as naive
from tests.unit.naive_sampling import OFF, f32
from tests.unit.naive_steps import ordered, probabilities


@dataclass
class Texts:
    """A vocabulary of a few texts."""

    texts: Sequence[str]
    eog_ids: Collection[int] = ()
    eos_id: int | None = None
    eot_id: int | None = None
    asked: list[int] = field(default_factory=list)

    def token_bytes(self, id: int, special: bool = False) -> bytes:
        self.asked.append(id)
        return self.texts[id].encode()


TEXTS = Texts(["a", "b", "ab", "\n", " c\n", "xy", "", "ä"])
N = len(TEXTS.texts)


def sampler(vocabulary: Texts | None = TEXTS, **params: Any) -> Sampler:
    n_vocab = N if vocabulary is None else len(vocabulary.texts)
    return Sampler(SamplingParams(**{**OFF, **params}), n_vocab, vocabulary)


def penalties(s: Sampler) -> dict[int, float]:
    ids, probs = s.probabilities(np.zeros(s.n_vocab, np.float32))
    logits = np.log(probs)
    return {int(i): float(logits.max() - x) for i, x in zip(ids, logits, strict=True)}


@given(
    history=st.lists(st.integers(0, N - 1), max_size=30),
    copied=st.integers(0, 12),
    allowed=st.integers(0, 4),
    last_n=st.sampled_from([-1, 1, 5, 20, 64]),
    base=st.sampled_from([1.0, 1.1, 1.75]),
    breakers=st.lists(st.sampled_from(["\n", "aba", "yx", "b", " c", "Ã", "ä"]), max_size=2),
    at_once=st.booleans(),
)
def test_dry(
    history: list[int],
    copied: int,
    allowed: int,
    last_n: int,
    base: float,
    breakers: list[str],
    at_once: bool,
) -> None:
    """Whether it looks after each token, or once after all of a prompt."""
    history = history + history[1 : 1 + copied]
    s = sampler(
        dry_multiplier=0.5,
        dry_base=base,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=breakers,
    )
    dry = s.logits_processors[0]
    assert isinstance(dry, Dry)
    for token in history:
        s.accept(token)
        assert at_once or isinstance(dry.is_idle, bool)  # looks
    texts = dict(enumerate(TEXTS.texts))
    want = naive.dry(history, 0.5, base, allowed, last_n, texts, breakers)
    touched = dry.touched().tolist()
    costs = (-dry.apply_to(f32([0.0] * len(touched)))).tolist()
    found = dict(zip(touched, costs, strict=True))
    assert found == pytest.approx(want, rel=1e-6)
    assert dry.is_idle == (not want)


def test_dry_in_words() -> None:
    """The last three tokens stood before xy: xy costs 0.8 * 1.75^(3 - 2)."""
    s = sampler(dry_multiplier=0.8, dry_sequence_breakers=[])
    for token in (0, 1, 2, 5, 0, 1, 2):
        s.accept(token)
    assert penalties(s)[5] == pytest.approx(0.8 * 1.75, rel=1e-5)
    assert sum(p > 1e-6 for p in penalties(s).values()) == 1


def test_a_breaker_ends_the_repetition_even_across_tokens() -> None:
    """Of a, b, a, b the last three spell "bab", which a breaker may cut anywhere."""
    history = [0, 1, 0, 1, 5, 0, 1, 0, 1]
    costs = {}
    for breaker in ("bab", "ba", "\n", "xya", "abab"):
        s = sampler(
            dry_multiplier=1.0,
            dry_base=2.0,
            dry_allowed_length=1,
            dry_sequence_breakers=[breaker],
        )
        for token in history:
            s.accept(token)
        costs[breaker] = penalties(s)[5]
    # After the last breaker follow 0, 1, all, 3 and 0 tokens.
    assert costs == pytest.approx({"bab": 0, "ba": 1, "\n": 8, "xya": 4, "abab": 0}, abs=1e-5)


def test_dry_reads_no_more_of_a_prompt_than_it_considers() -> None:
    vocabulary = Texts(TEXTS.texts)
    s = sampler(vocabulary, dry_multiplier=1.0, dry_penalty_last_n=3)
    for token in [5, 2, 7] * 50 + [0, 1, 0]:
        s.accept(token)
    s.sample(np.zeros(N, np.float32))
    assert set(vocabulary.asked) <= {0, 1}


def test_dry_of_a_very_long_repetition_stays_finite() -> None:
    s = sampler(None, dry_multiplier=1e6, dry_penalty_last_n=-1, dry_sequence_breakers=[])
    for _ in range(3000):
        s.accept(1)
    logits = np.zeros(N, np.float32)
    assert s.sample(logits) != 1
    assert s.probabilities(logits)[1].tolist() == pytest.approx([1 / 7, 0, *[1 / 7] * 6])


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_repeats(most: int) -> None:
    tokens = [1, 2, 3, 3, 2, 3, 4, 1, 2, 3]
    lengths = [0, 0, 3, 1, 0, 2, 0, 0, 0]
    assert repeats(np.array(tokens), most).tolist() == [min(n, most) for n in lengths]
    assert repeats(np.array(tokens[:1]), most).tolist() == []
    assert repeats(np.zeros(0, np.int64), most).tolist() == []


@pytest.mark.parametrize("options", [{"dry_multiplier": 1.0}, {"samplers": ["infill"]}])
def test_texts_need_a_tokenizer(options: dict[str, Any]) -> None:
    with pytest.raises(SamplingError, match="the Sampler must be made with a tokenizer"):
        sampler(None, **options)


# --- infill ---

pieces = st.text("ab ", max_size=3)


@given(
    texts=st.lists(pieces, min_size=2, max_size=12),
    sharp=st.sampled_from([0.5, 1.0, 4.0]),
    eog=st.sets(st.integers(0, 11), min_size=1, max_size=2),
    data=st.data(),
)
def test_infill(texts: list[str], sharp: float, eog: set[int], data: st.DataObject) -> None:
    n = len(texts)
    logits = data.draw(
        st.lists(
            st.integers(-16, 16).map(lambda i: i * sharp / 4), min_size=n, max_size=n, unique=True
        )
    )
    eog = {i for i in eog if i < n} or {0}
    end = min(eog)
    vocabulary = Texts(texts, eog_ids=eog, eos_id=end)
    tokens = ordered(dict(enumerate(logits)))
    p_end = sum(p for i, p in zip(tokens, probabilities(tokens), strict=True) if i in eog)
    assume(abs(3 * p_end * n - (1 - p_end)) > 1e-6)
    want = naive.infill(tokens, {i: t.encode() for i, t in enumerate(texts)}, eog, end)
    ids, probs = sampler(vocabulary, samplers=["infill"]).probabilities(f32(logits))
    expected = dict(zip(want, probabilities(want).tolist(), strict=True))
    assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)


def test_infill_ends_with_eot_before_eos() -> None:
    """Eleven tokens with nothing in common, none of which has 0.2."""
    texts = Texts([*"abcdefghijk", "", ""], eog_ids={11, 12}, eos_id=11, eot_id=12)
    logits = f32([0.0] * 11 + [-math.inf] * 2)
    ids, _ = sampler(texts, samplers=["infill"]).probabilities(logits)
    assert ids.tolist() == [12]
    texts.eot_id = None
    assert sampler(texts, samplers=["infill"]).sample(logits) == 11
    texts.eos_id = None
    with pytest.raises(SamplingError, match="neither an EOT nor an EOS token"):
        sampler(texts, samplers=["infill"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_infill_under_a_mask_gives_what_is_allowed(temperature: float) -> None:
    """Eleven tokens with nothing in common, none of which has 0.2: without a mask the end."""
    texts = Texts([*"abcdefghijk", "", ""], eog_ids={11, 12}, eos_id=11, eot_id=12)
    logits = f32([0.0] * 6 + [0.1] + [0.0] * 4 + [-9.0] * 2)
    steps = ["infill", "temperature"]
    made = sampler(texts, samplers=steps, temperature=temperature, seed=1)

    def drawn(*allowed: int) -> set[int]:
        mask = np.array([sum(1 << i for i in allowed)], np.uint64)
        return {made.sample(logits, mask) for _ in range(40)}

    assert {made.sample(logits) for _ in range(10)} == {12}
    assert drawn(*range(12)) == {11}  # EOS, where EOT is not allowed
    some = drawn(*range(3, 11))
    assert some == {6} if temperature == 0 else some == set(range(3, 11))
    assert drawn(*range(13)) == {12}
    assert made.sample(logits) == 12


def test_infill_decides_at_temperature_0_too() -> None:
    """The end has less than the best token, but more than it may have."""
    texts = Texts(["a", "b", "c", ""], eog_ids={3}, eos_id=3)
    logits = f32([2.0, 1.0, 1.0, 0.5])
    greedy = {"temperature": 0.0}
    assert sampler(texts, samplers=["top_k", "temperature"], **greedy).sample(logits) == 0
    assert sampler(texts, samplers=["infill", "temperature"], **greedy).sample(logits) == 3
