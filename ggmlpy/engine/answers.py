"""Answers of one engine, each read piece by piece, by several readers and threads in turns.

Whoever waits for a piece takes the engine's steps; what these add to other answers is kept until
their readers ask. A request starts when its first piece is asked for: what is not read never runs.
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
    """Readers of an engine's answers. Hold `lock` to do anything else with the engine."""

    def __init__(self, engine: Engine) -> None:
        self.lock = RLock()  # one step at a time, whichever thread it runs on
        self.load_s = 0.0  # shown with the timings
        self._engine = engine
        self._pieces: dict[int, deque[Piece | Exception]] = {}  # made, not yet asked for, by id

    def follow(self, request: Request) -> Iterator[Piece]:
        """The pieces of one answer."""
        yield from self._pieces_of(self._start(request))

    def follow_all(self, requests: Sequence[Request]) -> Generator[Iterator[Piece], None, None]:
        """The pieces of many answers, which are written together."""
        ids: list[int] = []
        try:
            for request in requests:
                ids.append(self._start(request))
            for id in ids:
                yield self._pieces_of(id)
        finally:  # all done, or left early
            for id in ids:
                self._drop(id)

    def reset(self) -> None:
        """End every answer, and forget what the memory holds."""
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
        finally:  # read to the end, or left early
            self._drop(id)

    def _next_piece(self, id: int) -> Piece | Exception:
        while id in self._pieces:
            if self._pieces[id]:
                return self._pieces[id].popleft()
            if not self._engine.is_running:
                break
            self._engine.advance()
        raise GgmlpyError("the text cannot go on: the model was reset while it was written")

    def _drop(self, id: int) -> None:
        with self.lock:
            self._engine.cancel(id)
            self._pieces.pop(id, None)
