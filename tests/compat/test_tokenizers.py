"""Texts, bytes and tokens."""

from __future__ import annotations

from typing import Any

import pytest

from ggmlpy import packaged_model
from ggmlpy.compat import llama_cpp
from ggmlpy.compat.llama_cpp import (
    Llama,
    LlamaTokenizer,
)
from tests.compat.models import make


def test_bytes_and_tokens(llm: Llama) -> None:
    text = "Grüße, 世界! 🙂".encode()
    tokens = llm.tokenize(text, add_bos=False)
    assert llm.detokenize(tokens) == text
    assert llm.tokenize(text)[0] == llm.token_bos()
    assert llm.detokenize([llm.token_bos(), *tokens]) == text
    assert llm.detokenize([llm.token_bos()], special=True) == b"<s>"
    assert llm.tokenizer().decode(tokens).encode() == text
    assert llm.tokenizer().encode("a") == llm.tokenize(b"a", special=True)
    assert llm.detokenize([llm.token_nl()]) == b"\n"


def test_a_vocabulary_only() -> None:
    with Llama(str(packaged_model()), vocab_only=True, verbose=False) as model:
        assert model.detokenize(model.tokenize(b"a cat", add_bos=False)) == b"a cat"
        with pytest.raises(RuntimeError, match="vocab_only"):
            model("a cat")
    tokenizer = LlamaTokenizer.from_ggml_file(str(packaged_model()))
    assert tokenizer.decode(tokenizer.encode("a cat")) == "a cat"


def test_a_tokenizer_of_another_library() -> None:
    class Bytes(llama_cpp.BaseLlamaTokenizer):
        def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
            return [3 + byte % 7 for byte in text]

        def detokenize(
            self, tokens: list[int], prev_tokens: Any = None, special: bool = False
        ) -> bytes:
            return b"x" * len(tokens)

    with make(tokenizer=Bytes()) as model:
        assert model.detokenize(model.tokenize(b"abc")) == b"xxx"
        assert model("abc", max_tokens=2)["usage"]["prompt_tokens"] == 4  # and BOS
