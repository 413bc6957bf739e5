"""ggmlpy as an engine to be measured: `python -m benchmarks.ours`, see benchmarks/worker.py."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from importlib.metadata import version
from time import perf_counter

import numpy as np

from benchmarks.worker import N_BATCH, N_UBATCH, peak_bytes, random_tokens, serve
from ggmlpy.bench.bench import kept_bytes, prompt_batches, weight_bytes
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import type_of
from ggmlpy.llama import Llama
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.pages import page_size
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.state import LayerRows, SequenceState, put_state, take_state
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.outputs import Logits
from ggmlpy.sched.compute import backends_for
from ggmlpy.text.tokenizer import Tokenizer


class Ggmlpy:
    """One model, one context at a time."""

    def __init__(self) -> None:
        self._backend = os.environ.get("GGMLPY_BENCHMARK_BACKEND", "cpu")
        backends_for(self._backend, 1)  # imported now, as the other engine's library is
        self._states: dict[int, SequenceState] = {}
        self._tokenizer: Tokenizer | None = None  # never used, but in memory, as in an application
        self._context: Context | None = None
        self._logits: Logits | None = None

    def about(self) -> dict[str, str]:
        return {"name": "ggmlpy", "version": version("ggmlpy"), "build": self._backend}

    def load(self, path: str, n_threads: int) -> float:
        started = perf_counter()
        self._file = GGUFFile.open(path)
        self._model = load_model(self._file)
        self._tokenizer = Tokenizer.from_metadata(self._file.metadata, self._file.path.name)
        self._tokenizer.prepare()
        self._backends = backends_for(self._backend, n_threads)
        return perf_counter() - started

    def first_token(self, path: str, n_threads: int, n_ctx: int) -> float:
        started = perf_counter()
        llm = Llama(
            path, n_ctx=n_ctx, n_ubatch=N_UBATCH, n_threads=n_threads, backend=self._backend
        )
        llm.engine.context.decode([0])
        spent_s = perf_counter() - started
        self._context, self._tokenizer = llm.engine.context, llm.tokenizer
        self._file, self._model = GGUFFile.open(path), self._context.model
        self._backends = self._context.backends
        return spent_s

    def open(self, n_ctx: int, n_seq_max: int, layout: str, type_k: str, type_v: str) -> float:
        self._context = None
        self._states = {}
        gc.collect()  # its cache goes before the next one comes
        started = perf_counter()
        if layout == "paged":
            n_ctx += n_seq_max * page_size()  # each sequence may use its last page in part
        self._context = Context(
            self._model,
            self._backends,
            n_ctx=n_ctx,
            n_ubatch=N_UBATCH,
            n_seq_max=n_seq_max,
            kv_layout=layout,
            type_k=type_of(type_k),
            type_v=type_of(type_v),
        )
        self._context.warm_up()
        return perf_counter() - started

    def _opened(self) -> Context:
        assert self._context is not None, "there is no context: open one"
        return self._context

    @property
    def _n_vocab(self) -> int:
        return self._model.hparams.n_vocab

    def prepare(self, depths: list[int]) -> None:
        context = self._opened()
        context.memory.clear()
        (tokens,) = random_tokens(self._n_vocab, 1, max(depths))
        for depth in sorted(depths):
            there = context.n_past()
            for batch in prompt_batches([tokens[there:depth]], N_BATCH, there):
                context.decode_batch(batch)
            self._states[depth] = take_state(context.memory, 0)

    def prompt(self, n_tokens: int) -> float:
        context = self._opened()
        context.memory.clear()
        batches = prompt_batches(random_tokens(self._n_vocab, 1, n_tokens), N_BATCH)
        started = perf_counter()
        for batch in batches:
            self._logits = context.decode_batch(batch)
        return perf_counter() - started

    def decode(
        self, n_seqs: int, n_steps: int, depth: int, n_warm: int, interleaved: bool
    ) -> list[float]:
        context = self._opened()
        self._fill(context.memory, n_seqs, depth, interleaved)
        seconds = []
        for i, tokens in enumerate(random_tokens(self._n_vocab, n_warm + n_steps, n_seqs)):
            batch = Batch()
            for seq, token in enumerate(tokens):
                batch.add(token, depth + i, (seq,), output=True)
            started = perf_counter()
            context.decode_batch(batch)
            seconds.append(perf_counter() - started)
        return seconds[n_warm:]

    def _fill(self, memory: SequenceMemory, n_seqs: int, depth: int, interleaved: bool) -> None:
        memory.clear()
        if depth == 0:
            return
        if interleaved:
            put_interleaved(memory, range(n_seqs), self._states[depth])
        else:
            for seq in range(n_seqs):
                put_state(memory, seq, self._states[depth])

    def logits(self) -> str:
        assert self._logits is not None, "no prompt was run"
        last = np.asarray(self._logits[-1], "<f4").tobytes()
        return last.hex()

    def resident_bytes(self) -> dict[str, int]:
        context = self._opened()
        return {
            "peak": peak_bytes(),
            "cache": context.memory.n_bytes,
            "compute": max(
                sum(plan.executable.allocation.arena_bytes.values())
                for plan in context.plans.plans.values()
            ),
        }

    def step_bytes(self, n_seqs: int, n_tokens: int) -> int:
        """What a step reads at least, of sequences that hold `n_tokens` each when it is over."""
        context = self._opened()
        weights = weight_bytes(self._file, context)
        return weights + n_seqs * kept_bytes(context.memory, n_tokens)


def put_interleaved(memory: SequenceMemory, seqs: Sequence[int], state: SequenceState) -> None:
    """Give every sequence the state in an empty, shared cache: a token of each, then the next.

    The state must be of this memory's types.
    """
    for cache in memory.caches:
        cells, store = cache.cells, cache.store
        rows: dict[int, LayerRows] = {i: state.layers[i] for i in store.k}
        positions = rows[next(iter(rows))].positions
        slot = cells.find_slot(len(positions) * len(seqs)).reshape(-1, len(seqs))
        for column, seq in enumerate(seqs):
            mine = slot[:, column]
            cells.occupy(mine, positions, (seq,))
            for i in rows:
                store.write_rows(store.k[i], 0, mine, rows[i].k)
                store.write_rows(store.v[i], 0, mine, rows[i].v)


if __name__ == "__main__":
    serve(Ggmlpy)
