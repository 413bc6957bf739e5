"""llama.cpp as an engine to be measured, through llama-cpp-python's low-level interface.

    /path/to/its/python -m benchmarks.peer        see benchmarks/worker.py

Runs in an interpreter that has llama-cpp-python and need not have anything else: only this file
and worker.py are used. It does what llama-bench and llama-batched-bench do, with their defaults
(weights repacked, flash attention where llama.cpp chooses it, sliding windows kept small). Batches
are made outside of what is timed, where ctypes' slowness is not held against it.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from benchmarks.worker import N_BATCH, N_UBATCH, peak_bytes, random_tokens, serve

_ERROR = 4  # ggml's level of such messages


class LlamaCpp:
    """One model, one context at a time."""

    def __init__(self) -> None:
        self._api: Any = importlib.import_module("llama_cpp")
        self._errors: list[str] = []
        self._log = self._api.llama_log_callback(self._note)  # must outlive the library's use of it
        self._api.llama_log_set(self._log, ctypes.c_void_p(0))
        self._api.llama_backend_init()
        self._model: Any = None
        self._context: Any = None
        self._batch: Any = self._api.llama_batch_init(N_BATCH, 0, 1)
        self._states: dict[int, Any] = {}

    def _note(self, level: int, text: bytes, user_data: Any) -> None:
        if level == _ERROR:
            self._errors.append(text.decode(errors="replace").strip())

    def _fail(self, what: str) -> RuntimeError:
        said = "; ".join(self._errors[-2:])
        return RuntimeError(f"{what}: {said}" if said else what)

    def about(self) -> dict[str, str]:
        build = self._api.llama_print_system_info().decode()
        version = f"{self._api.__version__} (llama.cpp {self._api.llama_version().decode()})"
        return {"name": "llama.cpp", "version": version, "build": build.strip(" |")}

    def load(self, path: str, n_threads: int) -> float:
        self._n_threads = n_threads
        options = self._api.llama_model_default_params()
        options.n_gpu_layers = 0
        started = perf_counter()
        self._model = self._api.llama_model_load_from_file(path.encode(), options)
        spent_s = perf_counter() - started
        if not self._model:
            raise self._fail(f"llama.cpp cannot load {path}")
        vocabulary = self._api.llama_model_get_vocab(self._model)
        self._n_vocab: int = self._api.llama_vocab_n_tokens(vocabulary)
        return spent_s

    def first_token(self, path: str, n_threads: int, n_ctx: int) -> float:
        spent_s = self.load(path, n_threads) + self.open(n_ctx, 1, "split", "f16", "f16")
        return spent_s + self.decode(1, 1, 0, 0, False)[0]

    def open(self, n_ctx: int, n_seq_max: int, layout: str, type_k: str, type_v: str) -> float:
        self._close()
        options = self._api.llama_context_default_params()
        options.n_ctx = n_ctx
        options.n_batch = N_BATCH
        options.n_ubatch = N_UBATCH
        options.n_seq_max = n_seq_max
        options.kv_unified = layout == "unified"
        options.n_threads = options.n_threads_batch = self._n_threads
        options.type_k = self._type(type_k)
        options.type_v = self._type(type_v)
        options.swa_full = False
        started = perf_counter()
        self._context = self._api.llama_init_from_model(self._model, options)
        spent_s = perf_counter() - started
        if not self._context:
            raise self._fail(f"llama.cpp makes no context of {n_ctx} tokens")
        self._memory = self._api.llama_get_memory(self._context)
        return spent_s

    def _close(self) -> None:
        self._states = {}  # which fit a context with as many streams only
        if self._context:
            self._api.llama_free(self._context)
            self._context = None

    def _type(self, name: str) -> int:
        """ggml's number of a type of K and V."""
        number: int = getattr(self._api, f"GGML_TYPE_{name.upper()}")
        return number

    def prepare(self, depths: list[int]) -> None:
        self._api.llama_memory_clear(self._memory, False)
        (tokens,) = random_tokens(self._n_vocab, 1, max(depths))
        there = 0
        for depth in sorted(depths):
            self._run_prompt(tokens[there:depth], there)
            there = depth
            n_bytes = self._api.llama_state_seq_get_size(self._context, 0)
            state = (ctypes.c_uint8 * n_bytes)()
            if not self._api.llama_state_seq_get_data(self._context, state, n_bytes, 0):
                raise self._fail(f"llama.cpp gives no state of {depth} tokens")
            self._states[depth] = state

    def prompt(self, n_tokens: int) -> float:
        self._api.llama_memory_clear(self._memory, False)
        return self._run_prompt(random_tokens(self._n_vocab, 1, n_tokens)[0], 0)

    def _run_prompt(self, tokens: list[int], start: int) -> float:
        """Sequence 0's next tokens; the time that took."""
        spent_s = 0.0
        for at in range(0, len(tokens), N_BATCH):
            part = tokens[at : at + N_BATCH]
            self._fill_batch(part, range(start + at, start + at + len(part)), [0] * len(part))
            self._batch.logits[len(part) - 1] = at + len(part) == len(tokens)
            spent_s += self._run_batch()
        return spent_s

    def _fill_batch(
        self, tokens: Sequence[int], positions: Sequence[int], seqs: Sequence[int]
    ) -> None:
        """Tokens whose logits are not output."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, seq) in enumerate(zip(tokens, positions, seqs, strict=True)):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = seq
            batch.logits[i] = False

    def _run_batch(self) -> float:
        started = perf_counter()
        status = self._api.llama_decode(self._context, self._batch)
        self._api.llama_synchronize(self._context)
        spent_s = perf_counter() - started
        if status:
            raise self._fail(f"llama_decode of {self._batch.n_tokens} tokens returned {status}")
        return spent_s

    def decode(
        self, n_seqs: int, n_steps: int, depth: int, n_warm: int, interleaved: bool
    ) -> list[float]:
        if interleaved:
            raise RuntimeError("llama.cpp puts a sequence's state in one piece only")
        self._fill(n_seqs, depth)
        seconds = []
        for i, tokens in enumerate(random_tokens(self._n_vocab, n_warm + n_steps, n_seqs)):
            position = depth + i
            self._fill_batch(tokens, [position] * n_seqs, range(n_seqs))
            for seq in range(n_seqs):
                self._batch.logits[seq] = True
            seconds.append(self._run_batch())
        return seconds[n_warm:]

    def _fill(self, n_seqs: int, depth: int) -> None:
        self._api.llama_memory_clear(self._memory, False)
        if depth == 0:
            return
        state = self._states[depth]
        for seq in range(n_seqs):
            if not self._api.llama_state_seq_set_data(self._context, state, len(state), seq):
                raise self._fail(f"llama.cpp takes no state of {depth} tokens for sequence {seq}")

    def logits(self) -> str:
        values = self._api.llama_get_logits_ith(self._context, -1)
        return ctypes.string_at(values, 4 * self._n_vocab).hex()

    def resident_bytes(self) -> dict[str, int]:
        return {"peak": peak_bytes()}


if __name__ == "__main__":
    serve(LlamaCpp)
