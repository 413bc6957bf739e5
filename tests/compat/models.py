"""The packaged model as llama-cpp-python's scripts load it."""

from __future__ import annotations

from typing import Any

from ggmlpy import packaged_model
from ggmlpy.compat.llama_cpp import Llama

PROMPT = "Once upon a time"


def make(**options: Any) -> Llama:
    """A model with a context of 128 tokens."""
    return Llama(str(packaged_model()), **{"n_ctx": 128, "verbose": False, **options})


def text_of(llm: Llama, **options: Any) -> str:
    """A text that depends on the seed."""
    text: str = llm(PROMPT, max_tokens=16, temperature=1.5, **options)["choices"][0]["text"]
    return text
