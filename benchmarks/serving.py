"""ggmlpy answering requests as they arrive, in each layout of the cache.

A run is in a process that has loaded nothing before, so that it begins with the plans of a fresh
context. Afterwards the same engine runs in step: all sequences begin together, with equal lengths,
and decode side by side, as fast as it can be with this number of sequences.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.arrivals import Arrival, Speed, in_step, speed, waste
from benchmarks.engines import EngineError
from benchmarks.report import progress
from ggmlpy import Llama
from ggmlpy.cli.loading import loading
from ggmlpy.engine.generation import Request
from ggmlpy.memory.pages import PagedCells

N_FIRST_STEPS = 50  # in which plans may be built: later ones are reported alone

Reserved = Callable[[Llama], int]  # cells that are set aside for the running sequences


def running_tokens(llm: Llama) -> int:
    """Tokens of running sequences that the memory holds."""
    return sum(len(slot.tokens) for slot in llm.engine.slots.running())


def running_streams(llm: Llama) -> int:
    """The cells of the streams of running sequences: no other sequence can use them."""
    cells = llm.engine.context.memory.caches[0].cells
    return cells.kv_size * len(llm.engine.slots.running())


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout of the KV cache: options of `Llama` that choose it, and what it reserves."""

    options: dict[str, Any]
    reserved: Reserved


def running_pages(llm: Llama) -> int:
    """The cells of the pages of running sequences."""
    cells = llm.engine.context.memory.caches[0].cells
    assert isinstance(cells, PagedCells)
    return cells.page_size * cells.n_pages_of([s.seq for s in llm.engine.slots.running()])


