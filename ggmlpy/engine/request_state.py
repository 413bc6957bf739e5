"""The state of a request in the engine, and its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ggmlpy.engine.generation import Piece, Request
from ggmlpy.sampling import Sampler
from ggmlpy.text.stopping import StopChecker
from ggmlpy.text.tokenizer import StreamDecoder


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
    tokens: list[int]  # the prompt and the tokens generated after it
    n_predict: int  # tokens to generate, as far as the context of a sequence allows
    reader: Reader | None  # receives the pieces; None: `step` returns them
    last_step: int = 0  # the last one that processed tokens of it
    n_past: int = 0  # tokens that the memory holds
    n_decoded: int = 0  # tokens generated
    n_preempted: int = 0  # how often
    # While it waits for a prefix: the id of the request that runs it, and how many tokens it has.
    provider: int = -1
    n_provided: int = 0

    @property
    def n_pending(self) -> int:
        """Tokens to process before the next one can be sampled."""
        return len(self.tokens) - self.n_past

    @property
    def is_decoding(self) -> bool:
        """Whether the next step runs a token that was generated, and no others before it."""
        return self.n_decoded > 0 and self.n_pending == 1
