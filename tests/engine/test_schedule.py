"""The tokens of a step: which sequences get them, and how long each waits for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.engine.schedule import Pending, default_budget, share_step


@dataclass(slots=True)
class Waiting:
    """A sequence with pending tokens; as a request, of `n_predict` tokens that `arrives`."""

    id: int
    n_pending: int
    priority: int = 0
    last_step: int = 0
    n_predict: int = 1
    arrives: int = 0
    n_decoded: int = 0
    admitted: int = 0
    first: int = 0  # the step of its first token


def share(
    pending: Sequence[int], n_ubatch: int, budget: int, priority: Sequence[int] | None = None
) -> list[int]:
    of = priority or [0] * len(pending)
    sequences = [Waiting(i, n, of[i]) for i, n in enumerate(pending)]
    return share_step(sequences, n_ubatch, budget)


# --- one step ---


def test_prompts_take_what_the_budget_leaves() -> None:
    assert share([1, 1, 1000], 512, 128) == [1, 1, 126]
    assert share([1, 1, 100], 512, 128) == [1, 1, 100]
    assert share([1000], 512, 128) == [512]  # nobody decodes
    assert share([1, 1000], 64, 128) == [1, 63]  # a ubatch has no more
    assert share([1, 1, 1], 512, 2) == [1, 1, 1]


@pytest.mark.parametrize("budget", [1, 3, 4])
def test_a_budget_that_is_used_up_leaves_two_tokens_for_prompts(budget: int) -> None:
    assert share([1, 1, 1, 1000, 5], 512, budget) == [1, 1, 1, 1, 1]
    assert share([1, 1, 1, 1000], 512, budget) == [1, 1, 1, 2]
    assert share([1, 1, 1, 1000, 5], 4, budget) == [1, 1, 1, 1, 0]  # a ubatch has no more


def test_the_oldest_prompt_has_half_and_the_shortest_ones_the_rest() -> None:
    assert share([1000, 300, 20, 30], 512, 128) == [256, 206, 20, 30]
    assert share([1000, 300, 20, 30, 1], 512, 128) == [64, 13, 20, 30, 1]
    assert share([1000, 30], 512, 128) == [482, 30]
    assert share([70, 300, 1], 512, 129) == [70, 58, 1]  # it is the shortest too


def test_of_two_priorities_the_lower_value_goes_first() -> None:
    assert share([1000, 300, 20, 1], 512, 101, [0, -1, 0, 5]) == [0, 100, 0, 1]
    assert share([1000, 30, 20, 1], 512, 101, [0, -1, 0, 5]) == [50, 30, 20, 1]


@pytest.mark.parametrize(
    ("n_decoding", "turns"),
    [(4, [[0, 1], [2, 3], [0, 4], [1, 2], [0, 3]]), (2, [[0, 1], [0, 2], [0, 1], [0, 2], [0, 1]])],
)
def test_more_sequences_than_a_ubatch_has_tokens_take_turns(
    n_decoding: int, turns: list[list[int]]
) -> None:
    """The first is a prompt: it is not left out as long as the others decode."""
    sequences = [Waiting(0, 9), *[Waiting(i + 1, 1) for i in range(n_decoding)]]
    seen: list[list[int]] = []
    for step in range(1, 6):
        counts = share_step(sequences, 2, 128)
        for sequence, n in zip(sequences, counts, strict=True):
            if n:
                sequence.last_step = step
        seen.append([i for i, n in enumerate(counts) if n])
    assert seen == turns


def test_the_default_leaves_half_to_prompts() -> None:
    assert [default_budget(n) for n in (1, 64, 65, 200)] == [128, 128, 130, 400]


PENDING = st.lists(st.integers(1, 40) | st.just(1), min_size=1, max_size=12)


@given(
    pending=PENDING,
    n_ubatch=st.integers(1, 40),
    budget=st.integers(1, 40),
    priority=st.lists(st.integers(-1, 1), min_size=12, max_size=12),
)
def test_every_step(pending: list[int], n_ubatch: int, budget: int, priority: list[int]) -> None:
    counts = share(pending, n_ubatch, budget, priority)
    assert all(0 <= n <= most for n, most in zip(counts, pending, strict=True))
    assert 1 <= sum(counts) <= n_ubatch
    n_decoding = pending.count(1)
    if n_decoding >= n_ubatch:
        assert sum(counts) == min(n_ubatch, len(pending)) and max(counts) == 1
        return
    assert all(n for n, most in zip(counts, pending, strict=True) if most == 1)
    most = min(n_ubatch, max(budget, n_decoding + 2)) if n_decoding else n_ubatch
    assert sum(counts) == min(most, sum(pending))  # none is left unused
    kept = [priority[i] for i in range(len(pending)) if counts[i] < pending[i]]
    assert all(
        priority[i] <= min(kept, default=1) for i, n in enumerate(counts) if n and pending[i] > 1
    )


# --- many steps ---

Share = Callable[[Sequence[Pending]], list[int]]


def run(requests: Sequence[Waiting], n_slots: int, choose: Share) -> list[Waiting]:
    """Run the requests on `n_slots` sequences, as the engine does. Returns them finished."""
    requests = [replace(request) for request in requests]
    todo = sorted(requests, key=lambda r: r.arrives)
    running: list[Waiting] = []
    step = 0
    while todo or running:
        step += 1
        if not running:
            step = max(step, todo[0].arrives)
        arrived = [r for r in todo if r.arrives <= step]
        arrived.sort(key=lambda r: (r.priority, r.id))
        for request in arrived[: n_slots - len(running)]:
            request.admitted, request.last_step = step, step - 1
            todo.remove(request)
            running.append(request)
        for request, n in zip(running, choose(running), strict=True):
            request.n_pending -= n
            if n:
                request.last_step = step
            if request.n_pending == 0:
                request.first = request.first or step
                request.n_decoded += 1
                request.n_pending = 1
        running = [r for r in running if r.n_decoded < r.n_predict]
    return requests


def checked(n_slots: int, n_ubatch: int, budget: int) -> Share:
    """`share_step`, which must give each decoding sequence a token, or else let it take turns."""

    def choose(sequences: Sequence[Pending]) -> list[int]:
        counts = share_step(sequences, n_ubatch, budget)
        step = max(s.last_step for s in sequences) + 1
        for sequence, n in zip(sequences, counts, strict=True):
            if sequence.n_pending == 1 and not n:
                assert len(sequences) > n_ubatch
                assert step - sequence.last_step < -(-n_slots // n_ubatch)
        return counts

    return choose


REQUESTS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(0, 30), st.integers(0, 2)),
    min_size=1,
    max_size=25,
)


def as_requests(drawn: Sequence[tuple[int, int, int, int]], one_priority: bool) -> list[Waiting]:
    drawn = sorted(drawn, key=lambda each: each[2])
    return [
        Waiting(id, n_prompt, 0 if one_priority else priority, 0, n_predict, arrives)
        for id, (n_prompt, n_predict, arrives, priority) in enumerate(drawn)
    ]


@given(
    drawn=REQUESTS,
    n_slots=st.integers(1, 8),
    n_ubatch=st.integers(1, 24),
    budget=st.integers(1, 24),
)
def test_every_request_finishes(
    drawn: list[tuple[int, int, int, int]], n_slots: int, n_ubatch: int, budget: int
) -> None:
    done = run(as_requests(drawn, one_priority=False), n_slots, checked(n_slots, n_ubatch, budget))
    assert all(r.n_decoded == r.n_predict for r in done)


@given(
    drawn=REQUESTS,
    n_slots=st.integers(1, 8),
    n_more=st.integers(1, 16),
    budget=st.integers(1, 24),
)
def test_a_prompt_waits_for_twice_the_tokens_up_to_its_own_at_most(
    drawn: list[tuple[int, int, int, int]], n_slots: int, n_more: int, budget: int
) -> None:
    """In steps: the oldest gets half of what decoding sequences leave, however many these are."""
    n_ubatch = n_slots + n_more
    requests = as_requests(drawn, one_priority=True)
    done = run(requests, n_slots, checked(n_slots, n_ubatch, budget))
    least = max(1, min(n_ubatch, budget) - (n_slots - 1))
    half = -(-least // 2)
    for of in done:
        before = [
            request.n_pending
            for request, run in zip(requests, done, strict=True)
            if run.id <= of.id and run.first >= of.admitted
        ]
        assert of.first - of.admitted < sum(-(-n // half) for n in before)


def in_order(sequences: Sequence[Pending], budget: int) -> list[int]:
    """Decoding sequences, and prompts in the order of their arrival."""
    counts = [int(s.n_pending == 1) for s in sequences]
    n_left = budget - sum(counts)
    for i in sorted(range(len(counts)), key=lambda i: sequences[i].id):
        if sequences[i].n_pending > 1:
            counts[i] = min(sequences[i].n_pending, n_left)
            n_left -= counts[i]
    return counts


def in_equal_parts(sequences: Sequence[Pending], budget: int) -> list[int]:
    """Decoding sequences, and parts of prompts of which none is larger than it need be."""
    counts = [int(s.n_pending == 1) for s in sequences]
    n_left = budget - sum(counts)
    prompts = [i for i, n in enumerate(counts) if n == 0]
    prompts.sort(key=lambda i: sequences[i].n_pending)
    for n_taken, i in enumerate(prompts):
        counts[i] = min(sequences[i].n_pending, -(-n_left // (len(prompts) - n_taken)))
        n_left -= counts[i]
    return counts


def test_short_prompts_are_served_early_and_long_ones_not_much_later() -> None:
    """200 requests with lengths of a log-normal distribution, 4/5 of what 16 sequences can run."""
    rng = np.random.default_rng(5)
    lengths = np.clip(rng.lognormal(np.log(200), 1.1, 200), 4, 4000).astype(int)
    arrivals = np.cumsum(rng.exponential(lengths.mean() / 112 / 0.8, 200)).astype(int)
    requests = [
        Waiting(i, int(n), n_predict=int(rng.integers(20, 60)), arrives=int(at))
        for i, (n, at) in enumerate(zip(lengths, arrivals, strict=True))
    ]
    short = lengths <= np.median(lengths)
    policies: dict[str, Share] = {
        "ours": lambda sequences: share_step(sequences, 128, 128),
        "in order": lambda sequences: in_order(sequences, 128),
        "equal parts": lambda sequences: in_equal_parts(sequences, 128),
    }
    waited = {}
    for name, choose in policies.items():
        waited[name] = np.array([r.first - r.arrives + 1 for r in run(requests, 16, choose)])
    ours, ordered, equal = waited.values()
    assert ours.mean() < 0.7 * ordered.mean()
    assert ours.mean() < 0.9 * equal.mean()
    assert np.percentile(ours[short], 99) < 0.3 * np.percentile(ordered[short], 99)
    assert ours.max() < 1.5 * ordered.max()
    assert ours.max() < equal.max()
