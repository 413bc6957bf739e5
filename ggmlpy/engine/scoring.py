"""The method of `Llama` that scores given texts: how likely a model finds them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from ggmlpy.common.arguments import is_list, kind_of
from ggmlpy.common.prefix import n_common
from ggmlpy.common.progress import tell
from ggmlpy.engine.chat_completions import ChatCompletions
from ggmlpy.engine.generation import Prompt, PromptLogitsCallback, Request, TokenLogprob
from ggmlpy.errors import ArgumentError, BadBatch
from ggmlpy.sampling import SamplingParams

_GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a model finds a continuation of a prompt.

    tokens          those that were scored
    token_logprobs  the natural logarithm of the probability of each, after all tokens before it
    is_greedy       whether each is the most likely one there, as greedy decoding chooses it
    """

    tokens: list[int] = field(default_factory=list)
    token_logprobs: list[float] = field(default_factory=list)
    is_greedy: bool = True

    @property
    def logprob(self) -> float:
        """The sum of `token_logprobs`."""
        return sum(self.token_logprobs, 0.0)

    @classmethod
    def of(cls, scored: Sequence[TokenLogprob]) -> Score:
        """Of the tokens of a continuation."""
        return cls(
            [each.token for each in scored],
            [each.logprob for each in scored],
            all(each.is_greedy for each in scored),
        )


class ScoringMethods(ChatCompletions):
    """A model that scores texts. Results are the same whatever texts are scored together."""

    def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Sequence[Prompt] | None = None,
    ) -> list[Score]:
        """How likely the model finds each continuation after its prompt.

        prompts        a prompt for each continuation, or one for all: a text, or token ids
        continuations  texts, or token ids; None: all but the first token of each prompt is scored,
                       which of a text is mostly BOS

        A text is tokenized with the prompt before it: scored are the tokens from the first on that
        differs from those of the prompt alone. Control tokens in texts are parsed, and BOS is added
        where the file asks for it. What prompts have in common is run once.

        Raises ArgumentError for prompts and continuations that do not match, BadBatch for a prompt
        without tokens or more tokens than a sequence may have, Unsupported for a model that does
        not generate text, or with an encoder.
        """
        self._check_open()
        pairs = self._pairs(prompts, continuations)
        # In this order those that begin alike are near each other, so that the cache holds more.
        order = sorted(range(len(pairs)), key=lambda i: pairs[i][0])
        found = [Score()] * len(pairs)
        for n_done, (i, scored) in enumerate(
            zip(order, self.score_tokens([pairs[i] for i in order], order), strict=True), 1
        ):
            found[i] = Score.of(scored)
            tell("scoring", n_done / len(pairs))
        return found

    def score_tokens(
        self,
        texts: Sequence[tuple[Sequence[int], int]],
        numbers: Sequence[int] | None = None,
        callbacks: Sequence[PromptLogitsCallback] | None = None,
    ) -> Generator[list[TokenLogprob], None, None]:
        """The scores of the tokens of each text from an index on, which is at least 1.

        They come in the order of the texts, each as soon as it and those before it are there.
        `numbers` are those of the texts in messages. A callback gets the logits, see `Request`;
        there is one for each text. Raises as `score` does, before anything runs.
        """
        if not is_list(texts) or not all(is_list(text) and len(text) == 2 for text in texts):
            raise ArgumentError(
                "score_tokens: texts must be a list of pairs: tokens, and the first to be scored"
            )
        if callbacks is not None and not (is_list(callbacks) and len(callbacks) == len(texts)):
            raise ArgumentError(
                f"score_tokens: callbacks must be a list of {len(texts)}, one for each text"
            )
        requests = []
        for i, (tokens, first) in enumerate(texts):
            request = Request(
                tokens,
                0,
                _GREEDY,
                n_top_logprobs=0,
                penalizes_prompt=False,
                score_from=first,
                on_prompt_logits=None if callbacks is None else callbacks[i],
            )
            try:
                self._engine.check(request)
            except BadBatch as error:
                raise BadBatch(f"text {i if numbers is None else numbers[i]}: {error}") from None
            requests.append(request)
        return self._scored(requests)

    def _scored(self, requests: list[Request]) -> Generator[list[TokenLogprob], None, None]:
        # Where nothing is to be scored nothing runs.
        running = [r for r in requests if r.score_from is not None and r.score_from < len(r.prompt)]
        answers = self._answers.follow_all(running)
        with closing(answers):
            for request in requests:
                if request.score_from is not None and request.score_from < len(request.prompt):
                    yield [each for piece in next(answers) for each in piece.prompt_logprobs]
                else:
                    yield []

    def _pairs(
        self, prompts: Prompt | Sequence[Prompt], continuations: Sequence[Prompt] | None
    ) -> list[tuple[list[int], int]]:
        """The tokens of each prompt with its continuation, and where the scored ones begin."""
        listed = _as_prompts(prompts)
        if continuations is None:
            return [(self._scored_tokens(prompt), 1) for prompt in listed]
        if isinstance(continuations, str | bytes) or not isinstance(continuations, Sequence):
            raise ArgumentError(
                f"continuations is {kind_of(continuations)}: it must be a list of texts, or of"
                " lists of token ids"
            )
        if _is_one(prompts):
            listed = listed * len(continuations)
        if len(listed) != len(continuations):
            raise ArgumentError(
                f"there are {len(listed)} prompts and {len(continuations)} continuations: one"
                " prompt, or as many"
            )
        return [
            self._pair(i, *pair) for i, pair in enumerate(zip(listed, continuations, strict=True))
        ]

    def _pair(self, i: int, prompt: Prompt, continuation: Prompt) -> tuple[list[int], int]:
        if isinstance(prompt, str) != isinstance(continuation, str):
            raise ArgumentError(
                f"prompt {i} is {kind_of(prompt)}, its continuation {kind_of(continuation)}: both"
                " must be texts, or both token ids"
            )
        if isinstance(prompt, str) and isinstance(continuation, str):
            alone = self.tokenizer.encode_chat(prompt)
            tokens = self.tokenizer.encode_chat(prompt + continuation)
            n = n_common(alone, tokens)
        else:
            alone = self._prompt_tokens(prompt)
            tokens = alone + (self._prompt_tokens(continuation) if len(continuation) else [])
            n = len(alone)
        if not n:
            raise BadBatch(
                f"prompt {i} and its continuation: the first token of the two cannot be scored, as"
                " no other is before it"
            )
        return tokens, n

    def _scored_tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):  # BOS, but not EOS
            return self.tokenizer.encode_chat(prompt) or self._prompt_tokens(prompt)
        return self._prompt_tokens(prompt)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, bytes) or not isinstance(prompts, str | Sequence):
        raise ArgumentError(
            f"prompts is {kind_of(prompts)}: it must be a text, token ids, or a list of these"
        )
    return [prompts] if _is_one(prompts) else list(prompts)  # type: ignore[list-item,arg-type]


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    """Whether this is one prompt: a text, or token ids."""
    return isinstance(prompts, str) or (
        len(prompts) > 0 and not isinstance(prompts[0], str | Sequence)
    )
