"""llama.cpp as a measured engine, on a stand-in for its library that keeps account of every call.

With GGMLPY_BENCHMARK_PEER, a Python that has llama-cpp-python, also the real one against ggmlpy.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.engines import EngineProcess
from benchmarks.models import SHAPES, write_model
from benchmarks.peer import LlamaCpp
from benchmarks.worker import random_tokens

N_VOCAB = 50
Token = tuple[int, int, int, bool]  # token, position, sequence, output


class StandIn:
    """The functions that the worker uses, with llama.cpp's rules for positions and states."""

    __version__ = "0.0.1"
    GGML_TYPE_F16 = 1
    GGML_TYPE_Q8_0 = 8
    llama_log_callback = staticmethod(lambda function: function)

    def __init__(self) -> None:
        self.batches: list[list[Token]] = []
        self.lengths: dict[int, int] = {}
        self.options: Any = None
        self.status = 0
        self.n_freed = 0
        self.refuses_states = False

    def llama_log_set(self, callback: Any, user_data: Any) -> None:
        self.log = callback

    def llama_backend_init(self) -> None:
        pass

    def llama_print_system_info(self) -> bytes:
        return b"CPU : AVX512 = 1 | "

    def llama_version(self) -> bytes:
        return b"b1"

    def llama_batch_init(self, n_tokens: int, embd: int, n_seq_max: int) -> SimpleNamespace:
        def zeros() -> list[int]:
            return [0] * n_tokens

        rows = [[0] * n_seq_max for _ in range(n_tokens)]
        return SimpleNamespace(
            n_tokens=0, token=zeros(), pos=zeros(), n_seq_id=zeros(), seq_id=rows, logits=zeros()
        )

    def llama_model_default_params(self) -> SimpleNamespace:
        return SimpleNamespace()

    def llama_context_default_params(self) -> SimpleNamespace:
        return SimpleNamespace(flash_attn_type=-1, swa_full=True)

    def llama_model_load_from_file(self, path: bytes, options: Any) -> Any:
        assert options.n_gpu_layers == 0
        if b"bad" not in path:
            return object()
        self.log(2, b"loading", None)
        self.log(4, b"invalid magic\n", None)
        return None

    def llama_model_get_vocab(self, model: Any) -> Any:
        return model

    def llama_vocab_n_tokens(self, vocab: Any) -> int:
        return N_VOCAB

    def llama_init_from_model(self, model: Any, options: Any) -> Any:
        self.options = options
        return object() if options.n_ctx < 10_000 else None

    def llama_free(self, context: Any) -> None:
        self.n_freed += 1

    def llama_get_memory(self, context: Any) -> Any:
        return self.lengths

    def llama_memory_clear(self, memory: dict[int, int], data: bool) -> None:
        memory.clear()

    def llama_decode(self, context: Any, batch: Any) -> int:
        if self.status:
            return self.status
        tokens = []
        for i in range(batch.n_tokens):
            assert batch.n_seq_id[i] == 1
            seq = batch.seq_id[i][0]
            assert batch.pos[i] == self.lengths.get(seq, 0)
            self.lengths[seq] = batch.pos[i] + 1
            tokens.append((batch.token[i], batch.pos[i], seq, bool(batch.logits[i])))
        self.batches.append(tokens)
        return 0

    def llama_synchronize(self, context: Any) -> None:
        pass

    def llama_state_seq_get_size(self, context: Any, seq: int) -> int:
        return 4 + self.lengths.get(seq, 0)

    def llama_state_seq_get_data(self, context: Any, state: Any, n_bytes: int, seq: int) -> int:
        state[0] = self.lengths.get(seq, 0)
        return n_bytes

    def llama_state_seq_set_data(self, context: Any, state: Any, n_bytes: int, seq: int) -> int:
        if self.refuses_states:
            return 0
        assert len(state) == n_bytes == 4 + state[0]
        self.lengths[seq] = state[0]
        return n_bytes

    def llama_get_logits_ith(self, context: Any, i: int) -> Any:
        assert i == -1
        return (ctypes.c_float * N_VOCAB)(*range(N_VOCAB))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in)
    return stand_in


@pytest.fixture
def engine(library: StandIn) -> LlamaCpp:
    engine = LlamaCpp()
    engine.load("model.gguf", 2)
    engine.open(600, 3, "split", "f16", "q8_0")
    return engine


