"""Subclasses that override methods: what llama-cpp-python calls through `self` is called so here.

Counts are llama-cpp-python 0.3.36's, of the same class.
"""

from __future__ import annotations

from typing import Any

from ggmlpy import packaged_model
from ggmlpy.compat.llama_cpp import Llama, _logger


class Counting(Llama):
    """Counts the calls of two methods."""

    n_completions = 0
    n_embeds = 0

    def create_completion(self, *args: Any, **more: Any) -> Any:
        self.n_completions += 1
        return super().create_completion(*args, **more)

    def embed(self, *args: Any, **more: Any) -> Any:
        self.n_embeds += 1
        return super().embed(*args, **more)


def test_overridden_methods_are_called() -> None:
    with Counting(str(packaged_model()), n_ctx=256, verbose=False, embedding=True) as llm:
        llm("Hi", max_tokens=2)
        llm.create_chat_completion([{"role": "user", "content": "x"}], max_tokens=2)
        llm.create_embedding("x")
        assert (llm.n_completions, llm.n_embeds) == (2, 1)


def test_the_logger_lets_through_what_it_is_told_to(capsys: Any) -> None:
    level = _logger.logger.level
    try:
        for verbose, shown in ((True, "info error"), (False, "error")):
            _logger.set_verbose(verbose)
            _logger.llama_log_callback(1, b"info ", None)
            _logger.llama_log_callback(3, b"error", None)
            assert capsys.readouterr().err == shown
    finally:
        _logger.logger.setLevel(level)
