"""Answers for tasks of event loops: one thread runs the engine while any of them is pending.

    loop's thread                                 worker
    reading() --request-->  Answers.begin
                            wake            -->   step, step, … until nothing is pending
    await   <--call_soon_threadsafe--             a piece, an error

The worker ends when nothing is pending, and the next request starts another one. It waits for
nobody in a loop: `Answers.step` blocks while another thread uses the engine. Several loops may use
one worker; pieces of a step wake each of them once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from ggmlpy.common.limits import starting_threads
from ggmlpy.engine.answers import Answer, Answers, ended
from ggmlpy.engine.completion import NO_CHUNK, NO_PIECE, ChatForm, TextForm
from ggmlpy.engine.generation import Piece, Request

Result = TypeVar("Result")


class AsyncAnswers:
    """The answers of an engine to tasks of event loops."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._lock = Lock()  # for what follows
        self._jobs: deque[_Job[Any]] = deque()
        self._pending: dict[Answer, Reader] = {}
        self._worker: Thread | None = None  # the last one
        self._is_running = False
        self._mailboxes: dict[asyncio.AbstractEventLoop, _Mailbox] = {}
        self.n_failed_steps = 0  # the last ones, without one that succeeded

    async def do(self, function: Callable[[], Result]) -> Result:
        """The result of a function, which the worker calls between two steps."""
        job = _Job(function, self._mailbox())
        with self._lock:
            self._jobs.append(job)
            try:
                self._wake()
            except Exception:
                self._jobs.remove(job)  # a later worker would run it for nobody
                raise
        try:
            await job.wait()
        finally:
            job.is_cancelled = True
        return job.result()

    async def collect_all(self, requests: list[Request]) -> AsyncGenerator[list[Piece], None]:
        """All pieces of each of many answers, whose requests run together, in their order."""
        readers: list[Reader] = []
        try:
            for request in requests:
                readers.append(self._begin(request))
            for reader in readers:
                yield await reader.all()
        finally:
            for reader in readers:
                self._end(reader)

    async def chunks(
        self, request: Request, form: TextForm | ChatForm
    ) -> AsyncGenerator[dict[str, Any], None]:
        """One answer as the chunks of a form."""
        with self.reading(request) as reader:
            for chunk in form.chunks(reader.arrived()):
                if chunk is NO_CHUNK:
                    await reader.wait()
                else:
                    yield chunk

    @contextmanager
    def reading(self, request: Request) -> Iterator[Reader]:
        """The reader of one answer. Leaving the block before its end cancels the request."""
        reader = self._begin(request)
        try:
            yield reader
        finally:
            self._end(reader)

    def join(self) -> None:
        """Wait for the end of the worker, which has nothing to do any more."""
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.join()

    # --- in a loop's thread ---

    def _begin(self, request: Request) -> Reader:
        reader = Reader(self._mailbox())
        try:
            with self._lock:
                reader.answer = self._answers.begin(request, reader.deliver)
                self._pending[reader.answer] = reader
                self._wake()
        except Exception:
            if hasattr(reader, "answer"):
                self._end(reader)  # a later worker would run it for nobody
            raise
        return reader

    def _end(self, reader: Reader) -> None:
        with self._lock:
            self._pending.pop(reader.answer, None)
        if not reader.is_complete:
            self._answers.end(reader.answer)

    def _mailbox(self) -> _Mailbox:
        loop = asyncio.get_running_loop()
        with self._lock:
            for each in [each for each in self._mailboxes if each.is_closed()]:
                del self._mailboxes[each]
            return self._mailboxes.setdefault(loop, _Mailbox(loop))

    def _wake(self) -> None:
        """Have a worker. Called with the lock."""
        if not self._is_running:
            self._worker = Thread(target=self._run, name="ggmlpy-async")
            with starting_threads():
                self._worker.start()
            self._is_running = True

    # --- in the worker ---

    def _run(self) -> None:
        while True:
            with self._lock:
                job = self._jobs.popleft() if self._jobs else None
                for answer in [a for a, reader in self._pending.items() if reader.is_complete]:
                    del self._pending[answer]
                pending = list(self._pending)
                if job is None and not pending:
                    self._is_running = False
                    return
            if job is not None:
                job.run()
            else:
                self._step(pending)

    def _step(self, pending: list[Answer]) -> None:
        try:
            for answer in self._answers.step(pending):
                self._fail(answer, ended())
            self.n_failed_steps = 0
        except Exception as error:  # of the step, not of one request
            self.n_failed_steps += 1
            for answer in pending:
                self._fail(answer, error)
        for answer in pending:
            reader = self._pending.get(answer)
            if reader is not None and reader.mailbox.loop.is_closed():
                self._end(reader)

    def _fail(self, answer: Answer, error: Exception) -> None:
        reader = self._pending.get(answer)
        if reader is not None and not reader.is_complete:
            self._answers.end(answer)
            reader.deliver(error)


