"""Speed of prompt processing and decoding, for one sequence and for many: llama.cpp's tests.

Tokens are random and nothing is sampled, so that only the model is measured. Compiling kernels and
building graphs does not count: a run that had to build one is repeated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TypeVar

import numpy as np

from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.bench.encoder_decoder import encoded_bytes, run_encoded
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.cache_types import cache_type
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import Sizes
from ggmlpy.memory.state import SequenceState, put_state, take_state
from ggmlpy.models import Model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.placement import ALL

Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True)
class Setup:
    """How the model runs, with the names and defaults of `Llama`."""

    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int | None = None
    backend: str | list[str] = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    kv_rotation: bool | None = None
    flash_attn: bool = True
    n_gpu_layers: int = ALL
    override_tensors: Mapping[str, str] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """CPU threads; the default is the number that a large graph gets."""
        return self.n_threads or default_n_threads()


def open_context(
    model: Model,
    setup: Setup,
    *,
    n_ctx: int,
    n_seq_max: int = 1,
    kv_unified: bool = False,
    kv_layout: str | None = None,
) -> Context:
    """A context of the model, warmed up. Raises what loading weights raises."""
    context = Context(
        model,
        backends_for(setup.backend, setup.n_threads),
        n_ctx=n_ctx,
        n_ubatch=min(setup.n_ubatch, setup.n_batch),
        n_seq_max=n_seq_max,
        kv_unified=kv_unified,
        kv_layout=kv_layout,
        type_k=cache_type("type_k", setup.type_k),
        type_v=cache_type("type_v", setup.type_v),
        kv_rotation=setup.kv_rotation,
        flash_attn=setup.flash_attn,
        n_gpu_layers=setup.n_gpu_layers,
        override_tensors=setup.override_tensors,
    )
    context.warm_up()
    return context


def backends_used(context: Context) -> list[str]:
    """The backends that run nodes of the last graph, the preferred one first."""
    used = context.ops_by_backend()
    return [backend.name for backend in context.backends if backend.name in used]


def threads_used(context: Context) -> int:
    """CPU threads of the last graph."""
    return next(reversed(context.plans.plans.values())).executable.n_threads


def with_plans_ready(context: Context, measure: Callable[[], Measured]) -> Measured:
    """The result of `measure`, which is run again if it had to build a graph.

    The first run has also touched the memory of arenas and caches. A run with more shapes than a
    context keeps builds graphs every time, as it would in use.
    """
    n_built = context.n_plans_built
    measured = measure()
    return measured if context.n_plans_built == n_built else measure()


# --- one sequence: llama-bench ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeedTest:
    """A prompt, then tokens generated one by one, after `depth` tokens in the cache."""

    n_prompt: int = 0
    n_generated: int = 0
    depth: int = 0

    @property
    def n_tokens(self) -> int:
        """Tokens that are timed."""
        return self.n_prompt + self.n_generated

    @property
    def name(self) -> str:
        """`pp512`, `tg128 @ d4096`, as llama-bench calls them."""
        parts = (("pp", self.n_prompt), ("tg", self.n_generated))
        name = "+".join(f"{kind}{n}" for kind, n in parts if n)
        return f"{name} @ d{self.depth}" if self.depth else name


@dataclass(frozen=True, slots=True)
class SpeedResult:
    """The duration of each repetition of a test."""

    test: SpeedTest
    samples_s: tuple[float, ...]
    bytes_of_steps: tuple[int, ...]  # that each ubatch of a repetition reads at least
    n_threads: int = 1  # CPU threads that ran it

    @property
    def rates(self) -> list[float]:
        """Tokens per second."""
        return [self.test.n_tokens / s for s in self.samples_s]

    @property
    def mean_rate(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def rate_deviation(self) -> float:
        """The standard deviation of the rates; 0 for one repetition."""
        return statistics.stdev(self.rates) if len(self.samples_s) > 1 else 0.0

    @property
    def bandwidth(self) -> float:
        """A lower bound of the bytes read per second."""
        return sum(self.bytes_of_steps) * self.mean_rate / self.test.n_tokens

    def fits(self, cache_bytes: int | None) -> bool:
        """Whether all that a step reads stays in a cache of that size between steps."""
        return cache_bytes is not None and max(self.bytes_of_steps) <= cache_bytes


def measure_speed(
    context: Context, file: GGUFFile, test: SpeedTest, *, n_repeat: int, n_batch: int
) -> SpeedResult:
    """Run a test `n_repeat` times after a warm-up. Clears the memory."""
    if context.encoder is not None:
        return _measure_encoded(context, file, test, n_repeat)
    before = _deep_state(context, test.depth, n_batch)
    warm_up = replace(test, n_generated=min(1, test.n_generated))
    _run_test(context, warm_up, before, n_batch)
    sample = partial(_run_test, context, test, before, n_batch)
    samples_s = tuple(with_plans_ready(context, sample) for _ in range(n_repeat))
    context.memory.clear()
    steps = bytes_of_steps(file, context, test, n_batch)
    return SpeedResult(test, samples_s, steps, threads_used(context))


def _measure_encoded(
    context: Context, file: GGUFFile, test: SpeedTest, n_repeat: int
) -> SpeedResult:
    """A test of an encoder-decoder model; one with a prompt has no depth."""
    is_timed = test.n_prompt > 0
    n_source = test.n_prompt or max(1, test.depth)
    source = random_tokens(context, 1, n_source)[0]
    generated = random_tokens(context, 1, test.n_generated)[0]
    sample = partial(run_encoded, context, source, generated, is_timed=is_timed)
    sample()
    samples_s = tuple(with_plans_ready(context, sample) for _ in range(n_repeat))
    context.clear()
    steps = encoded_bytes(file, context, n_source, test.n_generated, is_timed=is_timed)
    encoder = context.encoder
    used = threads_used(context if test.n_generated or encoder is None else encoder)
    return SpeedResult(test, samples_s, steps, used)


def _deep_state(context: Context, depth: int, n_batch: int) -> SequenceState | None:
    """The state of a sequence of `depth` tokens, which is restored for each sample."""
    if depth == 0:
        return None
    context.memory.clear()
    _decode_all(context, prompt_batches(random_tokens(context, 1, depth), n_batch))
    return take_state(context.memory, 0)


def _run_test(
    context: Context, test: SpeedTest, before: SequenceState | None, n_batch: int
) -> float:
    """The duration of a test in seconds."""
    context.memory.clear()
    if before is not None:
        put_state(context.memory, 0, before)
    prompts = random_tokens(context, 1, test.n_prompt)
    # Models that generate nothing are for the embeddings, or the logits, of all tokens.
    each = not context.can_generate
    batches = prompt_batches(prompts, n_batch, test.depth, all_outputs=each)
    generated = random_tokens(context, 1, test.n_generated)[0]
    started = perf_counter()
    _decode_all(context, batches)
    for token in generated:
        context.decode([token])
    return perf_counter() - started


# --- what has to be read ------------------------------------------------------------------------


def bytes_of_steps(
    file: GGUFFile, context: Context, test: SpeedTest, n_batch: int
) -> tuple[int, ...]:
    """Bytes that each ubatch of a test reads at least: all weights, K and V of the sequence."""
    n_ubatch = context.sizes.n_ubatch
    ends = []
    for batch in range(0, test.n_prompt, n_batch):
        in_batch = min(n_batch, test.n_prompt - batch)
        ends += [batch + min(at + n_ubatch, in_batch) for at in range(0, in_batch, n_ubatch)]
    ends += [test.n_prompt + i + 1 for i in range(test.n_generated)]
    weights = weight_bytes(file, context)
    return tuple(weights + kept_bytes(context.memory, test.depth + end) for end in ends)


def weight_bytes(file: GGUFFile, context: Context) -> int:
    """Bytes of the weights that one decode step reads, as stored in the file.

    Of experts only the used ones count, and the token embedding only if it is the output matrix.
    """
    h = context.model.hparams
    passed_over = set(context.model.weights.unused())
    if "output.weight" in file.tensors:
        passed_over.add("token_embd.weight")
    total = 0
    for name, info in file.tensors.items():
        if name not in passed_over:
            used = h.n_expert_used / h.n_expert if "_exps." in name else 1
            total += int(info.n_bytes * used)
    return total


def kept_bytes(memory: SequenceMemory, n_tokens: int) -> int:
    """Bytes of K, V and states that the next token of a sequence of `n_tokens` reads."""
    total = 0
    for cache in memory.caches:
        cells = cache.cells
        seen = n_tokens if cells.window is None else min(n_tokens, cells.window.size)
        total += seen * (cache.store.n_bytes // (cells.kv_size * cells.n_stream))
    if memory.recurrent is not None:
        total += memory.recurrent.n_bytes_seq
    return total


# --- many sequences: llama-batched-bench --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchedCase:
    """Several sequences, each with a prompt, which then decode together, one token per step.

    `shared`: the prompt is run once, for all of them. `separate`: they decode one after the other.
    """

    n_prompt: int
    n_generated: int
    n_seqs: int
    shared: bool = False
    separate: bool = False

    def n_kv(self, unified: bool) -> int:
        """Tokens that the memory holds at the end."""
        prompts = 1 if self.shared and unified else self.n_seqs
        return prompts * self.n_prompt + self.n_seqs * self.n_generated

    def n_ctx(self, unified: bool, n_seq_max: int, page_size: int = 1) -> int:
        """The context size that it needs with `n_seq_max` sequences, which take whole pages."""
        if not unified:
            return n_seq_max * (self.n_prompt + self.n_generated)
        n_shared = self.n_prompt // page_size * page_size if self.shared else 0
        n_pages = -(-(self.n_prompt - n_shared + self.n_generated) // page_size)
        return n_shared + self.n_seqs * n_pages * page_size

    def misfit(self, sizes: Sizes) -> str | None:
        """Why it does not fit a context, None if it does."""
        needed, there = self.n_prompt + self.n_generated, sizes.n_ctx_seq
        if self.n_seqs > sizes.n_seq_max:
            return f"{self.n_seqs} sequences, there are {sizes.n_seq_max}"
        in_all = self.n_ctx(True, sizes.n_seq_max, sizes.page_size)
        if sizes.one_stream and in_all > sizes.n_ctx:
            return f"{in_all} tokens, n_ctx is {sizes.n_ctx}"
        if not sizes.one_stream and needed > there:
            return f"{needed} tokens for each sequence, which has n_ctx_seq = {there}"
        return None


@dataclass(frozen=True, slots=True)
class BatchedResult:
    """Durations of the prompts and of decoding; rates in tokens per second, or 0."""

    case: BatchedCase
    n_kv: int
    prompt_s: float
    generation_s: float

    @property
    def total_s(self) -> float:
        return self.prompt_s + self.generation_s

    @property
    def prompt_rate(self) -> float:
        n_prompts = 1 if self.case.shared else self.case.n_seqs
        return n_prompts * self.case.n_prompt / self.prompt_s

    @property
    def generation_rate(self) -> float:
        n = self.case.n_seqs * self.case.n_generated
        return n / self.generation_s if n else 0.0

    @property
    def rate(self) -> float:
        """All tokens by the total time."""
        return self.n_kv / self.total_s


def measure_batched(context: Context, case: BatchedCase, *, n_batch: int) -> BatchedResult:
    """Run a case that fits the context, twice if its shapes are new. Clears the memory."""
    return with_plans_ready(context, partial(_run_batched, context, case, n_batch))


def _run_batched(context: Context, case: BatchedCase, n_batch: int) -> BatchedResult:
    memory = context.memory
    memory.clear()
    n_prompts = 1 if case.shared else case.n_seqs
    prompts = random_tokens(context, n_prompts, case.n_prompt)
    batches = prompt_batches(prompts, n_batch, all_outputs=not context.can_generate)
    started = perf_counter()
    _decode_all(context, batches)
    prompt_s = perf_counter() - started
    if case.shared:  # not timed, as in llama.cpp
        for seq in range(1, case.n_seqs):
            memory.seq_cp(0, seq)
    seqs = range(case.n_seqs)
    together = [[seq] for seq in seqs] if case.separate else [seqs]
    steps_s = [s for group in together for s in timed_steps(context, group, case.n_generated)]
    memory.clear()
    return BatchedResult(
        case, case.n_kv(context.sizes.one_stream), prompt_s, generation_s=sum(steps_s)
    )


def timed_steps(context: Context, seqs: Sequence[int], n_steps: int) -> list[float]:
    """The duration of each step, which decodes one token of each of these sequences."""
    seconds = []
    positions = {seq: context.n_past(seq) for seq in seqs}
    for tokens in random_tokens(context, n_steps, len(seqs)):
        started = perf_counter()
        batch = Batch()
        for seq, token in zip(seqs, tokens, strict=True):
            batch.extend(seq, (token,), positions[seq])
            positions[seq] += 1
        context.decode_batch(batch)
        seconds.append(perf_counter() - started)
    return seconds


# --- tokens -------------------------------------------------------------------------------------


def random_tokens(context: Context, n_rows: int, n: int) -> list[list[int]]:
    """`n_rows` lists of `n` tokens, always the same ones."""
    rng = np.random.default_rng(0)
    rows: list[list[int]] = rng.integers(context.model.hparams.n_vocab, size=(n_rows, n)).tolist()
    return rows


def prompt_batches(
    prompts: Sequence[Sequence[int]], n_batch: int, start: int = 0, *, all_outputs: bool = False
) -> list[Batch]:
    """Prompts of sequences 0, 1 … in batches of at most `n_batch` tokens, in this order.

    Only each prompt's last token is output, or with `all_outputs` all.
    """
    return list(_cut(prompts, n_batch, start, all_outputs))


def _cut(
    prompts: Sequence[Sequence[int]], n_batch: int, start: int, all_outputs: bool
) -> Iterator[Batch]:
    batch = Batch()
    for seq, tokens in enumerate(prompts):
        for i, token in enumerate(tokens):
            batch.add(token, start + i, (seq,), output=all_outputs or i == len(tokens) - 1)
            if len(batch) == n_batch:
                yield batch
                batch = Batch()
    if batch.tokens:
        yield batch


def _decode_all(context: Context, batches: Sequence[Batch]) -> None:
    for batch in batches:
        context.decode_batch(batch)
