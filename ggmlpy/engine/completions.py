"""Completions, in the form of llama-cpp-python's methods."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from ggmlpy.common import log
from ggmlpy.common.arguments import kind_of
from ggmlpy.engine.answers import Answers
from ggmlpy.engine.completion import ChatForm, Echo, TextForm, collect
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.generation import Piece, Prompt, Request
from ggmlpy.engine.options import CompletionOptions, RequestOptions, keywords
from ggmlpy.engine.request_options import (
    Stop,
    new_request,
    prompt_tokens,
    request_fields,
    sampling_params,
    stop_list,
)
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import ArgumentError, BadBatch, GgmlpyError
from ggmlpy.gguf import Metadata
from ggmlpy.grammar import Grammar, grammar_option
from ggmlpy.sampling import SamplingParams
from ggmlpy.text.tokenizer import Tokenizer

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

    @keywords(CompletionOptions)
    def prepare_completion(
        self, prompt: Prompt, **options: Unpack[CompletionOptions]
    ) -> tuple[Request, TextForm]:
        """What `create_completion` runs, checked, and the form of its result.

        For whoever runs requests by `engine.add`, as servers do. The options are those of
        `create_completion`, and so are the errors.
        """
        request, form = self._text_request(prompt, options)
        self._engine.check(request)
        return request, form

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
        control tokens too, but not that which ends it. With `max_tokens` 0 the prompt is run, and
        nothing else.

        Raises what `create_completion` raises. Runs as it is read.
        """
        request = self._request(
            self._prompt_tokens(prompt),
            sampling,
            max_tokens,
            stop=stop_list(stop),
            grammar=grammar,
            context_shift=context_shift,
            n_keep=n_keep,
            shown_tokens=self.tokenizer.control_ids if special else frozenset(),
        )
        if max_tokens == 0:
            request = replace(request, max_tokens=0)
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
        if not isinstance(prompts, Iterable):
            raise ArgumentError(
                f"generate: prompts is {kind_of(prompts)}: it must be a list of texts"
            )
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
        return sampling_params(options, self.seed)

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
        return prompt_tokens(prompt, self.tokenizer)

    def _prompt_request(self, tokens: list[int], options: RequestOptions) -> Request:
        return self._request(
            tokens,
            self._sampling(options),
            stop=stop_list(options["stop"]),
            n_top_logprobs=options["logprobs"],
            grammar=grammar_option(options["grammar"], options["response_format"]),
            **request_fields(options),
        )

    def _request(
        self, tokens: list[int], sampling: SamplingParams, max_tokens: int | None, **others: Any
    ) -> Request:
        self._check_open()
        n_ctx_seq = self._engine.context.sizes.n_ctx_seq
        return new_request(tokens, sampling, max_tokens, n_ctx_seq, **others)

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
