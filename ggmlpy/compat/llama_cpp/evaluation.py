"""`eval`, `sample` and `generate`: one sequence, token by token.

Its tokens are those of the engine's first slot, so that completions and these methods reuse what
the other has run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import as_whole, parsed
from ggmlpy.compat.llama_cpp.constants import LLAMA_DEFAULT_SEED
from ggmlpy.compat.llama_cpp.llama_grammar import LlamaGrammar, own_grammar
from ggmlpy.compat.llama_cpp.sampling import sampling_params
from ggmlpy.errors import BadBatch, CacheFull, GgmlpyError
from ggmlpy.grammar import Matcher
from ggmlpy.memory.batch import Batch, check_tokens
from ggmlpy.sampling import Sampler

if TYPE_CHECKING:
    from ggmlpy.compat.llama_cpp.llama_speculative import LlamaDraftModel
    from ggmlpy.llama import Llama as Engine

Ids = NDArray[np.intc]
Scores = NDArray[np.single]
LogitsProcessor = Callable[[Ids, Scores], Scores]
StoppingCriteria = Callable[[Ids, Scores], bool]


class LogitsProcessorList(list[LogitsProcessor]):
    """Functions that change logits [n_vocab], each after the one before it."""

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


def as_processor(
    given: LogitsProcessor | Iterable[LogitsProcessor] | None,
) -> LogitsProcessor | None:
    """The argument `logits_processor`, which may be a plain list of functions, as one function."""
    return given if given is None or callable(given) else LogitsProcessorList(given)


class StoppingCriteriaList(list[StoppingCriteria]):
    """Functions of the tokens and the last logits [n_vocab]: generation stops if one is true."""

    def __call__(self, input_ids: Ids, logits: Scores) -> bool:
        return any([criterion(input_ids, logits) for criterion in self])


class MinTokensLogitsProcessor:
    """Bans the end of the text until `min_tokens` tokens are generated."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


class DecodeError(BadBatch, RuntimeError):
    """Tokens that cannot be run: a RuntimeError, as llama-cpp-python raises."""


