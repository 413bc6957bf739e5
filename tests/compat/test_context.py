"""What scripts ask of llama-cpp-python's `_ctx`, and the names around its log.

Expected tokens were recorded with llama-cpp-python 0.3.36 on the same model:

    llm = Llama(model, n_ctx=256, verbose=False); llm.eval(llm.tokenize(b"Once upon a time"))
    np.ctypeslib.as_array(llm._ctx.get_logits(), shape=(llm.n_vocab(),)).argmax()
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from ggmlpy.compat import llama_cpp
from ggmlpy.compat.llama_cpp import Llama
from ggmlpy.errors import Unsupported

AFTER_ONCE = 13  # ","
AFTER_ONCE_UPON_A = 400  # " time"


def test_logits_are_pointed_to(llm: Llama) -> None:
    llm.reset()
    with pytest.raises(RuntimeError, match="call eval first"):
        llm._ctx.get_logits()
    llm.eval(llm.tokenize(b"Once upon a time"))
    for pointer in (llm._ctx.get_logits(), llm._ctx.get_logits_ith(-1)):
        row = np.ctypeslib.as_array(pointer, shape=(llm.n_vocab(),))
        assert row.dtype == np.float32
        assert row.argmax() == AFTER_ONCE
        assert np.array_equal(row, llm.scores[llm.n_tokens - 1])
    with pytest.raises(Unsupported, match="only -1"):
        llm._ctx.get_logits_ith(2)


def test_tokens_are_removed(llm: Llama) -> None:
    llm.reset()
    llm.eval(llm.tokenize(b"Once upon a time"))
    assert llm._ctx.kv_cache_seq_rm(-1, 2, -1) is True
    llm.n_tokens = 2
    llm.eval(llm.tokenize(b" upon a", add_bos=False))
    assert llm.sample(temp=0) == AFTER_ONCE_UPON_A
    with pytest.raises(Unsupported, match="only tokens up to the end"):
        llm._ctx.kv_cache_seq_rm(-1, 0, 2)
    llm._ctx.kv_cache_clear()
    assert (llm._ctx.n_ctx(), llm._ctx.pooling_type()) == (128, llm.pooling_type())


def test_log_callbacks_are_taken() -> None:
    @llama_cpp.llama_log_callback
    def quiet(level: int, text: bytes, user_data: object) -> None:
        raise AssertionError("nothing is logged by callbacks")

    llama_cpp.llama_log_set(quiet, ctypes.c_void_p())


def test_chunks_of_chats_have_their_keys_in_order(llm: Llama) -> None:
    chunk = next(
        llm.create_chat_completion([{"role": "user", "content": "x"}], max_tokens=1, stream=True)
    )
    assert list(chunk) == ["id", "model", "created", "object", "choices"]