class _Mailbox:
    """What is to be called in a loop's thread: many calls wake the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._is_due = False

    def put(self, call: Callable[[], None]) -> None:
        """From any thread."""
        self._calls.append(call)
        if self._is_due:
            return
        self._is_due = True
        try:
            self.loop.call_soon_threadsafe(self._empty)
        except RuntimeError:  # it was closed: nobody waits any more
            self._calls.clear()
            self._is_due = False

    def _empty(self) -> None:
        self._is_due = False  # before the first call is taken: a later one wakes the loop again
        while self._calls:
            self._calls.popleft()()


class _Waiting:
    """One task that waits for a call in its loop's thread."""

    def __init__(self, mailbox: _Mailbox) -> None:
        self.mailbox = mailbox
        self._waiter: asyncio.Future[None] | None = None

    def _is_ready(self) -> bool:
        raise NotImplementedError

    async def wait(self) -> None:
        while not self._is_ready():
            self._waiter = self.mailbox.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _notify(self) -> None:
        """In the loop's thread."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Reader(_Waiting):
    """The pieces of one answer, for the task that waits for them."""

    answer: Answer

    def __init__(self, mailbox: _Mailbox) -> None:
        super().__init__(mailbox)
        self._pieces: deque[Piece | Exception] = deque()
        self.is_complete = False  # its last piece, or an error, was delivered

    def deliver(self, piece: Piece | Exception) -> None:
        """From any thread."""
        if isinstance(piece, Exception) or piece.finish_reason is not None:
            self.is_complete = True
        self._pieces.append(piece)
        self.mailbox.put(self._notify)

    def _is_ready(self) -> bool:
        return bool(self._pieces)

    async def next(self) -> Piece:
        """The next piece. Raises the error that has ended the answer."""
        await self.wait()
        return self._take()

    async def all(self) -> list[Piece]:
        """All pieces that are left."""
        pieces = [await self.next()]
        while pieces[-1].finish_reason is None:
            pieces.append(await self.next())
        return pieces

    def arrived(self) -> Generator[Piece, None, None]:
        """The pieces, NO_PIECE where the next one has not come."""
        while True:
            piece = self._take() if self._pieces else NO_PIECE
            yield piece
            if piece.finish_reason is not None:
                return

    def _take(self) -> Piece:
        piece = self._pieces.popleft()
        if isinstance(piece, Exception):
            raise piece
        return piece


class _Job(_Waiting, Generic[Result]):
    """A function that the worker calls, for the task that waits for its result."""

    def __init__(self, function: Callable[[], Result], mailbox: _Mailbox) -> None:
        super().__init__(mailbox)
        self._function = function
        self._context = copy_context()  # of the task, with its listener of progress
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self.is_cancelled = False

    def run(self) -> None:
        """In the worker."""
        if self.is_cancelled:
            return
        try:
            self._results.append(self._context.run(self._function))
        except BaseException as error:  # for the task
            self._error = error
        self.mailbox.put(self._notify)

    def _is_ready(self) -> bool:
        return bool(self._results) or self._error is not None

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._results[0]
