"""Iterators over the answers of one engine, for several readers and threads.

A reader that waits for a piece runs the engine's steps, if no other thread does; else it waits for
the end of that thread's step. Pieces of other answers are queued for their readers, who take them
without waiting for anyone. A request starts when its first piece is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, RLock

from ggmlpy.engine.engine import Engine
from ggmlpy.engine.generation import Piece, Request
from ggmlpy.engine.request_state import Reader
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import GgmlpyError

# Seconds after which a reader looks again at what it waits for: an interrupt may lose a notice.
_LOOK_AGAIN_S = 0.1


@dataclass(eq=False, slots=True)
class Answer:
    """A request, and the pieces of its answer that have not been read."""

    request: Request
    id: int
    n_resets: int  # of all answers, when it started
    pieces: deque[Piece | Exception] = field(default_factory=deque)
    reader: Reader | None = None  # gets them instead
    is_added: bool = False  # to the engine
    is_dropped: bool = False  # by its reader


def ended() -> GgmlpyError:
    """The error of an answer that ends without its last piece."""
    return GgmlpyError("the answer has ended: the model was reset or closed while it was generated")


class Answers:
    """The answers of an engine. Use the engine in an `exclusive` block only."""

    def __init__(self, engine: Engine) -> None:
        self.load_s = 0.0  # shown with the timings
        self._engine = engine
        self._lock = RLock()  # whoever has it uses the engine
        self._turn = RLock()  # whoever waits for an exclusive block has it, so that `step` waits
        self._changed = Condition()  # notified when the lock is free again
        self._depth = 0  # of nested blocks
        self._n_uses = 0  # of the engine, which have ended
        self._n_resets = 0
        self._is_closed = False
        self._to_settle: deque[Answer] = deque()  # to add to the engine, or to cancel there

    def follow(self, request: Request) -> Iterator[Piece]:
        """The pieces of one answer."""
        answer = self._new(request)
        try:
            self._start(answer)
            yield from self._pieces_of(answer)
        finally:
            self._drop(answer)

    def follow_all(self, requests: Sequence[Request]) -> Generator[Iterator[Piece], None, None]:
        """The pieces of many answers, whose requests run together."""
        answers = [self._new(request) for request in requests]
        try:
            for answer in answers:
                self._start(answer)
            for answer in answers:
                yield self._read(answer)
        finally:  # at the end, or when the reader stops early
            for answer in answers:
                self._drop(answer)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """No other thread uses the engine in the block, and it has all requests that have started.

        Blocks may be nested.
        """
        try:
            with self._before_the_next_step(), self._lock:
                self._depth += 1
                try:
                    if self._depth == 1:
                        self._settle()
                    yield
                finally:
                    self._depth -= 1
        finally:
            if self._depth == 0:
                self._free()

    @contextmanager
    def _before_the_next_step(self) -> Iterator[None]:
        """`step` does not take the lock again while this thread waits for it."""
        if self._lock.acquire(blocking=False):  # free, or this thread's already
            try:
                yield
            finally:
                self._lock.release()
        else:
            with self._turn:
                yield

    def reset(self) -> None:
        """End every answer, and clear the memory. Raises GgmlpyError during a step."""
        with self.exclusive():
            self._engine.reset()
            self._n_resets += 1

    def close(self) -> None:
        """End every answer, and let go of the engine. Raises GgmlpyError during a step."""
        with self.exclusive():
            if not self._is_closed:
                self._engine.reset()
                self._n_resets += 1
                self._is_closed = True
                self._to_settle.clear()
                del self._engine

    # --- answers that are not read, but delivered ---

    def begin(self, request: Request, reader: Reader) -> Answer:
        """Start a request whose pieces go to `reader`, in the thread that uses the engine then.

        It runs when `step` or another reader runs the engine.
        """
        answer = self._new(request)
        answer.reader = reader
        self._start(answer)
        return answer

    def end(self, answer: Answer) -> None:
        """Cancel a request of `begin`, unless it is complete. Waits for no other thread."""
        self._drop(answer)

    def step(self, answers: Sequence[Answer]) -> list[Answer]:
        """Run one step of the engine. Which of the answers have ended without a last piece.

        Raises what `Engine.advance` raises.
        """
        with self._turn:  # others first, who wait for the lock
            self._lock.acquire()
        try:
            self._settle()
            if not self._is_closed and self._engine.is_running:
                self._engine.advance()
            return [answer for answer in answers if self._has_ended(answer)]
        finally:
            self._lock.release()
            self._free()

    def _has_ended(self, answer: Answer) -> bool:
        if self._is_closed or answer.n_resets != self._n_resets:
            return True
        return answer.is_added and not self._engine.is_running

    # --- one answer ---

    def _new(self, request: Request) -> Answer:
        if self._is_closed:
            raise GgmlpyError("the model is closed")
        return Answer(request, self._engine.new_id(), self._n_resets)

    def _start(self, answer: Answer) -> None:
        answer.n_resets = self._n_resets
        self._to_settle.append(answer)

    def _drop(self, answer: Answer) -> None:
        """Cancel a request, unless its answer is complete. Waits for no other thread."""
        if not answer.is_dropped:
            answer.is_dropped = True
            self._to_settle.append(answer)
            self._settle_if_free()

    def _read(self, answer: Answer) -> Iterator[Piece]:
        try:
            yield from self._pieces_of(answer)
        finally:
            self._drop(answer)

    def _pieces_of(self, answer: Answer) -> Iterator[Piece]:
        while True:
            piece = self._next_piece(answer)
            if isinstance(piece, Exception):
                raise piece
            if piece.finish_reason is not None:
                answer.is_dropped = True  # the engine has dropped it
            yield piece
            if piece.finish_reason is not None:
                return

    def _next_piece(self, answer: Answer) -> Piece | Exception:
        while not answer.pieces:
            n_uses = self._n_uses
            if not self._lock.acquire(blocking=False):
                self._wait_for(answer, n_uses)
                continue
            try:
                self._settle()
                if not answer.pieces:
                    self._advance(answer)
            finally:
                self._lock.release()
                self._free()
        return answer.pieces.popleft()

    def _wait_for(self, answer: Answer, n_uses: int) -> None:
        """Wait until an answer has a piece, or the engine has been used since."""
        with self._changed:
            self._changed.wait_for(
                lambda: answer.pieces or self._n_uses != n_uses, timeout=_LOOK_AGAIN_S
            )

    # --- with the lock ---

    def _advance(self, answer: Answer) -> None:
        if answer.n_resets != self._n_resets or not self._engine.is_running:
            raise ended()
        self._engine.advance()

    def _settle(self) -> None:
        """Add to the engine what has started, and cancel what was dropped."""
        while self._to_settle:
            answer = self._to_settle.popleft()
            if self._is_closed:
                continue
            if answer.is_dropped:
                self._engine.cancel(answer.id)
            elif not answer.is_added and answer.n_resets == self._n_resets:
                answer.is_added = True
                self._add(answer)

    def _add(self, answer: Answer) -> None:
        if not self._engine.is_running:
            self._engine.timings = Timings(load_s=self.load_s)
        reader = answer.reader or answer.pieces.append
        try:
            self._engine.add(answer.request, reader, answer.id)
        except Exception as error:  # for its reader, who may be in another thread
            reader(error)

    # --- without it ---

    def _free(self) -> None:
        """Tell the others that the engine is free, after the lock was released."""
        with self._changed:
            self._n_uses += 1
            self._changed.notify_all()
        self._settle_if_free()

    def _settle_if_free(self) -> None:
        """Do what others have left to whoever used the engine meanwhile."""
        while self._to_settle and self._depth == 0 and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()
