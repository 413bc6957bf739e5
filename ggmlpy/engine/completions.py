"""Completions and chat completions, in the form of llama-cpp-python's methods."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from numbers import Integral
from typing import Any, Literal, Unpack, overload

import numpy as np

from ggmlpy.common import log
from ggmlpy.common.arguments import kind_of
from ggmlpy.engine.answers import Answers
from ggmlpy.engine.chat_prompts import ChatPrompts
from ggmlpy.engine.completion import ChatForm, Echo, TextForm, collect
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.generation import Piece, Prompt, Request
from ggmlpy.engine.options import (
    ChatOptions,
    CompletionOptions,
    LogitsCallback,
    LoraScales,
    RequestOptions,
    StoppingCallback,
    keywords,
)
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import ArgumentError, BadBatch, GgmlpyError, SamplingError
from ggmlpy.gguf import Metadata
from ggmlpy.grammar import Grammar, grammar_option
from ggmlpy.sampling import SamplingParams
from ggmlpy.text.chat import ChatTemplate
from ggmlpy.text.tokenizer import Tokenizer

Stop = str | Sequence[str] | None
_NO_LIMIT = 2**62  # tokens of an answer
Chunks = Generator[dict[str, Any], None, None]


class Completions:
    """The methods of `Llama` that generate text.

    They may be called from several threads; requests run together as far as sequences allow.
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
        self._prompts: ChatPrompts | None = None

    @property
    def engine(self) -> Engine:
        """Runs requests together: add them one by one, and take their pieces step by step."""
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
    @keywords(CompletionOptions)
    def create_completion(
        self, prompt: Prompt, *, stream: bool = False, **options: Unpack[CompletionOptions]
    ) -> dict[str, Any] | Chunks:
        """Text after `prompt`: llama-cpp-python's completion dict, or with `stream` its chunks.

        prompt             a text, or token ids
        max_tokens         None or below 1: until the context is full, or with `context_shift`
                           without a limit; but 0 with `echo`: no text
        temperature        divides the logits; 0 always takes the most likely token
        top_k              keep the k most likely tokens; 0: all
        top_p              keep the most likely tokens until their probabilities reach p
        min_p              keep tokens that are at least p times as likely as the most likely one
        typical_p          keep the most typical tokens until their probabilities exceed p
        min_keep           keep at least so many in each of these steps
        repeat_penalty     divides the logits of the last `penalty_last_n` tokens; 1: no penalty
        frequency_penalty  subtracted from a logit for each occurrence among them
        presence_penalty   subtracted from the logit of any of them
        penalty_last_n     how many of the last tokens the penalties consider; 0: none, -1: all
        logit_bias         {token id: value added to its logit}; -inf bans the token
        logits_processor   f(tokens, logits) -> logits
        seed               of the draws; None: the model's seed, or a random one
        samplers           the sampling steps in their order: names of llama.cpp, and own steps
        top_n_sigma        keep logits within so many standard deviations of the largest; 0: all
        xtc_probability    how often XTC excludes the most likely tokens; 0: never
        xtc_threshold      their least probability, of which XTC leaves one
        dynatemp_range     the temperature is up to so much lower or higher, by the entropy
        dynatemp_exponent  of the entropy, which is 1 at its maximum
        dry_multiplier     of DRY's penalty on tokens that extend a repetition; 0: no penalty
        dry_base           of its power of the repetition's length
        dry_allowed_length beyond which there is a penalty
        dry_penalty_last_n how many of the last tokens DRY considers; 0: none, -1: all
        dry_sequence_breakers
                           texts beyond which a repetition is not followed
        mirostat_mode      1 or 2: mirostat in place of the filters; 0: none
        mirostat_tau       the surprise that it aims at, in bits
        mirostat_eta       how fast it learns
        adaptive_target    the probability near which adaptive_p prefers tokens; below 0: off
        adaptive_decay     of adaptive_p's mean of past probabilities
        stop               one or several strings, before which the text ends
        stopping_criteria  f(tokens, logits) -> whether the text ends before the next token
        logprobs           how many of the most likely tokens to report for each token, with `echo`
                           for those of the prompt too
        grammar            what the text must be: a `Grammar`, or the text of one in GBNF
        response_format    the same as in OpenAI's API: {"type": "json_object"}, or a JSON schema
        priority           of the requests that run together: lower values go first
        context_shift      a full context loses the older half of its tokens, and the text goes on
        n_keep             tokens of the prompt that stay then, besides BOS; -1: all
        lora               {adapter: scale}, of `load_lora`: the adapters of this request; None: all
                           that are loaded, each with its own scale
        echo               include the prompt in the text
        model              the model's name in the result
        stream             return an iterator of chunks, which runs as it is read

        Raises BadBatch for a prompt that does not fit the context, SamplingError for an option out
        of its range, ArgumentError for a priority that is no integer and for an adapter that is not
        loaded, TokenizerError for text that cannot be tokenized, GrammarError for a grammar or
        schema that cannot be used, MissingPackage for one where llguidance is not installed.
        """
        request, form = self._text_request(prompt, options)
        return self._complete(request, form, stream)

    __call__ = create_completion

    def pieces(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        max_tokens: int | None = 16,
        stop: Stop = None,
        grammar: Grammar | None = None,
        context_shift: bool = False,
        n_keep: int = 0,
        special: bool = False,
    ) -> Iterator[Piece]:
        """The pieces of a completion, which are text with its token. With `special` the text has
        control tokens too, but not that which ends it.

        Raises what `create_completion` raises. Runs as it is read.
        """
        tokens = self._prompt_tokens(prompt)
        request = self._request(
            tokens,
            sampling,
            max_tokens,
            _as_list(stop),
            grammar=grammar,
            context_shift=context_shift,
            n_keep=n_keep,
        )
        if special:
            request = replace(request, shown_tokens=self.tokenizer.control_ids)
        self._engine.check(request)
        return self._answers.follow(request)

    @keywords(RequestOptions)
    def request(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Request:
        """A prompt with options of its own, for `generate` or `engine.add`.

        The options are those of `create_completion`, and so are the errors.
        """
        request = self._prompt_request(self._prompt_tokens(prompt), options)
        self._engine.check(request)
        return request

    @keywords(CompletionOptions)
    def generate(
        self, prompts: Iterable[Prompt | Request], **options: Unpack[CompletionOptions]
    ) -> Chunks:
        """Completions of many prompts, which run together on up to `n_seq_max` sequences.

        Yields the dicts of `create_completion` in the order of the prompts, each as soon as it and
        those before it are complete. The options are those of `create_completion` and apply to
        every prompt; `request(prompt, …)` is a prompt with options of its own. Each prompt gets the
        text that it would get alone. Raises what `create_completion` raises, before anything runs.
        """
        if isinstance(prompts, str | bytes):
            raise ArgumentError("generate: prompts is one text: it must be a list of texts")
        return self._collect_all(self._all_requests(prompts, options))

    def _all_requests(
        self, prompts: Iterable[Prompt | Request], options: CompletionOptions
    ) -> list[tuple[Request, TextForm]]:
        """The requests of `generate`, checked."""
        requests = []
        for i, prompt in enumerate(prompts):
            try:
                if isinstance(prompt, Request):
                    if prompt.score_from is not None:
                        raise ArgumentError(
                            f"generate: prompts[{i}] has score_from = {prompt.score_from}: use"
                            " score, or engine.add"
                        )
                    requests.append((prompt, self._form(options["model"], len(prompt.prompt))))
                else:
                    requests.append(self._text_request(prompt, options))
                self._engine.check(requests[-1][0])
            except BadBatch as error:
                raise BadBatch(f"prompts[{i}]: {error}") from None
        return requests

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
    @keywords(ChatOptions, temperature=0.2, max_tokens=None, logprobs=False)
    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> dict[str, Any] | Chunks:
        """The assistant's answer to `messages`, which the file's chat template makes a prompt of.

        Options are those of `create_completion`, except that `logprobs` is a switch, and
        `top_logprobs` how many of the most likely tokens to report, and these:

        tools                 functions that the model may call, as in OpenAI's API
        tool_choice           "auto", "none", "required", or a function that must be called
        parallel_tool_calls   False: one call in an answer at most
        chat_template_kwargs  further variables of the template, as {"enable_thinking": False}
        reasoning_format      "none" leaves reasoning in the content; else it is the message's
                              `reasoning_content`
        reasoning_budget      after so many tokens the reasoning is ended; -1: never

        Calls are in the message's `tool_calls`, of a stream in pieces, and the `finish_reason` is
        "tool_calls". Raises TemplateError for messages or a template that cannot be rendered, and
        what `create_completion` raises.
        """
        request, form = self._chat_request(messages, options)
        return self._complete(request, form, stream)

    def _chat_request(
        self, messages: Sequence[dict[str, Any]], options: ChatOptions
    ) -> tuple[Request, ChatForm]:
        made = self._chat_prompts.make(messages, options)
        request = self._request(
            made.tokens,
            self._sampling(options),
            options["max_tokens"],
            [*_as_list(options["stop"]), *self.chat_template.stops()],
            (options["top_logprobs"] or 0) if options["logprobs"] else None,
            options["logits_processor"],
            options["priority"],
            options["stopping_criteria"],
            made.grammar,
            options["context_shift"],
            options["n_keep"],
            options["lora"],
        )
        processor = self._chat_prompts.limited(made, request.logits_processor, options)
        request = replace(
            request,
            shown_tokens=made.shown_tokens,
            grammar_behind=made.grammar_behind,
            logits_processor=processor,
            stopping_criteria=self._chat_prompts.ended(made, request.stopping_criteria),
        )
        model, n_prompt = options["model"] or self.model_path, len(made.tokens)
        return request, ChatForm(model, self.tokenizer, n_prompt, made.parser)

    @property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template, or a plain one if it has none. Raises TemplateError."""
        return self._chat_prompts.template

    @property
    def _chat_prompts(self) -> ChatPrompts:
        if self._prompts is None:
            template = ChatTemplate.from_metadata(self.metadata)
            self._prompts = ChatPrompts(template, self.tokenizer)
        return self._prompts

    @property
    def timings(self) -> Timings:
        """Timings since the engine was last idle."""
        return self._engine.timings

    # --- requests and their answers ---

    def _check_open(self) -> None:
        """Raise GgmlpyError if the model was closed."""
        if self._closed:
            raise GgmlpyError(f"{self.model_path}: the model is closed")

    def _sampling(self, options: Mapping[str, Any]) -> SamplingParams:
        """The options that are sampling parameters. The seed is a call's, else the model's."""
        params = {field.name: options[field.name] for field in fields(SamplingParams)}
        seed = self.seed if params["seed"] is None else params["seed"]
        return SamplingParams(**params | {"seed": None if seed == -1 else seed})  # as llama.cpp

    def _text_request(self, prompt: Prompt, options: CompletionOptions) -> tuple[Request, TextForm]:
        tokens = self._prompt_tokens(prompt)
        request = self._prompt_request(tokens, options)
        echo = None
        if options["echo"]:
            echo = self._echo(prompt, tokens, is_scored=options["logprobs"] is not None)
            request = replace(
                request,
                max_tokens=0 if options["max_tokens"] == 0 else request.max_tokens,
                score_from=1 if echo.is_scored else None,
            )
        return request, self._form(options["model"], len(tokens), echo)

    def _echo(self, prompt: Prompt, tokens: list[int], *, is_scored: bool) -> Echo:
        is_text = isinstance(prompt, str)
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode_prompt(tokens)
        hides_bos = is_text and self.tokenizer.add_bos and tokens[0] == self.tokenizer.bos_id
        return Echo(text, tokens, hides_bos, special=is_text, is_scored=is_scored)

    def _form(self, model: str | None, n_prompt: int, echo: Echo | None = None) -> TextForm:
        return TextForm(model or self.model_path, self.tokenizer, n_prompt, echo=echo)

    def _prompt_tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt, add_bos=True, special=True)
        elif isinstance(prompt, Sequence | np.ndarray) and not isinstance(
            prompt, bytes | bytearray
        ):
            tokens = [_token(token) for token in prompt]
        else:
            raise ArgumentError(f"prompt is {kind_of(prompt)}: it must be a string or token ids")
        if not tokens:
            why = ", and the vocabulary has no BOS token" if isinstance(prompt, str) else ""
            raise BadBatch(f"the prompt is empty{why}: it must have at least one token")
        return tokens

    def _prompt_request(self, tokens: list[int], options: RequestOptions) -> Request:
        return self._request(
            tokens,
            self._sampling(options),
            options["max_tokens"],
            _as_list(options["stop"]),
            options["logprobs"],
            options["logits_processor"],
            options["priority"],
            options["stopping_criteria"],
            grammar_option(options["grammar"], options["response_format"]),
            options["context_shift"],
            options["n_keep"],
            options["lora"],
        )

    def _request(
        self,
        tokens: list[int],
        sampling: SamplingParams,
        max_tokens: int | None,
        stop: Sequence[str],
        n_top_logprobs: int | None = None,
        logits_processor: LogitsCallback | None = None,
        priority: int = 0,
        stopping_criteria: StoppingCallback | None = None,
        grammar: Grammar | None = None,
        context_shift: bool = False,
        n_keep: int = 0,
        lora: LoraScales | None = None,
    ) -> Request:
        self._check_open()
        _check_count("max_tokens", max_tokens)
        _check_function("logits_processor", logits_processor)
        _check_function("stopping_criteria", stopping_criteria)
        _check_count("logprobs", n_top_logprobs, least=0)
        _check_count("n_keep", n_keep, least=-1)
        if max_tokens is None or max_tokens < 1:  # the engine stops at the end of the context
            max_tokens = _NO_LIMIT if context_shift else self._engine.context.sizes.n_ctx_seq
        return Request(
            tokens,
            max_tokens,
            sampling,
            stop,
            n_top_logprobs,
            logits_processor,
            priority,
            stopping_criteria,
            grammar=grammar,
            context_shift=context_shift,
            n_keep=n_keep,
            lora=lora,
        )

    def _complete(
        self, request: Request, form: TextForm | ChatForm, stream: bool
    ) -> dict[str, Any] | Chunks:
        self._engine.check(request)
        pieces = self._answers.follow(request)
        if stream:
            return form.chunks(pieces)
        result: dict[str, Any] = collect(pieces, form)
        log.show(str(self.timings), printed=self.verbose)
        return result

    def _collect_all(self, requests: list[tuple[Request, TextForm]]) -> Chunks:
        answers = self._answers.follow_all([request for request, _ in requests])
        with closing(answers):
            for pieces, (_, form) in zip(answers, requests, strict=True):
                yield collect(pieces, form)
        log.show(str(self.timings), printed=self.verbose)


def _token(token: Any) -> int:
    if isinstance(token, str):
        raise ArgumentError(
            "prompt is a list of texts: it must be one text or token ids; see generate()"
        )
    try:
        return operator.index(token)
    except TypeError:
        raise ArgumentError(f"prompt has the token id {token!r}: it must be an integer") from None


def _as_list(stop: Stop) -> list[str]:
    if stop is None:
        return []
    if not isinstance(stop, str | Sequence):
        raise SamplingError(f"stop is {stop!r}: must be a string, or a list of strings")
    return [stop] if isinstance(stop, str) else list(stop)


def _check_function(name: str, value: Any) -> None:
    """Raise SamplingError unless `value` is None or a function."""
    if value is not None and not callable(value):
        raise SamplingError(f"{name} is {value!r}: must be a function")


def _check_count(name: str, value: Any, least: int | None = None) -> None:
    """Raise SamplingError unless `value` is None or an integer, of at least `least`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value is None or (whole and (least is None or operator.index(value) >= least)):
        return
    must = "an integer" if least is None else f"an integer >= {least}"
    raise SamplingError(f"{name} is {value!r}: must be {must}, or None")
