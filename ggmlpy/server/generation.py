"""The answers of one HTTP request: its requests run together, whole or as they come."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from ggmlpy.engine.async_answers import AsyncAnswers, Reader
from ggmlpy.engine.completion import NO_CHUNK, ChatForm, TextForm, collect
from ggmlpy.engine.generation import Piece, Request
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.hosted import Hosted
from ggmlpy.server.options import read_run

_MOST_ANSWERS = 2048
_MANY = 128  # tokens and log-probabilities: more may take longer than a millisecond to write


class OwnForm(ABC):
    """The form of an API that is not OpenAI's."""

    @abstractmethod
    def chunks(self, pieces: Iterator[Piece]) -> Generator[dict[str, Any], None, None]:
        """What a stream tells of the pieces, NO_CHUNK for each NO_PIECE."""

    @abstractmethod
    def result(self, pieces: Iterator[Piece]) -> dict[str, Any]:
        """The whole of an answer."""


Form = TextForm | ChatForm | OwnForm
Made = tuple[Request, Form]


@dataclass(eq=False, slots=True)
class Choice:
    """One answer."""

    request: Request
    form: Form
    note: Callable[[AnswerTimings, str], None]  # called at its end, with why it ended
    timings: AnswerTimings = field(default_factory=AnswerTimings)  # the last ones
    # Of its tokens, if they are asked for; where there are none, its end's.
    logprobs: list[float] = field(default_factory=list)

    @property
    def n_told(self) -> int:
        """How much is told of a token: itself, and its log-probabilities."""
        return 1 + (self.request.n_top_logprobs or 0)

    def noted(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces, of which at least the last one has timings."""
        for piece in pieces:
            self.logprobs += [scored.logprob for scored in piece.logprobs]
            if piece.end_logprob is not None and not self.logprobs:
                self.logprobs.append(piece.end_logprob.logprob)
            if piece.timings is not None:
                self.timings = piece.timings
                if piece.finish_reason is not None:
                    self.note(piece.timings, piece.finish_reason)
            yield piece


class Generation:
    """The choices of one HTTP request, in an engine that has let it in."""

    def __init__(self, call: Call, hosted: Hosted, choices: Sequence[Choice]) -> None:
        self.hosted = hosted
        self.choices = list(choices)
        self._call = call

    @property
    def _answers(self) -> AsyncAnswers:
        return self.hosted.llm.answers

    async def whole(self) -> list[dict[str, Any]]:
        """The results of all choices, each in its form."""
        with ExitStack() as stack:
            readers = [
                stack.enter_context(self._answers.reading(each.request)) for each in self.choices
            ]
            found = []
            n_all = 0
            for choice, reader in zip(self.choices, readers, strict=True):
                pieces = list(choice.noted(iter(await reader.all())))
                n = choice.n_told * max(len(pieces), len(choice.request.prompt))
                n_all += n
                make = partial(_result, pieces, choice.form)
                found.append(make() if n < _MANY else await self._call.in_pool(make))
            self._call.has_large_answer = n_all >= _MANY
            return found

    async def chunks(self) -> AsyncGenerator[list[tuple[int, dict[str, Any]]], None]:
        """What is new of the choices, as chunks of their forms with the choice's index."""
        if len(self.choices) == 1:
            with self._answers.reading(self.choices[0].request) as reader:
                async for chunks in _arriving(self.choices[0], reader):
                    yield [(0, chunk) for chunk in chunks]
            return
        arrived: asyncio.Queue[_Arrived] = asyncio.Queue()
        tasks = [
            asyncio.ensure_future(self._follow(i, choice, arrived))
            for i, choice in enumerate(self.choices)
        ]
        try:
            n_running = len(tasks)
            while n_running:
                each = await arrived.get()
                if each.error is not None:
                    raise each.error
                if each.chunks:
                    yield [(each.index, chunk) for chunk in each.chunks]
                else:
                    n_running -= 1
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, index: int, choice: Choice, arrived: asyncio.Queue[_Arrived]) -> None:
        try:
            with self._answers.reading(choice.request) as reader:
                async for chunks in _arriving(choice, reader):
                    arrived.put_nowait(_Arrived(index, chunks))
            arrived.put_nowait(_Arrived(index))
        except Exception as error:  # for the stream
            arrived.put_nowait(_Arrived(index, error=error))


@dataclass(frozen=True, slots=True)
class _Arrived:
    """News of a choice: chunks, an error, or neither at its end."""

    index: int
    chunks: list[dict[str, Any]] = field(default_factory=list)
    error: Exception | None = None


def _result(pieces: Sequence[Piece], form: Form) -> dict[str, Any]:
    if isinstance(form, OwnForm):
        return form.result(iter(pieces))
    made: dict[str, Any] = collect(iter(pieces), form)
    return made


async def _arriving(choice: Choice, reader: Reader) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The chunks of a choice, together as they have come; large ones each by itself, and those that
    came with an error before it."""
    chunks: list[dict[str, Any]] = []
    is_large = choice.n_told >= _MANY
    made = choice.form.chunks(choice.noted(reader.arrived()))
    while True:
        try:
            chunk = next(made, None)
        except Exception:
            if chunks:
                yield chunks
            raise
        if chunk is not None and chunk is not NO_CHUNK:
            chunks.append(chunk)
            if not is_large:
                continue
        if chunks:
            yield chunks
            chunks = []
        if chunk is None:
            return
        if chunk is NO_CHUNK:
            await reader.wait()
        else:
            await asyncio.sleep(0)  # others may do something between two of them


def check_answers(name: str, n_prompts: int, n: int) -> None:
    """Raise ApiError for a request of more answers than one may have: `n`, which the field `name`
    says, of each prompt."""
    if n_prompts * n > _MOST_ANSWERS:
        raise invalid(
            name,
            f"{name} is {n}: of {n_prompts} prompts that is {n_prompts * n} answers, there may be"
            f" {_MOST_ANSWERS}",
        )


async def start(
    call: Call, hosted: Hosted, make: Callable[[], Sequence[Made]], n: int = 1
) -> Generation:
    """The generation of requests that `make` prepares, each `n` times, when it is their turn.

    Raises ApiError, and what preparing the requests raises.
    """

    arrived_s = perf_counter()

    def note(timings: AnswerTimings, reason: str) -> None:
        call.note(hosted.name, timings, perf_counter() - arrived_s, reason)

    engine = hosted.llm.llama.engine
    run = read_run(call.body, call.settings.defaults, engine.context.sizes.n_seq_max)

    def prepare() -> list[Choice]:
        made = [(replace(request, **run), form) for request, form in make()]
        if run["n_discard"]:  # which decides whether a window can be shifted
            for request, _ in made:
                engine.check(request)
        return [Choice(seeded(request, i), form, note) for request, form in made for i in range(n)]

    choices = await call.in_pool(prepare)
    n_at_once = len(choices)
    if "slot" in run:  # where one runs after another
        n_at_once = 1
        await call.stack.enter_async_context(hosted.gate.slot(run["slot"]))
    await call.stack.enter_async_context(hosted.gate.admitted(call.client, n_at_once))
    return Generation(call, hosted, choices)


def seeded(request: Request, i: int) -> Request:
    """The request of the i-th of several choices, whose draws differ from those of the others."""
    seed = request.sampling.seed
    if not i or seed is None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=(seed + i) % 2**32))
