"""Tokenizers over bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any

from ggmlpy.compat.llama_cpp.model_view import ModelView
from ggmlpy.gguf import GGUFFile
from ggmlpy.text.tokenizer import Tokenizer


class BaseLlamaTokenizer(ABC):
    """What `Llama(tokenizer=…)` takes."""

    @abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """The tokens of a text in UTF-8. `add_bos` adds BOS if the model wants one, `special`
        parses control tokens."""

    @abstractmethod
    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of tokens that follow `prev_tokens`; with `special` also of control tokens."""


class LlamaTokenizer(BaseLlamaTokenizer):
    """The tokenizer of a model file."""

    def __init__(self, llama: Any) -> None:
        """`llama` is a `Llama`."""
        self._model: ModelView = llama._model

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        return self._model.tokenize(text, add_bos=add_bos, special=special)

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        return self._model.detokenize(tokens, special=special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        return self.tokenize(text.encode(errors="ignore"), add_bos=add_bos, special=special)

    def decode(self, tokens: list[int]) -> str:
        return self.detokenize(tokens).decode(errors="ignore")

    @classmethod
    def from_ggml_file(cls, path: str) -> LlamaTokenizer:
        """The tokenizer of a file, without its weights."""
        file = GGUFFile.open(path)  # which stays open as long as its vocabulary is used
        tokenizer = Tokenizer.from_metadata(file.metadata, file.name)
        return cls(SimpleNamespace(_model=ModelView(file, tokenizer)))


class LlamaHFTokenizer(BaseLlamaTokenizer):
    """A tokenizer of the transformers library."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self.hf_tokenizer = hf_tokenizer

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        ids = self.hf_tokenizer.encode(text.decode(errors="ignore"), add_special_tokens=special)
        return [int(id) for id in ids]

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        if prev_tokens is None:
            return self._decoded(tokens, special)
        before = self._decoded(prev_tokens, special)
        return self._decoded([*prev_tokens, *tokens], special)[len(before) :]

    def _decoded(self, tokens: list[int], special: bool) -> bytes:
        text: str = self.hf_tokenizer.decode(tokens, skip_special_tokens=not special)
        return text.encode(errors="ignore")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str) -> LlamaHFTokenizer:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise ImportError(
                "LlamaHFTokenizer.from_pretrained needs the transformers package:"
                " pip install transformers"
            ) from None
        return cls(AutoTokenizer.from_pretrained(pretrained_model_name_or_path))
