"""States that are saved and loaded, and caches of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.compat import llama_cpp
from ggmlpy.compat.llama_cpp import (
    Llama,
    LlamaDiskCache,
    LlamaRAMCache,
)
from tests.compat.models import PROMPT, make


def test_states_continue_where_they_were_saved(llm: Llama) -> None:
    llm.reset()
    llm.eval(llm.tokenize(PROMPT.encode()))
    state = pickle.loads(pickle.dumps(llm.save_state()))
    assert state.llama_state_size == len(state.llama_state)
    expected = llm.sample(temp=0)
    llm(PROMPT[::-1], max_tokens=3)
    llm.load_state(state)
    assert llm.n_tokens == state.n_tokens
    assert llm.sample(temp=0) == expected


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_caches_of_states(kind: str, tmp_path: Path) -> None:
    cache = LlamaRAMCache() if kind == "ram" else LlamaDiskCache(str(tmp_path))
    with make() as model:
        model.set_cache(cache)
        expected = model(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"]
        assert cache.cache_size > 0
    with make() as model:
        model.set_cache(cache if kind == "ram" else LlamaDiskCache(str(tmp_path)))
        prompt = model.tokenize(PROMPT.encode())
        assert prompt in model.cache  # type: ignore[operator]
        assert model(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"] == expected
        with pytest.raises(KeyError):
            cache[[9, 9]]
    cache.capacity_bytes = 0
    cache[[7, 8]] = model_state()
    assert cache.cache_size == 0


def model_state() -> llama_cpp.LlamaState:
    ids, scores = np.zeros(4, np.intc), np.zeros((2, 3), np.single)
    return llama_cpp.LlamaState(ids, scores, 2, b"state", 5, 1)


def test_damaged_files_in_a_cache_are_left_out(tmp_path: Path) -> None:
    cache = LlamaDiskCache(str(tmp_path))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    cache[[1, 2, 3]] = model_state()
    assert [1, 2, 9] in cache
    assert cache[[1, 2, 9]].llama_state == b"state"
    assert [5] not in cache
