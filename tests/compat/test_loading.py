"""What a model is loaded with: adapters, metadata, threads; and what it is afterwards."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import Llama as Own
from ggmlpy import packaged_model
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.compat import llama_cpp
from ggmlpy.compat.llama_cpp import (
    Llama,
    NoEffect,
)
from ggmlpy.errors import FileError, Unsupported
from tests.adapters import write_adapter
from tests.compat.models import PROMPT, make, text_of


def test_arguments_without_effect_say_what_to_use() -> None:
    with pytest.warns(NoEffect, match="use_mlock has no effect"):
        make(use_mlock=True).close()
    with pytest.warns(NoEffect, match="n_gqa is no argument"):
        make(n_gqa=8).close()
    with pytest.raises(Unsupported, match="attention_type is 1"):
        make(attention_type=1)


def test_an_adapter(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora.gguf", packaged_model(), size=0.5).path
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0}
    with make(lora_path=str(adapter), lora_scale=0.5) as ours:
        answer = ours(PROMPT, **options)["choices"][0]["text"]
        ours.reset()
        ours.eval(ours.tokenize(PROMPT.encode()))
        logits = ours._rows[-1].copy()
    with Own(packaged_model(), n_ctx=128) as llm:
        plain = llm(PROMPT, **options)["choices"][0]["text"]
        tokens = llm.tokenize(PROMPT, special=True)
        llm.load_lora(adapter, 0.5)
        assert llm(PROMPT, **options)["choices"][0]["text"] == answer != plain
        np.testing.assert_array_equal(llm.logits(tokens)[-1], logits)
    with pytest.raises(ValueError, match="no such file"):
        make(lora_path=str(tmp_path / "missing.gguf"))


def test_metadata_and_rotary_embeddings_can_be_others(llm: Llama) -> None:
    key = "llama.rope.freq_base"
    with make(rope_freq_base=500.0) as a, make(kv_overrides={key: 500.0}) as b:
        for model in (a, b, llm):
            model.reset()
            model.eval([0, 5, 9, 30])
        assert np.array_equal(a._scores, b._scores)
        assert not np.allclose(a._scores, llm._scores)
        assert b.metadata[key] == "500.000000"
    with make(rope_freq_base=10000.0, rope_freq_scale=1.0, rope_scaling_type=1) as same:
        same.eval([0, 5, 9, 30])
        assert np.array_equal(same._scores, llm._scores)
    halved: dict[str, Any] = {"rope_freq_scale": 0.5}
    unmixed = make(rope_scaling_type=2, yarn_ext_factor=0.0, **halved)
    with unmixed, make(rope_scaling_type=1, **halved) as linear:
        for model in (unmixed, linear):
            model.eval([0, 5, 9, 30])
        assert np.array_equal(unmixed._scores, linear._scores)
        assert not np.allclose(linear._scores, llm._scores)
    with pytest.raises(ValueError, match="rope_scaling_type is 7"):
        make(rope_scaling_type=7)
    with pytest.raises(ValueError, match="must be a number"):
        make(kv_overrides={key: "high"})


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Model path does not exist"):
        Llama(str(tmp_path / "no.gguf"))
    (tmp_path / "bad.gguf").write_bytes(b"GGUX")
    with pytest.raises(FileError):
        Llama(str(tmp_path / "bad.gguf"))


def test_pickled_models_are_loaded_again(llm: Llama) -> None:
    with make(n_ctx=64, seed=5) as model:
        copy = pickle.loads(pickle.dumps(model))
        assert (copy.n_ctx(), copy._seed) == (64, 5)
        assert text_of(copy, seed=1) == text_of(model, seed=1)
        copy.close()


def test_a_closed_model() -> None:
    model = make()
    model.close()
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model(PROMPT)
    del model
    gc.collect()


def test_threads_are_those_that_run() -> None:
    default = default_n_threads()
    for given, expected in ((0, default), (-1, default), (None, default), (1, 1), (2, 2)):
        with make(n_threads=given) as model:
            assert model.n_threads == model.n_threads_batch == expected
            assert model.context_params.n_threads == expected
            (backend,) = [b for b in model.ggmlpy._context.backends if b.name.startswith("cpu")]
            assert isinstance(backend, CpuBackend)
            assert backend.n_threads == expected
    with make(vocab_only=True, n_threads=3) as model:
        assert model.n_threads == 3


def test_properties(llm: Llama) -> None:
    sizes = (llm.n_ctx(), llm.n_vocab(), llm.n_embd(), llm.n_batch, llm.context_params.n_ctx)
    assert sizes == (128, 2048, 256, 128, 128)
    assert (llm.token_bos(), llm.token_eos()) == (0, 1)
    assert llm.metadata["llama.rope.freq_base"] == "10000.000000"
    assert llm.metadata["tokenizer.ggml.add_bos_token"] == "true"
    assert "tokenizer.ggml.tokens" not in llm.metadata
    assert llm.pooling_type() == llama_cpp.LLAMA_POOLING_TYPE_NONE
    assert llm._model.n_params() > 1e6
    assert llm._model.desc().startswith("llama")
    with pytest.raises(AttributeError, match="C interface"):
        _ = llm.ctx