class Evaluation:
    """The state of the sequence: `n_tokens`, `input_ids` [n_ctx], `scores` [n_ctx, n_vocab]."""

    _engine: Engine | None = None  # None: closed, or a vocabulary only

    def __init__(
        self, n_vocab: int, n_ctx: int, *, seed: int, n_batch: int, logits_all: bool
    ) -> None:
        self._n_vocab = n_vocab
        self._n_ctx = n_ctx
        self._seed = seed
        self.n_batch = n_batch
        self._logits_all = logits_all
        self.last_n_tokens_size = 64
        self.draft_model: LlamaDraftModel | None = None
        self._free()

    def _free(self) -> None:
        """Begin anew, with the least memory."""
        self.n_tokens = 0
        self.input_ids: Ids = np.zeros(self._n_ctx, np.intc)
        self._all_scores: Scores | None = None  # memory is taken for rows that are written
        self._scored: list[int] = []  # the tokens that its first rows follow
        self._rows: Scores = np.zeros((0, self._n_vocab), np.single)  # of the last tokens run
        self._run_tokens = 0  # how many the sequence had then

    @property
    def _model_in_use(self) -> Engine:
        """The model. Raises RuntimeError if it was closed, or only its vocabulary was loaded."""
        if self._engine is None:
            raise RuntimeError("the model was closed, or loaded with vocab_only=True")
        return self._engine

    def _take_slot(self) -> None:
        """Have the tokens that the engine has run."""
        if self._engine is None:
            return
        tokens = self._engine.held_tokens.get(0, [])
        self.input_ids[: len(tokens)] = tokens
        self.n_tokens = len(tokens)

    @property
    def _input_ids(self) -> Ids:
        return self.input_ids[: self.n_tokens]

    @property
    def eval_tokens(self) -> deque[int]:
        """The tokens of the sequence."""
        return deque(self._input_ids.tolist(), maxlen=self._n_ctx)

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The logits after each token, or without `logits_all` after the last one."""
        n = self._n_ctx if self._logits_all else 1
        return deque(self._scores.tolist(), maxlen=n)

    @property
    def _scores(self) -> Scores:
        """[n_tokens, n_vocab]"""
        return self.scores[: self.n_tokens]

    @property
    def scores(self) -> Scores:
        """The logits after each of the first `n_tokens` tokens [n_ctx, n_vocab].

        What was not kept is computed when it is read, which gives the same bits.
        """
        scores = self._scores_of_all()
        tokens = self._input_ids.tolist()
        n = next((i for i, (a, b) in enumerate(zip(self._scored, tokens, strict=False)) if a != b),
                 min(len(self._scored), len(tokens)))  # fmt: skip
        if n < len(tokens):
            self._run(tokens[:n], tokens[n:], len(tokens) - n, keep=True)
        return scores

    def _scores_of_all(self) -> Scores:
        if self._all_scores is None:
            self._all_scores = np.zeros((self._n_ctx, self._n_vocab), np.single)
        return self._all_scores

    # --- running tokens ---

    def set_seed(self, seed: int) -> None:
        """Set the seed of the draws that follow. Raises ArgumentError for no whole number."""
        self._seed = parsed(as_whole, "Llama.set_seed", "seed", seed)

    def _draw_seed(self) -> int | None:
        """The seed of a sampler; None for a random one."""
        seed = self._seed & 0xFFFFFFFF
        return None if seed == LLAMA_DEFAULT_SEED else seed

    def _advance_seed(self, seed: int | None) -> None:
        """Set the seed of one completion: a call's, else the next one of the model's."""
        if seed is not None:
            self.set_seed(seed)
        elif self._draw_seed() is not None:
            self.set_seed(Random(self._seed).randint(0, 2**32 - 2))

    def reset(self) -> None:
        """Begin a new sequence. What was run is reused by one that begins alike."""
        self.n_tokens = 0

    def eval(self, tokens: Sequence[int]) -> None:
        """Run tokens after those of the sequence.

        Raises DecodeError (a RuntimeError) for tokens outside the vocabulary, CacheFull (one too)
        for more than `n_ctx`.
        """
        self._eval(tokens, self._logits_all)

    def _eval(self, tokens: Sequence[int], all_rows: bool, n_rows: int = 1) -> None:
        """Run tokens; logits are kept after all of them, or after the last `n_rows`."""
        new = [int(token) for token in tokens]
        try:
            check_tokens(new, self._n_vocab)
        except BadBatch as error:
            raise DecodeError(str(error)) from None
        n = self.n_tokens + len(new)
        if n > self._n_ctx:
            raise CacheFull(f"eval: {n} tokens, n_ctx is {self._n_ctx}: use a larger n_ctx")
        if not new:
            return
        before = self._input_ids.tolist()
        self._run(before, new, len(new) if all_rows else n_rows, keep=all_rows)
        self.input_ids[self.n_tokens : n] = new
        self.n_tokens = n

    def _run(self, before: list[int], tokens: list[int], n_rows: int, *, keep: bool) -> None:
        """Run `tokens`, and of those before them what the memory does not hold.

        The logits after the last `n_rows` of them become `_rows`, with `keep` those of `scores`.
        """
        engine, answers = self._model_in_use.engine, self._model_in_use._answers
        every = [*before, *tokens]
        first = len(every) - n_rows  # the first token whose logits are wanted
        found = []
        with answers.exclusive():
            engine.check_idle_step()
            slot = engine.slots.all[0]
            if slot.owner is not None:
                raise GgmlpyError(
                    "a completion is running: read its chunks to their end, or close it"
                )
            lora = engine.adapters.scales()
            engine.context.use_lora(slot.seq, lora)
            n_past = engine.slots.reuse(slot, every[: first + 1], engine.context.changes_of(lora))
            while n_past < len(every):
                batch = Batch()
                piece = every[n_past : n_past + self.n_batch]
                for at, token in enumerate(piece, n_past):
                    batch.add(token, at, (0,), at >= first)
                slot.tokens = every[:n_past]
                rows = engine.context.decode_batch(batch)
                n_past += len(piece)
                slot.tokens = every[:n_past]
                found.append(rows[:, : self._n_vocab].copy())
        self._rows, self._run_tokens = np.concatenate(found), len(every)
        if keep:
            self._scores_of_all()[first : len(every)] = self._rows
            self._scored = every

    # --- sampling ---

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
    ) -> int:
        """A token drawn from the logits after the last token, or after token `idx`.

        Raises RuntimeError before anything was run.
        """
        sampler = self._new_sampler(
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            temperature=temp,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            mirostat=(mirostat_mode, mirostat_tau, mirostat_eta),
        )
        matcher = self._matcher_of(grammar)
        at = self.n_tokens - 1 if idx is None else idx
        return self._sample(sampler, matcher, as_processor(logits_processor), at)

    def _new_sampler(self, **options: Any) -> Sampler:
        params = sampling_params(
            penalty_last_n=self.last_n_tokens_size, seed=self._draw_seed(), **options
        )
        return Sampler(params, self._n_vocab)

    def _matcher_of(self, grammar: LlamaGrammar | None) -> Matcher | None:
        """The state of a grammar at its beginning."""
        own = own_grammar(grammar)
        return None if own is None else self._model_in_use.engine.matchers.start(own)

    def _sample(
        self,
        sampler: Sampler,
        matcher: Matcher | None,
        logits_processor: LogitsProcessor | None,
        at: int,
    ) -> int:
        """A token from the logits after token `at`, which the sampler and grammar accept."""
        logits = self._logits_after(at)
        if logits_processor is not None:
            logits = logits_processor(self.input_ids[: at + 1], logits.copy())
        token = sampler.sample(logits, None if matcher is None else matcher.allowed())
        sampler.accept(token)
        if matcher is not None and token not in self._model_in_use.tokenizer.eog_ids:
            matcher.accept(token)
        return token

    def _logits_after(self, at: int) -> Scores:
        """The logits after token `at` [n_vocab]. Raises RuntimeError if there is none."""
        if not 0 <= at < self.n_tokens:
            raise RuntimeError(
                f"sample: there are no logits after token {at}, {self.n_tokens} tokens were run:"
                " call eval first"
            )
        back = self.n_tokens - at  # 1: the last
        if self._run_tokens == self.n_tokens and back <= len(self._rows):
            row: Scores = self._rows[-back]
            return row
        row = self.scores[at]
        return row

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        grammar: LlamaGrammar | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """The tokens that follow `tokens`, without end: also behind the end of the text.

        With `reset` the sequence begins anew, else `tokens` follow what it has. Tokens that are
        sent to the generator follow the one that it yielded. With a `draft_model` the text is the
        same.
        """
        sampler = self._new_sampler(
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            temperature=temp,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            mirostat=(mirostat_mode, mirostat_tau, mirostat_eta),
        )
        matcher, processor = self._matcher_of(grammar), as_processor(logits_processor)
        if reset:
            self.reset()
        pending, drafted = [int(token) for token in tokens], list[int]()
        while True:
            n_given = self.n_tokens + len(pending)
            self._eval([*pending, *drafted], self._logits_all, n_rows=1 + len(drafted))
            at = n_given - 1
            while True:
                token = self._sample(sampler, matcher, processor, at)
                at += 1
                if stopping_criteria is not None and stopping_criteria(
                    self.input_ids[:at], self._logits_after(at - 1)
                ):
                    return
                sent = yield token
                agreed = at < self.n_tokens and int(self.input_ids[at]) == token and not sent
                if not agreed:
                    break
            self.n_tokens = at  # drafted tokens behind it were wrong
            pending = [token, *(int(each) for each in sent or ())]
            drafted = self._draft(pending)

    def _draft(self, pending: list[int]) -> list[int]:
        """What the draft model proposes to follow `pending`."""
        if self.draft_model is None:
            return []
        every = np.array([*self._input_ids.tolist(), *pending], np.intc)
        room = self._n_ctx - len(every)
        return [int(token) for token in self.draft_model(every)[: max(room, 0)]]