def test_it_says_what_it_is(library: StandIn) -> None:
    assert LlamaCpp().about() == {
        "name": "llama.cpp",
        "version": "0.0.1 (llama.cpp b1)",
        "build": "CPU : AVX512 = 1",
    }


def test_a_context_is_what_was_asked_for(library: StandIn, engine: LlamaCpp) -> None:
    assert vars(library.options) == {
        "n_ctx": 600, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 3, "kv_unified": False,
        "n_threads": 2, "n_threads_batch": 2, "type_k": 1, "type_v": 8, "swa_full": False,
        "flash_attn_type": -1,
    }  # fmt: skip
    engine.open(100, 1, "unified", "f16", "f16")
    assert library.n_freed == 1
    assert library.options.kv_unified


def test_a_prompt_is_one_sequence_whose_last_logits_are_wanted(
    library: StandIn, engine: LlamaCpp
) -> None:
    for n_tokens, sizes in ((5, [5]), (2050, [2048, 2])):
        library.batches.clear()
        assert engine.prompt(n_tokens) >= 0
        assert [len(batch) for batch in library.batches] == sizes
        everything = [token for batch in library.batches for token in batch]
        assert [t for t, *_ in everything] == random_tokens(N_VOCAB, 1, n_tokens)[0]
        assert [position for _, position, *_ in everything] == list(range(n_tokens))
        assert {seq for *_, seq, _ in everything} == {0}
        assert [i for i, (*_, output) in enumerate(everything) if output] == [n_tokens - 1]


@pytest.mark.parametrize("depth", [0, 7, 20])
def test_steps_are_a_token_of_every_sequence_at_its_depth(
    library: StandIn, engine: LlamaCpp, depth: int
) -> None:
    engine.prepare([20, 0, 7])
    library.batches.clear()
    assert len(engine.decode(3, 2, depth, 1, False)) == 2
    tokens = random_tokens(N_VOCAB, 3, 3)
    assert library.batches == [
        [(tokens[step][seq], depth + step, seq, True) for seq in range(3)] for step in range(3)
    ]


def test_failures_tell_what_the_library_said(library: StandIn, engine: LlamaCpp) -> None:
    with pytest.raises(RuntimeError, match=r"^llama.cpp cannot load bad.gguf: invalid magic$"):
        LlamaCpp().load("bad.gguf", 1)
    with pytest.raises(RuntimeError, match="makes no context of 10000 tokens"):
        engine.open(10_000, 1, "split", "f16", "f16")
    engine.open(100, 1, "split", "f16", "f16")
    engine.prepare([5])
    library.refuses_states = True
    with pytest.raises(RuntimeError, match="takes no state of 5 tokens for sequence 0"):
        engine.decode(1, 1, 5, 0, False)
    library.status = 1
    with pytest.raises(RuntimeError, match="llama_decode of 5 tokens returned 1"):
        engine.prompt(5)
    with pytest.raises(RuntimeError, match="in one piece"):
        engine.decode(1, 1, 0, 0, True)


def test_logits_are_the_librarys_bytes(engine: LlamaCpp) -> None:
    engine.prompt(3)
    values = np.frombuffer(bytes.fromhex(engine.logits()), "<f4")
    assert values.tolist() == list(range(N_VOCAB))


# --- the real one -------------------------------------------------------------------------------


@pytest.fixture
def both() -> Iterator[list[EngineProcess]]:
    python = os.environ.get("GGMLPY_BENCHMARK_PEER")
    if python is None:
        pytest.skip("GGMLPY_BENCHMARK_PEER names no Python with llama-cpp-python")
    with EngineProcess.ours() as ours, EngineProcess.peer(python) as peer:
        yield [ours, peer]


def test_both_engines_compute_the_same(both: list[EngineProcess], tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "tiny", SHAPES["tiny"], "q8_0")
    logits = []
    for engine in both:
        engine.load(tmp_path / "tiny.gguf", 1)
        engine.open(2 * 40, 2)
        engine.prompt(32)
        logits.append(np.frombuffer(engine.logits(), "<f4"))
        engine.prepare([32])
        assert len(engine.decode(2, 3, depth=32)) == 3
        assert engine.resident_bytes()["peak"] > 2**20
    assert np.square(logits[0] - logits[1]).mean() < 1e-3 * np.square(logits[1]).mean()
