"""Completions and chats."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ggmlpy.common.arguments import kind_of
from ggmlpy.compat.llama_cpp import llama_chat_format
from ggmlpy.compat.llama_cpp.characters import MOST_MORE, whole_characters
from ggmlpy.compat.llama_cpp.completion_form import CompletionForm
from ggmlpy.compat.llama_cpp.evaluation import (
    Ids,
    LogitsProcessorList,
    Scores,
    StoppingCriteriaList,
    as_processor,
)
from ggmlpy.compat.llama_cpp.llama_grammar import LlamaGrammar, own_grammar
from ggmlpy.compat.llama_cpp.llama_tokenizer import BaseLlamaTokenizer
from ggmlpy.compat.llama_cpp.model_view import ModelView
from ggmlpy.compat.llama_cpp.sampling import sampling_params
from ggmlpy.compat.llama_cpp.state import StateMethods
from ggmlpy.engine.completion import Echo, collect
from ggmlpy.engine.generation import Piece, Request
from ggmlpy.errors import ArgumentError

R = TypeVar("R")


class Completions(StateMethods):
    """A model that completes texts and answers messages."""

    model_path: str
    verbose: bool
    tokenizer_: BaseLlamaTokenizer
    spm_infill = False
    chat_format: str | None = None
    chat_handler: llama_chat_format.LlamaChatCompletionHandler | None = None
    _model: ModelView
    _chat_handlers: dict[str, llama_chat_format.LlamaChatCompletionHandler]

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The tokens of a text in UTF-8. `add_bos` adds BOS if the model wants one, `special`
        parses control tokens."""
        return self.tokenizer_.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of tokens that follow `prev_tokens`; with `special` also of control tokens."""
        return self.tokenizer_.detokenize(tokens, prev_tokens=prev_tokens, special=special)

    def create_completion(
        self,
        prompt: str | list[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - the default of llama-cpp-python
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: dict[int, float] | None = None,
    ) -> Any:
        """Text after a prompt: a dict, or with `stream` an iterator of dicts.

        `docs/llama-cpp-python.md` says what differs from `ggmlpy.Llama.create_completion`. Raises
        ValueError for a prompt that does not fit the context, and for `logprobs` of a model without
        `logits_all`.
        """
        tokens = self._prompt_tokens(prompt, suffix)
        if tokens[:2] == [self._model.token_bos()] * 2:
            text = self._model.token_get_text(self._model.token_bos())
            warnings.warn(
                f"the prompt begins with two {text!r}: the model wants one", RuntimeWarning,
                stacklevel=2,
            )  # fmt: skip
        if not tokens:
            raise ArgumentError("the prompt has no tokens: there must be at least one")
        _check_kind("max_tokens", max_tokens, isinstance(max_tokens, Integral), "a whole number")
        _check_kind("logprobs", logprobs, isinstance(logprobs, Integral), "a whole number")
        _check_kind("suffix", suffix, isinstance(suffix, str), "a string")
        criteria = stopping_criteria
        _check_kind("stopping_criteria", criteria, callable(criteria), "a StoppingCriteriaList")
        if len(tokens) >= self._n_ctx:
            raise ValueError(
                f"Requested tokens ({len(tokens)}) exceed context window of {self._n_ctx}:"
                f" n_ctx={len(tokens) + max(max_tokens or 0, 1)} would do"
            )
        if logprobs is not None and not self._logits_all:
            raise ValueError(
                "logprobs is not supported for models created with logits_all=False: use"
                " logits_all=True"
            )
        room = self._n_ctx - len(tokens)
        n_predict = room if max_tokens is None or max_tokens <= 0 else min(max_tokens, room)
        self._begin_from_cache(tokens)
        self._advance_seed(seed)
        request = Request(
            tokens,
            min(n_predict + MOST_MORE, room),
            sampling_params(
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                typical_p=typical_p,
                temperature=temperature,
                repeat_penalty=repeat_penalty,
                frequency_penalty=frequency_penalty,
                presence_penalty=presence_penalty,
                penalty_last_n=self.last_n_tokens_size,
                seed=self._draw_seed(),
                logit_bias=logit_bias,
                mirostat=(mirostat_mode, mirostat_tau, mirostat_eta),
            ),
            stop=[stop] if isinstance(stop, str) else list(stop or ()),
            n_top_logprobs=logprobs,
            logits_processor=_over_arrays(as_processor(logits_processor)),
            stopping_criteria=_over_arrays(stopping_criteria),
            grammar=own_grammar(grammar),
            score_from=1 if echo and logprobs is not None and not stream else None,
            penalizes_prompt=False,  # llama-cpp-python's samplers see the answer only
        )
        form = CompletionForm(
            self.model_path if model is None else model,
            self._model_in_use.tokenizer,
            len(tokens),
            offset=len(prompt),
            echo=self._echo(prompt, tokens, is_scored=logprobs is not None) if echo else None,
            suffix=suffix if suffix is not None and self._model.token_suffix() < 0 else "",
        )
        pieces = self._pieces(request, n_predict)
        return form.chunks(pieces) if stream else collect(pieces, form)

    create_completion.__qualname__ = "Llama.create_completion"  # which errors name

    if TYPE_CHECKING:
        __call__ = create_completion
    else:

        @wraps(create_completion)
        def __call__(self, *args, **more):
            return self.create_completion(*args, **more)  # which a subclass may override

    def _pieces(self, request: Request, n_predict: int) -> Iterator[Piece]:
        """The pieces of an answer of `n_predict` tokens, or some more that complete a character,
        after which the sequence has its tokens."""
        engine = self._model_in_use.engine
        engine.check(request)
        return self._followed(request, n_predict)

    def _followed(self, request: Request, n_predict: int) -> Iterator[Piece]:
        tokens = list(request.prompt)
        model = self._model_in_use
        pieces = model._answers.follow(request)
        try:
            for piece in whole_characters(pieces, model.tokenizer, n_predict):
                if piece.token is not None:
                    tokens.append(piece.token)
                yield piece
        finally:
            self._take_slot()
            self.n_tokens = min(self.n_tokens, len(tokens))  # without drafts of more
        self._keep_in_cache(tokens)
        if self.verbose:
            print(self._model_in_use.timings, file=sys.stderr)

    def _echo(self, prompt: str | list[int], tokens: list[int], *, is_scored: bool) -> Echo:
        if isinstance(prompt, str):
            text = prompt
        else:
            text = self.detokenize(list(prompt)).decode(errors="ignore")
        hides_bos = tokens[0] == self._model.token_bos()
        return Echo(text, tokens, hides_bos, special=isinstance(prompt, str), is_scored=is_scored)

    def _prompt_tokens(self, prompt: str | list[int], suffix: str | None) -> list[int]:
        """The tokens of a prompt; with a suffix those of a text with a gap between the two, if the
        model has tokens for that."""
        m = self._model
        fills = suffix is not None and m.token_suffix() >= 0 and m.token_prefix() >= 0
        if isinstance(prompt, str):
            special = not fills
            before = (
                self.tokenize(prompt.encode(), add_bos=False, special=special) if prompt else []
            )
        else:
            before = [int(token) for token in prompt]
        is_whole = not isinstance(prompt, str) and suffix is None
        bos, sep = m.token_bos(), m.token_sep()
        first = [bos] if m.add_bos_token() and bos >= 0 and not is_whole else []
        wants_end = (m.add_eos_token() or sep >= 0) and not is_whole and not fills
        last = [sep if sep >= 0 else m.token_eos()] if wants_end else []
        if not fills:
            return [*first, *before, *last]
        assert suffix is not None
        after = self.tokenize(suffix.encode(), add_bos=False, special=False) if suffix else []
        parts = [[m.token_prefix(), *before], [m.token_suffix(), *after]]
        if self.spm_infill:
            parts.reverse()
        middle = [m.token_middle()] if m.token_middle() >= 0 else []
        return [*first, *parts[0], *parts[1], *middle]

    def create_chat_completion(
        self,
        messages: list[Any],
        functions: list[Any] | None = None,
        function_call: Any = None,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - the default of llama-cpp-python
        seed: int | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: dict[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:
        """The answer to messages: a dict, or with `stream` an iterator of dicts.

        It is that of `chat_handler`, else of the handler of `chat_format`.
        """
        name = self.chat_format or ""
        handler = self.chat_handler or self._chat_handlers.get(name)
        if handler is None:
            handler = llama_chat_format.get_chat_completion_handler(name)
        return handler(
            llama=self,  # type: ignore[arg-type]  # the class that ends the chain
            messages=messages,
            functions=functions,
            function_call=function_call,
            tools=tools,
            tool_choice=tool_choice,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            typical_p=typical_p,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            stream=stream,
            stop=stop,
            seed=seed,
            response_format=response_format,
            max_tokens=max_tokens,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repeat_penalty=repeat_penalty,
            tfs_z=tfs_z,
            mirostat_mode=mirostat_mode,
            mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta,
            model=model,
            logits_processor=logits_processor,
            grammar=grammar,
            logit_bias=logit_bias,
        )

    create_chat_completion.__qualname__ = "Llama.create_chat_completion"

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """`create_chat_completion` with the classes of the openai package as results."""
        try:
            from openai.types.chat import ChatCompletion, ChatCompletionChunk
        except ImportError:
            raise ImportError(
                "create_chat_completion_openai_v1 needs the openai package: pip install openai"
            ) from None
        answer = self.create_chat_completion(*args, **kwargs)
        if kwargs.get("stream", False):
            return (ChatCompletionChunk(**chunk) for chunk in answer)
        return ChatCompletion(**answer)


def _over_arrays(
    function: Callable[[Ids, Scores], R] | None,
) -> Callable[[Sequence[int], Scores], R] | None:
    """A function of lists of tokens that calls one of arrays of tokens."""
    return None if function is None else partial(_with_array, function)


def _with_array(function: Callable[[Ids, Scores], R], tokens: Sequence[int], logits: Scores) -> R:
    return function(np.array(tokens, np.intc), logits)


def _check_kind(name: str, value: object, is_right: bool, must_be: str) -> None:
    """Raise ArgumentError, a TypeError too, for an argument that is neither right nor None."""
    if value is not None and not is_right:
        raise ArgumentError(f"{name} is {kind_of(value)}: it must be {must_be}, or None")
