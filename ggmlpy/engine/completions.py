"""Text after prompts and answers in conversations, as llama-cpp-python's methods give them.

Every option is a keyword of its own, so that `help()` and editors show it; the overloads say what
`stream` makes of the result.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from numbers import Integral
from typing import Any, Literal, Unpack, overload

import numpy as np

from ggmlpy.engine.answers import Answers
from ggmlpy.engine.completion import ChatForm, TextForm, collect
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.generation import (
    ChatOptions,
    CompletionOptions,
    LogitsProcessor,
    Piece,
    Prompt,
    Request,
)
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import BadBatch, GgmlpyError, SamplingError
from ggmlpy.gguf import Metadata
from ggmlpy.sampling import SamplingParams
from ggmlpy.text.chat import ChatTemplate
from ggmlpy.text.tokenizer import Tokenizer

Stop = str | Sequence[str] | None
Chunks = Generator[dict[str, Any], None, None]


class Completions:
    """What `Llama` writes; it says what there is to write with.

    May be used from several threads: what they ask for runs together, as sequences allow.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, metadata: Metadata, model_path: str
    ) -> None:
        self._engine = engine
        self.tokenizer = tokenizer
        self.metadata = metadata
        self.model_path = model_path
        self.seed: int | None = None
        self.verbose = False
        self._closed = False
        self._answers = Answers(engine)
        self._chat_template: ChatTemplate | None = None

    @property
    def engine(self) -> Engine:
        """What runs requests side by side: add them one by one, take their pieces step by step."""
        return self._engine

    @overload
    def create_completion(
        self,
        prompt: Prompt,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CompletionOptions],
    ) -> dict[str, Any]: ...
    @overload
    def create_completion(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[CompletionOptions]
    ) -> Chunks: ...
    @overload
    def create_completion(
        self, prompt: Prompt, *, stream: bool, **options: Unpack[CompletionOptions]
    ) -> dict[str, Any] | Chunks: ...
    def create_completion(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        min_keep: int = 1,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        penalty_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
        logits_processor: LogitsProcessor | None = None,
        seed: int | None = None,
        stop: Stop = None,
        logprobs: int | None = None,
        echo: bool = False,
        model: str | None = None,
        stream: bool = False,
    ) -> dict[str, Any] | Chunks:
        """Text after `prompt`: llama-cpp-python's completion dict, or with `stream` its chunks.

        prompt             a text, or token ids
        max_tokens         None or below 1: until the context is full
        temperature        0 always takes the likeliest token
        top_k              keep the k likeliest tokens; 0: all
        top_p, min_p, typical_p   keep the likeliest up to p, those above p times the likeliest,
                           the most typical up to p; at least `min_keep` of them
        repeat_penalty     divides the logits of the last `penalty_last_n` tokens; 1: no penalty
        frequency_penalty  taken from a logit for every time that the token was seen
        presence_penalty   taken from it once
        logit_bias         {token: added to its logit}; -inf bans it
        logits_processor   f(tokens, logits) -> logits
        seed               of the draws; None: the model's seed, or a fresh one
        stop               a text, or several, that end what is written before them
        logprobs           how many of the likeliest tokens to tell of each token
        echo               put the prompt before the text
        model              the name to give in the result
        stream             an iterator of chunks; nothing runs before the first is asked for

        Raises BadBatch for a prompt that does not fit the context, SamplingError for an option out
        of its range, TokenizerError for text that has no tokens.
        """
        sampling = self._sampling(locals())
        request, form = self._text_request(
            prompt, max_tokens, sampling, stop, logprobs, logits_processor, echo, model
        )
        return self._complete(request, form, stream)

    __call__ = create_completion

    def pieces(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        max_tokens: int | None = 16,
        stop: Stop = None,
    ) -> Iterator[Piece]:
        """Text after `prompt` as it comes, and the token of each piece: a completion unwrapped.

        Raises what `create_completion` raises; nothing runs before the first piece is asked for.
        """
        request, _ = self._text_request(prompt, max_tokens, sampling, stop, None, None, False, None)
        self._engine.check(request)
        return self._answers.follow(request)

    def request(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        min_keep: int = 1,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        penalty_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
        logits_processor: LogitsProcessor | None = None,
        seed: int | None = None,
        stop: Stop = None,
        logprobs: int | None = None,
    ) -> Request:
        """A prompt with options of its own, those of `create_completion`: for `generate`, among
        other prompts, or for `engine.add`. Raises what `create_completion` raises."""
        sampling = self._sampling(locals())
        request, _ = self._text_request(
            prompt, max_tokens, sampling, stop, logprobs, logits_processor, False, None
        )
        self._engine.check(request)
        return request

    def generate(
        self,
        prompts: Iterable[Prompt | Request],
        *,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        min_keep: int = 1,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        penalty_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
        logits_processor: LogitsProcessor | None = None,
        seed: int | None = None,
        stop: Stop = None,
        logprobs: int | None = None,
        echo: bool = False,
        model: str | None = None,
    ) -> Chunks:
        """Completions of many prompts, run together on up to `n_seq_max` sequences.

        Yields the dicts of `create_completion` in the order of the prompts, each as soon as it and
        those before it are done. The options are those of `create_completion`, for every prompt; a
        prompt with options of its own (a seed, stop texts) is put as `request(prompt, …)`. Each
        text is the one that its prompt gets alone; with `kv_unified` sums may be rounded in another
        order (docs/promises.md). Raises what `create_completion` raises, before anything runs.
        """
        if isinstance(prompts, str | bytes):
            raise TypeError("prompts is one text: pass a list of texts")
        sampling = self._sampling(locals())
        asked = []
        for i, prompt in enumerate(prompts):
            try:
                if isinstance(prompt, Request):
                    n_prompt = len(prompt.prompt)
                    form = TextForm(model or self.model_path, self.tokenizer, n_prompt)
                    asked.append((prompt, form))
                else:
                    asked.append(
                        self._text_request(
                            prompt, max_tokens, sampling, stop, logprobs, logits_processor,
                            echo, model,
                        )
                    )  # fmt: skip
                self._engine.check(asked[-1][0])
            except BadBatch as error:
                raise BadBatch(f"prompts[{i}]: {error}") from None
        return self._collect_all(asked)

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[ChatOptions],
    ) -> dict[str, Any]: ...
    @overload
    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> Chunks: ...
    @overload
    def create_chat_completion(
        self, messages: Sequence[dict[str, Any]], *, stream: bool, **options: Unpack[ChatOptions]
    ) -> dict[str, Any] | Chunks: ...
    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        max_tokens: int | None = None,
        temperature: float = 0.2,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        min_keep: int = 1,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        penalty_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
        logits_processor: LogitsProcessor | None = None,
        seed: int | None = None,
        stop: Stop = None,
        logprobs: bool = False,
        top_logprobs: int | None = None,
        model: str | None = None,
        stream: bool = False,
    ) -> dict[str, Any] | Chunks:
        """The assistant's answer to `messages`, by the file's chat template.

        Options are those of `create_completion`, but for `logprobs`, which asks for them, and
        `top_logprobs`, how many of the likeliest tokens to tell. Raises TemplateError for messages
        or a template that do not render, and what `create_completion` raises.
        """
        sampling = self._sampling(locals())
        template = self.chat_template
        # A model's own template writes its BOS: one more would change what the model sees.
        prompt = template.render(messages)
        tokens = self.tokenizer.encode(prompt, add_bos=template.is_default, special=True)
        stops = [*_as_list(stop), *template.stops()]
        n_top = (top_logprobs or 0) if logprobs else None
        request = self._request(tokens, max_tokens, sampling, stops, n_top, logits_processor)
        form = ChatForm(model or self.model_path, self.tokenizer, len(tokens))
        return self._complete(request, form, stream)

    @property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template, or a plain one where it has none. Raises TemplateError."""
        if self._chat_template is None:
            self._chat_template = ChatTemplate.from_metadata(self.metadata)
        return self._chat_template

    @property
    def timings(self) -> Timings:
        """Of what ran since the engine was last idle."""
        return self._engine.timings

    # --- requests and their answers ---

    def _check_open(self) -> None:
        """Raise GgmlpyError if the model was closed."""
        if self._closed:
            raise GgmlpyError(f"{self.model_path}: the model is closed")

    def _sampling(self, arguments: Mapping[str, Any]) -> SamplingParams:
        """What of a call's arguments, by name, says how tokens are chosen."""
        chosen = {field.name: arguments[field.name] for field in fields(SamplingParams)}
        return SamplingParams(**chosen | {"seed": self._seed(chosen["seed"])})

    def _seed(self, seed: int | None) -> int | None:
        """A call's seed, else the model's. As in llama.cpp -1 is none: a fresh one."""
        seed = self.seed if seed is None else seed
        return None if seed == -1 else seed

    def _text_request(
        self,
        prompt: Prompt,
        max_tokens: int | None,
        sampling: SamplingParams,
        stop: Stop,
        logprobs: int | None,
        logits_processor: LogitsProcessor | None,
        echo: bool,
        model: str | None,
    ) -> tuple[Request, TextForm]:
        tokens = self._prompt_tokens(prompt)
        request = self._request(
            tokens, max_tokens, sampling, _as_list(stop), logprobs, logits_processor
        )
        shown = ""
        if echo:
            shown = prompt if isinstance(prompt, str) else self.tokenizer.decode(tokens)
        return request, TextForm(model or self.model_path, self.tokenizer, len(tokens), echo=shown)

    def _prompt_tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt, add_bos=True, special=True)
        elif isinstance(prompt, Sequence | np.ndarray) and not isinstance(
            prompt, bytes | bytearray
        ):
            tokens = [_token(token) for token in prompt]
        else:
            raise TypeError(f"a prompt is a string or token ids, not {type(prompt).__name__}")
        if not tokens:  # a file without BOS, and nothing to start from
            raise BadBatch("the prompt is empty, and this vocabulary has no token to begin with")
        return tokens

    def _request(
        self,
        tokens: list[int],
        max_tokens: int | None,
        sampling: SamplingParams,
        stop: Sequence[str],
        n_top_logprobs: int | None,
        logits_processor: LogitsProcessor | None,
    ) -> Request:
        self._check_open()
        _check_count("max_tokens", max_tokens)
        if logits_processor is not None and not callable(logits_processor):
            raise SamplingError(f"logits_processor is {logits_processor!r}: must be a function")
        _check_count("logprobs", n_top_logprobs, least=0)
        room = self._engine.context.sizes.n_ctx_seq  # the engine keeps to what is left of it
        wanted = room if max_tokens is None or max_tokens < 1 else max_tokens
        return Request(tokens, wanted, sampling, stop, n_top_logprobs, logits_processor)

    def _complete(
        self, request: Request, form: TextForm | ChatForm, stream: bool
    ) -> dict[str, Any] | Chunks:
        self._engine.check(request)
        pieces = self._answers.follow(request)
        if stream:
            return form.chunks(pieces)
        result: dict[str, Any] = collect(pieces, form)
        if self.verbose:
            print(self.timings, file=sys.stderr)
        return result

    def _collect_all(self, asked: list[tuple[Request, TextForm]]) -> Chunks:
        answers = self._answers.follow_all([request for request, _ in asked])
        with closing(answers):
            for pieces, (_, form) in zip(answers, asked, strict=True):
                yield collect(pieces, form)


def _token(token: Any) -> int:
    if isinstance(token, str):
        raise TypeError("a prompt is one text or token ids, not a list of texts: see generate()")
    try:
        return operator.index(token)
    except TypeError:
        raise TypeError(f"a prompt's token ids are whole numbers, {token!r} is none") from None


def _as_list(stop: Stop) -> list[str]:
    if stop is None:
        return []
    if not isinstance(stop, str | Sequence):
        raise SamplingError(f"stop is {stop!r}: must be a text, or a list of texts")
    return [stop] if isinstance(stop, str) else list(stop)


def _check_count(name: str, value: Any, least: int | None = None) -> None:
    """Raise SamplingError unless it is None or a whole number, of at least `least`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value is None or (whole and (least is None or operator.index(value) >= least)):
        return
    must = "an integer" if least is None else f"an integer >= {least}"
    raise SamplingError(f"{name} is {value!r}: must be {must}, or None")
