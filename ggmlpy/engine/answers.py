"""Iterators over the answers of one engine, for several readers and threads.

A reader that waits for a piece runs the engine's steps. Pieces of other answers are queued for
their readers. A request starts when its first piece is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from threading import RLock

from ggmlpy.engine.engine import Engine
from ggmlpy.engine.generation import Piece, Request
from ggmlpy.engine.timings import Timings
from ggmlpy.errors import GgmlpyError


class Answers:
    """The answers of an engine. Hold `lock` to do anything else with the engine."""

    def __init__(self, engine: Engine) -> None:
        self.lock = RLock()  # one step at a time, in whichever thread
        self.load_s = 0.0  # shown with the timings
        self._engine = engine
        self._pieces: dict[int, deque[Piece | Exception]] = {}  # not yet read, by request id

    def follow(self, request: Request) -> Iterator[Piece]:
        """The pieces of one answer."""
        yield from self._pieces_of(self._start(request))

    def follow_all(self, requests: Sequence[Request]) -> Generator[Iterator[Piece], None, None]:
        """The pieces of many answers, whose requests run together."""
        ids: list[int] = []
        try:
            for request in requests:
                ids.append(self._start(request))
            for id in ids:
                yield self._pieces_of(id)
        finally:  # at the end, or when the reader stops early
            for id in ids:
                self._drop(id)

    def reset(self) -> None:
        """End every answer, and clear the memory."""
        with self.lock:
            self._engine.check_idle_step()
            self._engine.reset()
            self._pieces.clear()

    def _start(self, request: Request) -> int:
        with self.lock:
            if not self._engine.is_running:
                self._engine.timings = Timings(load_s=self.load_s)
            pieces: deque[Piece | Exception] = deque()
            id = self._engine.add(request, pieces.append)
            self._pieces[id] = pieces
        return id

    def _pieces_of(self, id: int) -> Iterator[Piece]:
        try:
            while True:
                with self.lock:
                    piece = self._next_piece(id)
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if piece.finish_reason is not None:
                    return
        finally:  # at the end, or when the reader stops early
            self._drop(id)

    def _next_piece(self, id: int) -> Piece | Exception:
        while id in self._pieces:
            if self._pieces[id]:
                return self._pieces[id].popleft()
            if not self._engine.is_running:
                break
            self._engine.advance()
        raise GgmlpyError(
            "the answer has ended: the model was reset or closed while it was generated"
        )

    def _drop(self, id: int) -> None:
        with self.lock:
            self._engine.cancel(id)
            self._pieces.pop(id, None)
