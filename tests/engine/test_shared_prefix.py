"""Conversations that take turns, and many prompts that begin alike, run only what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import Llama
from ggmlpy.memory.pages import PagedCells
from tests.models.tiny import Tiny, write_model

LAYOUTS = pytest.mark.parametrize("kv_layout", ["split", "unified", "paged"])
MODELS = {
    "llama": Tiny(n_ctx=512),
    "lfm2": Tiny("lfm2", n_layer=3, qk_norm=True, convolutions=(0, 2), n_ctx=512),
    "gemma3": Tiny(
        "gemma3", n_layer=3, window=24, windowed=(0, 2), qk_norm=True, post_norms=True, n_ctx=512
    ),
}


def load(folder: Path, model: str = "llama", **options: Any) -> Llama:
    path = folder / f"{model}.gguf"
    if not path.exists():
        write_model(path, MODELS[model])
    return Llama(path, n_threads=1, **{"n_ctx_seq": 256, "n_ubatch": 64, **options})


def answers(llm: Llama, prompts: list[list[int]], n: int = 6) -> list[list[int]]:
    """The tokens of greedy answers."""
    options: dict[str, Any] = {"max_tokens": n, "temperature": 0, "logit_bias": {2: -1000.0}}
    ids = [llm.engine.add(llm.request(prompt, **options)) for prompt in prompts]
    found: dict[int, list[int]] = {id: [] for id in ids}
    while llm.engine.has_work:
        for output in llm.engine.step():
            assert not isinstance(output.piece, Exception), output.piece
            if output.piece.token is not None:
                found[output.id].append(output.piece.token)
    return [found[id] for id in ids]


def text(seed: int, n: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 280, n)]


@LAYOUTS
@pytest.mark.parametrize("model", MODELS)
def test_conversations_take_turns_on_one_sequence(
    tmp_path: Path, model: str, kv_layout: str
) -> None:
    """A, B, A, B: each runs only what is new in it, and gives what it gives in a context of its
    own."""
    llm = load(tmp_path, model, kv_layout=kv_layout, n_seq_max=1)
    alone = load(tmp_path, model, cache_ram=0)
    chats = [text(1, 40), text(2, 50)]
    for turn in range(3):
        for chat in chats:
            before = llm.engine.timings.n_prompt
            (got,) = answers(llm, [chat])
            alone.reset()
            assert [got] == answers(alone, [chat])
            n_run = llm.engine.timings.n_prompt - before
            # The last token of an answer was not run, and those of a turn before it are new.
            assert n_run == (len(chat) if turn == 0 else 5 + 1), (turn, n_run)
            chat += [*got, *text(turn, 5)]
    assert llm.engine.slots.cache.n_hits == 4
    assert "4 sequences restored" in llm.describe()


@LAYOUTS
def test_what_many_prompts_begin_with_is_run_once_and_held_once(
    tmp_path: Path, kv_layout: str
) -> None:
    beginning, rest = text(3, 150), [[20 + i, *text(10 + i, 3 + i % 4)] for i in range(20)]
    prompts = [beginning + each for each in rest]
    llm = load(tmp_path, kv_layout=kv_layout, n_seq_max=4, n_ctx=4 * 256)
    got = answers(llm, prompts)
    assert llm.engine.timings.n_prompt == len(beginning) + sum(map(len, rest))
    with load(tmp_path, cache_ram=0) as alone:
        for prompt, tokens in zip(prompts, got, strict=True):
            alone.reset()
            assert [tokens] == answers(alone, [prompt])
    (cells,) = (cache.cells for cache in llm.engine.context.memory.caches)
    if kv_layout != "split":
        held = sum(len(slot.tokens) - len(beginning) for slot in llm.engine.slots.all)
        # Of the page in which the prompts part, each has a copy.
        n_copied = 4 * (cells.page_size if isinstance(cells, PagedCells) else 0)
        assert cells.n_used() <= len(beginning) + held + n_copied
        assert llm.engine.max_cells_used <= len(beginning) + 4 * 20 + n_copied
    if isinstance(cells, PagedCells):
        assert cells.n_pages_shared() >= len(beginning) // cells.page_size


def test_nobody_waits_for_a_prompt_that_waits_itself(tmp_path: Path) -> None:
    """The oldest and the shortest prompts get all tokens of a step; the one between them none."""
    common = text(1, 40)
    with load(tmp_path, n_seq_max=6, n_ctx_seq=512, token_budget=16) as llm:
        engine = llm.engine
        options: dict[str, Any] = {"temperature": 0, "logit_bias": {2: -99.0}}
        engine.add(llm.request(text(2, 4), max_tokens=200, **options))
        engine.step()
        for prompt in (text(3, 400), text(4, 200), [*common, *text(5, 300)]):
            engine.add(llm.request(prompt, max_tokens=2, **options))
        engine.step()
        last = engine.add(llm.request([*common, *text(6, 4)], max_tokens=2, **options))
        n_steps = 0
        while last not in [output.id for output in engine.step()]:
            n_steps += 1
            assert n_steps < 10  # 44 tokens, 7 in each