# A cell of the unified cache belongs to a sequence from when its token is written: none is wasted.
LAYOUTS = {
    "split": Layout({"kv_layout": "split"}, running_streams),
    "unified": Layout({"kv_layout": "unified"}, running_tokens),
    "paged": Layout({"kv_layout": "paged"}, running_pages),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """The model and how it is run; the same for every layout, and for the other engine."""

    model: Path
    n_seqs: int
    n_ctx_seq: int
    n_threads: int
    backend: str = "cpu"

    @property
    def n_ctx(self) -> int:
        """Tokens of all sequences."""
        return self.n_seqs * self.n_ctx_seq


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine."""

    spent_s: float
    build_s: float  # of it, building plans
    n_running: int  # sequences that still run after it
    reserved: int  # cells
    held: int  # tokens in them


@dataclass(slots=True)
class Recording:
    """Steps, and when the tokens of each request came, in seconds from the start."""

    times: list[list[float]]
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of ggmlpy over all requests. Shares are of the time of steps, or of cells."""

    speed: Speed
    in_step_tokens_per_s: float
    n_steps: int
    busy_share: float  # of the time from the first arrival to the last token
    running_share: float  # of the sequences, in the mean step
    n_plans_built: int  # from when the model was loaded
    build_share: float
    late_build_share: float | None  # after N_FIRST_STEPS; None if there were no more
    waste: float
    cache_share: float  # of all cells, that hold tokens of running sequences in the mean step
    n_preempted: int
    n_reused: int  # tokens of prompts


def measure(setup: Setup, layout: str, requests: Sequence[Arrival], seed: int) -> Run:
    """Answer all requests in this process, then run as many in step."""
    with _opened(setup, layout) as llm:
        what = f"{layout}, {setup.n_seqs} sequences"
        recording = serve(llm, requests, LAYOUTS[layout].reserved, what)
        found = dict(
            n_plans_built=llm.n_plans_built,
            n_preempted=llm.timings.n_preempted,
            n_reused=llm.engine.timings.n_reused,
        )
        n_waves = max(1, round(len(requests) / setup.n_seqs))
        wave = in_step(requests, setup.n_seqs, llm.n_vocab(), seed)
        rate = rate_in_step(llm, wave, n_waves, f"{what}, in step")
    return _run_of(requests, recording, setup, rate, **found)


def pace(setup: Setup, layout: str, requests: Sequence[Arrival], seed: int) -> float:
    """Tokens per second in step, of requests of these lengths."""
    with _opened(setup, layout) as llm:
        wave = in_step(requests, setup.n_seqs, llm.n_vocab(), seed)
        return rate_in_step(llm, wave, 1, f"{layout}, {setup.n_seqs} sequences, in step")


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def _opened(setup: Setup, layout: str) -> Llama:
    with loading(setup.model.name):
        return Llama(
            setup.model,
            n_ctx=setup.n_ctx,
            n_ctx_seq=setup.n_ctx_seq,
            n_seq_max=setup.n_seqs,
            n_threads=setup.n_threads,
            backend=setup.backend,
            **LAYOUTS[layout].options,
        )


def serve(llm: Llama, requests: Sequence[Arrival], reserved: Reserved, what: str) -> Recording:
    """Give each request to the engine when it arrives, and run steps while there are any."""
    prepared = [_request(llm, request) for request in requests]
    recording = Recording([[] for _ in requests])
    index: dict[int, int] = {}  # of the request with this id
    plans, n_added = llm.engine.context.plans, 0
    with progress(what, sum(request.n_predict for request in requests)) as advance:
        started = perf_counter()
        while n_added < len(requests) or llm.engine.has_work:
            now = perf_counter() - started
            while n_added < len(requests) and requests[n_added].at_s <= now:
                index[llm.engine.add(prepared[n_added])] = n_added
                n_added += 1
            if not llm.engine.has_work:
                time.sleep(requests[n_added].at_s - now)
                continue
            build_s = plans.build_s
            outputs = llm.engine.step()
            after = perf_counter() - started
            for output in outputs:
                if isinstance(output.piece, Exception):
                    raise output.piece
                recording.times[index[output.id]].append(after)
            recording.steps.append(_step(llm, after - now, plans.build_s - build_s, reserved))
            advance(len(outputs))
    for request, times in zip(requests, recording.times, strict=True):
        if len(times) != request.n_predict:
            raise EngineError(f"ggmlpy answered {len(times)} tokens, not {request.n_predict}")
    return recording


def _request(llm: Llama, request: Arrival) -> Request:
    """Greedy, and no token ends it before its length."""
    bias = {token: float("-inf") for token in llm.tokenizer.eog_ids}
    return llm.request(request.prompt, max_tokens=request.n_predict, temperature=0, logit_bias=bias)


def _step(llm: Llama, spent_s: float, build_s: float, reserved: Reserved) -> Step:
    n_running = len(llm.engine.slots.running())
    return Step(spent_s, build_s, n_running, reserved(llm), running_tokens(llm))


def rate_in_step(llm: Llama, wave: Sequence[Arrival], n_waves: int, what: str) -> float:
    """Tokens per second of sequences that begin together, once and again.

    The first time does not count: it builds the plans of all others.
    """
    spent_s = []
    for i in range(n_waves + 1):
        llm.reset()
        label = f"{what}, {i} of {n_waves}" if i else f"{what}, to build plans"
        spent_s.append(max(map(max, serve(llm, wave, running_tokens, label).times)))
    return n_waves * sum(request.n_predict for request in wave) / sum(spent_s[1:])


def _run_of(
    requests: Sequence[Arrival], recording: Recording, setup: Setup, rate: float, **found: int
) -> Run:
    steps = recording.steps
    held = sum(step.held for step in steps)
    return Run(
        speed=speed(requests, recording.times),
        in_step_tokens_per_s=rate,
        n_steps=len(steps),
        busy_share=sum(step.spent_s for step in steps) / max(map(max, recording.times)),
        running_share=sum(step.n_running for step in steps) / len(steps) / setup.n_seqs,
        build_share=build_share(steps),
        late_build_share=build_share(late) if (late := steps[N_FIRST_STEPS:]) else None,
        waste=waste((step.reserved, step.held) for step in steps),
        cache_share=held / len(steps) / setup.n_ctx,
        **found,
    )


def build_share(steps: Sequence[Step]) -> float:
    """The share of the steps' time that building plans took."""
    return sum(step.build_s for step in steps) / sum(step.spent_s for step in steps)
