"""The state of a request in the engine, and its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from ggmlpy.draft import DraftLength
from ggmlpy.engine.generation import Piece, Progress, Request
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.grammar import LazyMatcher, Matcher
from ggmlpy.memory.state import Changes, SequenceState
from ggmlpy.runtime.lora import Scales
from ggmlpy.sampling import Sampler
from ggmlpy.text.stopping import StopChecker
from ggmlpy.text.tokenizer import StreamDecoder

NO_LIMIT = 2**62  # tokens


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of one request's answer, or the error that ended it."""

    id: int
    piece: Piece | Exception


Reader = Callable[[Piece | Exception], None]


@dataclass(eq=False, slots=True)
class RequestState:
    """A request in progress."""

    id: int
    request: Request
    priority: int  # the request's: lower values go first
    sampler: Sampler
    decoder: StreamDecoder
    checker: StopChecker
    tokens: list[int]  # the prompt, or what the decoder starts with, and the tokens generated
    n_predict: int  # tokens to generate, as far as the context of a sequence allows
    reader: Reader | None  # receives the pieces; None: `step` returns them
    source: list[int] = field(default_factory=list)  # the prompt, where it is encoded
    last_step: int = 0  # the last one that processed tokens of it
    n_past: int = 0  # tokens that the memory holds
    n_decoded: int = 0  # tokens generated
    n_preempted: int = 0  # how often
    n_new: int = 1  # tokens that the last step has added
    matcher: Matcher | None = None  # of the grammar that holds; it has accepted `forced` too
    forced: list[int] = field(default_factory=list)  # what must come next
    lazy: LazyMatcher | None = None  # of the request's lazy grammar, whose matcher comes of it
    # The index of the first token whose logits are needed and have not been used: that of the last
    # token, or before it where prompt tokens are scored or several tokens are decoded at a time.
    first_output: int = 0
    # Where a full context is shifted: how many of the first tokens stay, and how many can be held
    # before it is full.
    n_keep: int = 0
    n_limit: int = NO_LIMIT
    # While it waits for a prefix: the id of the request that runs it, and how many tokens it has.
    provider: int = -1
    n_provided: int = 0
    held: SequenceState | None = None  # a shifted context, while it waits for cells
    draft: list[int] = field(default_factory=list)  # what the step runs behind its tokens
    draft_length: DraftLength = field(default_factory=DraftLength)
    lora: Scales = ()  # the adapters that its tokens have
    changes: Changes = ()  # of the model: these, and the control vector
    # Times of its arrival, its first start and its first token, in seconds of perf_counter.
    added_s: float = field(default_factory=perf_counter)
    started_s: float = 0.0
    first_s: float = 0.0
    n_reused: int = 0  # prompt tokens that were held when it started
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    has_reported: bool = False  # how far its prompt is

    def timings(self, seq: int) -> AnswerTimings:
        """Of the answer, at its end in sequence `seq`."""
        now = perf_counter()
        first = self.first_s or now
        started = self.started_s or first
        return AnswerTimings(
            n_prompt=len(self.request.prompt),
            n_reused=self.n_reused,
            n_decoded=self.n_decoded,
            n_drafts=self.n_drafts,
            n_drafted=self.n_drafted,
            n_accepted=self.n_accepted,
            n_preempted=self.n_preempted,
            waited_s=started - self.added_s,
            prompt_s=first - started,
            decode_s=now - first,
            stop=self.checker.stopped,
            seq=seq,
        )

    @property
    def reports_progress(self) -> bool:
        """Whether what is run is of the prompt, and its request wants to know."""
        return self.request.reports_progress and not self.n_decoded

    def progress(self) -> Progress:
        """Of the prompt, of which `n_past` tokens are held."""
        spent_s = perf_counter() - self.started_s
        return Progress(len(self.request.prompt), self.n_reused, self.n_past, spent_s)

    @property
    def n_pending(self) -> int:
        """Tokens to process before the next one can be sampled."""
        return len(self.tokens) - self.n_past

    @property
    def n_room(self) -> int:
        """Tokens that can be run before the context must be shifted."""
        return self.n_limit - self.n_past

    def cut(self, n: int, n_limit: int) -> None:
        """Lose `n` tokens behind the first `n_keep`: a context shift."""
        # A new list: what follows the old one, such as prompt lookup, must see that it was cut.
        self.tokens = self.tokens[: self.n_keep] + self.tokens[self.n_keep + n :]
        self.n_past -= n
        self.first_output -= n
        self.n_limit = n_limit

    @property
    def reusable(self) -> list[int]:
        """The tokens that need not be run where their K and V are held."""
        return self.tokens[: self.first_output]

    def n_outputs(self, n: int) -> int:
        """How many of the next `n` tokens, at least one, give logits: the last ones."""
        return max(0, self.n_past + n - max(self.n_past, self.first_output))

    @property
    def is_decoding(self) -> bool:
        """Whether the next step runs tokens that the last one added, and no others before them."""
        return self.n_decoded > 0 and self.n_pending <= self.n_new

    @property
    def is_complete(self) -> bool:
        """Whether its grammar allows nothing more."""
        return self.matcher is not None and not self.forced and self.matcher.is_finished
