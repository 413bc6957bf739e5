"""From a request to its state in the engine, checked against what the context can run."""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy.common.arguments import as_int, kind_of, parsed
from ggmlpy.common.quoting import quoted
from ggmlpy.engine.adapters import Adapters
from ggmlpy.engine.context_shift import check_can_shift, n_kept
from ggmlpy.engine.generation import Request
from ggmlpy.engine.request_state import NO_LIMIT, Reader, RequestState
from ggmlpy.errors import ArgumentError, BadBatch, Unsupported
from ggmlpy.grammar import Grammar, Matcher, Matchers
from ggmlpy.memory.batch import check_tokens
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import check_least, room_for
from ggmlpy.sampling import Sampler, SamplingParams
from ggmlpy.text.stopping import StopChecker
from ggmlpy.text.tokenizer import Tokenizer

_ROOM = 256  # tokens of an answer for which a suggested context has room


@dataclass(frozen=True, slots=True)
class Intake:
    """Makes the states of an engine's requests."""

    context: Context
    tokenizer: Tokenizer
    n_vocab: int
    matchers: Matchers
    adapters: Adapters

    def new_state(
        self, request: Request, id: int = -1, reader: Reader | None = None
    ) -> RequestState:
        """The state of a new request; an encoder-decoder model encodes its prompt. Raises what
        `Engine.add` raises."""
        self._check_can_generate()
        if not isinstance(request, Request):
            raise ArgumentError(
                f"Engine.add: request is {kind_of(request)}: it must be a Request, which"
                " Llama.request(prompt, …) makes"
            )
        start = None if self.context.encoder is None else self._start_token()
        n_ctx_seq = self.context.sizes.n_ctx_seq
        if not isinstance(request.sampling, SamplingParams):
            raise ArgumentError(
                f"Request: sampling is {kind_of(request.sampling)}: it must be SamplingParams"
            )
        lora = self.adapters.scales(request.lora)
        check_least("max_tokens", _whole(request, "max_tokens"), 0)
        priority = _whole(request, "priority")
        self._check_slot(request)
        check_tokens(request.prompt, self.n_vocab)
        _check_scored(request, encoded=start is not None)
        tokens = self._first_tokens(request, start)
        matcher, lazy = self._matcher(request), request.lazy_grammar
        n_predict, n_keep, n_limit = request.max_tokens, 0, NO_LIMIT
        if request.context_shift:
            check_least("n_keep", _whole(request, "n_keep"), -1)
            n_keep = n_kept(request, self.tokenizer, n_ctx_seq)
            n_limit = max(len(tokens), n_ctx_seq - 1)
            check_least("n_discard", _whole(request, "n_discard"), 0)
            check_can_shift(self.context.model, self.context.memory, n_keep, request.n_discard)
        else:  # the last token need not be run: one more can be generated than fits the context
            n_predict = min(n_predict, n_ctx_seq - len(tokens) + 1)
        return RequestState(
            id=id,
            request=request,
            priority=priority,
            sampler=Sampler(request.sampling, self.n_vocab, self.tokenizer),
            decoder=self.tokenizer.stream(start=False, shown=request.shown_tokens),
            checker=StopChecker(list(request.stop), n_indent=_whole(request, "n_indent")),
            tokens=tokens,
            n_predict=n_predict,
            reader=reader,
            source=[] if start is None else list(request.prompt),
            first_output=min(request.score_from or len(tokens), len(tokens)) - 1,
            matcher=matcher,
            forced=[] if matcher is None else matcher.force(),
            lazy=None if lazy is None else self.matchers.lazy(lazy, request.shown_tokens),
            n_keep=n_keep,
            n_limit=n_limit,
            lora=lora,
            changes=self.context.changes_of(lora),
        )

    def _check_can_generate(self) -> None:
        if self.context.can_generate:
            return
        model = self.context.model
        has = (
            "logits and embeddings only: Llama.logits and Llama.embed give them"
            if model.has_logits
            else "embeddings only: Llama.embed and `ggmlpy embedding` give them"
        )
        raise Unsupported(
            f"a model of architecture {quoted(model.hparams.architecture)} whose tokens see"
            f" those behind them generates no text: it has {has}"
        )

    def _check_slot(self, request: Request) -> None:
        """Raise ArgumentError for a sequence that there is not."""
        n = self.context.sizes.n_seq_max
        if request.slot is not None and not 0 <= _whole(request, "slot") < n:
            raise ArgumentError(f"slot is {request.slot}: the context has 0 to {n - 1}")

    def _start_token(self) -> int:
        """What the decoder of an encoder-decoder model starts with. Raises Unsupported."""
        named = self.context.model.start_token
        token = self.tokenizer.bos_id if named is None else named
        if token is None or token >= self.n_vocab:
            raise Unsupported(
                "no text can be generated: the model file names no token of its vocabulary that the"
                " decoder starts with, neither a BOS token nor decoder_start_token_id"
            )
        return token

    def _first_tokens(self, request: Request, start: int | None) -> list[int]:
        """The tokens that are decoded first: the prompt, or where it is encoded the `start` token.

        Raises BadBatch for a prompt that does not fit.
        """
        prompt, sizes = list(request.prompt), self.context.sizes
        # Of the last token of a prompt that is only scored, the logits are not needed.
        is_whole = request.max_tokens > 0 or len(prompt) == 1 or start is not None
        tokens = (prompt if is_whole else prompt[:-1]) if start is None else [start]
        if max(len(tokens), 0 if start is None else len(prompt)) > sizes.n_ctx_seq:
            room = room_for(sizes, len(prompt) + min(request.max_tokens, _ROOM))
            raise BadBatch(
                f"the prompt is too long: {len(prompt)} tokens, a sequence may have n_ctx_seq ="
                f" {sizes.n_ctx_seq}; {room} would do"
            )
        if start is not None and len(prompt) > sizes.n_ubatch:
            raise BadBatch(
                f"the prompt is too long: {len(prompt)} tokens, an encoder takes it as a whole, and"
                f" n_ubatch is {sizes.n_ubatch}"
            )
        return tokens

    def _matcher(self, request: Request) -> Matcher | None:
        """Raises ArgumentError, GrammarError, MissingPackage."""
        if request.grammar is None:
            return None
        if not isinstance(request.grammar, Grammar):
            raise ArgumentError(
                f"Request: grammar is {kind_of(request.grammar)}: it must be a Grammar"
            )
        return self.matchers.start(request.grammar)


def _check_scored(request: Request, *, encoded: bool) -> None:
    """Raise ArgumentError or Unsupported unless the prompt tokens asked for can be scored."""
    if request.score_from is None:
        return
    if encoded:
        raise Unsupported(
            "prompt tokens of an encoder-decoder model have no log-probabilities: they are encoded"
        )
    check_least("score_from", _whole(request, "score_from"), 1)


def _whole(request: Request, name: str) -> int:
    """A field of a request that must be a whole number. Raises ArgumentError."""
    whole: int = parsed(as_int, "Request", name, getattr(request, name))
    return whole
