"""Which sequence a request gets, what is evicted for it, and who waits when the cache is full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.engine.slot_states import load_states, save_states
from ggmlpy.engine.slots import Slots
from ggmlpy.graph.types import F32
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.tiny import Tiny, write_model
from tests.oracle.glass_model import Glass


def slots_of(*held: tuple[list[int], int], owned: int | None = None, n_ctx: int = 64) -> Slots[str]:
    """Slots of a shared stream that hold these tokens and were given up at these steps."""
    context = Context(
        Glass((None,)), backends_for("reference"), n_ctx=n_ctx, n_seq_max=len(held),
        kv_unified=True, type_k=F32, type_v=F32,
    )  # fmt: skip
    slots: Slots[str] = Slots(context.memory)
    for slot, (tokens, last_used) in zip(slots.all, held, strict=True):
        if tokens:
            context.decode(tokens, seq=slot.seq)
        slot.tokens, slot.last_used = list(tokens), last_used
        slot.owner = "someone" if slot.seq == owned else None
    return slots


def tokens_in(slots: Slots[str]) -> list[list[int]]:
    """What the slots say that they hold, checked against the memory."""
    for slot in slots.all:
        assert slots.memory.seq_pos_max(slot.seq) + 1 == len(slot.tokens)
    return [slot.tokens for slot in slots.all]


def test_the_longest_common_beginning_is_chosen_else_the_longest_unused() -> None:
    slots = slots_of(([1, 2], 3), ([1, 2, 3], 9), ([4, 5], 7), ([6, 7, 8], 1), owned=3)

    def chosen(*tokens: int) -> int:
        slot = slots.find_free(list(tokens))
        assert slot is not None
        return slot.seq

    assert chosen(1, 2, 3, 4) == 1
    assert chosen(1, 2, 9) == 0  # two are equally good: the one that was given up first
    assert chosen(4) == 2
    assert chosen(9) == 0
    assert chosen(6, 7, 8) == 0  # taken
    slots.all[1].tokens += [7, 8, 9, 10]  # of which the smaller part would stay
    slots.memory.seq_rm(3)
    slots.all[3].tokens, slots.all[3].owner = [], None
    assert chosen(1, 2, 3, 4) == 0
    assert chosen(4, 4) == 2
    assert chosen(9) == 3  # empty
    for slot in slots.all:
        slot.owner = "someone"
    assert slots.find_free([1]) is None


def test_what_is_shared_with_others_is_evicted_last() -> None:
    """The first shares its cells with one that is in use, the second and the third with each other:
    of these the later one frees cells once the earlier one is gone."""
    slots = slots_of(([1, 2, 3, 4], 1), ([5, 6], 2), ([], 0), ([], 0), ([7, 8], 9), owned=2)
    for source, slot, at in ((slots.all[0], slots.all[2], 4), (slots.all[1], slots.all[3], 3)):
        slots.memory.seq_cp(source.seq, slot.seq)
        slot.tokens, slot.last_used = list(source.tokens), at
    left = []
    while slots.evict_idle():
        left.append([slot.seq for slot in slots.all if slot.tokens])
    assert left == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [2]]


def test_what_gave_a_prefix_counts_as_used() -> None:
    slots = slots_of(([1, 2, 3, 4], 0), ([5, 6], 0), ([], 0))
    slots.reuse(slots.all[2], [1, 2, 9])
    slots.evict_idle()
    assert tokens_in(slots) == [[1, 2, 3, 4], [], [1, 2]]


def test_what_was_given_up_first_is_forgotten_first() -> None:
    slots = slots_of(([1], 5), ([2], 2), ([3], 1), ([4], 3), ([], 0), owned=2)
    left = []
    while slots.evict_idle():
        left.append(tokens_in(slots))
        assert len(left) < 4
    assert left == [
        [[1], [], [3], [4], []],
        [[1], [], [3], [], []],
        [[], [], [3], [], []],
    ]


def test_a_beginning_is_kept_or_copied_whichever_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(([1, 2, 3, 4], 0), ([1, 2, 9], 0), ([], 0), owned=0)
    assert slots.reuse(slots.all[2], [1, 2, 9, 7]) == 3  # of one that is idle
    assert slots.reuse(slots.all[1], [1, 2, 3, 4]) == 3  # of one that is in use, but for the last
    assert tokens_in(slots) == [[1, 2, 3, 4], [1, 2, 3], [1, 2, 9]]
    monkeypatch.setattr(slots.memory, "seq_cp", None)
    assert slots.reuse(slots.all[1], [1, 2, 3, 8]) == 3  # no better elsewhere
    assert slots.reuse(slots.all[2], [1, 7]) == 1
    assert tokens_in(slots) == [[1, 2, 3, 4], [1, 2, 3], [1]]


def test_idle_tokens_make_way_for_what_comes_back() -> None:
    slots = slots_of(([1, 2, 3, 4], 0), ([5] * 5, 2), ([6] * 6, 1), ([], 0), owned=0, n_ctx=16)
    (state,) = save_states(slots, 0).values()
    slots.restore(slots.all[3], state)
    assert tokens_in(slots) == [[1, 2, 3, 4], [5] * 5, [], [1, 2, 3, 4]]


def test_loaded_sequences_keep_their_numbers_if_all_can() -> None:
    saved = save_states(slots_of(([1, 2], 0), ([], 0), ([3], 0)))
    assert list(saved) == [0, 2]
    three, two = slots_of(([9], 0), ([8], 0), ([], 0)), slots_of(([9], 0), ([], 0))
    load_states(three, saved, None)
    assert tokens_in(three) == [[1, 2], [], [3]]
    load_states(two, saved, None)
    assert tokens_in(two) == [[1, 2], [3]]


# --- the engine ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


def load(path: Path, n_seq_max: int, n_ctx: int, **options: Any) -> Llama:
    return Llama(path, backend="null", n_seq_max=n_seq_max, n_ctx=n_ctx, **options)


def always_9(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
    logits[:] = 0
    logits[9] = 1
    return logits


def add(llm: Llama, prompt: list[int], max_tokens: int, priority: int = 0) -> int:
    request = llm.request(
        prompt,
        max_tokens=max_tokens,
        temperature=0,
        logits_processor=always_9,
        priority=priority,
    )
    return llm.engine.add(request)


def test_the_sequence_that_was_unused_longest_makes_way(path: Path) -> None:
    with load(path, 3, 3 * 32) as llm:
        for first in (11, 12, 13, 14, 15):
            llm([first, 5], max_tokens=2, temperature=0, logits_processor=always_9)
        held = {seq: tokens[0] for seq, tokens in llm.held_tokens.items()}
    assert held == {0: 14, 1: 15, 2: 13}


def test_a_sequence_is_in_use_until_it_is_cancelled(path: Path) -> None:
    with load(path, 2, 2 * 32) as llm:
        cancelled, _ = add(llm, [11, 5], 9), add(llm, [12, 5], 2)
        for _ in range(4):
            llm.engine.step()
        llm.engine.cancel(cancelled)
        add(llm, [13, 5], 1)
        llm.engine.step()
        assert {seq: tokens[0] for seq, tokens in llm.held_tokens.items()} == {0: 11, 1: 13}


def preempted(llm: Llama) -> list[int]:
    return [sequence.id for sequence in llm.engine._admission.waiting if sequence.n_preempted]


def test_a_sequence_that_was_preempted_can_be_cancelled(path: Path) -> None:
    with load(path, 2, 24, kv_unified=True) as llm:
        ids = [add(llm, [11] * 3, 20), add(llm, [12] * 3, 20)]
        for _ in range(30):
            llm.engine.step()
            if llm.timings.n_preempted:
                break
        (waiting,) = preempted(llm)
        (other,) = set(ids) - {waiting}
        llm.engine.cancel(waiting)
        seen = set()
        while llm.engine.has_work:
            seen |= {output.id for output in llm.engine.step()}
        assert seen == {other}


@pytest.mark.parametrize(("n_second", "together"), [(13, True), (14, False)])
def test_a_shared_stream_leaves_those_that_run_room_to_grow(
    path: Path, n_second: int, together: bool
) -> None:
    """By 16 tokens each: 3 + 13 + 16 = 32 cells."""
    with load(path, 2, 32, kv_unified=True) as llm:
        ids = [add(llm, [11] * 3, 4), add(llm, [12] * n_second, 4)]
        assert {output.id for output in llm.engine.step()} == set(ids[: 1 + together])


def test_the_latest_makes_room_and_comes_back_before_anyone_else(path: Path) -> None:
    """Of 3 in 48 cells the third is preempted, then the second, which is back before a new one."""
    with load(path, 3, 48, kv_unified=True) as llm:
        engine = llm.engine
        ids = [add(llm, [first] * n, 30) for first, n in ((11, 3), (12, 5), (13, 4))]
        running: list[set[int]] = []  # until others are
        while engine.has_work:
            those = {output.id for output in engine.step()}
            running += [those] if those not in running[-1:] else []
            if engine.timings.n_preempted == 1 and len(ids) == 3:
                assert preempted(llm) == [ids[2]]
                ids.append(add(llm, [14], 4))
        first, second, third, new = ids
        assert running == [{*ids[:3]}, {first, second}, {first}, {second}, {third, new}, {third}]


def test_the_one_that_frees_the_most_makes_room(path: Path) -> None:
    """Not the longest, of which a running one holds all but a few cells."""
    common = [11] * 20
    with load(path, 3, 80, kv_unified=True) as llm:
        engine = llm.engine
        add(llm, [*common, 5], 30)
        engine.step()
        add(llm, [*common, 6, 7], 30)
        own = add(llm, [12] * 9, 30)
        while llm.engine.has_work and not engine.timings.n_preempted:
            engine.step()
        assert preempted(llm) == [own]


def test_conversations_have_a_slot_each_while_there_are_some(path: Path) -> None:
    """Also where they begin alike."""
    with load(path, 2, 2 * 64, cache_ram=0) as llm:
        chats = [[1, 11, *([12] * 20)], [1, 11, *([13] * 20)]]
        for turn in range(3):
            for chat in chats:
                n_prompt = llm.engine.timings.n_prompt
                add(llm, chat, 2)
                steps_of(llm)
                # The second answer token was not run, and one token is new.
                assert turn == 0 or llm.engine.timings.n_prompt - n_prompt == 2
                chat += [9, 9, 15]


def test_idle_tokens_are_forgotten_before_a_sequence_is_preempted(path: Path) -> None:
    with load(path, 3, 32, kv_unified=True) as llm:
        for first, max_tokens in ((11, 8), (12, 8), (13, 16)):
            llm([first, 5], max_tokens=max_tokens, temperature=0, logits_processor=always_9)
        assert llm.timings.n_preempted == 0
        assert [tokens[0] for tokens in llm.held_tokens.values()] == [12, 13]


def test_a_long_prompt_that_came_first_does_not_hold_up_a_short_one(path: Path) -> None:
    with load(path, 2, 2 * 128, n_ubatch=16) as llm:
        add(llm, [11] * 60, 1)
        second = add(llm, [12] * 3, 20)
        steps = [[output.id for output in llm.engine.step()] for _ in range(4)]
        assert steps == [[second]] * 4


def steps_of(llm: Llama) -> list[list[int]]:
    """The requests that each step has output of, to the end."""
    steps = []
    while llm.engine.has_work:
        steps.append([output.id for output in llm.engine.step()])
    return steps


def test_a_long_prompt_runs_in_chunks_of_the_budget_beside_others(path: Path) -> None:
    """The first 31 tokens of 100 with the whole ubatch, the others with what 3 decode steps leave:
    5 tokens a step."""
    with load(path, 4, 4 * 128, n_ubatch=64, token_budget=8) as llm:
        engine = llm.engine
        first = [add(llm, [11 + i] * 11, 40) for i in range(3)]
        last = add(llm, [15] * 100, 1)
        assert [output.id for output in engine.step()] == first
        steps = steps_of(llm)
    assert all(step[:3] == first for step in steps[:39])
    assert steps.index([*first, last]) + 1 == -(-(100 - 31) // 5)


def test_while_nothing_decodes_prompts_have_the_whole_ubatch(path: Path) -> None:
    with load(path, 2, 2 * 128, n_ubatch=32, token_budget=4) as llm:
        id = add(llm, [11] * 96, 2)
        assert steps_of(llm) == [[], [], [id], [id]]


def test_requests_of_a_lower_priority_value_start_first(path: Path) -> None:
    with load(path, 1, 32) as llm:
        priorities = [0, 3, -2, 0, 3, -2]
        ids = [add(llm, [11 + i], 2, priority) for i, priority in enumerate(priorities)]
        started = list(dict.fromkeys(id for step in steps_of(llm) for id in step))
        assert started == [ids[i] for i in (2, 5, 0, 3, 1, 4)]


@pytest.mark.parametrize(("priorities", "first"), [((0, 0), 0), ((0, -1), 1), ((1, 0), 1)])
def test_prompts_of_a_lower_priority_value_run_first(
    path: Path, priorities: tuple[int, int], first: int
) -> None:
    with load(path, 2, 2 * 128, n_ubatch=16) as llm:
        ids = [add(llm, [11 + i] * 60, 1, priority) for i, priority in enumerate(priorities)]
        assert [id for step in steps_of(llm) for id in step] == [ids[first], ids[1 - first]]


def test_the_highest_priority_value_makes_room_even_if_it_is_not_the_largest(path: Path) -> None:
    """And starts again after all others, also after one that arrives later."""
    with load(path, 3, 48, kv_unified=True) as llm:
        engine = llm.engine
        ids = [add(llm, [11] * 5, 30), add(llm, [12] * 3, 30, 1), add(llm, [13] * 4, 30)]
        while llm.engine.has_work and not engine.timings.n_preempted:
            engine.step()
        assert preempted(llm) == [ids[1]]
        ids.append(add(llm, [14], 4))
        steps = steps_of(llm)
    assert min(i for i, step in enumerate(steps) if ids[1] in step) > max(
        i for i, step in enumerate(steps) if ids[3] in step
    )


def test_one_that_holds_nothing_yet_is_not_preempted(path: Path) -> None:
    """The last one waits behind the prompt before it: it holds no cells that others could use."""
    with load(path, 3, 120, kv_unified=True, token_budget=2) as llm:
        engine = llm.engine
        decoding = add(llm, [11] * 2, 90)
        engine.step()
        add(llm, [12] * 80, 1, -1)
        add(llm, [13] * 5, 1, 9)
        while engine.has_work and not engine.timings.n_preempted:
            engine.step()
        assert preempted(llm) == [decoding]


def test_a_reset_drops_what_nobody_has_asked_for_yet(path: Path) -> None:
    with load(path, 1, 32) as llm:
        add(llm, [11], 4)
        llm.engine.advance()
        assert llm.engine.has_work
        llm.engine.reset()
        assert not llm.engine.has_work
        assert llm.engine.step() == []
