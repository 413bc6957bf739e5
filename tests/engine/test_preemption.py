"""Sequences that were preempted go on as if nothing had been, whatever host memory kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.engine import slots as slots_module
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.prefix_tree import PrefixTree
from ggmlpy.engine.prompt_cache import PromptCache
from ggmlpy.engine.shared_prefix import first_ready
from ggmlpy.engine.slots import Slots
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.pages import PagedCells
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.state import (
    Changes,
    SequenceState,
    n_bytes_of,
    put_rest,
    put_state,
    take_state,
)
from ggmlpy.memory.store import KVStore
from tests.engine.test_shared_prefix import MODELS, text
from tests.interrupts import interrupted_at
from tests.models.tiny import write_model

SHARED = [layout for layout in LAYOUTS if layout != "split"]
N_TOKENS = 50  # of each answer


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder / f"{name}.gguf", tiny) for name, tiny in MODELS.items()}


def load(path: Path, **options: Any) -> Llama:
    return Llama(path, n_threads=1, **{"n_ctx": 150, "n_ubatch": 64, "n_seq_max": 4, **options})


def logits_of(llm: Llama, prompts: list[list[int]], n: int = N_TOKENS) -> list[list[bytes]]:
    """The logits of every token of each greedy answer."""
    seen = add_all(llm, prompts, n)
    while llm.engine.has_work:
        llm.engine.step()
    return seen


def add_all(llm: Llama, prompts: list[list[int]], n: int) -> list[list[bytes]]:
    """Add requests, and return where the logits of each of their tokens will be."""
    seen: list[list[bytes]] = [[] for _ in prompts]
    for prompt, mine in zip(prompts, seen, strict=True):

        def note(
            tokens: Sequence[int], logits: NDArray[np.float32], mine: list[bytes] = mine
        ) -> NDArray[np.float32]:
            mine.append(logits.tobytes())
            logits[2] = -np.inf  # never the end of the text
            return logits

        llm.engine.add(llm.request(prompt, max_tokens=n, temperature=0, logits_processor=note))
    return seen


PROMPTS = [text(seed, 20 + seed) for seed in range(6)]


@pytest.mark.parametrize("layout", SHARED)
@pytest.mark.parametrize("model", MODELS)
def test_swapped_out_or_run_again_the_bits_are_the_same(
    paths: dict[str, Path], model: str, layout: str
) -> None:
    with load(paths[model], n_seq_max=1, cache_ram=0) as alone:
        want = [logits_of(alone, [prompt])[0] for prompt in PROMPTS]
    sizes: list[int] = []
    for kept in ("all", "nothing", "some"):
        with load(paths[model], kv_layout=layout) as llm:
            cache = llm.engine.slots.cache
            cache.limit = {"all": None, "nothing": 0, "some": max(sizes, default=1) - 1}[kept]
            assert logits_of(llm, PROMPTS) == want
            timings = llm.engine.timings
            assert llm.timings.n_preempted > 0
            assert timings.n_restored == cache.n_restored
            assert (timings.n_restored > 0) == (kept != "nothing")
            n_again = timings.n_prompt - sum(map(len, PROMPTS))
            assert (n_again > 0) == (kept != "all")
            sizes += [state.n_bytes for state in cache._states.values()]


def test_what_others_hold_of_it_is_shared_again(paths: dict[str, Path]) -> None:
    """Two with 80 tokens in common; the second is preempted, and gets the pages of the first."""
    common = text(1, 80)
    prompts = [[*common, *text(2, 3)], [*common, *text(3, 20)]]
    with load(paths["llama"], kv_layout="paged", n_ctx=136) as llm:
        logits_of(llm, [prompts[0][:-1]], 1)
        ids = [
            llm.engine.add(llm.request(prompt, max_tokens=n, temperature=0, logit_bias={2: -99.0}))
            for prompt, n in zip(prompts, (40, 12), strict=True)
        ]
        llm.engine.step()
        first, second = sorted(llm.engine.slots.running(), key=lambda slot: slot.taken_by.id)
        llm.engine.step()
        llm.engine.slots.swap_out(second)
        assert llm.engine.slots.reuse(second, second.taken_by.tokens) == second.taken_by.n_past
        (cells,) = (cache.cells for cache in llm.engine.context.memory.caches)
        assert isinstance(cells, PagedCells)
        assert cells.n_pages_shared() == len(common) // cells.page_size
        assert llm.engine.slots.cache.n_restored == second.taken_by.n_past - len(common)
        done = {id: 0 for id in ids}
        while llm.engine.has_work:
            for output in llm.engine.step():
                done[output.id] += 1
        assert first.owner is second.owner is None
        assert list(done.values()) == [38, 10]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_the_size_of_a_state_is_known_before_it_is_copied(
    paths: dict[str, Path], model: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(paths[model], kv_layout=layout, n_ctx=512, n_ctx_seq=128) as llm:
        logits_of(llm, PROMPTS[:2], 30)
        slots, memory = llm.engine.slots, llm.engine.context.memory
        sizes = [n_bytes_of(memory, seq) for seq in range(4)]
        assert sizes == [take_state(memory, seq).n_bytes for seq in range(4)]
        slots.cache = PromptCache(sizes[0] - 1)
        monkeypatch.setattr(slots_module, "take_state", None)  # not called
        slots.swap_out(slots.all[0])
        assert len(slots.cache) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupt_of_restoring_the_rest_changes_nothing(
    paths: dict[str, Path], layout: str
) -> None:
    prompt = text(1, 30)
    with load(paths["llama"], kv_layout=layout, n_ctx=256) as llm:
        context = llm.engine.context
        want = context.decode(prompt)
        state = take_state(context.memory, 0, prompt)
        done: list[bool] = []
        for n in range(1, 2000):
            context.clear()
            context.decode(prompt[:11], seq=1)
            finished = False
            try:
                with interrupted_at(n, (SequenceMemory, SequenceState, KVCells, KVStore)):
                    put_rest(context.memory, 1, state)
                finished = True
            except KeyboardInterrupt:
                pass
            n_held = context.memory.seq_pos_max(1) + 1
            assert n_held in (11, 30)
            done.append(n_held == 30)
            context.seq_rm(1, n_held - 1)
            rest = context.decode(prompt[n_held - 1 :], seq=1)
            assert rest[-1].tobytes() == want[-1].tobytes()
            if finished:
                break
        assert not all(done)
        put_state(context.memory, 2, state)
        assert take_state(context.memory, 2).n_bytes == state.n_bytes


@pytest.mark.parametrize("layout", SHARED)
def test_sequences_start_together_where_what_they_share_fits(
    paths: dict[str, Path], layout: str
) -> None:
    """100 tokens of each of four are the same: with room for growth they take 100 + 4 * 25."""
    common = text(1, 100)
    with load(paths["llama"], kv_layout=layout, n_ctx=232) as llm:
        for seed in range(4):
            prompt = [*common, 20 + seed, *text(seed, 4)]
            llm.engine.add(llm.request(prompt, max_tokens=3, temperature=0, logit_bias={2: -99.0}))
        most = 0
        while llm.engine.has_work:
            llm.engine.step()
            most = max(most, len(llm.engine.slots.running()))
        assert llm.timings.n_preempted == 0
        assert most == 4


def test_all_who_wait_for_a_prefix_are_overtaken(paths: dict[str, Path]) -> None:
    """Forty wait for what a prompt runs; one behind them does not, and starts within a few steps.

    Each is compared with a running prompt once, and a few of them in a step.
    """
    common = text(1, 120)
    with load(paths["llama"], n_ctx=1024, n_ubatch=16) as llm:
        engine = llm.engine
        options: dict[str, Any] = {"max_tokens": 1, "temperature": 0}
        for seed in range(41):
            engine.add(llm.request([*common, 20 + seed], **options))
        other = engine.add(llm.request(text(2, 5), **options))
        n_steps = 0
        while not (outputs := engine.step()):
            n_steps += 1
            assert n_steps < 5
        assert [output.id for output in outputs] == [other]
        running = [slot.taken_by for slot in engine.slots.running()]
        n_called = 0

        def n_held(tokens: list[int], changes: Changes) -> int:
            nonlocal n_called
            n_called += 1
            return 0

        assert first_ready(engine._admission.waiting, running, n_held) is None
        assert n_called == 0


def test_a_request_does_not_wait_for_a_prompt_of_a_higher_priority_value(
    paths: dict[str, Path],
) -> None:
    """That runs when others leave it tokens of a step, which may never be."""
    common = text(1, 100)
    with load(paths["llama"], n_ctx=1024, n_ubatch=16, token_budget=4) as llm:
        options: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "logit_bias": {2: -99.0}}
        llm.engine.add(llm.request([*common, 20], priority=5, **options))
        llm.engine.step()
        llm.engine.add(llm.request([*common, 21], priority=0, **options))
        llm.engine.step()
        assert {slot.taken_by.priority for slot in llm.engine.slots.running()} == {0, 5}


OWNERS = (Engine, Slots, PromptCache, PrefixTree, SequenceMemory, SequenceState)


def test_after_an_interrupt_at_any_line_requests_go_on_or_all_are_dropped(
    paths: dict[str, Path],
) -> None:
    """What goes on ends as it would have, and so do requests that come later."""
    prompts = [text(1, 30), [*text(1, 20), *text(2, 25)], text(3, 35)]

    def load_one() -> Llama:
        return load(paths["llama"], kv_layout="paged", n_ctx=96, n_seq_max=2)

    with load_one() as llm:
        want = logits_of(llm, prompts, 20)
        assert llm.timings.n_preempted > 0
    n_interrupts = n_dropped = 0
    with load_one() as llm:
        for first in range(60):  # of every 10th line, others in each step
            llm.reset()
            seen = add_all(llm, prompts, 20)
            n_steps = 0
            while llm.engine.has_work:
                n_steps += 1
                try:
                    with interrupted_at(1 + (10 * first + 7 * n_steps) % 600, OWNERS):
                        llm.engine.step()
                except KeyboardInterrupt:
                    n_interrupts += 1
                    if not llm.engine.has_work:
                        n_dropped += 1
                        break
                if n_steps > 40 + first:  # to the end
                    while llm.engine.has_work:
                        llm.engine.step()
                    assert seen == want
            assert logits_of(llm, prompts[:2], 2) == [each[:2] for each in want[:2]]
    assert n_interrupts > n_dropped > 0


@pytest.mark.parametrize("n_before", [0, 3])
def test_after_an_interrupt_at_each_line_of_the_engine(
    paths: dict[str, Path], n_before: int
) -> None:
    """In a step of prompts, and in one of tokens."""
    prompts = [text(1, 5), text(2, 9)]
    with load(paths["llama"], kv_layout="paged") as llm:
        want = logits_of(llm, prompts, 6)
        n_dropped = n_lines = 0
        interrupted = True
        while interrupted:
            n_lines += 1
            llm.reset()
            seen = add_all(llm, prompts, 6)
            for _ in range(n_before):
                llm.engine.step()
            interrupted = False
            try:
                with interrupted_at(n_lines, (Engine,)):
                    llm.engine.step()
            except KeyboardInterrupt:
                interrupted = True
            if llm.engine.has_work:
                while llm.engine.has_work:
                    llm.engine.step()
                assert seen == want
            else:
                n_dropped += 1
            assert logits_of(llm, prompts, 2) == [each[:2] for each in want]
        assert n_lines > n_dropped > 5


@pytest.mark.parametrize("layout", SHARED)
def test_the_first_request_goes_on_whatever_comes_later(
    paths: dict[str, Path], layout: str
) -> None:
    """It is the largest, and nothing of it would be kept: it would start anew each time."""
    options: dict[str, Any] = {"temperature": 0, "logit_bias": {2: -99.0}}
    sizes: dict[str, Any] = {"n_ctx": 384, "n_seq_max": 8, "cache_ram": 0, "token_budget": 8}
    with load(paths["llama"], kv_layout=layout, **sizes) as llm:
        engine = llm.engine

        def add(seed: int, n: int, n_predict: int) -> int:
            return engine.add(llm.request(text(seed, n), max_tokens=n_predict, **options))

        for seed in range(3):
            add(seed, 8, 60)
        engine.step()
        large, n_steps, n_added = add(3, 200, 20), 0, 4
        ended: list[int] = []
        while large not in ended:
            n_steps += 1
            assert n_steps < 200  # were the largest one preempted, it would not end within 1000
            while len(engine._admission.waiting) < 4:
                n_added += 1
                add(n_added, 8, 60)
            pieces = [(o.id, o.piece) for o in engine.step()]
            ended += [id for id, p in pieces if not isinstance(p, Exception) and p.finish_reason]
        assert engine.timings.n_preempted > 0


def test_an_error_of_restoring_ends_no_other_request(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory for the copy the tokens are run; anything else ends the request itself."""
    prompts = [text(1, 40), text(2, 40)]
    with load(paths["llama"], n_seq_max=1, n_ctx=64) as llm:
        want = logits_of(llm, prompts, 3)  # the first one is in host memory then
        for error in (MemoryError("for the copy"), ValueError("other")):
            n_restored = llm.engine.slots.cache.n_restored

            def fail(*args: object, error: Exception = error) -> None:
                raise error

            monkeypatch.setattr(slots_module, "put_rest", fail)
            monkeypatch.setattr(slots_module, "put_state", fail)
            seen = add_all(llm, prompts[:1], 3)
            llm.engine.add(llm.request(text(3, 5), max_tokens=2, temperature=0))
            outputs = []
            while llm.engine.has_work:
                outputs += llm.engine.step()
            assert llm.engine.slots.cache.n_restored == n_restored
            if isinstance(error, MemoryError):
                assert seen == want[:1]
            else:
                assert seen == [[]]
                assert outputs[0].piece is error
            assert not isinstance(outputs[-1].piece, Exception)
            monkeypatch.undo()
            logits_of(llm, [prompts[1]], 1)
