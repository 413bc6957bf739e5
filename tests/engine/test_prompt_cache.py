"""What is evicted from slots is kept in host memory and restored, within a budget."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import Llama
from ggmlpy.engine.prompt_cache import MIB, PromptCache, cache_limit, cut
from ggmlpy.engine.slot_states import save_states
from ggmlpy.errors import ArgumentError
from tests.models.tiny import Tiny, write_model

WINDOWED = Tiny(
    architecture="gemma3", n_layer=3, n_ctx=256, neox=True, qk_norm=True, post_norms=True,
    gelu=True, embedding_scale=8.0, window=5, windowed=(0, 2),
)  # fmt: skip
GREEDY: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "logit_bias": {2: -1000.0}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny(n_ctx=256))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "windowed.gguf", WINDOWED)


def load(path: Path, **options: Any) -> Llama:
    return Llama(path, **{"backend": "reference", "n_ctx": 128, "n_ubatch": 32, **options})


def answer(llm: Llama, prompt: list[int]) -> str:
    return str(llm(prompt, **GREEDY)["choices"][0]["text"])


def check_slots(llm: Llama) -> None:
    """Slots, memory, the tree over slots and the bytes of the cache say the same."""
    slots = llm.engine.slots
    cache = slots.cache
    for slot in slots.all:
        assert slots.memory.seq_pos_max(slot.seq) + 1 == len(slot.tokens)
        own = slots._common(slot.tokens, ())
        for other in slots.all:
            pairs = enumerate(zip(slot.tokens, other.tokens, strict=False))
            n = next((i for i, (x, y) in pairs if x != y), None)
            most = min(len(slot.tokens), len(other.tokens))
            assert own.get(other.seq, 0) == (most if n is None else n)
    assert cache.n_bytes == sum(state.n_bytes for state in cache._states.values())
    assert cache.limit is None or cache.n_bytes <= cache.limit
    assert len(cache._cuttable) + len(cache._whole) == len(cache._states)


A, B = [(i * 7) % 200 + 10 for i in range(40)], [(i * 11) % 200 + 20 for i in range(45)]


def test_two_conversations_alternate_on_one_slot(path: Path) -> None:
    with load(path) as llm, load(path, cache_ram=0) as alone:
        seen = []
        for prompt in (A, B, [*A, 5, 6], [*B, 7], [*A, 5, 6, 7]):
            got = answer(llm, prompt)
            seen.append(llm.timings.n_reused)  # by this request
            alone.reset()
            assert got == answer(alone, prompt)
            check_slots(llm)
        cache = llm.engine.slots.cache
        assert seen[:4] == [0, 0, len(A), len(B)]
        assert seen[4] >= len(A) + 2
        assert (cache.n_hits, cache.n_restored) == (3, sum(seen))
        assert "3 sequences restored" in llm.describe()
        llm.reset()
        assert (len(cache), cache.n_bytes) == (0, 0)


def test_without_a_budget_nothing_is_kept(path: Path) -> None:
    with load(path, cache_ram=0) as llm:
        for prompt in (A, B, A, B):
            answer(llm, prompt)
            assert llm.timings.n_reused == 0
        assert len(llm.engine.slots.cache) == 0


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("which", ["path", "windowed"])
def test_every_history_gives_the_answers_of_a_new_model(
    which: str, unified: bool, request: pytest.FixtureRequest
) -> None:
    """Random conversations, cancelled and finished, more than slots and than the budget."""
    model = request.getfixturevalue(which)
    rng = random.Random(5)
    texts = [[rng.randrange(10, 250) for _ in range(60)] for _ in range(3)]
    with load(model, n_seq_max=2, n_ctx=256, kv_unified=unified) as llm, load(model) as alone:
        slots = llm.engine.slots
        slots.cache.limit = 60_000
        held: list[list[int]] = []
        for _ in range(24):
            kind = rng.choice("aaaaacs")
            text = rng.choice(texts)[: rng.randrange(1, 60)]
            if held and rng.random() < 0.6:  # a conversation goes on
                text = rng.choice(held[-5:-1] or held)[:90]
            prompt = [*text, rng.randrange(10, 250)]
            if kind == "a":
                alone.reset()
                assert answer(llm, prompt) == answer(alone, prompt)
                held += [t for t in llm.held_tokens.values() if t[: len(prompt)] == prompt]
            elif kind == "c":
                id = llm.engine.add(llm.request(prompt, **GREEDY))
                llm.engine.step()
                llm.engine.cancel(id)
            else:
                llm.load_state(llm.save_state())
            check_slots(llm)
        assert slots.cache.n_hits > 0


def test_the_least_recently_used_state_goes_first(path: Path) -> None:
    with load(path) as llm:
        states = []
        for first in (11, 12, 13):
            llm.reset()
            answer(llm, [first] * 20)
            states.append(save_states(llm.engine.slots, 0)[0])
    a, b, c = states
    cache = PromptCache(2 * a.n_bytes)
    for state in (a, b):
        cache.keep(state)
    assert cache.use(a.tokens[:7])  # used now
    cache.keep(c)
    assert [cache.use(state.tokens) for state in states] == [True, False, True]
    cache.keep(cut(c, 10))
    found = cache.find([*c.tokens[:15], 99])
    assert found is not None
    assert found.tokens == c.tokens[:15]
    assert {rows.k.shape[0] for rows in found.layers.values()} == {15}
    PromptCache(a.n_bytes - 1).keep(a)
    longer = PromptCache(None)
    longer.keep(cut(b, 12))
    longer.keep(b)
    assert len(longer) == 1
    assert longer.n_bytes == b.n_bytes


def test_budgets(path: Path) -> None:
    assert cache_limit(-1) is None
    assert cache_limit(3) == 3 * MIB
    assert 0 < (cache_limit(None) or 0) <= 8192 * MIB
    with pytest.raises(ArgumentError, match="cache_ram is -2"):
        load(path, cache_ram=-2)
    with pytest.raises(ArgumentError, match="cache_ram"):
        load(path, cache_ram="8")
